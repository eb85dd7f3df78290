"""Relevance, verdicts and explanations over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from adacur.extras.server import ServerSettings, create_app
from tests.serving_world import world_index


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app({"world": world_index()}, settings=ServerSettings()))


def found(client: TestClient, **body) -> dict:
    answer = client.post("/v1/search", json={"query": "a bridge and a comet", "k": 5, "budget": 40, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def test_an_answer_has_a_verdict_and_hits_a_relevance_as_in_python(client: TestClient) -> None:
    result = found(client)
    hits = world_index().search("a bridge and a comet", 5, budget=40)
    assert (result["verdict"], result["relevance_by"]) == (hits.verdict, "anchors")
    assert [hit["relevance"] for hit in result["hits"]] == pytest.approx(hits.relevance.tolist())
    assert "explanation" not in result["hits"][0]


def test_hits_below_a_floor_are_left_out(client: TestClient) -> None:
    least = found(client)["hits"][2]["score"]
    assert len(found(client, min_score=least)["hits"]) >= 3
    assert all(hit["score"] >= least for hit in found(client, min_score=least)["hits"])
    empty = found(client, min_score=1e9)
    assert (empty["hits"], empty["verdict"]) == ([], "nothing found")
    refused = client.post("/v1/search", json={"query": "a bridge", "min_relevance": 1.5})
    assert refused.status_code == 422
    assert "min_relevance" in refused.json()["error"]["message"]


def test_hits_are_explained_on_request(client: TestClient) -> None:
    for hit in found(client, explain=True)["hits"]:
        told = hit["explanation"]
        assert told["id"] == hit["id"]
        assert told["first"][0]["name"] == "bm25"
        assert [set(one) for one in told["anchors"]] == [{"query", "likeness", "score", "rank"}] * 3


def test_effort_of_an_index_that_is_not_tuned_is_refused_with_the_remedy(client: TestClient) -> None:
    refused = client.post("/v1/search", json={"query": "a bridge", "effort": "auto"})
    assert refused.status_code == 422
    assert "adacur tune" in refused.json()["error"]["message"]
