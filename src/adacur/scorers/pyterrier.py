"""Re-rankers of PyTerrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adacur.core.errors import DuplicateId, ScoreCountError
from adacur.core.records import Pair
from adacur.scorers.hosted import HostedScorer, check_has

__all__ = ["PyTerrierScorer"]


class PyTerrierScorer(HostedScorer):
    """A `pyterrier.Transformer` that gives each row of qid, query, docno and text a score.

    `qid` and `docno` are the ids of query and item, so that transformers which look texts or scores up by id work;
    rows that it adds are ignored. `text_field` names the column of the text where the transformer expects another.
    """

    def __init__(
        self, transformer: Any, *, text_field: str = "text", name: str | None = None, source: str | None = None
    ) -> None:
        check_has(transformer, "transform(frame)", what="a PyTerrier transformer")
        super().__init__(name=name or type(transformer).__name__, backend="pyterrier", source=source)
        self._transformer = transformer
        self._text_field = text_field

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        import pandas

        distinct = _by_ids(pairs)
        # Without a column of scores, rows that are not scored cannot pass for scored.
        rows = [(query.id, query.text, item.id, item.text) for query, item in distinct.values()]
        frame = pandas.DataFrame(rows, columns=["qid", "query", "docno", self._text_field])
        scores = self._scores(self._transformer.transform(frame), distinct)
        return [scores[query.id, item.id] for query, item in pairs]

    def _scores(self, answer: Any, distinct: dict[tuple[str, str], Pair]) -> dict[tuple[str, str], float]:
        missing = [column for column in ("qid", "docno", "score") if column not in answer.columns]
        if missing:
            raise ScoreCountError(
                f"A transformer that scores returns the columns qid, docno and score; {self.card.name!r} returned no "
                f"{missing[0]!r}. Give one that re-ranks."
            )
        keys = zip(map(str, answer["qid"]), map(str, answer["docno"]), strict=True)
        rows = [(key, score) for key, score in zip(keys, answer["score"], strict=True) if key in distinct]
        scores = dict(rows)
        if len(scores) < len(rows):
            raise ScoreCountError(f"The transformer {self.card.name!r} returned a pair twice.")
        if lost := distinct.keys() - scores.keys():
            query, item = next(distinct[key] for key in distinct if key in lost)
            raise ScoreCountError(
                f"A transformer that re-ranks keeps every row; {self.card.name!r} returned no score for {len(lost)} "
                f"of {len(distinct)} pairs, the first of query {query.id!r} and item {item.id!r}. A retriever or a "
                "cut-off (% 10) cannot be used as a scorer."
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
