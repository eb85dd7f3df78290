"""Rankers of the rerankers library."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScoreCountError, ScorerFailed
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores
from adacur.scorers.function_code import unreadable

__all__ = ["RerankersScorer"]


class RerankersScorer:
    """A ranker that `rerankers.Reranker(…)` returned; its scores as they are, one `rank` per query at a time.

    Listwise rankers, which order documents without scoring them, are refused when they first answer.
    """

    def __init__(self, ranker: Any, *, name: str | None = None, source: str | None = None) -> None:
        if isinstance(ranker, type) or not callable(getattr(ranker, "rank", None)):
            raise InputError(
                "Expected a ranker, as rerankers.Reranker(…) returns it; got "
                f"{ranker if isinstance(ranker, type) else type(ranker).__name__}."
            )
        labels = getattr(getattr(getattr(ranker, "model", None), "config", None), "num_labels", 1)
        # Of one document with two labels, this ranker would return the first label's logit without a word.
        if type(ranker).__name__ == "TransformerRanker" and labels != 1 and not ranker.is_monobert:
            raise InputError(
                f"A cross-encoder gives one logit per pair; {_model_name(ranker)!r} has {labels} labels. Classifiers "
                "with several labels cannot be used as scorers."
            )
        self._ranker = ranker
        self.card = ScorerCard(name=name or _model_name(ranker), backend="rerankers", source=source)
        # Its rankers wrap local models, whose tokenizers two threads must not share.
        self._lock = threading.Lock()

    @property
    def code(self) -> str:
        """Refused: what the object does cannot be read."""
        raise unreadable(f"the ranker {self.card.name!r}")

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        of_query: dict[str, list[int]] = {}
        for position, (query, _) in enumerate(pairs):
            of_query.setdefault(query.text, []).append(position)
        scores = np.empty(len(pairs))
        for text, positions in of_query.items():
            with self._lock:
                ranked = self._ranker.rank(text, [pairs[at][1].text for at in positions], doc_ids=positions)
            scores[positions] = self._scores(ranked, [pairs[at] for at in positions], positions)
        return check_scores(scores, pairs)

    def _scores(self, ranked: Any, pairs: Sequence[Pair], positions: Sequence[int]) -> FloatArray:
        if not ranked.has_scores:
            raise ScorerFailed(
                f"The ranker {self.card.name!r} orders documents without scoring them. A scorer needs a pointwise "
                "ranker, such as a cross-encoder."
            )
        answers = [(result.document.doc_id, result.score) for result in ranked]
        found = dict(answers)
        if len(answers) != len(found) or found.keys() != set(positions):
            lost = next((pair for at, pair in zip(positions, pairs, strict=True) if at not in found), None)
            where = f"; none for query {lost[0].id!r} and item {lost[1].id!r}" if lost else ""
            raise ScoreCountError(
                f"A ranker returns one score per document; for {len(positions)} documents {self.card.name!r} returned "
                f"{len(answers)} results{where}."
            )
        return check_scores([found[position] for position in positions], pairs)


def _model_name(ranker: Any) -> str:
    model = getattr(ranker, "model", None)
    known_as = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", None)
    if isinstance(known_as, str) and known_as:
        return Path(known_as).name if Path(known_as).is_dir() else known_as
    return type(ranker).__name__
