"""The Haystack components in Haystack's hands: pipelines, files, filters and the life of what they open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline, default_from_dict
from haystack.components.joiners import DocumentJoiner
from haystack.document_stores.types import FilterPolicy

import adacur
from adacur import AnchorIndex
from adacur.errors import InputError
from adacur.extras.haystack import AdacurRetriever, items_of
from tests.host_world import QUERY, make_index, shared_words

SCORER = "tests.host_world:shared_words"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("haystack") / "small.adacur")


@pytest.fixture(scope="module")
def index(path: Path) -> Iterator[AnchorIndex]:
    with adacur.load(path, scorer=shared_words) as opened:
        yield opened


def pipeline_on(path: Path) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("retriever", AdacurRetriever(path, top_k=20, scorer=SCORER, budget=30, first="bm25"))
    pipeline.add_component("joiner", DocumentJoiner(top_k=2))
    pipeline.connect("retriever.documents", "joiner.documents")
    return pipeline


ASKED = {"retriever": {"query": QUERY}}


def test_a_pipeline_written_as_yaml_and_read_again_answers_the_same(path: Path, index: AnchorIndex) -> None:
    pipeline = pipeline_on(path)
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["adacur"])
    found = again.run(ASKED)["joiner"]["documents"]

    assert again.to_dict() == pipeline.to_dict()
    assert found == pipeline.run(ASKED)["joiner"]["documents"]
    assert [document.id for document in found] == list(index.search(QUERY, 20, budget=30, first="bm25").ids[:2])
    for one in (pipeline, again):
        one.close()


def test_every_option_survives_the_file(path: Path) -> None:
    options = {
        "path": str(path),
        "top_k": 3,
        "filters": {"field": "meta.year", "operator": "<", "value": 1520},
        "filter_policy": "merge",
        "scorer": SCORER,
        "encoder": "bge-small-en-v1.5",
        "cache": "scores.sqlite",
        "device": "cuda",
        "check": False,
        "budget": 30,
        "rounds": 4,
        "deadline": 2.5,
        "method": "adacur",
        "first": "bm25",
        "fuse": 0.5,
        "seed": 7,
    }
    written = AdacurRetriever(**options).to_dict()

    assert written == {"type": "adacur.extras.haystack.AdacurRetriever", "init_parameters": options}
    assert default_from_dict(AdacurRetriever, written).to_dict() == written


def test_objects_serve_in_python_and_are_refused_in_a_file(path: Path) -> None:
    retriever = AdacurRetriever(path, scorer=shared_words)

    assert retriever.run(QUERY, top_k=1)["documents"]
    with pytest.raises(InputError):
        retriever.to_dict()


class Closable:
    """A scorer that counts how often it is closed."""

    def __init__(self) -> None:
        self.scorer = adacur.scorers.FunctionScorer(shared_words)
        self.card = self.scorer.card
        self.closed = 0

    def score(self, pairs: Any) -> Any:
        return self.scorer.score(pairs)

    def close(self) -> None:
        self.closed += 1


def test_warming_up_twice_opens_once_and_a_run_after_closing_opens_again(path: Path) -> None:
    scorer = Closable()
    retriever = AdacurRetriever(path, scorer=scorer, check=False)
    retriever.warm_up()
    retriever.warm_up()
    before = retriever.run(QUERY)
    retriever.close()
    retriever.close()

    assert scorer.closed == 1
    assert retriever.run(QUERY) == before


def compared(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def combined(operator: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"operator": operator, "conditions": list(conditions)}


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        (compared("meta.year", "<=", 1510), lambda item: item.metadata["year"] <= 1510),
        (compared("meta.kind", "in", ["ship", "city"]), lambda item: item.metadata["kind"] in ("ship", "city")),
        (compared("id", "in", ["item-3", "item-9"]), lambda item: item.id in ("item-3", "item-9")),
        (
            combined(
                "AND",
                compared("meta.year", ">", 1510),
                combined("OR", compared("meta.kind", "==", "ship"), compared("meta.kind", "==", "city")),
                combined("NOT", compared("meta.year", ">", 1540)),
            ),
            lambda item: 1510 < item.metadata["year"] <= 1540 and item.metadata["kind"] in ("ship", "city"),
        ),
        ({}, lambda item: True),
    ],
    ids=["compare", "in", "id", "and or not", "none"],
)
def test_filters_mean_what_haystack_says(
    path: Path, index: AnchorIndex, filters: dict[str, Any], passes: Callable[[Any], bool]
) -> None:
    retriever = AdacurRetriever(path, top_k=60, scorer=shared_words, method="exact")
    found = retriever.run(QUERY, filters=filters)["documents"]

    assert [document.id for document in found] == list(index.search(QUERY, 60, method="exact", filter=passes).ids)


def test_filters_of_a_run_replace_those_of_the_component_or_join_them(path: Path) -> None:
    def years(policy: str | FilterPolicy) -> set[int]:
        own = compared("meta.kind", "==", "ship")
        retriever = AdacurRetriever(path, 60, own, policy, scorer=shared_words, method="exact")
        found = retriever.run(QUERY, filters=compared("meta.year", "<", 1508))["documents"]
        return {document.meta["year"] for document in found}

    assert years("replace") == years(FilterPolicy.REPLACE) == set(range(1500, 1508))
    assert years("merge") == years(FilterPolicy.MERGE) == {1503, 1507}
    with pytest.raises(ValueError, match="sometimes"):
        years("sometimes")


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "meta.year", "operator": "~", "value": 3},
        {"operator": "AND"},
        {"field": "meta.kind", "operator": ">", "value": "ship"},
    ],
)
def test_a_filter_that_cannot_be_applied_is_refused(path: Path, filters: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        AdacurRetriever(path, scorer=shared_words).run(QUERY, filters=filters)


def test_a_document_without_a_text_does_not_become_an_item() -> None:
    with pytest.raises(InputError):
        items_of([Document(id="picture")])
