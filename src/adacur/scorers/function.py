"""Any function of texts as a scorer."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError, ScorerError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.records import Pair
from adacur.scorers.event_loop import all_at_once, in_thread, run_in_background, waits
from adacur.scores import check_scores

TextPairs = list[tuple[str, str]]
# Seconds before the second try.
_FIRST_WAIT = 0.1


class FunctionScorer:
    """A callable from a list of (query text, item text) to as many numbers, plain or async.

    It is called with at most `batch_size` pairs. Calls of an async function run side by side, at most `concurrency` for
    one `score` or `ascore`; the first to fail cancels the others. Called through `score`, it runs on one background
    event loop that all such scorers share and that lives on between calls, so that an HTTP client may keep its
    connections. The batches of a plain function follow one another, awaited ones in a thread. With `can_batch_callers`,
    searches that wait share its calls, and when a shared call fails its pairs are sent once more, beyond any budget. A
    function that returns an awaitable must be declared async.

    A call that raises is made again for the same pairs, up to `attempts` times in all, after short waits that double; a
    wrong number of scores, or one that is not finite, is an error at once. Budgets count scored pairs, and a call that
    raised gave no score: if it is charged for all the same, give attempts=1.

    An index recognises a function by a few scores that it stores; `name` is how cards and caches know it.
    """

    def __init__(
        self,
        function: Callable[[TextPairs], Sequence[float] | FloatArray | Awaitable[Sequence[float] | FloatArray]],
        *,
        name: str | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        attempts: int = 3,
        source: str | None = None,
        can_batch_callers: bool = False,
    ) -> None:
        if not callable(function):
            raise InputError(f"A scorer function must be callable; got {type(function).__name__}.")
        _check_takes_one_list(function)
        at_least(1, batch_size=batch_size, concurrency=concurrency, attempts=attempts)
        self._function: Callable[[TextPairs], Any] = function
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._attempts = attempts
        self.can_batch_callers = can_batch_callers
        self.is_async = any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004
        usual = str(getattr(function, "__qualname__", type(function).__name__))
        self.pairs_at_once = batch_size and batch_size * (concurrency if self.is_async else 1)
        # Functions of one name are many: all lambdas, and a function before and after it was edited.
        self.is_named = name not in (None, usual)
        self.card = ScorerCard(name=name or usual, backend="function", source=source or _importable_name(function))

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if self.is_async:
            return run_in_background(self.ascore(pairs))
        scores: list[FloatArray] = []
        try:
            # What came before an error stays.
            scores.extend(map(self._called, self._batches(pairs)))
        except ScorerError as error:
            error.scored = dict(zip(pairs, _joined(scores).tolist(), strict=False))
            raise
        return _joined(scores)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        if not self.is_async:
            return await in_thread(self.score, pairs)
        turns = asyncio.Semaphore(self._concurrency)
        scored: dict[Pair, float] = {}

        async def in_turn(batch: Sequence[Pair]) -> FloatArray:
            await turns.acquire()
            scores = await self._awaited(batch)
            # A failed call keeps its turn, or one more would begin before the rest are cancelled.
            turns.release()
            scored.update(zip(batch, scores.tolist(), strict=True))
            return scores

        try:
            return _joined(await all_at_once(in_turn(batch) for batch in self._batches(pairs)))
        except ScorerError as error:
            error.scored = scored
            raise

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        size = self._batch_size or max(1, len(pairs))
        return (pairs[start : start + size] for start in range(0, len(pairs), size))

    def _called(self, batch: Sequence[Pair]) -> FloatArray:
        for wait in waits(self._attempts, _FIRST_WAIT):
            try:
                answer = self._function(_texts(batch))
                break
            except Exception as error:
                if wait is None:
                    raise self._failed(error, batch) from error
            time.sleep(wait)
        return check_scores(answer, batch)

    async def _awaited(self, batch: Sequence[Pair]) -> FloatArray:
        for wait in waits(self._attempts, _FIRST_WAIT):
            try:
                answer = await self._function(_texts(batch))
                break
            # An exit would end the event loop for all who use it.
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                if wait is None or not isinstance(error, Exception):
                    raise self._failed(error, batch) from error
            await asyncio.sleep(wait)
        return check_scores(answer, batch)

    def _failed(self, error: BaseException, batch: Sequence[Pair]) -> ScorerFailed:
        tries = f"{self._attempts} times, " if self._attempts > 1 and isinstance(error, Exception) else ""
        return ScorerFailed(
            f"The scorer function {self.card.name!r} raised {type(error).__name__}: {error} "
            f"({tries}on {len(batch)} {'pair' if len(batch) == 1 else 'pairs'}, "
            f"the first of query {batch[0][0].id!r} and item {batch[0][1].id!r})."
        )


def _importable_name(value: Any) -> str | None:
    """The "module:name" that imports this very object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        return None
    there: Any = sys.modules.get(module)
    for part in name.split("."):
        there = getattr(there, part, None)
    return f"{module}:{name}" if there is value else None


def _check_takes_one_list(function: Callable[..., Any]) -> None:
    """Refuse f(query, item) before anything is paid: a scorer function gets many pairs at a time."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions written in C do not say what they take.
        return
    try:
        signature.bind([])
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"A scorer function is called with one list of (query, item) pairs of texts and returns one number for "
            f"each; {name}{signature} cannot be called so: {error}. For example: "
            f"lambda pairs: [{name}(query, item) for query, item in pairs]."
        ) from error


def _texts(batch: Sequence[Pair]) -> TextPairs:
    return [(query.text, item.text) for query, item in batch]


def _joined(scores: list[FloatArray]) -> FloatArray:
    return np.concatenate(scores) if scores else np.empty(0)
