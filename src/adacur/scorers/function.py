"""Any function of texts as a scorer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScorerFailed
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores
from adacur.scorers.event_loop import all_at_once, run_in_background
from adacur.scorers.function_code import HOW_TO_GIVE_A_KEY, code_digest, importable_name
from adacur.scorers.shared_batches import shared_batches

TextPairs = list[tuple[str, str]]


class FunctionScorer:
    """A callable from a list of (query text, item text) to as many numbers, plain or async.

    It is called with at most `batch_size` pairs. Calls of an async function run side by side, at most `concurrency` for
    one `score` or `ascore`; the first to fail cancels the others. Called through `score`, it runs on one background
    event loop that all such scorers share and that lives on between calls, so that an HTTP client may keep its
    connections. Calls of a plain function follow one another, awaited ones in a thread; with `shares_calls`, those who
    wait for it share calls (`SharedBatches`), and when a shared call fails its pairs are sent once more, beyond any
    budget. A function that returns an awaitable must be declared async.
    """

    def __init__(
        self,
        function: Callable[[TextPairs], Sequence[float] | FloatArray | Awaitable[Sequence[float] | FloatArray]],
        *,
        name: str | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        source: str | None = None,
        shares_calls: bool = False,
    ) -> None:
        if not callable(function):
            raise InputError(f"A scorer function must be callable; got {type(function).__name__}.")
        _check_takes_one_list(function)
        if (batch_size is not None and batch_size < 1) or concurrency < 1:
            raise InputError(f"batch_size and concurrency must be at least 1; got {batch_size} and {concurrency}.")
        self._function: Callable[[TextPairs], Any] = function
        self._batch_size = batch_size
        self._concurrency = concurrency
        self.shares_calls = shares_calls
        self.is_async = any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004
        self.card = ScorerCard(
            name=name or str(getattr(function, "__qualname__", type(function).__name__)),
            backend="function",
            source=source or importable_name(function),
        )

    @property
    def code(self) -> str:
        """A digest of what the function does; InputError where that cannot be read, as for an object that is called."""
        try:
            return code_digest(self._function)
        except InputError as error:
            raise InputError(
                f"What the scorer function {self.card.name!r} does cannot be read in full, so that it could be taken "
                f"for another: {error}. {HOW_TO_GIVE_A_KEY}"
            ) from error

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if self.is_async:
            return run_in_background(self.ascore(pairs))
        return _joined([self._called(batch) for batch in self._batches(pairs)])

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        if not self.is_async:
            return await shared_batches(self).ascore(pairs)
        turns = asyncio.Semaphore(self._concurrency)

        async def in_turn(batch: Sequence[Pair]) -> FloatArray:
            await turns.acquire()
            scores = await self._awaited(batch)
            # A failed call keeps its turn, or one more would begin before the rest are cancelled.
            turns.release()
            return scores

        return _joined(await all_at_once(in_turn(batch) for batch in self._batches(pairs)))

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        size = self._batch_size or max(1, len(pairs))
        return (pairs[start : start + size] for start in range(0, len(pairs), size))

    def _called(self, batch: Sequence[Pair]) -> FloatArray:
        try:
            answer = self._function(_texts(batch))
        except Exception as error:
            raise self._failed(error, batch) from error
        return check_scores(answer, batch)

    async def _awaited(self, batch: Sequence[Pair]) -> FloatArray:
        try:
            answer = await self._function(_texts(batch))
        # An exit would end the event loop for all who use it.
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise self._failed(error, batch) from error
        return check_scores(answer, batch)

    def _failed(self, error: BaseException, batch: Sequence[Pair]) -> ScorerFailed:
        return ScorerFailed(
            f"The scorer function {self.card.name!r} raised {type(error).__name__}: {error} "
            f"(on {len(batch)} {'pair' if len(batch) == 1 else 'pairs'}, "
            f"the first of query {batch[0][0].id!r} and item {batch[0][1].id!r})."
        )


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
