from __future__ import annotations

import asyncio
import gc
import json
import math
import multiprocessing
import pickle
import random
import socket
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import InputError, NonFiniteScore, ScoreCountError, ScorerFailed, UnknownName
from adacur.records import Item, Query
from adacur.scorers import FunctionScorer, score_grid
from adacur.scorers.http import HttpScorer, ProbabilityWarning
from adacur.scorers.http_dialects import DIALECTS
from adacur.scores import score_pairs
from tests.http_exchanges import EXCHANGES, FIRST, INSTRUCTION, MODEL, QUERY, SECOND
from tests.rerank_servers import Asked, Reply, RerankServer, Trouble, logit_of

KINDS = list(DIALECTS)
RAW = ["tei", "vllm", "adacur", "infinity"]
KEY = "sk-very-secret-0123456789"
QUERIES = [Query(f"q{n}", f"query {n}") for n in range(40)]
ITEMS = [Item(f"i{n}", f"item {n}") for n in range(50)]
PAIRS = list(product(QUERIES, ITEMS))
RECORDED = [(Query("q", QUERY), Item("a", FIRST)), (Query("q", QUERY), Item("b", SECOND))]


@pytest.fixture(autouse=True)
def direct(monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def expected(pairs) -> np.ndarray:
    return np.array([logit_of(query.text, item.text) for query, item in pairs])


def open_scorer(server: RerankServer | str, **options) -> HttpScorer:
    """With waits fit for tests, and without the warning that most tests are not about."""
    url, usual = (server, {}) if isinstance(server, str) else (server.root, {"kind": server.kind})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbabilityWarning)
        return HttpScorer(url, **({"backoff": 0.01, "timeout": 10} | usual | options))


def always(status: int = 200, body=None, **options):
    return lambda _: Reply(status, body, **options)


def first(count: int, reply: Reply):
    return lambda asked: reply if asked.number < count else None


@pytest.mark.parametrize("kind", ["tei", "cohere"])
@pytest.mark.parametrize("awaited", [False, True], ids=["score", "ascore"])
def test_two_thousand_pairs_are_each_scored_once_and_right_by_a_server_in_trouble(kind, awaited) -> None:
    trouble = Trouble(share=0.1, delay=5.0)
    with (
        RerankServer(kind, reply=trouble) as server,
        open_scorer(server, batch_size=5, timeout=0.4, attempts=8) as scorer,
    ):
        scores = asyncio.run(scorer.ascore(PAIRS)) if awaited else scorer.score(PAIRS)
        sent = {(asked.body["query"], *asked.body["texts" if kind == "tei" else "documents"]) for asked in server.asked}
    assert len(PAIRS) == 2000
    np.testing.assert_allclose(scores, expected(PAIRS), rtol=0, atol=1e-9 if kind == "cohere" else 0)
    assert set(trouble.seen) == {"broken off", "cut short", "cut by a proxy", "late", "429", "500", "503"}
    # What was sent again was sent as it was: no pair in two different requests.
    assert sorted((query, text) for query, *texts in sent for text in texts) == sorted(
        (query.text, item.text) for query, item in PAIRS
    )


@pytest.mark.parametrize("kind", ["tei", "cohere"])
def test_scores_are_matched_by_index_whatever_their_order(kind) -> None:
    def shuffled(asked: Asked) -> Reply | None:
        body = server.answer(asked).body
        random.Random(asked.number).shuffle(body if kind == "tei" else body["results"])
        return Reply(body=body)

    with (
        RerankServer(kind, reply=shuffled, max_batch=100) as server,
        open_scorer(server) as scorer,
    ):
        np.testing.assert_allclose(scorer.score(PAIRS[:200]), expected(PAIRS[:200]), atol=1e-9)


def test_a_server_of_no_known_kind_is_not_guessed_at() -> None:
    with pytest.raises(UnknownName):
        open_scorer("http://127.0.0.1:9")
    with pytest.raises(UnknownName, match="'cohere'"):
        open_scorer("http://127.0.0.1:9", kind="cohre")


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_may_be_short(kind) -> None:
    with RerankServer(kind) as server:
        short = server.root + server.path.partition("/v1")[0].partition("/v2")[0].removesuffix("/rerank")
        versions = {f"{short}/{version}" for version in ("v1", "v2") if f"/{version}/" in server.path}
        for url in {server.endpoint, f"{server.endpoint}/", server.root, *versions}:
            assert open_scorer(url, kind=kind).url == server.endpoint


@pytest.mark.parametrize("kind", KINDS)
def test_its_source_opens_the_same_scorer_again(kind) -> None:
    with RerankServer(kind) as server:
        with open_scorer(server, model=MODEL, scores=None if kind == "tei" else "raw") as scorer:
            before = scorer.score(PAIRS[:5])
        with open_scorer(scorer.card.source) as again:
            assert (again.card, again.url) == (scorer.card, server.endpoint)
            assert (again.score(PAIRS[:5]) == before).all()
            assert server.asked[-1].body == server.asked[0].body


def test_probabilities_become_logits_with_a_warning_that_can_be_settled() -> None:
    pairs = PAIRS[:100]
    with RerankServer("cohere") as server:
        with pytest.warns(ProbabilityWarning):
            scorer = HttpScorer(server.endpoint, kind="cohere")
        np.testing.assert_allclose(scorer.score(pairs), expected(pairs))
        np.testing.assert_allclose(
            HttpScorer(server.root, kind="cohere", scores="probability").score(pairs), expected(pairs)
        )
        raw = HttpScorer(server.endpoint, kind="cohere", scores="raw").score(pairs)
        np.testing.assert_allclose(raw, 1 / (1 + np.exp(-expected(pairs))))


@pytest.mark.parametrize("kind", KINDS)
def test_every_dialect_asks_and_reads_in_the_words_of_its_service(kind) -> None:
    recorded = EXCHANGES[kind]
    settled = "probability" if recorded.raw is None else "raw"
    options = {"kind": kind, "model": MODEL, "api_key": KEY, "scores": settled}
    with RerankServer(kind, reply=always(body=recorded.answer)) as server:
        with HttpScorer(server.root, **options) as scorer:
            scores = scorer.score(RECORDED)
        assert (server.asked[-1].method, server.asked[-1].path) == ("POST", recorded.path)
        assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
        assert server.asked[-1].body == recorded.request
        logits = [math.log(score / (1 - score)) if recorded.raw is None else score for score in recorded.scores]
        assert scores.tolist() == pytest.approx(logits)
        with HttpScorer(server.root, **options, extra={"user": "me"}) as scorer:
            scorer.score(RECORDED)
        assert server.asked[-1].body == {**recorded.request, "user": "me"}


def test_the_table_in_the_documents_is_that_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "scorers.md").read_text(encoding="utf-8")
    table = text.partition("<!-- dialects -->")[2].partition("<!-- end of dialects -->")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    told = {kind: rest for kind, _, *rest in rows}
    assert told == {
        kind: [
            "probability" if dialect.raw is None else "raw",
            dialect.instruction or "–",
            f"{dialect.limit:,}" if dialect.limit else "–",
            dialect.key_variables[0] if dialect.key_variables else "–",
        ]
        for kind, dialect in DIALECTS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_instruction_goes_where_the_service_reads_it_and_is_refused_elsewhere(kind) -> None:
    recorded = EXCHANGES[kind]
    with RerankServer(kind) as server:
        if recorded.instructed is None:
            with pytest.raises(InputError):
                open_scorer(server, model=MODEL, instruction=INSTRUCTION)
            return
        settled = "probability" if recorded.raw is None else "raw"
        scorer = open_scorer(server, model=MODEL, instruction=INSTRUCTION, scores=settled)
        scorer.score(RECORDED)
        assert server.asked[0].body == {**recorded.request, **recorded.instructed}
        # Another instruction is another scorer, and an index remembers it.
        assert scorer.card.source != open_scorer(server, model=MODEL, scores=settled).card.source
        again = open_scorer(scorer.card.source)
        assert (again.instruction, again.card) == (INSTRUCTION, scorer.card)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"documents": ["x"]}, "'documents'"),
        ({"use_activation": True}, "'use_activation'"),
        ({"instruction": "x"}, "'instruction'"),
        ({"priority": float("nan")}, "JSON"),
        ([1], "JSON"),
    ],
)
def test_extra_fields_change_nothing_that_is_set_here(extra, told) -> None:
    with RerankServer("vllm") as server, pytest.raises(InputError, match=told):
        open_scorer(server, extra=extra)


def test_extra_fields_are_remembered() -> None:
    with RerankServer("vllm") as server:
        source = open_scorer(server, extra={"priority": 3, "mm": {"a": [1]}}).card.source
        open_scorer(source).score(PAIRS[:1])
        assert server.asked[0].body.items() >= {"priority": 3, "mm": {"a": [1]}}.items()
        with pytest.raises(InputError, match="extra"):
            open_scorer(f"{server.root}#kind=vllm&extra=%7Bnonsense")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if EXCHANGES[kind].raw is not None])
def test_probabilities_where_logits_are_promised_are_noticed(kind) -> None:
    with RerankServer(kind, probabilities=True) as server, open_scorer(server, model=MODEL) as scorer:
        scorer.score(PAIRS[:63])
        with pytest.warns(ProbabilityWarning, match=f"{kind}.*64"):
            scorer.score(PAIRS[:1])
        # Once is enough, and a choice settles it.
        scorer.score(PAIRS[:100])
        open_scorer(server, model=MODEL, scores="raw").score(PAIRS[:100])


def test_raw_scores_that_leave_the_unit_interval_once_are_believed() -> None:
    def reply(asked: Asked) -> Reply:
        score = 1.5 if asked.number == 0 else 0.5
        return Reply(body=[{"index": at, "score": score} for at in range(len(asked.body["texts"]))])

    with RerankServer("tei", reply=reply) as server, open_scorer(server) as scorer:
        scorer.score(PAIRS[:1])
        scorer.score(PAIRS[:100])


def test_json_that_breaks_off_is_asked_for_again() -> None:
    cut = Reply(body=b'[{"index": 0, "sco')
    with RerankServer("tei", reply=first(2, cut)) as server, open_scorer(server, attempts=3) as scorer:
        np.testing.assert_array_equal(scorer.score(PAIRS[:3]), expected(PAIRS[:3]))
        server.reply = always(body=cut.body)
        with pytest.raises(ScorerFailed, match=r"3.*'q0'"):
            scorer.score(PAIRS[:1])


def test_a_byte_order_mark_before_json_is_no_fault() -> None:
    body = b"\xef\xbb\xbf" + json.dumps([{"index": 0, "score": 0.5}]).encode()
    with RerankServer("tei", reply=always(body=body)) as server, open_scorer(server) as scorer:
        assert scorer.score(PAIRS[:1]).tolist() == [0.5]


def test_a_phrase_of_the_server_is_not_repeated() -> None:
    reply = always(400, b"no luck", reason="x" * 10_000)
    with RerankServer("tei", reply=reply) as server, pytest.raises(ScorerFailed) as caught:
        open_scorer(server).score(PAIRS[:1])
    assert "400 Bad Request: no luck" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("url", "kind", "endpoint"),
    [
        ("https://api.voyageai.com", "voyage", "https://api.voyageai.com/v1/rerank"),
        (
            "https://ai.api.nvidia.com/v1/retrieval/nvidia/name/reranking",
            "nim",
            "https://ai.api.nvidia.com/v1/retrieval/nvidia/name/reranking",
        ),
        (
            "https://dashscope-intl.aliyuncs.com/compatible-api/v1",
            "dashscope",
            "https://dashscope-intl.aliyuncs.com/compatible-api/v1/reranks",
        ),
    ],
)
def test_a_service_is_known_by_its_host(url, kind, endpoint, monkeypatch) -> None:
    variable = DIALECTS[kind].key_variables[0]
    monkeypatch.setenv(variable, KEY)
    scorer = open_scorer(url, model="org/name")
    assert (scorer.kind, scorer.url, scorer._key) == (kind, endpoint, KEY)
    monkeypatch.delenv(variable)
    with pytest.raises(InputError, match=variable):
        open_scorer(url, model="org/name")


def test_certain_probabilities_stay_finite_and_in_order() -> None:
    given = [0.0, 1e-30, 1e-6, 0.3, 0.5, 1 - 1e-6, 1.0, 1.0000000001]
    body = {"results": [{"index": at, "relevance_score": value} for at, value in enumerate(given)]}
    with RerankServer("cohere", reply=always(body=body)) as server:
        scores = open_scorer(server).score(PAIRS[: len(given)])
    assert np.isfinite(scores).all()
    assert (np.diff(scores) >= 0).all()
    assert (np.diff(scores[1:7]) > 0).all()
    assert scores[4] == pytest.approx(0)


def test_a_score_that_is_no_probability_is_refused() -> None:
    body = {"results": [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": -3.2}]}
    with (
        RerankServer("jina", reply=always(body=body)) as server,
        pytest.raises(ScorerFailed, match=r"-3\.2.*'q0'.*'i1'"),
    ):
        open_scorer(server).score(PAIRS[:2])


def test_requests_hold_one_query_and_keep_to_the_servers_count() -> None:
    with RerankServer("tei", max_batch=32) as server, open_scorer(server) as scorer:
        grid = score_grid(scorer, QUERIES, ITEMS)
        assert server.statuses == {200: len(server.asked)}
    np.testing.assert_array_equal(grid.ravel(), expected(PAIRS))
    assert {len(asked.body["texts"]) for asked in server.asked} == {25}


def test_equal_texts_are_sent_once_and_scored_alike() -> None:
    pairs = [(Query(f"q{n}", "same"), Item(f"i{n}", f"item {n % 3}")) for n in range(20)]
    with RerankServer("tei") as server, open_scorer(server) as scorer:
        np.testing.assert_array_equal(scorer.score(pairs), expected(pairs))
    assert [asked.body["texts"] for asked in server.asked] == [["item 0", "item 1", "item 2"]]


@pytest.mark.parametrize("kind", ["cohere", "infinity"])
def test_a_batch_that_is_too_large_is_halved(kind) -> None:
    with RerankServer(kind, max_batch=7) as server, open_scorer(server) as scorer:
        np.testing.assert_allclose(scorer.score(PAIRS[:50]), expected(PAIRS[:50]))
        assert server.statuses[413] + server.statuses[422] == 7


def test_a_pair_that_is_too_large_alone_is_named() -> None:
    items = [*ITEMS[:9], Item("giant", "x" * 5000)]
    with RerankServer("tei", max_body=4000) as server, open_scorer(server) as scorer:
        with pytest.raises(ScorerFailed, match=r"413.*'q0'.*'giant'"):
            scorer.score([(QUERIES[0], item) for item in items])
        assert scorer.score(PAIRS[:5]).shape == (5,)


@pytest.mark.parametrize("text", ["", "   \n\t ", "x" * 100_000, 'emoji 🦀 \u2028 \x00 "quoted" \\', "日本語" * 30_000])
def test_odd_texts_are_scored(text) -> None:
    pairs = [(Query("q", text or " "), Item("i", text)), PAIRS[0], (QUERIES[0], Item("j", text))]
    with RerankServer("tei") as server, open_scorer(server) as scorer:
        np.testing.assert_array_equal(scorer.score(pairs), expected(pairs))


def test_text_that_is_not_unicode_is_refused() -> None:
    with RerankServer("tei") as server, open_scorer(server) as scorer:
        with pytest.raises(InputError, match="'broken'"):
            scorer.score([(QUERIES[0], Item("broken", "\ud800"))])
        with pytest.raises(InputError, match="'broken'"):
            scorer.score([(Query("broken", "\ud800"), ITEMS[0])])


@pytest.mark.parametrize("status", [408, 424, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status) -> None:
    with RerankServer("tei", reply=first(2, Reply(status, b"not now"))) as server, open_scorer(server) as scorer:
        np.testing.assert_array_equal(scorer.score(PAIRS[:3]), expected(PAIRS[:3]))
        assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405])
def test_what_will_not_pass_is_not_tried_again(status) -> None:
    with RerankServer("tei", reply=always(status, b"no luck")) as server, open_scorer(server) as scorer:
        with pytest.raises(ScorerFailed, match=rf"{status}.*no luck.*'q0'.*'i0'"):
            scorer.score(PAIRS[:3])
        assert len(server.asked) == 1


def test_a_server_that_is_down_is_told() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ScorerFailed, match=rf"{url}.*2.*'q0'"):
        open_scorer(url, kind="cohere", attempts=2).score(PAIRS[:1])


def test_a_redirect_is_told_and_not_followed() -> None:
    moved = always(307, b"", headers={"Location": "http://elsewhere/rerank"})
    with RerankServer("tei", reply=moved) as server, pytest.raises(ScorerFailed, match="http://elsewhere/rerank"):
        open_scorer(server).score(PAIRS[:1])


def test_retry_after_is_honoured() -> None:
    wait = Reply(429, {"error": "wait"}, {"Retry-After": "0.4"})
    with RerankServer("tei", reply=first(1, wait)) as server, open_scorer(server) as scorer:
        scorer.score(PAIRS[:3])
        assert server.asked[1].at - server.asked[0].at >= 0.4


@pytest.mark.parametrize("odd", ["soon", "-5", "nan", "inf", "Wed, 01 Jan 2040 00:00:00 GMT"])
def test_a_retry_after_that_says_nothing_is_passed_over(odd) -> None:
    reply = first(1, Reply(503, b"", {"Retry-After": odd}))
    with RerankServer("tei", reply=reply) as server, open_scorer(server) as scorer:
        np.testing.assert_array_equal(scorer.score(PAIRS[:3]), expected(PAIRS[:3]))


def test_a_wait_of_more_than_a_minute_is_left_to_the_caller() -> None:
    reply = always(503, b"", headers={"Retry-After": "3600"})
    with RerankServer("tei", reply=reply) as server, open_scorer(server) as scorer:
        with pytest.raises(ScorerFailed, match="3600 s"):
            scorer.score(PAIRS[:3])
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(500, {"error": "cuda"}), "500 Internal Server Error.*cuda"),
        (Reply(429, b""), "429 Too Many Requests"),
        (Reply(after=30), "0.2"),
        (Reply(drip=0.05), "0.2"),
        (Reply(breaks="before"), ""),
        (Reply(breaks="within"), ""),
    ],
)
def test_trouble_without_end_is_an_error_after_as_many_attempts(reply, told) -> None:
    with RerankServer("tei", reply=always()) as server:
        scorer = open_scorer(server, attempts=3, timeout=0.2)
        server.reply = lambda _: reply
        with pytest.raises(ScorerFailed, match=rf"{told}.*3.*'q0'.*'i0'"):
            scorer.score(PAIRS[:2])
        assert len(server.asked) == 3


def test_the_first_failure_ends_the_call_and_harms_no_later_one() -> None:
    def reply(asked: Asked) -> Reply | None:
        return Reply(400, b"bad") if asked.body["query"] == "query 3" else None

    with RerankServer("tei", reply=reply) as server, open_scorer(server, concurrency=2) as scorer:
        with pytest.raises(ScorerFailed, match=r"400.*'q3'"):
            scorer.score(PAIRS)
        assert len(server.asked) < 40
        np.testing.assert_array_equal(scorer.score(PAIRS[:100]), expected(PAIRS[:100]))


def tei(*results) -> list[dict[str, object]]:
    return [{"index": index, "score": score} for index, score in results]


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        (b"<html>login</html>", ScorerFailed, "login"),
        (b"", ScorerFailed, "tei"),
        (None, ScorerFailed, "null"),
        ([[0, 1.0], [1, 2.0]], ScorerFailed, "'score'"),
        (tei((0, 1.0), ("1", 1.0)), ScorerFailed, "'score'"),
        (tei((0, 1.0), (True, 1.0)), ScorerFailed, "'score'"),
        (tei((0, 1.0), (1, "1.0")), ScorerFailed, "'score'"),
        (tei((0, 1.0), (1, float("nan"))), NonFiniteScore, "nan.*'q0'.*'i1'"),
        (tei((0, float("-inf")), (1, 1.0)), NonFiniteScore, "-inf.*'q0'.*'i0'"),
        (tei((0, 1.0)), ScoreCountError, "text 1"),
        (tei((0, 1.0), (0, 1.0)), ScoreCountError, "text 1"),
        (tei((0, 1.0), (1, 1.0), (1, 2.0)), ScoreCountError, "3"),
        (tei((0, 1.0), (2, 1.0)), ScoreCountError, "text 1"),
    ],
)
def test_wrong_answers_are_refused(body, error, told) -> None:
    body = b"null" if body is None else body
    with RerankServer("tei", reply=always(body=body)) as server, open_scorer(server) as scorer:
        with pytest.raises(error, match=told):
            score_pairs(scorer, PAIRS[:2])
        assert len(server.asked) == 1


def test_the_key_is_shown_nowhere(caplog) -> None:
    caplog.set_level("INFO")
    shown = []
    echo = {
        "refused": Reply(403, {"error": f"{'x' * 280} no such key: {KEY}"}),
        "overloaded": Reply(429, {"error": KEY}),
        "nonsense": Reply(body={"you sent": KEY}),
        "no JSON": Reply(body=f"<p>{KEY}".encode()),
        "moved": Reply(302, b"", {"Location": f"http://elsewhere?key={KEY}"}),
        "strange result": Reply(body=[{"index": 0, "score": KEY}]),
    }
    with RerankServer("tei") as server:
        scorer = open_scorer(server, api_key=KEY, attempts=2)
        shown += [repr(scorer), str(scorer.card)]
        for reply in echo.values():
            server.reply = lambda _, reply=reply: reply
            with pytest.raises(ScorerFailed) as caught:
                scorer.score(PAIRS[:1])
            shown.append("".join(traceback.format_exception(caught.value)))
    with pytest.raises(InputError) as caught:
        open_scorer(server, api_key=KEY + "\n")
    shown.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        open_scorer(f"http://user:{KEY}@127.0.0.1/rerank")
    shown.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        open_scorer(f"http://127.0.0.1/rerank?key={KEY}")
    shown.append(str(caught.value))
    shown.append(caplog.text)
    assert not any(KEY[:8] in text for text in shown)


def test_keys_of_the_environment_go_only_to_their_own_service(monkeypatch) -> None:
    monkeypatch.setenv("CO_API_KEY", KEY)
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    with RerankServer("cohere") as server, open_scorer(server) as scorer:
        scorer.score(PAIRS[:1])
        assert "authorization" not in server.asked[0].headers
    assert open_scorer("https://api.cohere.com", model="rerank-v3.5").url == "https://api.cohere.com/v2/rerank"
    with pytest.raises(InputError, match="JINA_API_KEY"):
        open_scorer("https://api.jina.ai/v1/rerank")
    # Neither a look-alike nor a plain connection is that service.
    for url in ("https://cohere.com.example.org/v2/rerank", "http://api.cohere.com/v2/rerank"):
        assert open_scorer(url, kind="cohere")._key is None


def test_no_more_requests_are_in_flight_than_allowed_over_all_threads_and_loops() -> None:
    with RerankServer("tei", latency=0.02) as server, open_scorer(server, concurrency=3, batch_size=10) as scorer:

        def awaited() -> np.ndarray:
            return asyncio.run(scorer.ascore(PAIRS[:200]))

        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(awaited if n % 2 else lambda: scorer.score(PAIRS[:200])) for n in range(8)]
        for call in calls:
            np.testing.assert_array_equal(call.result(), expected(PAIRS[:200]))
        assert server.most_in_flight == 3


def test_cancelling_frees_the_slots() -> None:
    slow = threading.Event()

    def reply(asked: Asked) -> Reply | None:
        if slow.is_set():
            return None
        return Reply(after=60)

    async def cancelled(scorer: HttpScorer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scorer.ascore(PAIRS), 0.3)

    with RerankServer("tei", reply=reply) as server, open_scorer(server, concurrency=2, timeout=60) as scorer:
        asyncio.run(cancelled(scorer))
        assert len(server.asked) <= 2
        slow.set()
        np.testing.assert_array_equal(scorer.score(PAIRS[:100]), expected(PAIRS[:100]))


def test_awaiting_leaves_the_callers_loop_free() -> None:
    arrived, go = threading.Event(), threading.Event()

    def reply(asked: Asked) -> None:
        arrived.set()
        assert go.wait(60)

    async def both(scorer: HttpScorer) -> np.ndarray:
        task = asyncio.create_task(scorer.ascore(PAIRS[:3]))
        while not arrived.is_set():
            await asyncio.sleep(0.001)
        go.set()
        return await task

    with RerankServer("tei", reply=reply) as server, open_scorer(server) as scorer:
        np.testing.assert_array_equal(asyncio.run(both(scorer)), expected(PAIRS[:3]))


def test_it_can_be_asked_inside_an_async_scorer_and_where_a_loop_is_running() -> None:
    with RerankServer("tei") as server, open_scorer(server) as scorer:

        async def outer(texts):
            return scorer.score([(Query("", query), Item("", item)) for query, item in texts])

        async def inside():
            return scorer.score(PAIRS[:3])

        np.testing.assert_array_equal(FunctionScorer(outer).score(PAIRS[:3]), expected(PAIRS[:3]))
        np.testing.assert_array_equal(asyncio.run(inside()), expected(PAIRS[:3]))


def test_connections_live_on_between_calls() -> None:
    with RerankServer("tei") as server, open_scorer(server, concurrency=1) as scorer:
        for _ in range(5):
            scorer.score(PAIRS[:100])
        assert server.connections == 1


def test_closing_ends_calls_in_flight() -> None:
    arrived = threading.Event()

    def reply(asked: Asked) -> Reply | None:
        arrived.set()
        return Reply(after=60)

    with RerankServer("tei", reply=reply) as server, ThreadPoolExecutor(1) as thread:
        scorer = open_scorer(server, timeout=60)
        call = thread.submit(scorer.score, PAIRS[:3])
        assert arrived.wait(60)
        scorer.close()
        with pytest.raises(ScorerFailed):
            call.result(60)


def test_a_scorer_nobody_holds_gives_its_connections_back() -> None:
    with RerankServer("tei") as server:
        scorer = open_scorer(server)
        scorer.score(PAIRS[:3])
        client = scorer._connections[1]
        del scorer
        gc.collect()
        for _ in range(2000):
            if client.is_closed:
                break
            threading.Event().wait(0.005)
        assert client.is_closed


def test_it_can_be_pickled() -> None:
    with RerankServer("tei", key=KEY) as server, open_scorer(server, api_key=KEY) as scorer:
        scorer.score(PAIRS[:3])
        with pickle.loads(pickle.dumps(scorer)) as copy:
            assert copy.card == scorer.card
            np.testing.assert_array_equal(copy.score(PAIRS[:3]), expected(PAIRS[:3]))
        assert scorer.score(PAIRS[:3]).shape == (3,)


def score_in_child(scorer: HttpScorer, answers) -> None:
    answers.put(scorer.score(PAIRS[:50]))
    scorer.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_and_its_parent_both_score() -> None:
    with RerankServer("tei") as server, open_scorer(server) as scorer:
        scorer.score(PAIRS[:50])
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        child = fork.Process(target=score_in_child, args=(scorer, answers))
        child.start()
        np.testing.assert_array_equal(answers.get(timeout=60), expected(PAIRS[:50]))
        child.join(60)
        assert child.exitcode == 0
        np.testing.assert_array_equal(scorer.score(PAIRS), expected(PAIRS))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"concurrency": 0},
        {"attempts": 0},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"backoff": -1},
        {"scores": "logits"},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        open_scorer("http://127.0.0.1/v2/rerank", kind="cohere", **options)


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://host/rerank", "http://", "http://h:port/", "http://[::1"])
def test_what_is_no_address_is_refused(url) -> None:
    with pytest.raises(InputError):
        open_scorer(url, kind="cohere")
