"""What scorers share that hold something, and those that are wrapped around another."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from adacur.errors import ScorerFailed
from adacur.protocols import AsyncScorer, Scorer, ScorerCard

T = TypeVar("T")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def closed(name: str) -> ScorerFailed:
    """The error of a scorer of this name that was closed."""
    return ScorerFailed(f"The scorer {name!r} has been closed. Open it again to score.")


class Wrapping(Closing):
    """Around a `scorer`, whose card it shows and which it closes; callers share calls where the scorer lets them."""

    scorer: Scorer

    @property
    def card(self) -> ScorerCard:
        return self.scorer.card

    @property
    def can_batch_callers(self) -> bool:
        """Whether callers may share a call."""
        return can_batch_callers(self.scorer)

    def close(self) -> None:
        """Close the scorer, if it can be closed."""
        if callable(close := getattr(self.scorer, "close", None)):
            close()


def can_batch_callers(scorer: Scorer) -> bool:
    """Whether callers may share a call of this scorer, as it says itself.

    True of models in this process, where a pair that is sent again after another caller's failure costs only time. A
    function, a service or an object may charge for it.
    """
    return bool(getattr(scorer, "can_batch_callers", False))


def runs_side_by_side(scorer: Scorer) -> bool:
    """Whether this scorer, and the innermost one that it wraps, serve several callers at once when awaited."""
    inner = _innermost(scorer)
    # A plain function can be awaited too, but its callers then wait for their turn.
    awaited = isinstance(scorer, AsyncScorer) and isinstance(inner, AsyncScorer)
    return awaited and bool(getattr(inner, "is_async", True))


async def in_turn(scorer: Scorer, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What this work with a scorer returns, one at a time in an event loop: a scorer may not be thread-safe.

    Who is cancelled leaves at once, but the next turn begins when the call under way has ended in its thread.
    """
    if runs_side_by_side(scorer):
        return await work()
    # Of another event loop, a call may be made inside this scorer's own: it must not wait.
    key = id(asyncio.get_running_loop()), id(_innermost(scorer))
    turn = _turns.setdefault(key, asyncio.Lock())
    await turn.acquire()
    working = asyncio.ensure_future(work())
    working.add_done_callback(lambda _: turn.release())
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.cancel()
        raise


def _innermost(scorer: Scorer) -> Scorer:
    while isinstance(wrapped := getattr(scorer, "scorer", None), Scorer):
        scorer = wrapped
    return scorer


# A lock lives as long as somebody has or awaits it.
_turns: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()
