"""Requests that choose on a device are computed together, and answered as each alone; a device may fail."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from adacur import Budget, Gaussian, Rerank
from adacur.errors import DeviceFailed
from adacur.extras.server import shared_loop as stepping
from adacur.extras.server.metrics import Metrics
from adacur.extras.server.scoring import ServedScorers
from adacur.extras.server.shared_loop import loop_of
from adacur.model.device_posterior import _Batch
from adacur.scores import PairsAt, joined_pairs
from tests.stepped_searches import asearch_iter
from tests.stopping import Stopping
from tests.unit.search.test_device_search import QUERIES, index_of, rounds_of

torch = pytest.importorskip("torch")

KINDS: list[dict[str, Any]] = [
    {"k": 5, "budget": 40},
    {"k": 5, "budget": 40},
    {"k": 3, "budget": 23, "method": Gaussian(rounds=3)},
    {"k": 4, "budget": 40, "filter": {"parity": 1}},
    {"k": 4, "budget": 40, "method": Stopping(stop_when=0.8)},
    {"k": 2, "budget": Budget(30, deadline=600)},
    {"k": 2, "budget": 30, "method": Gaussian(keep_predictions="last")},
    {"k": 2, "budget": 20, "method": Rerank()},
]


class ByPosition:
    """A scorer that takes positions and refuses pairs; its first call waits until the gate opens."""

    can_batch_callers = True

    def __init__(self, scorer: Any, *, is_open: bool = True) -> None:
        self.scorer, self.card = scorer, scorer.card
        self.entered, self.gate = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def score(self, pairs: Any) -> Any:
        raise AssertionError("positions were to be had")

    def score_at(self, items: Any, queries: Any, query_of: Any, positions: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(60)
        return self.scorer.score(list(PairsAt(items, queries, query_of, positions)))


async def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.001)


async def last(index: Any, query: Any, k: int, **options: Any) -> Any:
    return [hits async for hits in asearch_iter(index, query, k, **options)][-1]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each choice on a device was for."""
    sizes: list[int] = []
    best = _Batch.best

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        sizes.append(self.n_queries)
        return best(self, *given, **options)

    monkeypatch.setattr(_Batch, "best", noted)
    return sizes


async def together(asked: Sequence[tuple[Any, Any, dict[str, Any]]]) -> list[Any]:
    """Answers of searches that are all there when the first call of their scorer ends."""
    gated = ByPosition(asked[0][0].scorer, is_open=False)
    scorer = ServedScorers(metrics=Metrics()).of(gated)
    served = {id(index): index.with_scorer(lambda _: scorer) for index, _, _ in asked}
    tasks = []
    for index, query, options in asked:
        tasks.append(asyncio.create_task(last(served[id(index)], query, **options)))
        if len(tasks) == 1:
            await until(gated.entered.is_set)
    await until(lambda: len(loop_of(scorer)._ready) == len(asked) - 1)
    gated.gate.set()
    return await asyncio.gather(*tasks)


async def test_requests_of_all_kinds_over_two_indexes_are_answered_as_each_alone(batches: list[int]) -> None:
    indexes = index_of(device="cpu"), index_of(n_anchors=9, device="cpu")
    asked = [(index, query, KINDS[at % len(KINDS)]) for index in indexes for at, query in enumerate(QUERIES * 3)]
    alone = [rounds_of(index.search(query, **options)) for index, query, options in asked]
    n_alone = len(batches)
    del batches[:]
    assert [rounds_of(hits) for hits in await together(asked)] == alone
    assert sum(batches) == n_alone


async def test_requests_that_step_together_are_computed_in_one_batch_a_step(
    batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first call waits for the test, and must not count as slow.
    monkeypatch.setattr(stepping, "_SECONDS_PER_CALL", math.inf)
    index = index_of(device="cpu")
    alone = [rounds_of(index.search(query, 5, budget=40)) for query in QUERIES]
    del batches[:]
    found = await together([(index, query, {"k": 5, "budget": 40}) for query in QUERIES])
    assert [rounds_of(hits) for hits in found] == alone
    # The first was a call ahead of the others, and may meet them.
    assert sorted(batches)[-4:] >= [len(QUERIES) - 1] * 4
    assert len(batches) <= 8


async def test_a_device_that_vanishes_is_named_and_what_was_scored_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(device="cpu")
    served_index = index.with_scorer(ByPosition)
    predicted, calls = _Batch._predicted, 0
    vanished = getattr(torch, "AcceleratorError", RuntimeError)

    def vanishing(self: Any, solved: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise vanished("CUDA error: unspecified launch failure")
        return predicted(self, solved)

    monkeypatch.setattr(_Batch, "_predicted", vanishing)
    kept: list[Any] = []

    async def search(query: Any) -> Any:
        steps = asearch_iter(served_index, query, 5, budget=40, every_round=False, so_far=kept.append)
        return [hits async for hits in steps]

    answers = await asyncio.gather(*(search(query) for query in QUERIES), return_exceptions=True)
    assert {type(answer) for answer in answers} == {DeviceFailed}
    assert all("cpu" in str(answer) and "launch failure" in str(answer) for answer in answers)
    assert len(kept) == len(QUERIES)
    assert all(hits.trace.calls >= 8 and len(hits) == 5 for hits in kept)
    with pytest.raises(DeviceFailed, match="without a device"):
        index.search(QUERIES, 5, budget=40)
    steps = index.search_iter(QUERIES[0], 5, budget=40)
    assert next(steps).trace.calls == 12
    monkeypatch.setattr(_Batch, "_predicted", predicted)
    assert index.search(QUERIES[0], 5, budget=40).ids == index_of().search(QUERIES[0], 5, budget=40).ids


async def test_a_failure_of_the_batch_alone_costs_no_search_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(device="cpu")
    expected = [rounds_of(index.search(query, 5, budget=40)) for query in QUERIES]
    told = _Batch.told

    def only_alone(self: Any, *given: Any) -> Any:
        if self.n_queries > 1:
            raise RuntimeError("too much at once")
        return told(self, *given)

    monkeypatch.setattr(_Batch, "told", only_alone)
    served_index = index.with_scorer(ByPosition)
    found = await asyncio.gather(*(last(served_index, query, 5, budget=40) for query in QUERIES))
    assert [rounds_of(hits) for hits in found] == expected


def test_pairs_of_several_callers_are_joined_by_position_where_all_are_of_the_same_items() -> None:
    items, others = index_of().items, index_of().items
    one = PairsAt(items, QUERIES[:2], np.array([0, 1, 1]), np.array([5, 6, 7]))
    two = PairsAt(items, QUERIES[1:4], np.array([2, 0]), np.array([9, 5]))
    joined = joined_pairs([one, two])
    assert isinstance(joined, PairsAt)
    assert list(joined) == [*one, *two] == [joined[at] for at in range(5)]
    assert list(joined[1:4]) == list(joined)[1:4]
    for part in (PairsAt(others, QUERIES, np.array([0]), np.array([1])), [(QUERIES[0], items[3])]):
        mixed = joined_pairs([one, part])
        assert isinstance(mixed, list)
        assert mixed == [*one, *part]
