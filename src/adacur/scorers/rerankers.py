"""Rankers of the rerankers library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.errors import InputError, ScoreCountError, ScorerFailed
from adacur.core.records import Pair
from adacur.scorers.hosted import HostedScorer, check_has

__all__ = ["RerankersScorer"]


class RerankersScorer(HostedScorer):
    """A ranker that `rerankers.Reranker(…)` returned; its scores as they are, one `rank` per query.

    Listwise rankers, which order documents without scoring them, are refused when they first answer.
    """

    def __init__(self, ranker: Any, *, name: str | None = None, source: str | None = None) -> None:
        check_has(ranker, "rank(query, docs)", what="a ranker, as rerankers.Reranker(…) returns it")
        labels = getattr(getattr(getattr(ranker, "model", None), "config", None), "num_labels", 1)
        # Of one document with two labels, this ranker would return the first label's logit without a word.
        if type(ranker).__name__ == "TransformerRanker" and labels != 1 and not ranker.is_monobert:
            raise InputError(
                f"A cross-encoder gives one logit per pair; {_model_name(ranker)!r} has {labels} labels. Classifiers "
                "with several labels cannot be used as scorers."
            )
        super().__init__(name=name or _model_name(ranker), backend="rerankers", source=source)
        self._ranker = ranker

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        positions_of: dict[str, list[int]] = {}
        for position, (query, _) in enumerate(pairs):
            positions_of.setdefault(query.text, []).append(position)
        scores = np.empty(len(pairs))
        for text, positions in positions_of.items():
            ranked = self._ranker.rank(text, [pairs[at][1].text for at in positions], doc_ids=positions)
            if not ranked.has_scores:
                raise ScorerFailed(
                    f"The ranker {self.card.name!r} orders documents without scoring them. A scorer needs a pointwise "
                    "ranker, such as a cross-encoder."
                )
            answers = [(result.document.doc_id, result.score) for result in ranked]
            if sorted(position for position, _ in answers) != positions:
                lost = next((pairs[at] for at in positions if at not in dict(answers)), None)
                where = f"; none for query {lost[0].id!r} and item {lost[1].id!r}" if lost else ""
                raise ScoreCountError(
                    f"A ranker returns one score per document; for {len(positions)} documents {self.card.name!r} "
                    f"returned {len(answers)} results{where}."
                )
            scores[positions] = [dict(answers)[position] for position in positions]
        return scores


def _model_name(ranker: Any) -> str:
    model = getattr(ranker, "model", None)
    known_as = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", None)
    if isinstance(known_as, str) and known_as:
        return Path(known_as).name if Path(known_as).is_dir() else known_as
    return type(ranker).__name__
