from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Budget, Gaussian, Item, Query
from adacur.errors import BudgetError, InputError, ScorerError, ScorerFailed
from adacur.model import GaussianModel
from adacur.protocols import ScorerCard
from adacur.scorers import FunctionScorer, Metered

METHODS = [
    {"method": "gaussian", "budget": 40, "first": "noisy"},
    {"method": AdaCUR(rounds=4, seed=3), "budget": 41, "first": "random"},
    {"method": "anncur", "budget": 30, "first": "noisy"},
    {"method": "rerank", "budget": 20, "first": "noisy"},
    {"method": "exact"},
]


def answer(hits) -> tuple:
    """Everything of an answer but the seconds it took."""
    rounds = [(round_.number, round_.positions.tolist(), round_.exact.tolist()) for round_ in hits.trace.rounds]
    predicted = [None if round_.predicted is None else round_.predicted.tolist() for round_ in hits.trace.rounds]
    return hits.query, hits.ids, hits.scores.tolist(), hits.rounds, rounds, predicted, hits.trace.stopped


@pytest.fixture
def index(world) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})


@pytest.mark.parametrize("options", METHODS, ids=lambda options: str(options["method"]))
def test_awaited_searches_answer_like_search_to_the_last_bit(index, world, options) -> None:
    expected = [answer(index.search(query, k=5, **options)) for query in world.test]

    async def last_step(query):
        return [hits async for hits in index.asearch_iter(query, k=5, **options)][-1]

    async def every_way() -> list[list]:
        single = await asyncio.gather(*(index.asearch(query, k=5, **options) for query in world.test))
        steps = await asyncio.gather(*(last_step(query) for query in world.test))
        return [single, steps, await index.asearch(world.test, k=5, **options)]

    for found in asyncio.run(every_way()):
        assert [answer(hits) for hits in found] == expected


def test_asearch_iter_yields_what_search_iter_yields(index, world) -> None:
    options = {"k": 5, "budget": 50, "method": Gaussian(rounds=5), "first": "noisy"}

    async def steps() -> list:
        return [hits async for hits in index.asearch_iter(world.test[0], **options)]

    async def first_step_only():
        return await anext(index.asearch_iter(world.test[0], **options))

    expected = [answer(hits) for hits in index.search_iter(world.test[0], **options)]
    assert [answer(hits) for hits in asyncio.run(steps())] == expected
    assert answer(asyncio.run(first_step_only())) == expected[0]


def test_nothing_of_a_search_runs_on_the_event_loop_s_thread(world) -> None:
    seen: dict[str, set[int]] = {}

    def here(part: str) -> None:
        seen.setdefault(part, set()).add(threading.get_ident())

    class Watched:
        """Tells on which thread each method of an object is called."""

        def __init__(self, watched: object, *methods: str) -> None:
            self._watched, self._methods = watched, methods

        def __getattr__(self, name: str):
            found = getattr(self._watched, name)
            if name not in self._methods:
                return found

            def called(*args, **options):
                here(name)
                answer = found(*args, **options)
                return Watched(answer, "predict", "tell") if name == "begin" else answer

            return called

    def open_scorer():
        here("open scorer")
        return world.scorer, None

    def open_first():
        here("open first stage")
        return Watched(world.noisy_first(), "search")

    index = AnchorIndex(world.index, scorer=open_scorer, first={"noisy": open_first})

    def allowed(item: Item) -> bool:
        here("filter")
        return item.id != "i3"

    async def search() -> None:
        await index.asearch(
            world.test[0],
            k=3,
            filter=allowed,
            budget=20,
            method=AdaCUR(approximator=Watched(GaussianModel(), "begin"), keep_predictions="last"),
            first="noisy",
        )

    asyncio.run(search())
    parts = {"open scorer", "open first stage", "search", "filter", "begin", "predict", "tell"}
    assert set(seen) == parts
    assert threading.get_ident() not in set.union(*seen.values())


class Counting:
    """A plain scorer that counts the pairs of its calls."""

    card = ScorerCard(name="counting", backend="test")

    def __init__(self, scorer) -> None:
        self.scorer = scorer
        self.sizes: list[int] = []

    def score(self, pairs):
        self.sizes.append(len(pairs))
        return self.scorer.score(pairs)


def test_a_function_is_called_once_at_a_time_whatever_is_around_it(world) -> None:
    at_once: list[int] = []
    running = 0

    def counts(pairs):
        nonlocal running
        running += 1
        at_once.append(running)
        time.sleep(0.002)
        running -= 1
        return [float(len(item)) for _, item in pairs]

    scorer = FunctionScorer(counts)
    indexes = [AnchorIndex(world.index, scorer=one) for one in (scorer, Metered(scorer), Metered(scorer))]

    async def last_step(index, query):
        return [hits async for hits in index.asearch_iter(query, k=5, budget=20)][-1]

    async def together() -> list:
        searches = [index.asearch(query, k=5, budget=20) for index in indexes for query in world.test[:2]]
        return await asyncio.gather(*searches, *(last_step(index, world.test[2]) for index in indexes))

    assert {hits.trace.calls for hits in asyncio.run(together())} == {20}
    assert set(at_once) == {1}


def test_a_reader_of_rounds_pays_for_those_it_asks_for(world) -> None:
    counting = Counting(world.scorer)
    index = AnchorIndex(world.index, scorer=counting, first={"noisy": world.noisy_first()})

    async def leaves() -> int:
        steps = index.asearch_iter(world.test[0], k=5, budget=50, method=Gaussian(rounds=5))
        calls = (await anext(steps)).trace.calls
        await asyncio.sleep(0.05)
        await steps.aclose()
        return calls

    assert asyncio.run(leaves()) == sum(counting.sizes) < 50


def test_no_queries_have_no_answers(index) -> None:
    assert asyncio.run(index.asearch([], k=5)) == index.search([], k=5) == []


class Failing:
    """A plain scorer that raises where a call holds a query of `fails`; remembers what it was sent of each query."""

    card = ScorerCard(name="failing", backend="test")

    def __init__(self, scorer, fails: set[str], how: str) -> None:
        self.scorer, self.fails, self.how = scorer, fails, how
        self.sent: Counter[str] = Counter()
        self.twice: Counter[tuple[str, str]] = Counter()

    def score(self, pairs):
        self.sent.update(query.id for query, _ in pairs)
        self.twice.update((query.id, item.id) for query, item in pairs)
        time.sleep(0.005)
        scores = np.array(self.scorer.score(pairs), dtype=float)
        wrong = [query.id in self.fails and self.sent[query.id] > 8 for query, _ in pairs]
        if any(wrong) and self.how == "raises":
            raise RuntimeError("it cannot read this question")
        if any(wrong) and self.how == "too few":
            return scores[:-1]
        scores[wrong] = np.nan
        return scores


@pytest.mark.parametrize("how", ["raises", "too few", "nan"])
@pytest.mark.parametrize("wrap", [lambda scorer: scorer, Metered, "function"], ids=["plain", "metered", "function"])
def test_no_scorer_is_sent_more_than_the_budget_because_a_neighbour_s_query_fails(world, how, wrap) -> None:
    failing = Failing(world.scorer, {"t1", "t3"}, how)
    scorer = failing if wrap == "function" else wrap(failing)
    if wrap == "function":
        queries = {query.text: query for query in world.test}
        items = {item.text: item for item in world.items}
        scorer = FunctionScorer(
            lambda pairs: failing.score([(queries[query], items[item]) for query, item in pairs]), attempts=1
        )
    index = AnchorIndex(world.index, scorer=scorer)

    async def together() -> list:
        searches = (index.asearch(query, k=5, budget=20) for query in world.test[:5])
        return await asyncio.gather(*searches, return_exceptions=True)

    found = asyncio.run(together())
    assert [isinstance(hits, ScorerError) for hits in found] == [False, True, False, True, False]
    assert max(failing.sent.values()) <= 20
    assert max(failing.twice.values()) == 1
    alone = AnchorIndex(world.index, scorer=world.scorer)
    for query, hits in zip(world.test[:5], found, strict=True):
        if query.id not in failing.fails:
            assert hits.trace.calls == failing.sent[query.id] == 20
            assert answer(hits) == answer(alone.search(query, k=5, budget=20))


def test_a_scorer_that_raises_is_named_to_those_who_await_it(world) -> None:
    class Broken:
        card = ScorerCard(name="broken", backend="test")

        def score(self, pairs):
            raise ZeroDivisionError("by nought")

    with pytest.raises(ScorerFailed, match=r"'broken'.*ZeroDivisionError"):
        asyncio.run(AnchorIndex(world.index, scorer=Broken()).asearch("a question"))


@pytest.mark.parametrize("method", ["gaussian", "rerank"])
def test_a_deadline_ends_an_awaited_search_with_what_it_has(world, method) -> None:
    def slow(pairs):
        time.sleep(0.01 * len(pairs))
        return [float(len(text)) for _, text in pairs]

    index = AnchorIndex(world.index, scorer=FunctionScorer(slow), first={"noisy": world.noisy_first()})
    hits = asyncio.run(
        index.asearch(world.test[0], k=5, budget=Budget(150, deadline=0.5), method=method, first="noisy")
    )
    assert hits.trace.stopped == "deadline"
    assert 1 <= hits.trace.calls < 150
    assert len(hits) == min(5, hits.trace.calls)


def test_bad_arguments_are_refused_by_awaited_searches_before_anything_is_paid(world) -> None:
    index = AnchorIndex(world.index, scorer=Metered(world.scorer))

    async def step() -> None:
        async for _ in index.asearch_iter(world.test[0], k=0):
            pass

    with pytest.raises(BudgetError):
        asyncio.run(index.asearch(world.test[0], budget=0))
    with pytest.raises(BudgetError):
        asyncio.run(step())
    with pytest.raises(InputError):
        asyncio.run(index.asearch([7]))
    assert index.scorer.calls == 0


def test_a_cancelled_search_stops_asking(world) -> None:
    counting = Counting(world.scorer)
    index = AnchorIndex(world.index, scorer=counting)
    entered, gate = threading.Event(), threading.Event()
    known = counting.scorer

    class Held:
        def score(self, pairs):
            entered.set()
            assert gate.wait(60)
            return known.score(pairs)

    counting.scorer = Held()

    async def give_up() -> None:
        task = asyncio.create_task(index.asearch(world.test[0], k=1, budget=50))
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(give_up())
    assert len(counting.sizes) == 1


@pytest.mark.parametrize("is_function", [True, False], ids=["a function", "an object"])
def test_the_next_search_waits_for_the_call_of_a_cancelled_one(world, is_function) -> None:
    # Its thread goes on, and the scorer may not be thread-safe.
    entered, gate = threading.Event(), threading.Event()
    at_once: list[int] = []
    running = 0

    def held(pairs):
        nonlocal running
        running += 1
        at_once.append(running)
        entered.set()
        assert gate.wait(60)
        running -= 1
        return [float(len(item)) for _, item in pairs]

    class Held:
        card = ScorerCard(name="held", backend="test")

        def score(self, pairs):
            return held([(query.text, item.text) for query, item in pairs])

    index = AnchorIndex(world.index, scorer=FunctionScorer(held) if is_function else Held())

    async def give_up() -> int:
        task = asyncio.create_task(index.asearch(world.test[0], k=1, budget=50))
        await asyncio.to_thread(entered.wait, 60)
        next_one = asyncio.create_task(index.asearch(world.test[1], k=1, budget=20))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        gate.set()
        return (await next_one).trace.calls

    assert asyncio.run(give_up()) == 20
    assert set(at_once) == {1}


def test_a_search_inside_the_scorer_of_a_search_comes_back(world) -> None:
    inner = AnchorIndex(world.index, scorer=world.scorer)

    def asks_again(pairs):
        if any(query == "deep" for query, _ in pairs):
            return [1.0] * len(pairs)
        hits = asyncio.run(outer.asearch(Query("deep", "deep"), k=1, budget=5))
        asyncio.run(inner.asearch(world.test[0], k=1, budget=5))
        return [float(len(item)) + hits[0].score for _, item in pairs]

    outer = AnchorIndex(world.index, scorer=FunctionScorer(asks_again))
    found = asyncio.run(asyncio.wait_for(outer.asearch("shallow", k=1, budget=10), 60))
    assert found.trace.calls == 10
