"""Every option of a search, through the command line and the server, against `index.search`.

The hosts of other libraries are in test_integrations.py, which reads the same table.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import adacur
from adacur.errors import AdacurError
from adacur.options import OPTIONS, SEARCH_OPTIONS
from adacur.search import search_options
from tests.extras.hosts.test_integrations import OPTIONS as EXAMPLES
from tests.functional.commands import here
from tests.host_world import QUERY, make_index, shared_words

TestClient = pytest.importorskip("fastapi.testclient").TestClient


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("options") / "index")


def found(rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(row["id"], pytest.approx(row["score"], abs=1e-6)) for row in rows]


def expected(path: Path, **options: Any) -> list[tuple[str, float]] | str:
    with adacur.load(path, scorer=shared_words, check=False) as index:
        try:
            hits = index.search(QUERY, 4, **search_options(index, **options))
        except AdacurError as error:
            return str(error)
        return list(zip(hits.ids, hits.scores.tolist(), strict=True))


def test_the_table_names_what_search_options_takes() -> None:
    parameters = inspect.signature(search_options).parameters.values()
    assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} == set(SEARCH_OPTIONS) == set(EXAMPLES)


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_the_command_line_gives_the_same_answer(path: Path, name: str) -> None:
    options, arguments = EXAMPLES[name], []
    for option, value in options.items():
        texts = [f"kind={one}" for one in value["kind"]] if option == "filter" else [str(value)]
        arguments += [part for text in texts for part in (f"--{option.replace('_', '-')}", text)]
    scorer = "tests.host_world:shared_words"
    ran = here("search", str(path), QUERY, "-k", "4", "--scorer", scorer, "--json", *arguments)
    wanted = expected(path, **options)
    if isinstance(wanted, str):
        assert wanted in ran.err
    else:
        assert found(ran.json()[0]["hits"]) == wanted != []


@pytest.mark.parametrize("name", [one.name for one in OPTIONS if one.in_requests or one.name in ("budget", "filter")])
def test_a_request_gives_the_same_answer(path: Path, name: str) -> None:
    from adacur.extras.server import ServerSettings, create_app

    options = dict(EXAMPLES[name])
    if name == "budget":
        options["budget"] = 7
    body = {key: value for key, value in options.items() if key not in ("filter", "price")}
    if name == "filter":
        body["filter"] = {"metadata": options["filter"]}
    price = {"price": options["price"]} if "price" in options else {}
    index = adacur.load(path, scorer=shared_words, check=False)
    with index, TestClient(create_app({"w": index}, settings=ServerSettings(**price))) as client:
        answer = client.post("/v1/search", json={"query": QUERY, "k": 4, **body})
    wanted = expected(path, **options)
    if isinstance(wanted, str):
        assert answer.status_code == 422
    else:
        assert found(answer.json()["results"][0]["hits"]) == wanted != []
