"""Objects of other libraries as scorers: LangChain cross-encoders, rankers of rerankers, PyTerrier transformers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DuplicateId, InputError, ScoreCountError, ScorerFailed
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores
from adacur.scorers.function import FunctionScorer
from adacur.scorers.function_code import HOW_TO_GIVE_A_KEY


class _HostedScorer(ABC):
    """A scorer around an object of another library.

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

    @abstractmethod
    def _answers(self, pairs: Sequence[Pair]) -> Any:
        """One number per pair, in order, as the object gives them."""


class LangChainScorer(_HostedScorer):
    """A `langchain_core.cross_encoders.BaseCrossEncoder`; its scores as they are, `batch_size` pairs a call."""

    def __init__(
        self, encoder: Any, *, batch_size: int | None = None, name: str | None = None, source: str | None = None
    ) -> None:
        check_has(encoder, "score(text_pairs)", what="a LangChain cross-encoder")
        name = name or _model_name(encoder, getattr(encoder, "model_name", None))
        super().__init__(name=name, backend="langchain", source=source)
        self._function = FunctionScorer(encoder.score, name=name, batch_size=batch_size)

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        return self._function.score(pairs)


class RerankersScorer(_HostedScorer):
    """A ranker that `rerankers.Reranker(…)` returned; its scores as they are, one `rank` per query.

    Listwise rankers, which order documents without scoring them, are refused when they first answer.
    """

    def __init__(self, ranker: Any, *, name: str | None = None, source: str | None = None) -> None:
        check_has(ranker, "rank(query, docs)", what="a ranker, as rerankers.Reranker(…) returns it")
        model = getattr(ranker, "model", None)
        config = getattr(model, "config", None)
        known_as = model if isinstance(model, str) else getattr(config, "_name_or_path", None)
        super().__init__(name=name or _model_name(ranker, known_as), backend="rerankers", source=source)
        labels = getattr(config, "num_labels", 1)
        # Of one document with two labels, this ranker would return the first label's logit without a word.
        if type(ranker).__name__ == "TransformerRanker" and labels != 1 and not ranker.is_monobert:
            raise InputError(f"A cross-encoder must give one logit per pair; {self.card.name!r} has {labels} labels.")
        self._ranker = ranker

    def _answers(self, pairs: Sequence[Pair]) -> Any:
        positions_of: dict[str, list[int]] = {}
        for position, (query, _) in enumerate(pairs):
            positions_of.setdefault(query.text, []).append(position)
        scores = np.empty(len(pairs))
        for text, positions in positions_of.items():
            ranked = self._ranker.rank(text, [pairs[at][1].text for at in positions], doc_ids=positions)
            if not ranked.has_scores:
                raise ScorerFailed(f"A scorer needs a pointwise ranker; {self.card.name!r} orders without scores.")
            answers = [(result.document.doc_id, result.score) for result in ranked]
            if sorted(position for position, _ in answers) != positions:
                lost = [pairs[at] for at in positions if at not in dict(answers)]
                raise _not_one_each(self.card, len(positions), len(answers), lost)
            scores[positions] = [dict(answers)[position] for position in positions]
        return scores


class PyTerrierScorer(_HostedScorer):
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
        answer = self._transformer.transform(frame)
        if missing := [column for column in ("qid", "docno", "score") if column not in answer.columns]:
            raise ScoreCountError(
                f"A transformer must return the columns qid, docno and score; {self.card.name!r} lacks {missing}."
            )
        keys = zip(map(str, answer["qid"]), map(str, answer["docno"]), strict=True)
        scored = [(key, score) for key, score in zip(keys, answer["score"], strict=True) if key in distinct]
        scores = dict(scored)
        if len(scored) != len(distinct) or len(scores) != len(distinct):
            lost = [pair for key, pair in distinct.items() if key not in scores]
            raise _not_one_each(self.card, len(distinct), len(scored), lost)
        return [scores[query.id, item.id] for query, item in pairs]


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


def _not_one_each(card: ScorerCard, n_pairs: int, n_scores: int, lost: Sequence[Pair]) -> ScoreCountError:
    none_for = f", none for query {lost[0][0].id!r} and item {lost[0][1].id!r}" if lost else ""
    return ScoreCountError(
        f"A scorer must return one score per pair; for {n_pairs} pairs {card.name!r} returned {n_scores}{none_for}. "
        "A retriever or a cut-off cannot be used as a scorer."
    )


def _model_name(host: Any, known_as: Any) -> str:
    if isinstance(known_as, str) and known_as:
        return Path(known_as).name if Path(known_as).is_dir() else known_as
    return type(host).__name__


def check_has(host: Any, method: str, *, what: str) -> None:
    """Refuse a class, and an object without the method that makes it `what`."""
    if isinstance(host, type) or not callable(getattr(host, method.partition("(")[0], None)):
        given = f"the class {host.__name__}" if isinstance(host, type) else f"an object of type {type(host).__name__}"
        raise InputError(f"Expected {what}, an object with {method}; got {given}.")
