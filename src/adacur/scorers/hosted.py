"""What the adapters of other libraries' objects share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores
from adacur.scorers.function_code import HOW_TO_GIVE_A_KEY

__all__ = ["HostedScorer", "check_has"]


class HostedScorer:
    """A scorer around an object of another library; an adapter adds `_answers`, one number per pair.

    One call at a time: most of these objects wrap a local model, whose tokenizer two threads must not share.
    """

    def __init__(self, *, name: str, backend: str, source: str | None) -> None:
        self.card = ScorerCard(name=name, backend=backend, source=source)
        self._lock = threading.Lock()

    @property
    def code(self) -> str:
        """Refused: what the object does cannot be read, so that a cache needs a key."""
        raise InputError(
            f"What the {self.card.backend} object {self.card.name!r} does cannot be read, and others may have its "
            f"name. {HOW_TO_GIVE_A_KEY}"
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if not pairs:
            return np.empty(0)
        with self._lock:
            return check_scores(self._answers(pairs), pairs)

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        raise NotImplementedError


def check_has(host: Any, method: str, *, what: str) -> None:
    """Refuse a class, and an object without the method that makes it `what`."""
    if isinstance(host, type) or not callable(getattr(host, method.partition("(")[0], None)):
        given = f"the class {host.__name__}" if isinstance(host, type) else f"an object of type {type(host).__name__}"
        raise InputError(f"Expected {what}, an object with {method}; got {given}.")
