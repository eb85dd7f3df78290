"""Cross-encoders of LangChain."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.records import Pair
from adacur.scorers.function import FunctionScorer
from adacur.scorers.function_code import unreadable

__all__ = ["LangChainScorer"]


class LangChainScorer:
    """A `langchain_core.cross_encoders.BaseCrossEncoder`; its scores as they are, one call at a time."""

    def __init__(
        self, encoder: Any, *, batch_size: int | None = None, name: str | None = None, source: str | None = None
    ) -> None:
        if isinstance(encoder, type) or not callable(getattr(encoder, "score", None)):
            raise InputError(
                "Expected a LangChain cross-encoder, an object with score(text_pairs); got "
                f"{encoder if isinstance(encoder, type) else type(encoder).__name__}."
            )
        known_as = getattr(encoder, "model_name", None)
        self._function = FunctionScorer(
            encoder.score,
            name=name or (known_as if isinstance(known_as, str) and known_as else type(encoder).__name__),
            batch_size=batch_size,
        )
        self.card = replace(self._function.card, backend="langchain", source=source)
        # Most wrap a local model, whose tokenizer two threads must not share.
        self._lock = threading.Lock()

    @property
    def code(self) -> str:
        """Refused: what the object does cannot be read."""
        raise unreadable(f"the LangChain cross-encoder {self.card.name!r}")

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._lock:
            return self._function.score(pairs)
