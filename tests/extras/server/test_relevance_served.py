"""Relevance, verdicts and explanations over HTTP and from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import adacur
from adacur import Item, Query
from adacur.extras.server import ServerSettings, create_app
from tests.functional.commands import here
from tests.serving_world import world_index

WORDS = ("river", "harbour", "comet", "violin", "glacier", "lantern", "orchid")


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
        assert (told["id"], told["score"], told["round"]) == (hit["id"], hit["score"], hit["round"])
        assert told["first"][0]["name"] == "bm25"
        assert [set(one) for one in told["anchors"]] == [{"query", "likeness", "score", "rank"}] * 3


def test_effort_of_an_index_that_is_not_tuned_is_refused_with_the_remedy(client: TestClient) -> None:
    refused = client.post("/v1/search", json={"query": "a bridge", "effort": "auto"})
    assert refused.status_code == 422
    assert "adacur tune" in refused.json()["error"]["message"]


def score(pairs):
    return [len(set(query) & set(text)) + len(set(query.split()) & set(text.split())) for query, text in pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relevance") / "words.adacur"
    items = [Item(f"d{n}", f"the {WORDS[n % 7]} and the {WORDS[n % 5]} of town {n}") for n in range(80)]
    anchors = [Query(f"q{n}", f"a {WORDS[n % 7]} near {WORDS[n % 3]} {n}") for n in range(24)]
    adacur.build(items, anchors, scorer="tests.extras.server.test_relevance_served:score", path=path, progress=False)
    return path


def test_the_shell_shows_relevance_and_the_verdict(folder: Path) -> None:
    done = here("search", folder, "a comet near harbour", "-k", 3, "--budget", 20, "--allow-code")
    assert done.code == 0, done
    assert "relevance" in done.out
    assert "share of anchor queries whose best item scores lower" in done.err
    none = here(
        "search", folder, "a comet near harbour", "-k", 3, "--budget", 20, "--allow-code", "--min-score", 999, "--json"
    )
    answer = json.loads(none.out)
    assert (answer["hits"], answer["verdict"], answer["calls"]) == ([], "nothing found", 20)


def test_tune_draws_the_curve_and_the_shell_spends_by_it(folder: Path) -> None:
    tuned = here("tune", folder, "-k", 3, "--budget", 40)
    assert tuned.code == 0, tuned
    assert "mean calls" in tuned.out
    assert "auto" in tuned.out
    assert (folder / "versions/1/relevance.json").exists()
    spent = here(
        "search", folder, "a comet near harbour", "-k", 3, "--budget", 40, "--allow-code", "--effort", "auto", "--json"
    )
    assert spent.code == 0, spent
    assert 3 <= json.loads(spent.out)["calls"] <= 40
    refused = here("search", folder, "a comet", "-k", 3, "--budget", 40, "--allow-code", "--effort", "much")
    assert refused.code != 0
    assert "'auto'" in refused.err
