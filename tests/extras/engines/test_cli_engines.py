"""Vector engines on the command line: a collection is searched where it is, built from, and served."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from adacur.records import Item
from tests.engine_tables import InLanceDB
from tests.functional.test_cli import here

pytest.importorskip("lancedb", reason="the extra lancedb is not installed")

QUESTION = "which river runs by the old harbour?"
SCORED = ("--scorer", "engine_scorers:score")
ENCODED = ("--encoder", "engine_scorers:Letters")
MODULE = """
import zlib
import numpy as np
from adacur.first_stages import EncoderCard

def score(pairs):
    return [len(set(query.split()) & set(text.split())) + zlib.crc32((query + text).encode()) / 2**32
            for query, text in pairs]

class Letters:
    dimension = 32
    card = EncoderCard(kind="letters", dimension=32, weights="v1")

    def encode_items(self, texts):
        rows = np.zeros((len(texts), 32), dtype=np.float32)
        for row, text in enumerate(texts):
            for pair in zip(text.lower(), text.lower()[1:]):
                rows[row, zlib.crc32("".join(pair).encode()) % 32] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    encode_queries = encode_items

Letters = Letters()
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scorer, an encoder, and a table in LanceDB."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "engine_scorers.py").write_text(MODULE)
    things = ("river", "harbour", "comet", "violin", "glacier")
    items = [
        Item(str(i), f"The {things[i % 5]} by the old {things[i * i % 4]}, number {i}.", {"parity": i % 2})
        for i in range(60)
    ]
    names: dict[str, Any] = {}
    exec(MODULE, names)
    vectors = {"dense": names["Letters"].encode_items([item.text for item in items])}
    InLanceDB(folder / "engine").filled("things", items, vectors).close()
    return folder


def store(folder: Path) -> str:
    return f"lancedb://{folder.as_posix()}/engine/things"


def test_a_collection_is_searched_where_it_is(shop: Path) -> None:
    options = (QUESTION, "-k", 3, "--budget", 20, *SCORED, *ENCODED, "--filter", "parity=1", "--json")
    ran = here("search", store(shop), *options, cwd=shop)
    assert ran.code == 0, ran.err
    (answer,) = ran.json()
    assert answer["settings"]["engine"] == store(shop)
    assert (answer["calls"], len(answer["hits"])) == (20, 3)
    assert {hit["metadata"]["parity"] for hit in answer["hits"]} == {1}


def test_an_index_is_built_from_a_collection(shop: Path) -> None:
    ran = here("build", store(shop), "from.adacur", *SCORED, "-n", 4, "--no-tune", "--json", cwd=shop)
    assert ran.code == 0, ran.err
    assert ran.json()[0]["items"] == 60


def test_urls_that_lead_nowhere_are_refused_in_one_line(shop: Path) -> None:
    here("search", "qdrnt://host/x", "q", *SCORED, cwd=shop).refused("qdrnt")
    here("search", f"lancedb://{shop}/nowhere/x", "q", *SCORED, cwd=shop).refused("nowhere")


def test_an_engine_is_served(shop: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serving is not installed")
    from fastapi.testclient import TestClient

    from adacur.extras.server import create_app
    from adacur.extras.server.open_indexes import named_places, open_indexes

    places = named_places([f"as_it_is={store(shop)}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(shop))
        indexes = open_indexes(places, scorer="engine_scorers:score", encoder="engine_scorers:Letters")
    with TestClient(create_app(indexes), base_url="http://127.0.0.1") as client:
        body = {"query": QUESTION, "k": 3, "budget": 20, "trace": True, "filter": {"metadata": {"parity": 1}}}
        answer = client.post("/v1/search", json=body)
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["results"]
        assert found["calls"] == 20
        assert all(hit["metadata"]["parity"] == 1 for hit in found["hits"])
        assert len(found["trace"][0]["items"]) > 0
        # Before anything is paid for.
        for path, asked in (("/v1/search", {"query": QUESTION}), ("/v1/find", {"query": QUESTION, "above": 0.0})):
            for refused in ({"filter": {"metadata": {"parity": 1}, "ids": ["1"]}}, {"explain": True}):
                answer = client.post(path, json=asked | refused)
                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
        (described,) = client.get("/v1/indexes").json()["indexes"]
        assert described["methods"] == ["gaussian", "rerank", "first"]
        assert client.get("/v1/indexes/as_it_is/recall").status_code == 404
        for _ in range(100):
            if client.get("/readyz").status_code == 200:
                break
            time.sleep(0.1)
        assert client.get("/readyz").status_code == 200
    indexes["as_it_is"].close()
