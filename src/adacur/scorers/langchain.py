"""Cross-encoders of LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adacur.core.records import Pair
from adacur.scorers.function import FunctionScorer
from adacur.scorers.hosted import HostedScorer, check_has

__all__ = ["LangChainScorer"]


class LangChainScorer(HostedScorer):
    """A `langchain_core.cross_encoders.BaseCrossEncoder`; its scores as they are, `batch_size` pairs a call."""

    def __init__(
        self, encoder: Any, *, batch_size: int | None = None, name: str | None = None, source: str | None = None
    ) -> None:
        check_has(encoder, "score(text_pairs)", what="a LangChain cross-encoder")
        known_as = getattr(encoder, "model_name", None)
        name = name or (known_as if isinstance(known_as, str) and known_as else type(encoder).__name__)
        super().__init__(name=name, backend="langchain", source=source)
        self._function = FunctionScorer(encoder.score, name=name, batch_size=batch_size)

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        return self._function.score(pairs)
