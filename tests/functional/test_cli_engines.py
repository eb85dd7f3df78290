"""Vector engines on the command line: export, search there, search a collection as it is, build from one, serve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.functional.test_cli import here

pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")

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
    """A folder with a scorer, an encoder, and an index that was exported to an engine."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "engine_scorers.py").write_text(MODULE)
    things = ("river", "harbour", "comet", "violin", "glacier")
    rows = [
        {
            "_id": f"d{i}",
            "text": f"The {things[i % 5]} by the old {things[i * i % 4]}, number {i}.",
            "parity": i % 2,
        }
        for i in range(60)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = here(
        "build", "items.jsonl", "i.adacur", *SCORED, *ENCODED, "-n", 8, "--first", "dense", "--no-tune", cwd=folder
    )
    assert ran.code == 0, ran.err
    ran = here("index", "export", "i.adacur", store(folder), *ENCODED, "--trust", cwd=folder)
    assert ran.code == 0, ran.err
    assert "60 items" in ran.out
    return folder


def store(folder: Path) -> str:
    return f"qdrant-edge://{folder.as_posix()}/engine/things"


def test_an_exported_index_is_searched_in_the_engine(shop: Path) -> None:
    options = (QUESTION, "-k", 3, "--budget", 20, "--first", "dense", *SCORED, *ENCODED, "--json")
    there = here("search", "i.adacur", *options, "--store", store(shop), cwd=shop)
    assert there.code == 0, there.err
    memory = here("search", "i.adacur", *options, cwd=shop)
    (found,), (expected,) = there.json(), memory.json()
    assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in expected["hits"]]
    assert found["settings"]["engine"].startswith("qdrant-edge://")
    assert expected["settings"]["engine"] is None


def test_a_filter_by_metadata_holds_in_the_engine_and_here(shop: Path) -> None:
    options = (QUESTION, "-k", 5, "--budget", 20, *SCORED, *ENCODED, "--filter", "parity=1", "--json")
    for more in ((), ("--store", store(shop))):
        ran = here("search", "i.adacur", *options, *more, cwd=shop)
        assert ran.code == 0, ran.err
        assert {hit["metadata"]["parity"] for hit in ran.json()[0]["hits"]} == {1}


def test_inspect_names_where_an_index_was_exported_to(shop: Path) -> None:
    ran = here("inspect", "i.adacur", "--json", cwd=shop)
    assert ran.json()[0]["exported"] == [store(shop)]
    assert here("index", "verify", "i.adacur", cwd=shop).code == 0


def test_a_collection_is_searched_as_it_is(shop: Path) -> None:
    folder = next((shop / "engine").glob("things--*"))
    # It has two vectors; the encoder's size tells which is meant.
    url = f"qdrant-edge://{folder.as_posix()}"
    ran = here("search", url, QUESTION, "-k", 3, "--budget", 20, *SCORED, *ENCODED, "--json", cwd=shop)
    assert ran.code == 0, ran.err
    (answer,) = ran.json()
    assert answer["calls"] == 20
    assert len(answer["hits"]) == 3


def test_an_index_is_built_from_a_collection(shop: Path) -> None:
    folder = next((shop / "engine").glob("things--*"))
    ran = here(
        "build", f"qdrant-edge://{folder.as_posix()}", "from.adacur", *SCORED, "-n", 4, "--no-tune", "--json", cwd=shop
    )
    assert ran.code == 0, ran.err
    assert ran.json()[0]["items"] == 60


def test_urls_that_lead_nowhere_are_refused_in_one_line(shop: Path) -> None:
    here("index", "export", "i.adacur", "qdrnt://host/x", *ENCODED, "--trust", cwd=shop).refused("qdrant://")
    here("search", "i.adacur", "q", *SCORED, "--store", f"qdrant-edge://{shop}/nowhere", cwd=shop).refused(
        "has not been exported", "adacur index export"
    )
    here("search", f"qdrant-edge://{shop}/nowhere", "q", *SCORED, cwd=shop).refused("nowhere")


def test_an_engine_is_served(shop: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serving is not installed")
    from fastapi.testclient import TestClient

    from adacur.serving import create_app
    from adacur.serving.opening import named_places, open_indexes

    folder = next((shop / "engine").glob("things--*"))
    places = named_places([f"as_it_is=qdrant-edge://{folder.as_posix()}"])
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
        both = {"query": QUESTION, "filter": {"metadata": {"parity": 1}, "ids": ["d1"]}}
        assert client.post("/v1/search", json=both).status_code == 422
        assert client.get("/v1/indexes").status_code == 200
    indexes["as_it_is"].close()


def test_an_exported_index_is_served_and_becomes_ready(shop: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serving is not installed")
    import time

    from fastapi.testclient import TestClient

    from adacur.serving import create_app
    from adacur.serving.opening import open_indexes

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(shop))
        indexes = open_indexes(
            {"things": shop / "i.adacur"},
            scorer="engine_scorers:score",
            encoder="engine_scorers:Letters",
            store=store(shop),
        )
    with TestClient(create_app(indexes), base_url="http://127.0.0.1") as client:
        for _ in range(100):
            if client.get("/readyz").status_code == 200:
                break
            time.sleep(0.1)
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/search", json={"query": QUESTION, "k": 3, "budget": 20})
        assert len(answer.json()["results"][0]["hits"]) == 3
        (described,) = client.get("/v1/indexes").json()["indexes"]
        assert described["methods"] == ["gaussian", "rerank"]
        assert client.get("/v1/indexes/things/recall").status_code == 404
    indexes["things"].close()
