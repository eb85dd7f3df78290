"""The door to the scorer."""

from __future__ import annotations

from types import TracebackType

from adacur.core.errors import AdacurError
from adacur.core.protocols import Scorer
from adacur.core.scores import scorer_failed

__all__ = ["asking"]


class asking:  # noqa: N801
    """Tell whatever a scorer raises inside this block as one error, with the original as its cause.

    A class, since a generator would mistake a scorer's StopIteration for its own end.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, AdacurError):
            raise scorer_failed(self._scorer, error) from error
