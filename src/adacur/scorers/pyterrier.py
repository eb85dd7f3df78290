"""Re-rankers of PyTerrier."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DuplicateId, InputError, ScoreCountError
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores
from adacur.scorers.function_code import unreadable

__all__ = ["PyTerrierScorer"]


class PyTerrierScorer:
    """A `pyterrier.Transformer` that gives each row of qid, query, docno and text a score, one call at a time.

    `qid` and `docno` are the ids of query and item, so that transformers which look texts or scores up by id work;
    rows that it adds are ignored. `text_field` names the column of the text where the transformer expects another.
    """

    def __init__(
        self, transformer: Any, *, text_field: str = "text", name: str | None = None, source: str | None = None
    ) -> None:
        if isinstance(transformer, type) or not callable(getattr(transformer, "transform", None)):
            raise InputError(
                "Expected a PyTerrier transformer, an object with transform(frame); got "
                f"{transformer if isinstance(transformer, type) else type(transformer).__name__}."
            )
        self._transformer = transformer
        self._text_field = text_field
        self.card = ScorerCard(name=name or type(transformer).__name__, backend="pyterrier", source=source)
        # Most wrap a local model, whose tokenizer two threads must not share.
        self._lock = threading.Lock()

    @property
    def code(self) -> str:
        """Refused: what the object does cannot be read."""
        raise unreadable(f"the PyTerrier transformer {self.card.name!r}")

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if not pairs:
            return np.empty(0)
        asked = _by_ids(pairs)
        with self._lock:
            import pandas

            # Without a score of ours in it, what was not scored cannot pass for scored.
            rows = [(query.id, query.text, item.id, item.text) for query, item in asked.values()]
            frame = pandas.DataFrame(rows, columns=["qid", "query", "docno", self._text_field])
            answer = self._transformer.transform(frame)
        scores = self._scores(answer, asked)
        return check_scores([scores[query.id, item.id] for query, item in pairs], pairs)

    def _scores(self, answer: Any, asked: dict[tuple[str, str], Pair]) -> dict[tuple[str, str], float]:
        missing = [column for column in ("qid", "docno", "score") if column not in answer.columns]
        if missing:
            raise ScoreCountError(
                f"A transformer that scores returns the columns qid, docno and score; {self.card.name!r} returned no "
                f"{missing[0]!r}. Give one that re-ranks."
            )
        keys = zip(map(str, answer["qid"]), map(str, answer["docno"]), strict=True)
        rows = [(key, score) for key, score in zip(keys, answer["score"], strict=True) if key in asked]
        scores = dict(rows)
        if len(scores) < len(rows):
            raise ScoreCountError(f"The transformer {self.card.name!r} returned a pair twice.")
        if lost := asked.keys() - scores.keys():
            query, item = next(asked[key] for key in asked if key in lost)
            raise ScoreCountError(
                f"A transformer that re-ranks keeps every row; {self.card.name!r} returned no score for {len(lost)} of "
                f"{len(asked)} pairs, the first of query {query.id!r} and item {item.id!r}. A retriever or a cut-off "
                "(% 10) cannot be used as a scorer."
            )
        return scores


def _by_ids(pairs: Sequence[Pair]) -> dict[tuple[str, str], Pair]:
    """Each pair once, the pairs of a query together."""
    texts: dict[tuple[str, str], str] = {}
    of_query: dict[str, dict[str, Pair]] = {}
    for query, item in pairs:
        for kind, record in (("Query", query), ("Item", item)):
            if texts.setdefault((kind, record.id), record.text) != record.text:
                raise DuplicateId(
                    f"PyTerrier knows texts by their ids; {kind} {record.id!r} has two texts in one call."
                )
        of_query.setdefault(query.id, {})[item.id] = (query, item)
    return {(query, item): pair for query, of_item in of_query.items() for item, pair in of_item.items()}
