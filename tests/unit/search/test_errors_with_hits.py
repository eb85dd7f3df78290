"""A search that an error ends: what had been scored is in the error. Equal queries: searched and paid for once."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Budget, Query
from adacur.errors import NonFiniteScore, ScorerFailed
from adacur.extras.server.search_log import SearchLog
from adacur.first_stages import as_hits
from adacur.protocols import ScorerCard
from adacur.scorers import FunctionScorer
from adacur.search import rounds
from adacur.search.rounds import RunningSearch

ROUNDS = AdaCUR(rounds=4)


class Failing:
    """A scorer that fails from some call on, in its own way, or for one query; it remembers what it scored."""

    card = ScorerCard(name="failing", backend="test")

    def __init__(self, scorer, *, after: int = 10**6, query: Query | None = None, answer=lambda pairs: 1 / 0) -> None:
        self.scorer, self.after, self.query, self.answer = scorer, after, query, answer
        self.calls = 0
        self.scored: list[tuple[str, str]] = []

    def score(self, pairs):
        self.calls += 1
        if self.calls > self.after or any(query == self.query for query, _ in pairs):
            return self.answer(pairs)
        self.scored += [(query.id, item.id) for query, item in pairs]
        return self.scorer.score(pairs)


class Awaited(Failing):
    async def ascore(self, pairs):
        await asyncio.sleep(0)
        return self.score(pairs)


def over(world, scorer, **options) -> AnchorIndex:
    return AnchorIndex(world.index.anchors, scorer=scorer, first={"bm25": world.noisy_first()}, **options)


def of_search(index, queries, **options):
    index.search(queries, 5, **options)


def of_asearch(index, queries, **options):
    asyncio.run(index.asearch(queries, 5, **options))


def of_search_iter(index, queries, **options):
    list(index.search_iter(queries[0], 5, **options))


def of_asearch_iter(index, queries, **options):
    async def read():
        return [hits async for hits in index.asearch_iter(queries[0], 5, **options)]

    asyncio.run(read())


FORMS = [of_search, of_asearch, of_search_iter, of_asearch_iter]


def scored_in(hits, index) -> list[tuple[str, str]]:
    return [(hits.query.id, item.id) for round_ in hits.trace.rounds for item in round_.scored_items(index.items)]


@pytest.mark.parametrize("kind", [Failing, Awaited])
@pytest.mark.parametrize("form", FORMS)
def test_an_error_carries_the_hits_so_far_in_every_form_of_search(world, form, kind) -> None:
    index = over(world, kind(world.scorer, after=2))
    healthy = over(world, world.scorer)

    with pytest.raises(ScorerFailed) as failed:
        form(index, world.test[:3], budget=40, method=ROUNDS)

    for query, hits in zip(world.test, failed.value.hits, strict=False):
        second = list(healthy.search_iter(query, 5, budget=40, method=ROUNDS))[1]
        assert (hits.query, hits.ids, hits.scores.tolist()) == (query, second.ids, second.scores.tolist())
        assert (hits.trace.calls, hits.trace.stopped) == (second.trace.calls, "error")
    assert Counter(index.scorer.scored) == Counter(
        pair for hits in failed.value.hits for pair in scored_in(hits, index)
    )
    assert len(failed.value.hits) == (3 if form in (of_search, of_asearch) else 1)


@pytest.mark.parametrize("form", FORMS)
def test_an_error_before_any_score_carries_hits_of_none(world, form) -> None:
    index = over(world, Failing(world.scorer, after=0, answer=lambda pairs: np.full(len(pairs), np.nan)))

    with pytest.raises(NonFiniteScore) as failed:
        form(index, world.test[:1], budget=40)

    (hits,) = failed.value.hits
    assert (hits.query, hits.ids, hits.trace.calls, hits.trace.stopped) == (world.test[0], (), 0, "error")
    assert len(hits.scores) == 0


@pytest.mark.parametrize("options", [{"budget": 40}, {"method": "exact"}])
def test_scores_of_a_round_that_an_error_cut_are_kept(world, options) -> None:
    limits = {"deadline": 600.0}
    budget = Budget(options.get("budget", len(world.items)), **limits)
    # The first call tells how fast the scorer is, by one pair.
    index = over(world, Failing(world.scorer, after=1))

    with pytest.raises(ScorerFailed) as failed:
        index.search(world.test[0], 5, **(options | {"budget": budget}))

    (hits,) = failed.value.hits
    assert (len(hits), hits.trace.calls, hits.trace.stopped) == (1, 1, "error")


def test_queries_that_had_ended_and_those_not_begun_are_told_apart(world, monkeypatch) -> None:
    monkeypatch.setattr(rounds, "_PAIRS_AT_ONCE", 1)
    index = over(world, Failing(world.scorer, query=world.test[1]))

    with pytest.raises(ScorerFailed) as failed:
        index.search(world.test[:3], 5, budget=40)

    whole, *others = failed.value.hits
    own = over(world, world.scorer).search(world.test[0], 5, budget=40)
    assert (whole.ids, whole.trace.stopped, whole.trace.calls) == (own.ids, "budget", 40)
    assert [(hits.query, len(hits), hits.trace.stopped) for hits in others] == [
        (query, 0, "error") for query in world.test[1:3]
    ]


def test_whatever_a_first_stage_raises_carries_what_was_paid_for(world, monkeypatch) -> None:
    monkeypatch.setattr(rounds, "_PAIRS_AT_ONCE", 1)
    known = world.noisy_first()

    class Service:
        def search(self, queries, k):
            if world.test[1] in queries:
                raise ConnectionResetError
            return as_hits(queries, known.search(queries, k), known.ids)

    with pytest.raises(ConnectionResetError) as failed:
        over(world, world.scorer).search(world.test[:3], 5, budget=40, first=Service())

    assert [(hits.trace.calls, hits.trace.stopped) for hits in failed.value.hits] == [
        (40, "budget"),
        (0, "error"),
        (0, "error"),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_failing_search_has_scored_is_logged(world, form, tmp_path) -> None:
    log = SearchLog(tmp_path / "log.sqlite")
    index = over(world, Failing(world.scorer, after=2), log=log)

    with pytest.raises(ScorerFailed):
        form(index, world.test[:1], budget=40, method=ROUNDS)

    (logged,) = log
    assert logged.ids == tuple(item for _, item in index.scorer.scored)


@pytest.mark.parametrize("form", [of_search, of_asearch])
def test_equal_queries_pay_once_and_each_has_the_answer(world, form) -> None:
    a, b, c = world.test[:3]
    again = Query(a.id, a.text)
    asked = [a, b, again, c, a, b]
    scorer = Failing(world.scorer)
    index = over(world, scorer)

    if form is of_search:
        answers = index.search(asked, 5, budget=20)
    else:
        answers = asyncio.run(index.asearch(asked, 5, budget=20))

    assert Counter(scorer.scored).most_common(1)[0][1] == 1
    assert len(scorer.scored) == 3 * 20
    assert [hits.query for hits in answers] == asked
    alone = {query.id: over(world, world.scorer).search(query, 5, budget=20) for query in (a, b, c)}
    assert [(hits.ids, hits.trace.calls) for hits in answers] == [(alone[one.id].ids, 20) for one in asked]
    assert len({id(hits) for hits in answers}) == len(asked)


def test_queries_of_one_text_and_other_ids_draw_for_themselves(world) -> None:
    one, other = Query("one", "a text"), Query("other", "a text")
    flat = {query.id: 0.0 for query in (one, other)}

    class Flat(Failing):
        def score(self, pairs):
            self.scored += [(query.id, item.id) for query, item in pairs]
            return np.array([flat[query.id] for query, _ in pairs])

    index = AnchorIndex(world.index.anchors, scorer=Flat(world.scorer))
    found = index.search([one, other], 5, budget=20, first="random")

    assert len(index.scorer.scored) == 40
    assert scored_in(found[0], index) != [("one", item) for _, item in scored_in(found[1], index)]


def test_an_error_in_choosing_carries_the_rounds_before_it(world, monkeypatch) -> None:
    index = over(world, Failing(world.scorer))
    step = RunningSearch.step
    steps: list[int] = []

    def breaks(self):
        steps.append(1)
        if len(steps) == 3:
            raise NonFiniteScore("a device answered with nonsense")
        return step(self)

    monkeypatch.setattr(RunningSearch, "step", breaks)
    with pytest.raises(NonFiniteScore) as failed:
        index.search(world.test[:1], 5, budget=40, method=ROUNDS)

    (hits,) = failed.value.hits
    assert Counter(index.scorer.scored) == Counter(scored_in(hits, index))
    assert hits.trace.stopped == "error"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_async", [False, True])
def test_batches_of_a_function_that_were_scored_before_one_failed_are_kept(world, form, is_async) -> None:
    texts: list[str] = []

    def function(pairs):
        if len(texts) >= 28:
            raise ConnectionError
        texts.extend(text for _, text in pairs)
        return [len(texts)] * len(pairs)

    async def awaited(pairs):
        return function(pairs)

    scorer = FunctionScorer(awaited if is_async else function, batch_size=4, concurrency=1, attempts=1)
    index = over(world, scorer)

    with pytest.raises(ScorerFailed) as failed:
        form(index, world.test[:1], budget=40, method=AdaCUR(rounds=2))

    (hits,) = failed.value.hits
    scored = [item.text for round_ in hits.trace.rounds for item in round_.scored_items(index.items)]
    assert (scored, hits.trace.calls, hits.trace.stopped) == (texts, 28, "error")
    # A later batch scores higher.
    assert hits[0].item.text in texts[-4:]
