"""A server whose index learns from its searches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import adacur
from adacur.errors import InputError
from adacur.extras.server import ServerSettings, create_app
from adacur.extras.server.open_indexes import open_indexes
from tests.embedding_world import ITEMS, Encoder, Scorer


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("serving") / "index"
    options = {"first": ["dense"], "encoder": Encoder(), "progress": False, "tune": False}
    adacur.build(ITEMS, 0, scorer=Scorer(), path=path, **options).close()
    return path


def ask(client: TestClient, text: str) -> dict:
    return client.post("/v1/search", json={"query": text, "k": 5, "budget": 40}).raise_for_status().json()


def test_a_server_learns_from_its_searches_and_tells_how_far_it_is(empty, tmp_path):
    path = shutil.copytree(empty, tmp_path / "index")
    settings = ServerSettings(log_folder=str(tmp_path / "logs"), learn_every=10)
    indexes = open_indexes({"small": path}, scorer=Scorer(), encoder=Encoder(), settings=settings)
    with TestClient(create_app(indexes, settings=settings)) as client:
        (before,) = client.get("/v1/indexes").json()["indexes"]
        assert (before["n_anchors"], before["learning"]) == (0, {"every": 10, "refreshes": 0, "failed": 0})
        for at in range(10):
            ask(client, f"query {at}")
        assert indexes["small"].learning.wait(60)
        (after,) = client.get("/v1/indexes").json()["indexes"]
        assert (after["n_anchors"], after["version"]) == (10, 2)
        assert after["learning"]["refreshes"] == 1
        counted = client.get("/metrics").text
        assert 'adacur_refreshes_total{index="small",outcome="done"} 1.0' in counted
        assert ask(client, "query 44")["results"][0]["calls"] == 40
    assert indexes["small"].version == 2
    assert (tmp_path / "logs" / "small.sqlite").stat().st_mode & 0o077 == 0


def test_a_server_logs_no_search_and_does_not_learn_unless_told(empty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(empty, tmp_path / "index")
    settings = ServerSettings()
    indexes = open_indexes({"small": path}, scorer=Scorer(), encoder=Encoder(), settings=settings)
    with TestClient(create_app(indexes, settings=settings)) as client:
        ask(client, "query 41")
        assert client.get("/v1/indexes").json()["indexes"][0]["learning"] is None
    assert b"query 41" not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    with pytest.raises(InputError):
        ServerSettings(learn_every=10)
