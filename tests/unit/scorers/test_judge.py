from __future__ import annotations

import asyncio
import json
import math
import pickle
from itertools import product

import numpy as np
import pytest

import adacur
from adacur.errors import InputError, ScorerFailed, UnknownOption
from adacur.records import Item, Query
from adacur.scorers import Cached, JudgeScorer, Metered
from tests.judge_servers import MODEL, JudgeServer, tiny_judge
from tests.rerank_servers import Reply, Trouble

KEY = "sk-very-secret-0123456789"
QUERIES = [Query(f"q{n}", f"red item number {n}") for n in range(10)]
ITEMS = [Item(f"i{n}", f"blue ship number {n} of the river") for n in range(50)]
PAIRS = list(product(QUERIES, ITEMS))
GRADES = {"0": 0, "1": 1, "2": 2, "3": 3}
# The whole vocabulary of the tiny model is listed, so that its odds are exact.
ALL = 120


@pytest.fixture(autouse=True)
def direct(monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def local():
    return tiny_judge()


def open_judge(url: str, **options) -> JudgeScorer:
    return JudgeScorer(url, **({"model": MODEL, "backoff": 0.01, "timeout": 60, "top_logprobs": ALL} | options))


def logits_of(judge, local, pairs, tokens):
    ids = local.tokenizer.convert_tokens_to_ids(list(tokens))
    return np.array([local.logits(judge.render(*pair))[ids] for pair in pairs])


def chat(top, **fields):
    """An answer with these tokens and logprobs."""
    listed = [{"token": token, "logprob": logprob} for token, logprob in top.items()]
    content = [{"token": next(iter(top), ""), "logprob": -0.1, "top_logprobs": listed}] if top else []
    message = {"role": "assistant", "content": next(iter(top), ""), **fields.pop("message", {})}
    choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "length", **fields}
    return {"id": "c1", "object": "chat.completion", "model": MODEL, "choices": [choice]}


def answering(body, status=200):
    return JudgeServer(reply=lambda _: Reply(status, body))


def test_five_hundred_pairs_are_right_with_a_tenth_of_faults(local) -> None:
    trouble = Trouble(share=0.1, delay=None)
    with (
        JudgeServer(local, reply=trouble) as server,
        open_judge(server.root, attempts=10) as judge,
    ):
        scores = judge.score(PAIRS)
        yes, no = logits_of(judge, local, PAIRS, ("Yes", "No")).T
        np.testing.assert_allclose(scores, yes - no, rtol=0, atol=1e-6)
        np.testing.assert_allclose(asyncio.run(judge.ascore(PAIRS[:3])), scores[:3], rtol=0, atol=1e-6)
    assert len(PAIRS) == 500
    assert np.ptp(scores) > 0.5
    assert set(trouble.seen) == {"broken off", "cut short", "cut by a proxy", "429", "500", "503"}
    sent = {asked.body["messages"][0]["content"] for asked in server.asked}
    assert sent == {judge.render(*pair) for pair in PAIRS}


def test_grades_give_the_expected_grade(local) -> None:
    with JudgeServer(local) as server, open_judge(server.root, answers=GRADES) as judge:
        scores = judge.score(PAIRS[:20])
        weights = np.exp(logits_of(judge, local, PAIRS[:20], GRADES))
    np.testing.assert_allclose(scores, weights @ [0, 1, 2, 3] / weights.sum(axis=1), rtol=0, atol=1e-6)
    assert ((scores >= 0) & (scores <= 3)).all()


def test_a_chat_is_asked_in_these_words(local) -> None:
    with JudgeServer(local) as server, open_judge(server.root, top_logprobs=20) as judge:
        judge.score([(Query("q", "what is a panda?"), Item("i", "a bear"))])
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body == {
        "model": "fake/judge",
        "max_tokens": 1,
        "temperature": 0,
        "messages": [
            {
                "role": "user",
                "content": "Judge whether the document is relevant to the query.\n\nQuery: what is a panda?\n\n"
                "Document: a bear\n\nIs the document relevant to the query? Answer with one word, Yes or No.",
            }
        ],
        "logprobs": True,
        "top_logprobs": 20,
    }


def test_places_in_texts_are_left_alone() -> None:
    prompt = "{instruction} <{query}> [{item}] {other} {}"
    judge = open_judge("http://127.0.0.1/v1", model="m", instruction="see {query}", prompt=prompt)
    rendered = judge.render(Query("q", "{item}{instruction}"), Item("i", "{query}"))
    assert rendered == "see {query} <{item}{instruction}> [{query}] {other} {}"


def test_the_pairs_of_a_query_are_asked_one_after_another(local) -> None:
    pairs = [(query, item) for item in ITEMS[:3] for query in QUERIES[:3]]
    with JudgeServer(local) as server, open_judge(server.root, concurrency=1) as judge:
        judge.score(pairs)
    queries = [asked.body["messages"][0]["content"].split("\n\n")[1] for asked in server.asked]
    assert queries == sorted(queries)


@pytest.mark.parametrize(
    ("top", "score"),
    [
        ({"Yes": math.log(0.5), "No": math.log(0.25)}, math.log(2)),
        # However a token is written, it is the same answer.
        ({" yes": math.log(0.25), "YES": math.log(0.25), "▁Yes": math.log(0.25), "No\n": math.log(0.125)}, math.log(6)),
        # An answer that is not listed is at most as likely as the least likely that is.
        ({"Yes": -0.01, "Maybe": -5.0, "The": -7.0}, 6.99),
        ({"No": -0.5, "The": -2.0}, -1.5),
        ({"Yes": -0.01, "No": -9999.0, "The": -5.0}, 4.99),
        ({"Yes": -0.01, "No": None, "The": -5.0}, 4.99),
        ({"Yes": -0.01, "No": float("nan"), "The": -5.0}, 4.99),
        ({"Yes": -0.01, "No": float("-inf"), "The": -5.0}, 4.99),
        ({"Yes": -0.01}, 0.0),
    ],
)
def test_the_odds_are_those_of_the_listed_tokens(top, score) -> None:
    with answering(chat(top)) as server, open_judge(server.root) as judge:
        assert judge.score(PAIRS[:1]) == pytest.approx(score)


def test_grades_that_are_not_listed_are_impossible() -> None:
    with answering(chat({"3": math.log(0.6), "1": math.log(0.2), "The": -3.0})) as server:
        assert open_judge(server.root, answers=GRADES).score(PAIRS[:1]) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (chat({"The": -0.2, " document": -3.0}), r"'Yes', 'No'.*2 likeliest.*'The'.*' document'.*enable_thinking"),
        (chat({}), "0 likeliest"),
        (chat({"Yes": float("nan")}), "0 likeliest"),
        (chat({"Yesterday": -0.1, "None": -0.2}), "'Yesterday'"),
        (chat({"Yes": -0.1}, message={"refusal": "I cannot help with that."}), "refused.*I cannot help"),
        (chat({"Yes": -0.1}, logprobs=None), "no logprobs.*vLLM"),
        (chat({"Yes": -0.1}, logprobs={"content": [{"token": "Yes"}]}), "cannot be read"),
        ({"object": "error", "message": "hm"}, "'choices'.*hm"),
        ({"choices": []}, "'choices'"),
        (b"<html>login</html>", "'choices'.*login"),
        ({"results": [{"index": 0, "relevance_score": 1}]}, "'choices'"),
    ],
)
def test_what_cannot_be_scored_is_told_with_its_pair(body, told) -> None:
    with answering(body) as server, open_judge(server.root) as judge:
        with pytest.raises(ScorerFailed, match=rf"(?s){told}.*query 'q0' and item 'i0'"):
            judge.score(PAIRS[:1])
        assert len(server.asked) == 1


@pytest.mark.parametrize("message", ["logprobs is not supported with this model", "top_logprobs must be at most 5"])
def test_an_endpoint_that_refuses_logprobs_is_told_with_advice(message) -> None:
    with (
        answering({"error": {"message": message}}, status=400) as server,
        pytest.raises(ScorerFailed, match=rf"{message}.*llama\.cpp"),
    ):
        open_judge(server.root).score(PAIRS[:1])


def test_the_door_opens_judges_by_kind_by_address_and_by_source(local) -> None:
    with JudgeServer(local) as server:
        options = {"answers": {"bad": -1, "good": 1.5}, "instruction": "ü & {query}?", "extra": {"seed": 1}}
        judge = adacur.scorer(f"{server.root}/v1", kind="judge", model=MODEL, **options)
        assert isinstance(judge, JudgeScorer)
        assert (judge.model, judge.url) == (MODEL, f"{server.root}/v1/chat/completions")
        assert judge.card.name == MODEL
        for url in (judge.card.source, f"{server.root}/v1/chat/completions", f"{server.root}#kind=judge"):
            assert isinstance(adacur.scorer(url), JudgeScorer)
        again = adacur.scorer(judge.card.source)
        assert again.card == judge.card
        assert again.render(*PAIRS[0]) == judge.render(*PAIRS[0])
        assert again.answers == judge.answers
        with pytest.raises(UnknownOption, match="scores"):
            adacur.scorer(f"{server.root}/v1/chat/completions", scores="raw")


def test_another_prompt_instruction_or_answer_is_another_scorer(local, tmp_path) -> None:
    with JudgeServer(local) as server:
        judges = [
            open_judge(server.root, **options)
            for options in (
                {},
                {"instruction": "red"},
                {"answers": ("No", "Yes")},
                {"answers": GRADES},
                {"prompt": "{query} {item}"},
                {"extra": {"seed": 1}},
            )
        ]
        assert len({judge.card.source for judge in judges}) == len({judge.card.settings for judge in judges}) == 6
        for judge in judges:
            paid = Metered(judge)
            with Cached(paid, tmp_path / "scores.sqlite") as cached:
                first = cached.score(PAIRS[:4])
                np.testing.assert_array_equal(cached.score(PAIRS[:4]), first)
                assert paid.calls == 4


def test_its_card_fits_into_json_and_it_can_be_pickled(local) -> None:
    with JudgeServer(local) as server, open_judge(server.root, api_key=KEY) as judge:
        assert KEY not in json.dumps([judge.card.source, repr(judge), judge.card.settings])
        copy = pickle.loads(pickle.dumps(judge))
        np.testing.assert_array_equal(copy.score(PAIRS[:2]), judge.score(PAIRS[:2]))
        assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {KEY}"}


def test_the_key_is_not_shown_and_that_of_the_environment_goes_to_its_service_only(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert open_judge("https://api.openai.com/v1", model="m")._key == KEY
    for url in ("http://api.openai.com/v1", "https://openai.com.example.org/v1", "http://127.0.0.1/v1"):
        assert open_judge(url, model="m")._key is None
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        open_judge("https://api.openai.com/v1", model="m")
    with answering({"error": KEY}, status=403) as server, pytest.raises(ScorerFailed) as caught:
        open_judge(server.root, api_key=KEY).score(PAIRS[:1])
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"answers": ("Yes", "yes ")}, "'Yes'"),
        ({"answers": ("a", "b", "c")}, "grades"),
        ({"answers": ("Yes", 3)}, "answers"),
        ({"answers": {"0": 1, "1": 1}}, "answers"),
        ({"answers": {"0": 0, "1": float("nan")}}, "answers"),
        ({"prompt": "{query}"}, r"\{item\}"),
        ({"prompt": "{query}{item}", "instruction": "x"}, r"\{instruction\}"),
        ({"prompt": "{instruction}{query}{item}"}, r"\{instruction\}"),
        ({"extra": {"max_tokens": 5}}, "'max_tokens'"),
        ({"extra": {"n": 3}, "logprobs": False}, "'n'"),
        ({"top_logprobs": 0}, "top_logprobs"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, told) -> None:
    with pytest.raises(InputError, match=told):
        open_judge("http://127.0.0.1/v1", model="m", **options)


@pytest.mark.parametrize(
    "remembered",
    ["top_logprobs=" + "9" * 5000, "samples=many", "samples=" + "9" * 5000, "answers=" + "[" * 100_000, "extra=["],
)
def test_an_address_that_remembers_nonsense_is_refused(remembered) -> None:
    with pytest.raises(InputError):
        JudgeScorer(f"http://127.0.0.1/v1#kind=judge&{remembered}")


def changed(**fields):
    body = chat({"Yes": -0.1, "No": -2.0})
    body["choices"][0] |= fields
    return body


STRANGE = {
    "infinite": chat({"Yes": math.inf, "No": -1.0}),
    "above 0": chat({"Yes": 1e308, "No": -1.0}),
    "10^400": chat({"Yes": 10**400, "No": -1.0}),
    "a text": chat({"Yes": "-0.1", "No": -1.0}),
    "a truth": chat({"Yes": True, "No": -1.0}),
    "repeated": {"choices": chat({"Yes": -0.1, "No": -2.0})["choices"] * 2},
    "deep": b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "another codec": b"\xff",
}


@pytest.mark.parametrize("body", STRANGE.values(), ids=STRANGE)
def test_an_answer_that_cannot_be_is_refused_and_never_a_score(body) -> None:
    reply = Reply(200, body, {"Content-Type": "application/json; charset=zlib"})
    with (
        JudgeServer(reply=lambda _: reply) as server,
        open_judge(server.root, attempts=1) as judge,
        pytest.raises(ScorerFailed),
    ):
        judge.score(PAIRS[:1])


CUT = {
    "refusal": changed(message={"refusal": "x" * 185 + KEY}),
    "answer": changed(message={"content": "x" * 45 + KEY}, logprobs={"content": []}),
    "logprobs": changed(logprobs={"content": "x" * 170 + KEY}),
}


@pytest.mark.parametrize("body", CUT.values(), ids=CUT)
def test_not_even_half_of_a_key_that_a_judge_repeats_is_shown(body) -> None:
    with (
        answering(body) as server,
        open_judge(server.root, api_key=KEY) as judge,
        pytest.raises(ScorerFailed) as failed,
    ):
        judge.score(PAIRS[:1])
    assert KEY[:6] not in str(failed.value)


def said(*texts, **fields):
    """An answer of a model that gives no logprobs, with these samples."""
    message = {"role": "assistant", "refusal": None}
    choices = [
        {"index": at, "message": message | {"content": text}, "finish_reason": "stop", **fields}
        for at, text in enumerate(texts)
    ]
    return {"id": "c1", "object": "chat.completion", "model": MODEL, "choices": choices}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Yes", 1.0),
        ("no", 0.0),
        (" **Yes.**\n", 1.0),
        ("'No'", 0.0),
        ("Answer: yes", 1.0),
        ("The answer is No.", 0.0),
        ("<think>It says no,\nbut yes.</think>\n\nYes", 1.0),
        ("```\nYes\n```", 1.0),
    ],
)
def test_a_verdict_is_read_whatever_its_marks(text, score) -> None:
    with answering(said(text)) as server, open_judge(server.root, logprobs=False) as judge:
        assert judge.score(PAIRS[:1]).tolist() == [score]
        (asked,) = server.asked
        assert set(asked.body) == {"model", "messages"}


@pytest.mark.parametrize(("text", "score"), [("3", 3.0), ("Grade: 2", 2.0), ("**0**", 0.0), ("score = 1", 1.0)])
def test_a_grade_is_read_as_its_number(text, score) -> None:
    with answering(said(text)) as server, open_judge(server.root, logprobs=False, answers=GRADES) as judge:
        assert judge.score(PAIRS[:1]).tolist() == [score]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (said("Yes, because ships are blue."), "because ships are blue"),
        (said("It depends."), "It depends"),
        (said("Yes or No"), "Yes or No"),
        (said(""), "nothing else"),
        (said("Yesterday"), "Yesterday"),
        (said("<think>hm, yes"), "hm, yes"),
        (said("Yes", finish_reason="content_filter"), "refused"),
        (said(), "'choices'"),
        (said("Yes", "No"), "'choices'"),
    ],
)
def test_prose_is_refused_with_its_pair(body, told) -> None:
    with answering(body) as server, open_judge(server.root, logprobs=False) as judge:
        with pytest.raises(ScorerFailed) as caught:
            judge.score(PAIRS[:1])
        assert told in str(caught.value)
        assert "query 'q0' and item 'i0'" in str(caught.value)


def test_samples_of_a_judge_that_changes_its_mind_are_averaged() -> None:
    with answering(said("Yes", "No", "yes.", "Yes")) as server, open_judge(server.root, samples=4) as judge:
        assert judge.score(PAIRS[:1]).tolist() == [0.75]
        assert server.asked[0].body["n"] == 4
    with answering(said("3", "2")) as server, open_judge(server.root, samples=2, answers=GRADES) as judge:
        assert judge.score(PAIRS[:1]).tolist() == [2.5]


def test_a_server_that_gives_too_few_samples_is_refused_with_advice() -> None:
    with (
        answering(said("Yes")) as server,
        open_judge(server.root, samples=3) as judge,
        pytest.raises(ScorerFailed) as caught,
    ):
        judge.score(PAIRS[:1])
    assert "samples=1" in str(caught.value)


def test_a_judge_that_is_read_is_another_scorer_and_opens_again_from_its_source() -> None:
    with answering(said("Yes", "No")) as server:
        plain = open_judge(server.root)
        judges = [plain, open_judge(server.root, logprobs=False), open_judge(server.root, samples=2)]
        assert len({judge.card.settings for judge in judges}) == 3
        for judge in judges:
            assert JudgeScorer(judge.card.source).card == judge.card
        again = JudgeScorer(judges[2].card.source, backoff=0.01)
        assert again.score(PAIRS[:1]).tolist() == [0.5]


@pytest.mark.parametrize("options", [{"samples": 0}, {"samples": 2, "logprobs": True}])
def test_a_judge_cannot_be_read_in_two_ways_or_where_nothing_is_said(options) -> None:
    with pytest.raises(InputError):
        open_judge("http://127.0.0.1/v1", **options)
