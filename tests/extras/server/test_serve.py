"""The server in this process: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from adacur import AnchorIndex, Gaussian, Item
from adacur.extras.server import ServerSettings, create_app, indexes
from adacur.extras.server.running import server_log
from adacur.scorers import FunctionScorer
from adacur.search import METHODS
from tests.rerank_servers import logit_of
from tests.serving_world import N_ITEMS, TextScorer, serving, world_index


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app({"small": world_index(), "other": world_index()})) as client:
        yield client


def settings(**options: Any) -> ServerSettings:
    return ServerSettings(**options)


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    return [(name, json.loads(data)) for name, data in found]


def error_of(response: httpx.Response) -> str:
    body = response.json()
    assert set(body["error"]) == {"code", "message"}
    # As LlamaIndex's JinaRerank reads it.
    assert body["detail"] == body["error"]["message"]
    assert body["error"]["message"]
    assert "Traceback" not in response.text
    return str(body["error"]["code"])


def test_a_search_over_http_finds_what_a_search_in_python_finds(client):
    asked = {"query": "a ship near an island", "k": 4, "budget": 40, "seed": 3, "trace": True}
    answer = client.post("/v1/search", json=asked).json()
    hits = world_index().search("a ship near an island", 4, budget=40, method=Gaussian(seed=3))
    (found,) = answer["results"]
    assert answer["index"] == "small"
    assert [(hit["id"], hit["score"], hit["round"]) for hit in found["hits"]] == [
        (hit.id, hit.score, hit.round) for hit in hits
    ]
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3, 4]
    assert found["hits"][0]["metadata"]["title"] == hits[0].item.metadata["title"]
    assert found["calls"] == 40
    assert found["stopped"] == "budget"
    assert [one["calls"] for one in found["trace"]] == np.cumsum(hits.trace.settings["batch_sizes"]).tolist()
    assert all(
        item["exact"]
        == logit_of(
            "a ship near an island", world_index().items.at(world_index().items.positions([item["id"]]))[0].text
        )
        for item in found["trace"][0]["items"]
    )


def test_the_first_stage_alone_is_served_without_a_call_streamed_or_not(client):
    asked = {"query": "a ship near an island", "k": 4, "method": "first", "first": "bm25"}
    (found,) = client.post("/v1/search", json=asked).json()["results"]
    assert [hit["id"] for hit in found["hits"]] == list(
        world_index().search(asked["query"], 4, method="first", first="bm25").ids
    )
    assert (found["calls"], found["verdict"]) == (0, None)
    told = events(client.post("/v1/search", json=asked | {"stream": True}).text)
    assert [name for name, _ in told] == ["start", "done"]
    assert told[-1][1]["hits"] == found["hits"]


def test_several_queries_are_answered_in_order_and_as_alone(client):
    asked = ["a bird", "a comet", "a bridge"]
    together = client.post("/v1/search", json={"queries": asked, "k": 3, "budget": 20}).json()["results"]
    alone = [client.post("/v1/search", json={"query": one, "k": 3, "budget": 20}).json()["results"][0] for one in asked]
    assert [one["query"] for one in together] == asked
    assert [one["hits"] for one in together] == [one["hits"] for one in alone]


def test_a_stream_tells_every_round_and_ends_with_the_answer(client):
    asked = {"query": "a battle", "k": 5, "budget": 30}
    plain = client.post("/v1/search", json=asked).json()["results"][0]
    response = client.post("/v1/search", json=asked, headers={"Accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream")
    told = events(response.text)
    assert [name for name, _ in told] == ["start", *["round"] * (len(told) - 2), "done"]
    start, rounds, done = told[0][1], [data for name, data in told if name == "round"], told[-1][1]
    assert (start["index"], start["n_items"], start["k"], start["budget"]) == ("small", N_ITEMS, 5, 30)
    assert start["settings"]["first"] == "bm25"
    assert [one["number"] for one in rounds] == list(range(1, len(rounds) + 1))
    assert [one["calls"] for one in rounds] == np.cumsum([len(one["items"]) for one in rounds]).tolist()
    assert rounds[0]["items"][0]["title"].startswith("Title ")
    # What the first stage chose was scored unseen; the method predicts what it asks for afterwards.
    assert {item["predicted"] for item in rounds[0]["items"]} == {None}
    assert all(isinstance(item["predicted"], float) for item in rounds[-1]["items"])
    assert rounds[0]["expected_recall"] is None
    assert rounds[-1]["hits"] == done["hits"] == plain["hits"]
    assert done["calls"] == plain["calls"]
    assert done["index"] == "small"


def test_the_budget_is_a_wall_over_http_too():
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)})) as client:
        for budget in (1, 7, 50):
            before = scorer.pairs
            found = client.post("/v1/search", json={"query": "a ship", "k": 1, "budget": budget}).json()["results"][0]
            assert found["calls"] == scorer.pairs - before == budget


@pytest.mark.parametrize(
    ("filter_", "allows"),
    [
        ({"ids": ["i3", "i5", "i8"]}, lambda at: at in (3, 5, 8)),
        ({"metadata": {"even": True}}, lambda at: at % 2 == 0),
        ({"metadata": {"group": [0, 2], "even": False}}, lambda at: at % 3 in (0, 2) and at % 2),
        ({"metadata": {"tags": "ship"}}, lambda at: at % 11 == 2),
        ({"ids": ["i3", "i4"], "metadata": {"even": True}}, lambda at: at == 4),
    ],
)
def test_a_filter_keeps_to_what_it_allows(client, filter_, allows):
    asked = {"query": "a river", "k": 50, "budget": 150, "filter": filter_}
    found = client.post("/v1/search", json=asked).json()["results"][0]["hits"]
    assert found
    wanted = sorted(at for at in range(N_ITEMS) if allows(at))[:]
    assert {int(hit["id"][1:]) for hit in found} <= set(wanted)
    assert len(found) == min(50, len(wanted))


@pytest.mark.parametrize("path", ["/v1/search", "/v1/find"])
def test_true_is_not_one_in_a_filter_and_a_filter_may_leave_nothing(client, path):
    asked = {"query": "a river", "filter": {"metadata": {"even": 1}}} | ({"above": 0.0} if "find" in path else {})
    (found,) = client.post(path, json=asked).json()["results"]
    assert (found["hits"], found["calls"], found["stopped"]) == ([], 0, "exhausted")
    told = events(client.post(path, json=asked | {"stream": True}).text)
    assert [name for name, _ in told] == ["start", "done"]
    assert told[1][1]["hits"] == []


def test_who_asks_for_nothing_special_stays_within_the_limits():
    with TestClient(create_app({"w": world_index()}, settings=settings(max_budget=7))) as client:
        found = client.post("/v1/search", json={"query": "a ship"}).json()["results"][0]
        assert (found["calls"], len(found["hits"])) == (7, 7)
        schema = client.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"]
        assert (schema["budget"]["default"], schema["k"]["default"]) == (7, 7)
    with TestClient(create_app({"w": world_index()}, settings=settings(max_k=2))) as client:
        found = client.post("/v1/search", json={"query": "a ship"}).json()["results"][0]
        assert (found["calls"], len(found["hits"])) == (100, 2)


@pytest.mark.parametrize("budget", [{}, {"budget": None}])
def test_a_find_that_names_no_budget_stays_within_the_limit(budget):
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)}, settings=settings(max_budget=20))) as client:
        asked = {"query": "a ship", "above": -100.0, **budget}
        assert client.post("/v1/find", json=asked).json()["results"][0]["calls"] == scorer.pairs == 20
        # A recall of 1 takes all items.
        assert client.post("/v1/find", json=asked | {"recall": 1}).status_code == 422
    assert scorer.pairs == 20


def test_exact_search_needs_no_budget_and_keeps_the_limit(client):
    found = client.post("/v1/search", json={"query": "a ship", "method": "exact", "k": 3}).json()["results"][0]
    assert found["calls"] == N_ITEMS
    with TestClient(create_app({"w": world_index()}, settings=settings(max_budget=N_ITEMS - 1))) as strict:
        response = strict.post("/v1/search", json={"query": "a ship", "method": "exact", "k": 3})
        assert (response.status_code, error_of(response)) == (422, "budget_over_limit")
        few = {"query": "a ship", "method": "exact", "k": 1, "filter": {"ids": ["i1", "i2"]}}
        assert strict.post("/v1/search", json=few).json()["results"][0]["calls"] == 2


def test_a_deadline_returns_what_was_found_by_then():
    with TestClient(create_app({"w": world_index(TextScorer(seconds=0.05))})) as client:
        asked = {"query": "a ship", "k": 1, "budget": 100, "rounds": 50, "deadline_ms": 200}
        found = client.post("/v1/search", json=asked).json()["results"][0]
    assert found["stopped"] == "deadline"
    assert 0 < found["calls"] < 100
    assert found["hits"]


def test_the_time_of_a_request_ends_with_what_was_found_or_with_504():
    scorer = TextScorer(seconds=0.1)
    with TestClient(create_app({"w": world_index(scorer)}, settings=settings(seconds=0.35))) as client:
        found = client.post("/v1/search", json={"query": "a ship", "k": 1, "rounds": 50}).json()["results"][0]
        assert found["stopped"] == "deadline"
        assert 0 < found["calls"] < 100
        scorer.seconds = 1.0
        response = client.post("/v1/search", json={"query": "a ship", "k": 1, "rounds": 50})
        assert (response.status_code, error_of(response)) == (504, "out_of_time")
        response = client.post("/v1/rerank", json={"query": "a ship", "documents": ["a"]})
        assert (response.status_code, error_of(response)) == (504, "out_of_time")


BAD_BODIES: list[tuple[Any, int, str]] = [
    ("{", 400, "malformed_json"),
    ("", 422, "invalid_request"),
    ('{"query": "a", "k": NaN}', 422, "invalid_request"),
    ('{"query": "a", "fuse": 1e999}', 422, "invalid_request"),
    ("[" * 100_000, 400, "malformed_json"),
    ('{"query": "a", "k": ' + "9" * 5000 + "}", 400, "malformed_json"),
    (b'{"query": "\xff"}', 400, "malformed_json"),
    ("[]", 422, "invalid_request"),
    ({}, 422, "invalid_request"),
    ({"query": "a", "queries": ["b"]}, 422, "invalid_request"),
    ({"queries": []}, 422, "invalid_request"),
    ({"query": ""}, 422, "invalid_request"),
    ({"query": 3}, 422, "invalid_request"),
    ({"query": "a", "k": "10"}, 422, "invalid_request"),
    ({"query": "a", "k": True}, 422, "invalid_request"),
    ({"query": "a", "k": 0}, 422, "invalid_request"),
    ({"query": "a", "k": 20, "budget": 10}, 422, "budget"),
    ({"query": "a", "k": 1001, "budget": 1000}, 422, "k_over_limit"),
    ({"query": "a", "budget": 10**30}, 422, "budget_over_limit"),
    ({"query": "a", "rounds": 101}, 422, "rounds_over_limit"),
    ({"query": "a", "deadline_ms": 60_001}, 422, "deadline_ms_over_limit"),
    ({"query": "a" * 4001}, 422, "text_too_long"),
    ({"queries": ["a"] * 33}, 422, "queries_over_limit"),
    ({"queries": ["a"], "stream": True}, 422, "invalid_request"),
    ({"query": "a", "method": "magic"}, 422, "invalid_request"),
    ({"query": "a", "method": "rerank", "first_batch": 0.9}, 422, "bad_input"),
    ({"query": "a", "method": "anncur", "split": 1.5}, 422, "budget"),
    ({"query": "a", "method": "rerank", "first_batch": 0.9, "stream": True}, 422, "bad_input"),
    ({"query": "a", "first": "nothing"}, 422, "unknown_name"),
    ({"query": "a", "colour": "blue"}, 422, "invalid_request"),
    ({"query": "a", "seed": -1}, 422, "invalid_request"),
    ({"query": "a", "filter": {"ids": ["nobody"]}}, 422, "unknown_name"),
    ({"query": "a", "filter": {"ids": []}}, 422, "invalid_request"),
    ({"query": "a", "filter": {"metadata": {"even": {"$gt": 1}}}}, 422, "invalid_request"),
    ({"query": "a", "index": "nobody"}, 404, "unknown_index"),
    ('{"query": "\\ud800"}', 422, "invalid_request"),
    ('{"\\ud800": 1, "query": "a"}', 422, "invalid_request"),
    ('{"query": "a", "k": ' + "[" * 150 + "]" * 150 + "}", 422, "invalid_request"),
    ({"query": "a", "filter": {"ids": ["i1"] * 10_001}}, 422, "ids_over_limit"),
    ({"query": "a", "filter": {"metadata": {"a": [1] * 5001, "b": [2] * 5000}}}, 422, "metadata_over_limit"),
    ({"query": "a", "filter": {"metadata": {str(at): 1 for at in range(101)}}}, 422, "metadata_over_limit"),
    ({"query": "a", "index": "ab" * 1000}, 422, "text_too_long"),
    ('{"query": "a", "filter": {"ids": ["\\udfff"]}}', 422, "unknown_name"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD_BODIES)
def test_a_body_that_cannot_be_used_is_refused_clearly(client, body, status, code):
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    response = client.post("/v1/search", content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, error_of(response)) == (status, code), response.text
    assert client.post("/v1/search", json={"query": "a ship", "k": 1, "budget": 5}).status_code == 200


PLACES = {
    "queries": ("/v1/search", 32, lambda values: {"queries": values}),
    "filter.ids": ("/v1/search", 10_000, lambda values: {"query": "a", "filter": {"ids": values}}),
    "filter.metadata": ("/v1/search", 10_000, lambda values: {"query": "a", "filter": {"metadata": {"a": values}}}),
    "documents": ("/v1/rerank", 1000, lambda values: {"query": "a", "documents": values}),
}


def n_faults(response: httpx.Response) -> int:
    message = response.json()["error"]["message"]
    more = re.search(r"\((\d+) more\)", message)
    return message.count("; ") + 1 + (int(more[1]) if more else 0)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_that_is_too_long_is_told_with_the_limit(client, place):
    path, limit, body = PLACES[place]
    response = client.post(path, json=body(["a"] * 10_001))
    assert (response.status_code, error_of(response)) == (422, f"{place.split('.')[-1].split()[-1]}_over_limit")
    assert str(limit) in response.json()["error"]["message"]
    assert n_faults(response) == 1


def test_unknown_fields_are_one_error_whatever_their_number(client):
    many = {str(at): None for at in range(10_000)}
    for body in (many, {"query": "a", **many}, {"query": "a", "filter": many}):
        response = client.post("/v1/search", json=body)
        assert (response.status_code, n_faults(response)) == (422, 1)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/search", {"query": "x", "budgt": 5}, ["budgt", "Did you mean 'budget'?"]),
        ("/v1/search", {"query": "x", "filter": {"lang": "en"}}, ["filter", "lang", "It takes ids and metadata."]),
        ("/v1/search", {"query": "x", "filter": {"id": ["a"]}}, ["filter", "id"]),
        ("/v1/search", {"query": " "}, ["query"]),
        ("/v1/search", {}, ["query", "queries"]),
        ("/v1/search", {"query": "x", "k": "ten"}, ["k", "integer"]),
        ("/v1/search", {"query": "x", "k": 0}, ["k", "1"]),
        ("/v1/rerank", {"documents": ["a"]}, ["query"]),
    ],
)
def test_a_refusal_names_the_field_and_the_rule(client, path, body, named):
    message = client.post(path, json=body).json()["error"]["message"]
    assert all(name in message for name in named), message


def test_a_model_that_is_not_served_is_told_with_those_that_are(client):
    asked = {"query": "a", "documents": ["b"]}
    near = client.post("/v1/rerank", json={**asked, "model": "smal"}).json()["error"]["message"]
    assert "Did you mean 'small'?" in near
    foreign = client.post("/v1/rerank", json={**asked, "model": "rerank-v3.5"})
    assert foreign.status_code == 404
    assert "small" in foreign.json()["error"]["message"]


def test_a_body_that_does_not_say_that_it_is_json_is_refused(client):
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        response = client.post("/v1/search", content='{"query": "a"}', headers=headers)
        assert (response.status_code, error_of(response)) == (415, "not_json")
        assert "Content-Type: application/json" in response.text


@pytest.mark.parametrize(
    "path",
    [
        "/v1/indexes/nobody/recall",
        "/v1/indexes/%2e%2e/recall",
        "/v1/indexes/%2e%2e%2fsmall/recall",
        "/v1/indexes/small%00/recall",
        "/v1/indexes/%ed%a0%80/recall",
        "/v1/indexes/small/../other",
        "/etc/passwd",
    ],
)
def test_path_tricks_find_nothing(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert error_of(response) in ("unknown_index", "not_found")


def test_a_wrong_verb_is_refused_and_told_which_are_right(client):
    response = client.get("/v1/search")
    assert (response.status_code, error_of(response), response.headers["allow"]) == (405, "method_not_allowed", "POST")


def test_whoever_only_wants_the_head_gets_it(client):
    for path in ("/", "/healthz", "/metrics", "/openapi.json", "/v1/indexes", "/page/main.js"):
        head, whole = client.head(path), client.get(path)
        assert head.status_code == whole.status_code == 200
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert client.head("/v1/search").status_code == 405


def test_indexes_are_listed_with_what_they_can_be_asked_for(client):
    answer = client.get("/v1/indexes").json()
    assert [one["name"] for one in answer["indexes"]] == ["small", "other"]
    assert answer["default"] == "small"
    one = answer["indexes"][0]
    assert (one["n_items"], one["scorer"], one["default_first"]) == (N_ITEMS, "texts", "bm25")
    assert one["first_stages"] == ["bm25", "random"]
    assert one["methods"] == ["gaussian", "adacur", "anncur", "rerank", "first", "exact"]
    assert one["limits"]["budget"] == 1000
    for method in one["methods"]:
        assert client.post("/v1/search", json={"query": "a", "method": method, "k": 2}).status_code == 200


def test_recall_against_budget_is_measured_without_a_scorer_call():
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)})) as client:
        url = "/v1/indexes/w/recall?k=5"
        first = client.get(url)
        for _ in range(1000):
            response = client.get(url)
            if response.status_code == 200:
                break
            assert (response.status_code, response.json()["state"]) == (202, "computing")
            assert int(response.headers["retry-after"]) > 0
            time.sleep(0.01)
        assert first.status_code in (200, 202)
        curve = response.json()
        assert (curve["k"], curve["method"], curve["first"], curve["n_queries"]) == (5, "gaussian", "bm25", 24)
        assert [point["budget"] for point in curve["points"]] == [5, 10, 20, 50, 100, 150]
        assert all(point["low"] <= point["recall"] <= point["high"] for point in curve["points"])
        assert scorer.calls == []
        # A search that covers all items finds all.
        assert curve["points"][0]["recall"] < curve["points"][-1]["recall"] == 1


def test_recall_that_cannot_be_had_is_told_with_the_reason(client):
    assert error_of(client.get("/v1/indexes/small/recall?k=900")) == "no_recall"
    assert error_of(client.get("/v1/indexes/small/recall?k=0")) == "invalid_request"
    assert error_of(client.get("/v1/indexes/small/recall?method=magic")) == "invalid_request"
    assert error_of(client.get("/v1/indexes/small/recall?first=bm52")) == "unknown_name"
    bare = AnchorIndex.from_items(world_index().items, scorer=TextScorer())
    with TestClient(create_app({"bare": bare})) as other:
        response = other.get("/v1/indexes/bare/recall")
        assert (response.status_code, error_of(response)) == (404, "no_recall")
        assert other.get("/v1/indexes").json()["indexes"][0]["methods"] == ["rerank", "first", "exact"]


DOCUMENTS = ["a ship on a river", "a painter", "an island", "a ship"]


def test_rerank_scores_the_documents_it_is_given_exactly(client):
    answer = client.post("/v1/rerank", json={"query": "a ship", "documents": DOCUMENTS, "model": "small"}).json()
    logits = [logit_of("a ship", text) for text in DOCUMENTS]
    order = sorted(range(4), key=lambda at: -logits[at])
    assert [one["index"] for one in answer["results"]] == order
    assert [one["document"]["text"] for one in answer["results"]] == [DOCUMENTS[at] for at in order]
    chances = [1 / (1 + np.exp(-logits[at])) for at in order]
    assert np.allclose([one["relevance_score"] for one in answer["results"]], chances)
    assert answer["usage"]["scored_pairs"] == 4
    assert answer["model"] == "texts"
    raw = client.post("/v1/rerank", json={"query": "a ship", "documents": DOCUMENTS, "raw_scores": True}).json()
    assert [one["relevance_score"] for one in raw["results"]] == [logits[at] for at in order]


def test_clients_that_know_no_version_re_rank_at_the_root_and_learn_which_models_there_are(client):
    asked = {"query": "a ship", "documents": DOCUMENTS}
    named, bare = (client.post(path, json=asked).json() for path in ("/v1/rerank", "/rerank"))
    assert bare == named
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [one["id"] for one in listed["data"]] == [one["name"] for one in client.get("/v1/indexes").json()["indexes"]]
    for model in [one["id"] for one in listed["data"]]:
        assert client.post("/rerank", json={**asked, "model": model}).status_code == 200


def test_a_rerank_returns_what_is_asked_for_and_equal_scores_keep_their_order(client):
    documents = [{"text": text, "title": "more"} for text in DOCUMENTS]
    asked = {"model": "texts", "query": "a ship", "documents": documents, "top_n": 2, "return_documents": False}
    answer = client.post("/v1/rerank", json=asked).json()
    assert len(answer["results"]) == 2
    assert set(answer["results"][0]) == {"index", "relevance_score"}
    many = client.post("/v1/rerank", json={"query": "a ship", "documents": ["a ship"] * 3, "top_n": 99}).json()
    assert [one["index"] for one in many["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": "a", "documents": []}, 422, "invalid_request"),
        ({"query": "a"}, 422, "invalid_request"),
        ({"query": "", "documents": ["b"]}, 422, "invalid_request"),
        ({"query": "a", "documents": ["b"], "model": "gpt"}, 404, "unknown_model"),
        ({"query": "a", "documents": ["b"], "model": "ab" * 1000}, 422, "text_too_long"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, 422, "invalid_request"),
        ({"query": "a", "documents": ["b"] * 1001}, 422, "documents_over_limit"),
        ({"query": "a", "documents": ["b" * 100_001]}, 422, "text_too_long"),
        ({"query": "a", "documents": [3]}, 422, "invalid_request"),
        ({"query": "a", "documents": ["b"], "instruction": "find ships"}, 422, "invalid_request"),
    ],
)
def test_a_rerank_that_cannot_be_done_is_refused_clearly(client, body, status, code):
    response = client.post("/v1/rerank", json=body)
    assert (response.status_code, error_of(response)) == (status, code)


def test_a_scorer_that_fails_in_mid_search_leaves_what_was_found():
    scorer = TextScorer(fails_after=2)
    log = io.StringIO()
    with TestClient(create_app({"w": world_index(scorer)}, log=server_log(log))) as client:
        response = client.post("/v1/search", json={"query": "a ship", "k": 3, "budget": 50})
        assert (response.status_code, error_of(response)) == (502, "scorer_failed")
        body = response.json()
        assert body["calls"] == sum(scorer.calls[:2])
        assert len(body["hits"]) == 3
        assert "10.0.0.1" not in response.text

        scorer.calls.clear()
        told = events(client.post("/v1/search", json={"query": "a ship", "k": 3, "stream": True}).text)
        assert [name for name, _ in told] == ["start", "round", "round", "error"]
        assert told[-1][1]["error"]["code"] == "scorer_failed"
        assert told[-1][1]["hits"] == told[-2][1]["hits"]
        assert told[-1][1]["calls"] == told[-2][1]["calls"]

        scorer.calls.clear()
        response = client.post("/v1/search", json={"queries": ["a ship", "a bird"], "k": 3})
        assert (response.status_code, error_of(response)) == (502, "scorer_failed")
        assert len(response.json()["results"]) == 2

        response = client.post("/v1/rerank", json={"query": "a ship", "documents": ["a"]})
        assert (response.status_code, error_of(response)) == (502, "scorer_failed")
        scorer.fails_after = None
        assert client.post("/v1/search", json={"query": "a ship", "k": 3}).status_code == 200
    # What is kept from the client is in the log.
    assert log.getvalue().count("the secret address 10.0.0.1 is down") >= 3


def test_equal_queries_of_one_request_pay_once():
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)})) as client:
        before = scorer.pairs
        asked = ["a ship", "a bird", "a ship", "a ship"]
        body = client.post("/v1/search", json={"queries": asked, "k": 3, "budget": 20}).json()
        assert scorer.pairs - before == 2 * 20
        assert [(one["query"], one["calls"], len(one["hits"])) for one in body["results"]] == [
            (query, 20, 3) for query in asked
        ]
        assert body["results"][0] == body["results"][2] != body["results"][1]
        assert metric(client, 'adacur_searches_total{index="w",method="gaussian",stopped="budget"}') == 2


class Stop(BaseException):
    """What nobody expects of a scorer."""


STOPS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, Stop]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", ["shared", "apart", "awaited"])
def test_whatever_a_scorer_raises_the_server_goes_on_and_answers_the_request(stop, kind):
    def raises(pairs):
        raise stop

    async def awaited(pairs):
        raise stop

    scorer = TextScorer()
    scorer.score = raises  # type: ignore[method-assign]
    scorer.can_batch_callers = kind == "shared"
    if kind == "awaited":
        scorer.ascore = awaited  # type: ignore[attr-defined]
    with serving(create_app({"w": world_index(scorer)})) as url, httpx.Client(base_url=url, timeout=20) as client:
        for path, asked in (
            ("search", {"query": "a ship"}),
            ("search", {"query": "a ship", "stream": True}),
            ("rerank", {"query": "a ship", "documents": ["a"]}),
        ):
            assert "scorer_failed" in client.post(f"/v1/{path}", json=asked).text
        assert 'adacur_scorer_failures_total{scorer="texts"} 3.0' in client.get("/metrics").text
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("stop", STOPS)
def test_a_scorer_that_raises_when_it_is_opened_ends_nothing(stop):
    def opens():
        raise stop

    index = AnchorIndex(world_index().anchors, scorer=opens)
    with serving(create_app({"w": index})) as url, httpx.Client(base_url=url, timeout=20) as client:
        assert client.post("/v1/search", json={"query": "a ship"}).status_code >= 500
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200


class Terminal(io.StringIO):
    """A file that says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_a_traceback_shows_no_query_and_no_key(file):
    log = file()
    scorer = TextScorer(fails_after=0)
    app = create_app({"w": world_index(scorer)}, settings=settings(api_keys=("s3cr3t",)), log=server_log(log))
    with TestClient(app, headers={"X-API-Key": "s3cr3t"}) as client:
        client.post("/v1/search", json={"query": "a hidden question"})
        client.post("/v1/search", json={"query": "a hidden question", "stream": True})
        client.post("/v1/rerank", json={"query": "a hidden question", "documents": ["a hidden text"]})
    written = log.getvalue()
    assert written.count("Traceback") >= 3
    assert "hidden" not in written
    assert "s3cr3t" not in written


def test_an_error_that_nobody_thought_of_is_a_500_and_is_logged(monkeypatch):
    log = io.StringIO()
    with TestClient(create_app({"w": world_index()}, log=server_log(log))) as client:
        monkeypatch.setattr("adacur.extras.server.application.plan_of", lambda *_, **__: 1 / 0)
        response = client.post("/v1/search", json={"query": "a"})
        assert (response.status_code, error_of(response)) == (500, "internal")
        assert "division" not in response.text
        assert "ZeroDivisionError" in log.getvalue()
        assert response.headers["x-request-id"] in log.getvalue()


def test_keys_are_asked_for_where_something_can_be_spent():
    keys = settings(api_keys=("first-key", "second-key"))
    asked = {"query": "a", "k": 1}
    with TestClient(create_app({"w": world_index()}, settings=keys)) as client:
        for headers, code in (
            ({}, "key_needed"),
            ({"X-API-Key": "wrong"}, "wrong_key"),
            ({"Authorization": "Bearer first-ke"}, "wrong_key"),
            ({"Authorization": "Basic first-key"}, "key_needed"),
            ({"X-API-Key": b"\xff\xfe"}, "wrong_key"),
        ):
            for response in (
                client.post("/v1/search", json=asked, headers=headers),
                client.get("/v1/indexes", headers=headers),
                client.get("/metrics", headers=headers),
                client.get("/v1//indexes", headers=headers),
                client.get("/nowhere", headers=headers),
            ):
                assert (response.status_code, error_of(response)) == (401, code)
                assert response.headers["www-authenticate"] == "Bearer"
        for headers in ({"Authorization": "Bearer first-key"}, {"X-API-Key": "second-key"}):
            assert client.post("/v1/search", json=asked, headers=headers).status_code == 200
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert client.get(path).status_code in (200, 503)
        assert client.get("/openapi.json").json()["components"]["securitySchemes"]


def test_keys_are_asked_for_wherever_the_application_is_put():
    parent = Starlette(routes=[Mount("/page", create_app({"w": world_index()}, settings=settings(api_keys=("key",))))])
    with TestClient(parent) as client:
        assert client.get("/page/v1/indexes").status_code == 401
        assert client.get("/page/v1/indexes", headers={"X-API-Key": "key"}).status_code == 200
        assert client.get("/page/healthz").status_code == 200
        assert client.get("/page/page/main.js").status_code == 200


LOOPBACK = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.8.9.1"]


async def status_of(app: Any, host: str | None, *, arrived_at: str) -> tuple[int, Any]:
    """Status and body of GET /healthz with this Host, over a connection to this address."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if host is None else [(b"host", host.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "raw_path": b"/healthz",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 5000),
        "server": (arrived_at, 8000),
    }
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("arrived_at", LOOPBACK)
async def test_a_request_on_loopback_is_answered_only_by_the_names_of_loopback(arrived_at):
    app = create_app({"w": world_index()})
    for host in ("127.0.0.1", "127.0.0.1:8000", "localhost:9", "LOCALHOST", "[::1]:8000", "[::1]", "127.8.9.1", None):
        assert (await status_of(app, host, arrived_at=arrived_at))[0] == 200, host
    for host in (
        "evil.example:8000",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1].evil.example",
        "localhost:80.evil.example",
        "evil.example#127.0.0.1",
        "evil@127.0.0.1",
        "10.0.0.1",
        "[2001:db8::1]",
    ):
        status, body = await status_of(app, host, arrived_at=arrived_at)
        assert (status, body["error"]["code"]) == (421, "unknown_host"), host
        assert "evil" not in body["error"]["message"]


async def test_more_hosts_can_be_allowed_and_then_no_others_are_wherever_the_server_listens():
    app = create_app({"w": world_index()}, settings=settings(allowed_hosts=("search.example", "fe80::1")))
    for arrived_at in ("127.0.0.1", "10.0.0.7"):
        for host in ("search.example", "Search.Example:8000", "[fe80::1]:80", "localhost", "127.0.0.1", arrived_at):
            assert (await status_of(app, host, arrived_at=arrived_at))[0] == 200, host
        assert (await status_of(app, "evil.example", arrived_at=arrived_at))[0] == 421
    # Without a list, nobody can know the names of another address.
    assert (await status_of(create_app({"w": world_index()}), "any.example", arrived_at="10.0.0.7"))[0] == 200


def test_one_content_security_policy_holds_for_every_answer(client):
    policies = {
        client.get(path).headers["content-security-policy"]
        for path in (
            "/",
            "/page/main.js",
            "/nowhere",
            "/page/nothing",
            "/healthz",
            "/openapi.json",
            "/metrics",
        )
    }
    policies.add(client.post("/v1/search", content="{").headers["content-security-policy"])
    policies.add(client.post("/v1/search", json={"query": "a", "stream": True}).headers["content-security-policy"])
    (policy,) = policies
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_log_has_a_line_per_request_and_no_query_unless_asked():
    for log_queries in (False, True):
        log = io.StringIO()
        app = create_app({"w": world_index()}, settings=settings(log_queries=log_queries), log=server_log(log))
        with TestClient(app) as client:
            client.post("/v1/search", json={"query": "a secret question", "k": 1}, headers={"X-Request-Id": "my-id.1"})
            client.post("/v1/search", json={"query": "a secret question", "k": 1, "stream": True})
            client.post("/v1/rerank", json={"query": "a secret question", "documents": ["a hidden text"]})
            client.post("/v1/search", json={"query": "a secret question", "colour": 1})
            response = client.get("/nowhere", headers={"X-Request-Id": "not an id\x7f"})
        assert re.fullmatch(r"[0-9a-f]{16}", response.headers["x-request-id"])
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        requests = [line for line in lines if line["event"] == "request"]
        assert [line["status"] for line in requests] == [200, 200, 200, 422, 404]
        assert requests[0]["request_id"] == "my-id.1"
        assert (requests[0]["calls"], requests[0]["method"], requests[0]["index"]) == (100, "gaussian", "w")
        assert requests[1]["calls"] == 100
        assert requests[3]["error"] == "invalid_request"
        assert ("a secret question" in log.getvalue()) == log_queries
        assert "a hidden text" not in log.getvalue()


def metric(client: TestClient, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_metrics_count_what_was_asked_and_spent():
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)})) as client:
        client.post("/v1/search", json={"query": "a ship", "k": 3, "budget": 50})
        client.post("/v1/rerank", json={"query": "a ship", "documents": ["a", "b"]})
        client.post("/v1/search", json={"query": "a", "budget": 10**6})
        assert metric(client, 'adacur_requests_total{route="/v1/search",status="200"}') == 1
        assert metric(client, 'adacur_requests_total{route="/v1/search",status="422"}') == 1
        assert metric(client, 'adacur_refused_total{code="budget_over_limit"}') == 1
        assert metric(client, 'adacur_scorer_calls_total{scorer="texts"}') == len(scorer.calls)
        assert metric(client, 'adacur_scorer_pairs_per_call_sum{scorer="texts"}') == scorer.pairs
        spent = metric(client, 'adacur_search_calls_total{index="w",method="gaussian"}')
        assert spent == scorer.pairs - 2
        assert metric(client, "adacur_searches_in_flight") == 0
        assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_metrics_tell_what_ended_a_search():
    scorer = TextScorer()
    with TestClient(create_app({"w": world_index(scorer)})) as client:

        def ended(how: str) -> float:
            return metric(client, f'adacur_searches_total{{index="w",method="gaussian",stopped="{how}"}}')

        for stream in (False, True):
            client.post("/v1/search", json={"query": "a ship", "stream": stream})
            client.post("/v1/search", json={"query": "a ship", "first": "nothing", "stream": stream})
            for rounds_before in (0, 2):
                scorer.calls.clear()
                scorer.fails_after = rounds_before
                client.post("/v1/search", json={"query": "a ship", "stream": stream})
            scorer.fails_after = None
        assert (ended("budget"), ended("failed"), ended("refused")) == (2, 4, 0)


def test_a_server_is_ready_when_its_scorer_is_open():
    def opened() -> Any:
        time.sleep(0.2)
        return TextScorer(), None

    world = world_index()
    with TestClient(create_app({"w": AnchorIndex(world, scorer=opened)})) as client:
        first = client.get("/readyz")
        assert (first.status_code, first.json()) == (503, {"status": "starting"})
        assert client.get("/healthz").json() == {"status": "ok"}
        while client.get("/readyz").status_code != 200:
            time.sleep(0.02)
        assert client.get("/readyz").json() == {"status": "ready"}


async def gathered(app: Any, *bodies: dict[str, Any], path: str = "/v1/search") -> list[httpx.Response]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        return await asyncio.gather(*(client.post(path, json=body) for body in bodies))


async def test_a_hundred_clients_at_once_share_calls_and_get_the_answers_of_one():
    scorer = TextScorer(seconds=0.01)
    bodies = [{"query": f"a ship and {at % 40}", "k": 5, "budget": 20} for at in range(100)]
    responses = await gathered(create_app({"w": world_index(scorer)}), *bodies)
    alone = world_index()
    for body, response in zip(bodies, responses, strict=True):
        assert response.status_code == 200
        hits = alone.search(body["query"], 5, budget=20)
        assert [(hit["id"], hit["score"]) for hit in response.json()["results"][0]["hits"]] == [
            (hit.id, hit.score) for hit in hits
        ]
    # 500 rounds of searches.
    assert len(scorer.calls) < 250
    assert scorer.pairs == 100 * 20


async def test_a_neighbour_whose_query_fails_costs_nobody_else_a_call():
    sent: Counter[str] = Counter()

    def scored(pairs: list[tuple[str, str]]) -> list[float]:
        sent.update(query for query, _ in pairs)
        time.sleep(0.005)
        if any("unreadable" in query for query, _ in pairs):
            raise RuntimeError("it cannot read this question")
        return [logit_of(query, text) for query, text in pairs]

    app = create_app({"w": world_index(FunctionScorer(scored))})
    queries = [f"a ship and {at}" for at in range(6)] + [f"an unreadable ship and {at}" for at in range(4)]
    responses = await gathered(app, *({"query": query, "k": 3, "budget": 20} for query in queries))
    assert [response.status_code for response in responses] == [200] * 6 + [502] * 4
    assert all(
        response.json()["results"][0]["calls"] == sent[q] == 20
        for q, response in zip(queries[:6], responses[:6], strict=True)
    )
    assert max(sent.values()) <= 20


async def test_whoever_comes_when_all_places_are_taken_is_asked_to_come_back():
    scorer = TextScorer(seconds=0.05)
    app = create_app({"w": world_index(scorer)}, settings=settings(concurrency=2, queue=3))
    bodies = [{"query": f"a ship and {at}", "k": 1, "budget": 5, "stream": at % 2 == 0} for at in range(20)]
    responses = await gathered(app, *bodies)
    statuses = [response.status_code for response in responses]
    assert statuses.count(200) == 5
    assert statuses.count(429) == 15
    for response in responses:
        if response.status_code == 429:
            assert error_of(response) == "too_busy"
            assert int(response.headers["retry-after"]) >= 1
    assert [response.status_code for response in await gathered(app, bodies[0])] == [200]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_planned_in_its_turn(monkeypatch, stream):
    # A find may replay anchor queries before its first call.
    lock, overlaps, plan = threading.Lock(), [], indexes.plan_find

    def slow(*given: Any, **options: Any) -> Any:
        overlaps.append(not lock.acquire(blocking=False))
        time.sleep(0.02)
        if not overlaps[-1]:
            lock.release()
        return plan(*given, **options)

    monkeypatch.setattr(indexes, "plan_find", slow)
    app = create_app({"w": world_index()}, settings=settings(concurrency=1, queue=9))
    bodies = [{"query": f"a ship and {at}", "above": 5.0, "budget": 5, "stream": stream} for at in range(5)]
    responses = await gathered(app, *bodies, path="/v1/find")
    assert [response.status_code for response in responses] == [200] * 5
    assert overlaps == [False] * 5
    app = create_app({"w": world_index()}, settings=settings(seconds=0.01))
    (late,) = await gathered(app, bodies[0], path="/v1/find")
    assert (late.status_code, error_of(late)) == (504, "out_of_time")


async def test_indexes_with_one_scorer_share_its_calls():
    scorer = TextScorer(seconds=0.02)
    app = create_app({"a": world_index(scorer), "b": world_index(scorer)})
    bodies = [{"query": f"a ship and {at}", "index": "ab"[at % 2], "k": 1, "budget": 10} for at in range(20)]
    responses = await gathered(app, *bodies)
    assert {response.json()["index"] for response in responses} == {"a", "b"}
    assert len(scorer.calls) < 50


def test_a_server_needs_an_index_and_names_that_stand_in_a_url():
    with pytest.raises(ValueError, match="at least one index"):
        create_app({})
    for name in ("", "..", "a/b", "a b", "ü", "-x", "a" * 101):
        with pytest.raises(ValueError, match="name"):
            create_app({name: world_index()})


def test_every_route_is_described(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/search",
        "/v1/find",
        "/v1/rerank",
        "/v1/indexes",
        "/v1/models",
        "/v1/indexes/{name}/recall",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    for routes in document["paths"].values():
        for route in routes.values():
            assert route["description"]
            assert route["summary"]
            assert route["tags"]
    search = document["components"]["schemas"]["SearchRequest"]["properties"]
    assert search["budget"]["maximum"] == 1000
    assert search["method"]["anyOf"][0]["enum"] == list(METHODS)
    # What a method takes is read off the table of methods.
    assert "anncur" in search["split"]["description"]
    assert {"rounds", "seed", "first_batch"} <= set(search)
    assert "approximator" not in search


def test_metadata_that_json_cannot_hold_does_not_break_an_answer():
    items = [
        Item(f"i{at}", f"text {at}", {"nan": float("nan"), "array": np.arange(2), "odd": {1: {2}}}) for at in range(5)
    ]
    index = AnchorIndex.from_items(items, scorer=TextScorer())
    with TestClient(create_app({"w": index})) as client:
        for stream in (False, True):
            response = client.post("/v1/search", json={"query": "a", "k": 1, "budget": 3, "stream": stream})
            assert response.status_code == 200
            assert '"metadata":{"nan":null,"array":[0,1],"odd":{"1":[2]}}' in response.text


def test_tokens_and_money_are_walls_over_http():
    app = create_app({"world": world_index()}, settings=settings(price="1 USD / 1k tokens"))
    with TestClient(app) as client:
        body = {"query": "a river", "k": 2, "budget": 60, "tokens": 900, "cost": "0.8 USD"}
        (found,) = client.post("/v1/search", json=body).json()["results"]
        refused = client.post("/v1/search", json=body | {"cost": "0.8 EUR"})

    assert 0 < found["tokens"] <= 800
    assert found["cost"] == f"{found['tokens'] / 1000:g} USD"
    assert found["stopped"] == "cost"
    assert refused.status_code == 422
    assert "0.8 EUR" in error_message(refused)


def error_message(response: httpx.Response) -> str:
    return response.json()["error"]["message"]
