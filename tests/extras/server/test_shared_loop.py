"""One loop for all searches that are awaited with one scorer."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import Counter

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Budget, Rerank
from adacur.errors import InputError, ScorerError, ScorerFailed
from adacur.extras.server import shared_loop as stepping
from adacur.extras.server.shared_loop import loop_of
from adacur.first_stages import as_hits
from adacur.protocols import ScorerCard
from tests.stepped_searches import asearch_iter
from tests.stopping import Stopping


class Gated:
    """A scorer whose first call waits until the gate opens; remembers the queries of each of its calls."""

    card = ScorerCard(name="gated", backend="test")
    can_batch_callers = True

    def __init__(self, scorer, *, is_open: bool = False, seconds: float = 0.0) -> None:
        self.scorer = scorer
        self.seconds = seconds
        self.calls: list[Counter[str]] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def score(self, pairs):
        self.calls.append(Counter(query.id for query, _ in pairs))
        self.entered.set()
        assert self.gate.wait(60)
        time.sleep(self.seconds * len(pairs))
        return self.scorer.score(pairs)

    def sent(self, query: str) -> int:
        return sum(call[query] for call in self.calls)


@pytest.fixture
def scorer(world) -> Gated:
    return Gated(world.scorer)


@pytest.fixture
def index(world, scorer) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=scorer, first={"noisy": world.noisy_first()})


@pytest.fixture
def alone(world) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})


def everything(hits) -> list:
    """All of an answer but the seconds that it took."""
    rounds = [(one.number, one.positions.tolist(), one.exact.tolist()) for one in hits.trace.rounds]
    return [hits.query, hits.ids, hits.scores.tolist(), hits.rounds, rounds, hits.trace.stopped]


async def last(index, query, k=5, **options):
    return [hits async for hits in asearch_iter(index, query, k, **options)][-1]


async def until(true) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.001)


def joined(scorer, n: int) -> bool:
    """Whether n searches wait for the call that is running to end."""
    return len(loop_of(scorer)._ready) == n


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("adacur-round")]


MIXED = [
    {"k": 5, "budget": 40},
    {"k": 3, "budget": 30, "method": AdaCUR(rounds=3)},
    {"k": 7, "budget": 20, "method": Rerank(), "first": "noisy"},
    {"k": 1, "budget": Budget(25, deadline=600)},
    {"k": 4, "budget": 50, "method": Stopping(stop_when=0.9)},
    {"k": 2, "budget": 30, "filter": [f"i{at}" for at in range(0, 200, 3)]},
]


async def test_searches_of_all_kinds_answer_as_if_alone_to_the_last_bit(index, alone, scorer, world) -> None:
    scorer.gate.set()
    asked = [(query, options) for query in world.test for options in MIXED]
    found = await asyncio.gather(*(last(index, query, **options) for query, options in asked))
    assert [everything(hits) for hits in found] == [
        everything(alone.search(query, **options)) for query, options in asked
    ]
    assert sum(map(Counter.total, scorer.calls)) == sum(hits.trace.calls for hits in found)


async def test_every_round_is_told(index, alone, scorer, world) -> None:
    scorer.gate.set()
    found = [everything(hits) async for hits in asearch_iter(index, world.test[0], 5, budget=40)]
    assert found == [everything(hits) for hits in alone.search_iter(world.test[0], 5, budget=40)]
    assert len(found) == len(scorer.calls) == 5


async def test_a_reader_of_the_end_alone_gets_it_and_what_there_is_when_it_gives_up(
    index, alone, scorer, world, monkeypatch
) -> None:
    made: list[int] = []
    hits_of = stepping.RunningSearch.hits
    monkeypatch.setattr(stepping.RunningSearch, "hits", lambda self: made.append(1) or hits_of(self))
    left: list = []
    options = {"k": 5, "budget": 40, "every_round": False, "so_far": left.append}
    scorer.gate.set()
    found = [hits async for hits in asearch_iter(index, world.test[0], **options)]
    assert [everything(hits) for hits in found] == [everything(alone.search(world.test[0], 5, budget=40))]
    assert (len(made), left) == (1 + 1, [])

    known = scorer.scorer

    class Failing:
        def score(self, pairs):
            if len(scorer.calls) == 3:
                raise ZeroDivisionError
            return known.score(pairs)

    scorer.scorer = Failing()
    scorer.calls.clear()
    with pytest.raises(ScorerFailed):
        await last(index, world.test[0], **options)
    assert [hits.trace.calls for hits in left] == [19]

    scorer.scorer = known
    scorer.calls.clear()
    scorer.seconds = 0.01
    task = asyncio.create_task(last(index, world.test[0], **options))
    await until(lambda: len(scorer.calls) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [hits.trace.calls for hits in left] == [19, 12]


async def test_who_arrives_during_a_call_takes_part_in_the_next(index, alone, scorer, world) -> None:
    tasks = [asyncio.create_task(last(index, world.test[0], budget=40))]
    await until(scorer.entered.is_set)
    tasks += [asyncio.create_task(last(index, query, budget=40)) for query in world.test[1:4]]
    await until(lambda: joined(scorer, 3))
    scorer.gate.set()
    found = await asyncio.gather(*tasks)
    assert set(scorer.calls[0]) == {"t0"}
    assert set(scorer.calls[1]) >= {"t1", "t2", "t3"}
    assert [everything(hits) for hits in found] == [
        everything(alone.search(query, 5, budget=40)) for query in world.test[:4]
    ]


async def test_who_leaves_is_scored_no_more(index, scorer, world) -> None:
    scored = asyncio.create_task(last(index, world.test[0], budget=40))
    await until(scorer.entered.is_set)
    waiting, stays = (asyncio.create_task(last(index, query, budget=40)) for query in world.test[1:3])
    await until(lambda: joined(scorer, 2))
    for gone in (scored, waiting):
        gone.cancel()
    await asyncio.gather(scored, waiting, return_exceptions=True)
    scorer.gate.set()
    assert (await stays).trace.calls == 40
    assert set().union(*scorer.calls[1:]) == {"t2"}


async def test_who_leaves_during_its_first_stage_never_joins(world, scorer) -> None:
    begun, gate = threading.Event(), threading.Event()

    class Slow:
        def search(self, queries, k):
            begun.set()
            assert gate.wait(60)
            return as_hits(queries, world.noisy_first().search(queries, k), world.noisy_first().ids)

    index = AnchorIndex(world.index, scorer=scorer, first={"slow": Slow()})
    task = asyncio.create_task(last(index, world.test[0], first="slow"))
    await until(begun.is_set)
    loop = loop_of(scorer)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gate.set()
    await until(lambda: not loop._n_computing)
    assert not loop._ready
    assert not scorer.calls


async def test_a_slow_first_stage_holds_up_nobody_else(world, scorer) -> None:
    gate = threading.Event()
    scorer.gate.set()

    class Slow:
        def search(self, queries, k):
            assert gate.wait(60)
            return as_hits(queries, world.noisy_first().search(queries, k), world.noisy_first().ids)

    index = AnchorIndex(world.index, scorer=scorer, first={"slow": Slow(), "noisy": world.noisy_first()})
    slow = asyncio.create_task(last(index, world.test[0], first="slow", budget=20))
    others = await asyncio.gather(*(last(index, query, first="noisy", budget=20) for query in world.test[1:]))
    assert [hits.trace.calls for hits in others] == [20] * len(others)
    assert not slow.done()
    gate.set()
    assert (await slow).trace.calls == 20


@pytest.mark.parametrize("how", ["raises", "too few", "nan"])
async def test_an_error_reaches_only_its_search_and_others_are_sent_that_call_s_pairs_once_more(
    index, alone, scorer, world, how
) -> None:
    known, sent = world.scorer, Counter()

    class Failing:
        def score(self, pairs):
            sent.update((query.id, item.id) for query, item in pairs)
            scores = np.array(known.score(pairs), dtype=float)
            wrong = [query.id == "t3" for query, _ in pairs]
            if any(wrong) and how == "raises":
                raise ZeroDivisionError
            if any(wrong) and how == "too few":
                return scores[:-1]
            scores[wrong] = np.nan
            return scores

    scorer.scorer = Failing()
    tasks = [asyncio.create_task(last(index, world.test[0], budget=20))]
    await until(scorer.entered.is_set)
    tasks += [asyncio.create_task(last(index, query, budget=20)) for query in world.test[1:4]]
    await until(lambda: joined(scorer, 3))
    scorer.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[3], ScorerError)
    assert [everything(hits) for hits in found[:3]] == [
        everything(alone.search(query, 5, budget=20)) for query in world.test[:3]
    ]
    assert Counter(sent.values())[2] == scorer.calls[1].total()
    assert max(sent.values()) == 2


async def test_an_error_while_a_search_chooses_is_its_alone(index, scorer, world, monkeypatch) -> None:
    scorer.gate.set()
    advance = stepping.RunningSearch.advance

    def breaks(self):
        if self.batch.searches[0].query.id == "t1" and self.batch.searches[0].rounds:
            raise MemoryError("no room for a prediction")
        return advance(self)

    monkeypatch.setattr(stepping.RunningSearch, "advance", breaks)
    searches = (last(index, query, budget=20) for query in world.test[:3])
    found = await asyncio.gather(*searches, return_exceptions=True)
    assert isinstance(found[1], MemoryError)
    assert [found[0].trace.calls, found[2].trace.calls] == [20, 20]
    await until(lambda: not loop_of(scorer)._n_computing)


class Stop(BaseException):
    """What no one expects."""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Stop])
@pytest.mark.parametrize("shared", [True, False])
def test_whatever_the_scorer_raises_is_an_error_of_its_search_and_ends_no_event_loop(
    index, scorer, world, stop, shared
) -> None:
    known = scorer.scorer

    class Interrupted:
        def score(self, pairs):
            raise stop

    scorer.gate.set()
    scorer.can_batch_callers = shared
    scorer.scorer = Interrupted()
    with pytest.raises(ScorerFailed, match=stop.__name__):
        asyncio.run(last(index, world.test[0], budget=20))
    scorer.scorer = known
    assert asyncio.run(last(index, world.test[0], budget=20)).trace.calls == 20


async def test_a_deadline_holds_beside_searches_that_have_none(world) -> None:
    scorer = Gated(world.scorer, is_open=True, seconds=0.003)
    index = AnchorIndex(world.index, scorer=scorer)
    patient = [asyncio.create_task(last(index, world.test[at], method="exact")) for at in (0, 2)]
    await until(scorer.entered.is_set)
    hits = await last(index, world.test[1], budget=Budget(150, deadline=0.1))
    assert hits.trace.stopped == "deadline"
    assert 1 <= hits.trace.calls < 150
    # It waited for the call that was running and for a small one, not for 400 pairs.
    assert not all(task.done() for task in patient)
    assert [(await task).trace.calls for task in patient] == [200, 200]


async def test_scorers_that_may_charge_are_sent_each_search_s_pairs_apart(index, scorer, world) -> None:
    scorer.gate.set()
    scorer.can_batch_callers = False
    found = await asyncio.gather(*(last(index, query, budget=20) for query in world.test))
    assert {hits.trace.calls for hits in found} == {20}
    assert {len(call) for call in scorer.calls} == {1}


async def test_a_closed_index_ends_its_searches_with_an_error_that_says_so(index, scorer, world) -> None:
    known = scorer.scorer

    class Freed:
        def score(self, pairs):
            raise AttributeError("'NoneType' object has no attribute 'run'")

    task = asyncio.create_task(last(index, world.test[0], budget=20))
    await until(scorer.entered.is_set)
    index.close()
    scorer.scorer = Freed()
    scorer.gate.set()
    with pytest.raises(ScorerFailed, match="closed"):
        await task
    with pytest.raises(InputError, match="closed"):
        await last(index, world.test[0])
    scorer.scorer = known


async def test_what_a_search_paid_for_is_logged_at_its_end_and_when_it_is_given_up(world, scorer) -> None:
    logged: list[int] = []

    class Log:
        def add(self, hits, *, items, card):
            logged.append(sum(one.trace.calls for one in hits))

    index = AnchorIndex(world.index, scorer=scorer, log=Log())
    scorer.gate.set()
    await last(index, world.test[0], budget=20)
    steps = asearch_iter(index, world.test[1], 5, budget=20)
    assert (await anext(steps)).trace.calls == 6
    await steps.aclose()
    assert logged == [20, 6]


def test_nothing_is_left_when_all_searches_have_ended(world) -> None:
    def searched() -> weakref.ref[Gated]:
        index = AnchorIndex(world.index, scorer=Gated(world.scorer, is_open=True))

        async def several() -> None:
            await asyncio.gather(*(last(index, query, budget=20) for query in world.test))

        asyncio.run(several())
        return weakref.ref(index.scorer)

    scorer = searched()
    give_up = time.monotonic() + 60
    while threads() or scorer() is not None:
        assert time.monotonic() < give_up
        gc.collect()
        time.sleep(0.001)
