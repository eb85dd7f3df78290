from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adacur.errors import InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.scorers import FunctionScorer, Metered, ascore
from adacur.scorers.shared_batches import SharedBatches, shared_batches


def pairs_of(caller: str, n: int = 3) -> list:
    return [(Query(caller, caller), Item(f"{caller}-{number}", "x" * number)) for number in range(n)]


def value(query: Query, item: Item) -> float:
    return float(sum(map(ord, query.text)) + 1000 * len(item.text))


def values(pairs: list) -> list[float]:
    return [value(query, item) for query, item in pairs]


class Gated:
    """A plain scorer whose first call waits until the gate opens; remembers the pairs of each call."""

    card = ScorerCard(name="gated", backend="test")
    can_batch_callers = True

    def __init__(self, answer=values) -> None:
        self.answer = answer
        self.calls: list[list] = []
        self.entered = threading.Event()
        self.gate = threading.Event()

    def score(self, pairs):
        self.calls.append(list(pairs))
        self.entered.set()
        assert self.gate.wait(60)
        return np.array(self.answer(pairs))

    @property
    def callers(self) -> list[list[str]]:
        """Whose pairs each call held."""
        return [list(dict.fromkeys(query.id for query, _ in call)) for call in self.calls]


def until_waiting(queue: SharedBatches, n: int) -> None:
    """Until n callers wait behind the call that is running."""
    give_up = time.monotonic() + 60
    while len(queue._waiting) < n:
        assert time.monotonic() < give_up
        time.sleep(0.001)


class Callers:
    """Threads that ask a queue: the first alone, the others together while it is served."""

    def __init__(self, scorer: Gated, **options) -> None:
        self.scorer = scorer
        self.queue = SharedBatches(scorer, **options)
        self.threads = ThreadPoolExecutor(16)

    def ask(self, first: str, *others: str, n: int = 3) -> dict[str, object]:
        asked = {first: self.threads.submit(self.queue.score, pairs_of(first, n))}
        assert self.scorer.entered.wait(60)
        for caller in others:
            asked[caller] = self.threads.submit(self.queue.score, pairs_of(caller, n))
            # One by one, so that they stand in line in this order.
            until_waiting(self.queue, len(asked) - 1)
        self.scorer.gate.set()
        self.threads.shutdown()
        return {caller: future.exception() or future.result().tolist() for caller, future in asked.items()}


def test_those_who_wait_share_the_next_call_and_get_their_own_scores() -> None:
    scorer = Gated()
    answers = Callers(scorer).ask("a", "b", "c", "d")
    assert scorer.callers == [["a"], ["b", "c", "d"]]
    assert answers == {caller: values(pairs_of(caller)) for caller in "abcd"}


def test_a_call_holds_no_more_pairs_than_allowed_unless_one_caller_brings_them() -> None:
    scorer = Gated()
    Callers(scorer, max_pairs=7).ask("a", "b", "c", "d", "e", "f")
    assert scorer.callers == [["a"], ["b", "c"], ["d", "e"], ["f"]]
    scorer = Gated()
    Callers(scorer, max_pairs=2).ask("a", "b", "c")
    assert scorer.callers == [["a"], ["b"], ["c"]]
    with pytest.raises(InputError, match="max_pairs"):
        SharedBatches(scorer, max_pairs=0)


@pytest.mark.parametrize(
    ("misbehave", "error"),
    [
        (
            lambda pairs: [float("nan") if query.id == "c" else value(query, item) for query, item in pairs],
            NonFiniteScore,
        ),
        (lambda pairs: values(pairs) if all(query.id != "c" for query, _ in pairs) else 1 / 0, ZeroDivisionError),
        (lambda pairs: values(pairs) if all(query.id != "c" for query, _ in pairs) else [1.0], ScoreCountError),
        (lambda pairs: values(pairs) if all(query.id != "c" for query, _ in pairs) else next(iter(())), ScorerFailed),
    ],
)
def test_an_error_reaches_only_the_caller_whose_pairs_caused_it(misbehave, error) -> None:
    scorer = Gated(misbehave)
    answers = Callers(scorer).ask("a", "b", "c", "d")
    assert isinstance(answers.pop("c"), error)
    assert answers == {caller: values(pairs_of(caller)) for caller in "abd"}
    assert max(Counter(item.id for call in scorer.calls for _, item in call).values()) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_scorer_reaches_its_callers_and_harms_no_later_call(stop) -> None:
    def interrupt(pairs):
        raise stop

    scorer = Gated(interrupt)
    scorer.gate.set()
    queue = SharedBatches(scorer)
    with pytest.raises(stop):
        queue.score(pairs_of("a"))
    scorer.answer = values
    assert queue.score(pairs_of("a")).tolist() == values(pairs_of("a"))


def test_pairs_of_a_caller_who_is_cancelled_before_the_call_are_not_scored() -> None:
    scorer = Gated()

    async def some_give_up() -> list:
        tasks = []
        for caller in "abcd":
            tasks.append(asyncio.create_task(ascore(scorer, pairs_of(caller))))
            await asyncio.sleep(0)
            await asyncio.to_thread(scorer.entered.wait, 60)
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.sleep(0)
        scorer.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(some_give_up())
    assert [type(answer) is asyncio.CancelledError for answer in answers] == [True, False, True, False]
    assert answers[1].tolist() == values(pairs_of("b"))
    assert scorer.callers == [["a"], ["b", "d"]]


@pytest.mark.skipif(os.name == "nt", reason="needs SIGALRM")
def test_pairs_of_a_thread_that_is_interrupted_before_the_call_are_not_scored() -> None:
    scorer = Gated()
    queue = SharedBatches(scorer)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(queue.score, pairs_of("a"))
            assert scorer.entered.wait(60)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                queue.score(pairs_of("b"))
            scorer.gate.set()
            assert first.result().tolist() == values(pairs_of("a"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert queue.score(pairs_of("c")).tolist() == values(pairs_of("c"))
    assert scorer.callers == [["a"], ["c"]]


def test_many_threads_and_event_loops_at_once_each_get_their_own_scores() -> None:
    scorer = Gated()
    scorer.gate.set()
    queue = SharedBatches(scorer, max_pairs=20)

    def blocking(name: str) -> bool:
        return all(
            queue.score(pairs_of(f"{name}{turn}", turn % 5)).tolist() == values(pairs_of(f"{name}{turn}", turn % 5))
            for turn in range(40)
        )

    def awaiting(name: str) -> bool:
        async def one(caller: str) -> bool:
            return (await queue.ascore(pairs_of(caller))).tolist() == values(pairs_of(caller))

        async def many() -> bool:
            return all(await asyncio.gather(*(one(f"{name}{turn}") for turn in range(40))))

        return asyncio.run(many())

    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit((blocking, awaiting)[number % 2], chr(97 + number)) for number in range(8)]
    assert all(future.result() for future in asked)
    assert max(map(len, scorer.calls)) <= 20
    assert max(map(len, scorer.callers)) > 1
    counted = Counter((query.id, item.id) for call in scorer.calls for query, item in call)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("shares", [True, False])
def test_everybody_who_awaits_a_scorer_shares_its_queue_and_its_calls_if_it_says_so(shares) -> None:
    scorer = Gated()
    scorer.can_batch_callers = shares
    metered = Metered(scorer)

    async def together() -> None:
        tasks = [asyncio.create_task(ascore(scorer, pairs_of("a")))]
        await asyncio.to_thread(scorer.entered.wait, 60)
        tasks += [asyncio.create_task(ascore(wrapped, pairs_of(c))) for c, wrapped in (("b", scorer), ("c", metered))]
        await asyncio.to_thread(until_waiting, shared_batches(scorer), 2)
        scorer.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(together())
    assert scorer.callers == ([["a"], ["b", "c"]] if shares else [["a"], ["b"], ["c"]])
    assert metered.calls == 3
    assert metered.can_batch_callers == shares


@pytest.mark.parametrize("shares", [True, False])
def test_plain_functions_share_calls_where_they_may_and_async_ones_run_side_by_side(shares) -> None:
    calls: list[int] = []
    gate = threading.Event()

    def plain(pairs):
        calls.append(len(pairs))
        assert gate.wait(60)
        return [float(len(item)) for _, item in pairs]

    running, most = 0, 0

    async def own(pairs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return [float(len(item)) for _, item in pairs]

    async def together(scorer: FunctionScorer) -> None:
        tasks = [asyncio.create_task(ascore(scorer, pairs_of(caller))) for caller in "abcd"]
        await asyncio.sleep(0)
        gate.set()
        for task in tasks:
            assert (await task).tolist() == [0.0, 1.0, 2.0]

    asyncio.run(together(FunctionScorer(plain, can_batch_callers=shares)))
    assert sum(calls) == 12
    assert len(calls) < 4 if shares else calls == [3] * 4
    asyncio.run(together(FunctionScorer(own)))
    assert most == 4


def test_a_scorer_may_call_itself() -> None:
    card = ScorerCard(name="nested", backend="test")

    class Asking:
        """Scores long texts by asking again, about shorter ones."""

        def __init__(self) -> None:
            self.card = card

        def score(self, pairs):
            shorter = [(query, Item(item.id, item.text[1:])) for query, item in pairs]
            if not any(item.text for _, item in pairs):
                return np.zeros(len(pairs))
            depth = len(max((item.text for _, item in pairs), key=len))
            if depth == 6:
                below = asyncio.run(ascore(self, shorter))
            elif depth % 2:
                below = SharedBatches.score(shared_batches(self), shorter)
            else:
                below = self.score(shorter)
            return below + [bool(item.text) for _, item in pairs]

    assert asyncio.run(asyncio.wait_for(ascore(Asking(), pairs_of("a", 8)), 60)).tolist() == list(range(8))


def test_nothing_is_left_when_the_loop_has_closed() -> None:
    scorer = Gated()
    scorer.gate.set()
    asyncio.run(ascore(scorer, pairs_of("a")))
    gone = weakref.ref(scorer)
    for thread in threading.enumerate():
        if thread.name == "adacur-shared-batches":
            thread.join(60)
            assert not thread.is_alive()
    del scorer, thread
    gc.collect()
    assert gone() is None


def test_a_loop_that_closes_under_a_running_call_harms_nobody_else() -> None:
    scorer = Gated()
    queue = SharedBatches(scorer)

    async def leave() -> None:
        waiting = asyncio.create_task(queue.ascore(pairs_of("a")))
        await asyncio.to_thread(scorer.entered.wait, 60)
        waiting.cancel()

    asyncio.run(leave())
    scorer.gate.set()
    assert queue.score(pairs_of("b")).tolist() == values(pairs_of("b"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parent_s_thread() -> None:
    scorer = Gated()
    queue = SharedBatches(scorer)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(queue.score, pairs_of("a"))
        assert scorer.entered.wait(60)
        with warnings.catch_warnings():
            # Newer Pythons warn of every fork beside threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            scorer.gate.set()
            os._exit(0 if queue.score(pairs_of("b")).tolist() == values(pairs_of("b")) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        scorer.gate.set()
        assert held.result().tolist() == values(pairs_of("a"))


def test_closing_closes_the_scorer() -> None:
    closed = []

    class Closing(Gated):
        def close(self) -> None:
            closed.append(True)

    queue = SharedBatches(Closing())
    assert queue.card.name == "gated"
    queue.close()
    assert closed
