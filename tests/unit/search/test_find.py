"""`find`: what it refuses, how it ends, and what it promises."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from adacur import AnchorIndex, Budget, Item, Query
from adacur.errors import BudgetError, InputError, ScorerFailed
from adacur.results import Certificate
from adacur.scorers import FunctionScorer
from adacur.search.finding import _short_of, finding_rounds, missing_by_finds, most_above
from tests import embedding_world
from tests.unit.search.test_stopping import QUERIES, easy_and_hard


def without_anchors(**options) -> AnchorIndex:
    """An index that has nothing to calibrate on; with an encoder, the model is all there is to go by."""
    return AnchorIndex.from_items(embedding_world.ITEMS, scorer=embedding_world.Scorer(), **options)


@pytest.mark.parametrize("above", [math.nan, math.inf, -math.inf, "much", None, True])
def test_a_line_that_is_not_a_number_is_refused(above) -> None:
    index = easy_and_hard()
    with pytest.raises(InputError):
        index.find(QUERIES[0], above=above)
    assert index.scorer.calls == 0


@pytest.mark.parametrize("recall", [0, -0.5, 1.5, math.nan, "all", True])
def test_a_recall_that_is_no_share_is_refused(recall) -> None:
    with pytest.raises(InputError):
        easy_and_hard().find(QUERIES[0], above=0.0, recall=recall)


@pytest.mark.parametrize("confidence", [0, 0.2, 1, math.nan])
def test_a_confidence_of_certainty_or_of_less_than_a_coin_is_refused(confidence) -> None:
    with pytest.raises(InputError):
        easy_and_hard().find(QUERIES[0], above=0.0, confidence=confidence)


def test_a_recall_of_1_is_refused_unless_the_budget_covers_every_item() -> None:
    index = easy_and_hard()
    for budget in (299, "5000 tokens"):
        with pytest.raises(InputError):
            index.find(QUERIES[0], above=0.0, recall=1.0, budget=budget)
    assert index.scorer.calls == 0
    for budget in (None, 300):
        assert index.find(QUERIES[0], above=0.0, recall=1.0, budget=budget).certificate.basis == "every item"


@pytest.mark.parametrize(("audit", "budget"), [(300, 400), (301, 400), (60, 60), (61, 60), (10, "5000 tokens")])
def test_an_audit_that_leaves_nothing_to_search_or_cannot_be_random_is_refused(audit, budget) -> None:
    with pytest.raises(InputError):
        easy_and_hard().find(QUERIES[0], above=0.0, audit=audit, budget=budget)


@pytest.mark.parametrize("audit", [-1, 2.5, True])
def test_an_audit_is_a_number_of_calls(audit) -> None:
    with pytest.raises(BudgetError):
        easy_and_hard().find(QUERIES[0], above=0.0, audit=audit)


def test_a_line_above_all_scores_finds_nothing_and_soon_ends() -> None:
    hits = easy_and_hard().find(QUERIES[0], above=1000.0)
    assert len(hits) == 0
    assert hits.trace.calls < 100


def test_where_every_item_is_a_hit_all_are_found_within_the_budget() -> None:
    hits = easy_and_hard().find(QUERIES[0], above=-1000.0, budget=300)
    assert len(hits) == hits.trace.calls >= 270
    short = easy_and_hard().find(QUERIES[0], above=-1000.0, budget=60)
    assert len(short) == 60
    assert short.trace.stopped == "budget"
    assert short.certificate.basis == "none"


def test_without_anchor_queries_or_an_audit_nothing_is_promised() -> None:
    certificate = (
        without_anchors(first="dense", encoder=embedding_world.Encoder())
        .find("query 41", above=3.0, budget=150)
        .certificate
    )
    assert certificate.basis == "none"
    assert not certificate.is_promise
    assert certificate.confidence is None
    assert 0 < certificate.recall < 1


@pytest.mark.parametrize("included", [0, 6, 12])
def test_of_yes_and_no_no_more_is_expected_to_be_found_than_is_true_on_average(included) -> None:
    # Who is included has nothing to do with the vectors, and so nothing found says where the others are.
    random, certificates, reached = np.random.default_rng(included), [], []
    for query in range(6):
        labels = np.zeros(embedding_world.N_ITEMS)
        labels[random.permutation(len(labels))[:included]] = 1
        scorer = FunctionScorer(
            lambda pairs, labels=labels: [labels[embedding_world.number(item)] for _, item in pairs]
        )
        index = AnchorIndex.from_items(
            embedding_world.ITEMS, scorer=scorer, first="dense", encoder=embedding_world.Encoder()
        )
        hits = index.find(f"query {query}", above=0.5, recall=0.95, budget=299)
        certificates.append(hits.certificate)
        reached.append(len(hits) / included if included else 1.0)
    assert {one.basis for one in certificates} == {"none"}
    assert np.mean([one.recall for one in certificates]) <= np.mean(reached) + 0.02


def test_what_the_last_calls_found_says_how_much_is_missing() -> None:
    none, some = np.zeros(100, dtype=bool), np.arange(100) % 10 == 0
    assert missing_by_finds(some, 0) == 0
    assert 0 < missing_by_finds(none, 1000) < missing_by_finds(some, 100) < missing_by_finds(some, 1000)
    assert missing_by_finds(np.ones(100, dtype=bool), 10) <= 10


def test_words_alone_are_read_down_the_list_and_an_audit_says_what_that_is_worth() -> None:
    hits = without_anchors(first="bm25").find("query 41", above=1.0, budget=290, audit=150)
    assert hits.trace.settings["method"] == "rerank"
    assert hits.trace.calls == 290
    assert hits.certificate.basis == "audit"


def test_a_search_that_its_deadline_ends_keeps_what_it_found_and_promises_nothing() -> None:
    index = easy_and_hard()
    hits = index.find(QUERIES[0], above=0.0, budget=Budget(200, deadline=1e-9))
    assert hits.trace.stopped == "deadline"
    assert hits.trace.calls == index.scorer.calls > 0
    assert hits.certificate.basis == "none"


def test_scoring_everything_keeps_to_a_deadline_as_well() -> None:
    index = easy_and_hard()
    hits = index.find(QUERIES[0], above=0.0, recall=1.0, budget=Budget(300, deadline=1e-9))
    assert hits.trace.calls == index.scorer.calls < 300
    assert hits.certificate.basis == "none"
    with pytest.raises(BudgetError):
        index.find(QUERIES[0], above=0.0, recall=1.0, budget=Budget(300, tokens=1000))


def test_a_search_that_its_scorer_ends_keeps_what_it_found_and_promises_nothing() -> None:
    index, calls = easy_and_hard(), []

    def fails(pairs):
        calls.append(len(pairs))
        if len(calls) > 2:
            raise OSError("gone")
        return [5.0] * len(pairs)

    broken = index.with_scorer(lambda _: FunctionScorer(fails))
    with pytest.raises(ScorerFailed) as failed:
        broken.find(QUERIES[0], above=0.0)
    (hits,) = failed.value.hits
    assert len(hits) == sum(calls[:2])
    assert hits.certificate.basis == "none"


def test_an_audit_of_all_that_a_filter_leaves_scores_all_of_it() -> None:
    allowed = [f"i{at}" for at in range(40)]
    hits = easy_and_hard().find(QUERIES[0], above=1000.0, filter=allowed, audit=100)
    assert hits.trace.calls == 40
    assert hits.certificate.basis == "every item"


def test_where_nothing_predicts_the_reason_is_told() -> None:
    certificate = without_anchors(first="bm25").find("query 41", above=1.0, budget=50).certificate
    assert certificate.basis == "none"
    assert certificate.reasons


def test_a_recall_in_words_is_never_more_than_the_promise() -> None:
    certificate = Certificate(0.0, "audit", 0.9996, 100, 0.999, 50)
    assert "99.9%" in str(certificate)
    assert "100%" not in str(certificate)
    assert "57%" in str(Certificate(0.0, "audit", 0.57, 100, 0.9, 50))


def test_a_price_changes_no_audit() -> None:
    plain, priced = (
        easy_and_hard().find(QUERIES[1], above=2.0, audit=50, budget=budget)
        for budget in (200, Budget(200, price="1 USD / 1k tokens"))
    )
    assert sum(len(round_.positions) for round_ in priced.trace.rounds if round_.is_audit) == 50
    assert (priced.ids, priced.certificate) == (plain.ids, plain.certificate)


def test_an_audit_promises_no_more_than_there_is() -> None:
    index = easy_and_hard()
    for query, exact in zip(QUERIES, exact_scores(index), strict=True):
        hits = index.find(query, above=3.0, budget=250, audit=60, confidence=0.99)
        certificate = hits.certificate
        if certificate.basis == "audit":
            assert certificate.recall * np.count_nonzero(exact >= 3.0) <= len(hits)
            assert certificate.n == 60


def test_an_audit_of_most_items_certifies_a_query_by_itself() -> None:
    certificates = [easy_and_hard().find(one, above=2.0, budget=299, audit=200).certificate for one in QUERIES[1::2]]
    assert {one.basis for one in certificates} == {"audit"}
    assert all(one.recall >= 0.9 and one.confidence == 0.9 for one in certificates)


def test_the_bound_of_an_audit_holds_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    unseen, drawn, hidden = 400, 60, 12
    items = np.arange(unseen) < hidden
    bounds = [
        most_above(unseen, drawn=drawn, above=int(random.permutation(items)[:drawn].sum()), doubt=0.1)
        for _ in range(500)
    ]
    assert np.mean([bound >= hidden for bound in bounds]) >= 0.87
    assert np.mean(bounds) < 60


@pytest.mark.parametrize(("drawn", "above", "most"), [(10, 10, 10), (10, 0, 0), (10, 4, 4)])
def test_an_audit_of_all_that_is_left_leaves_no_doubt(drawn, above, most) -> None:
    assert most_above(10, drawn=drawn, above=above, doubt=0.1) == most


def test_the_doubt_of_an_audit_is_what_the_hypergeometric_says() -> None:
    # Of 20 items with 4 above the line, 10 at random hold none with a chance of 16!/6! · 10!/20!, 4.3 %.
    assert most_above(20, drawn=10, above=0, doubt=0.0434) == 3
    assert most_above(20, drawn=10, above=0, doubt=0.0433) == 4


def test_rounds_grow_and_spend_the_budget() -> None:
    for calls in (1, 5, 24, 25, 100, 1000, 5000):
        sizes = finding_rounds(calls)
        assert sum(sizes) == calls
        assert min(sizes) >= 1
    assert max(finding_rounds(1000)) < 100


def test_streamed_awaited_and_plain_finds_agree() -> None:
    index = easy_and_hard()
    plain = index.find(QUERIES[:3], above=3.0, audit=20)
    awaited = asyncio.run(index.afind(QUERIES[:3], above=3.0, audit=20))
    assert [hits.ids for hits in awaited] == [hits.ids for hits in plain]
    assert [hits.certificate for hits in awaited] == [hits.certificate for hits in plain]
    *before, last = index.find_iter(QUERIES[0], above=3.0, audit=20)
    assert last.ids == plain[0].ids
    assert last.certificate == plain[0].certificate
    assert {hits.certificate.basis for hits in before} == {"none"}

    async def streamed():
        return [hits async for hits in index.afind_iter(QUERIES[0], above=3.0, audit=20)]

    assert asyncio.run(streamed())[-1].ids == plain[0].ids


def test_a_query_asked_twice_is_paid_for_once() -> None:
    index = easy_and_hard()
    one, two = index.find([QUERIES[0], QUERIES[0]], above=3.0)
    assert one.ids == two.ids
    assert index.scorer.calls == one.trace.calls


def test_items_of_one_text_are_all_found() -> None:
    items = [Item(f"i{at}", "the same") for at in range(50)]
    index = AnchorIndex.from_items(items, scorer=FunctionScorer(lambda pairs: [1.0] * len(pairs)))
    assert len(index.find("the same", above=0.5, budget=50)) == 50


def test_only_items_that_pass_the_filter_are_found() -> None:
    index = easy_and_hard()
    allowed = [f"i{at}" for at in range(0, 300, 3)]
    hits = index.find(QUERIES[0], above=1.0, filter=allowed, recall=1.0, budget=300)
    assert set(hits.ids) <= set(allowed)
    assert hits.trace.calls == 100
    assert hits.certificate.basis == "every item"


def exact_scores(index: AnchorIndex) -> list[np.ndarray]:
    queries = [Query(query.id, query.text) for query in QUERIES]
    return [index.search(query, 300, method="exact", budget=None).scores for query in queries]


@pytest.mark.parametrize(("found", "unseen"), [(9, 170), (18, 170), (27, 170), (18, 5000)])
def test_the_audit_that_is_advised_certifies_and_one_call_less_does_not(found: int, unseen: int) -> None:
    advised = int(_short_of(0.9, found, unseen, 0.9).split("about ")[1].split()[0].replace(",", ""))
    least = [found / (found + most_above(unseen, drawn=n, above=0, doubt=0.1)) for n in (advised - 1, advised)]
    assert least[0] < 0.9 - 1e-9 <= least[1]
