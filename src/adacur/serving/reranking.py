"""Documents that a client brings, scored exactly, in the shapes that rerank clients know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.records import Item, Pair, as_query, check_texts
from adacur.core.scores import check_scores
from adacur.core.spelling import did_you_mean
from adacur.scorers.asking import asking
from adacur.serving.failures import Refusal
from adacur.serving.indexes import Served
from adacur.serving.settings import ServerSettings
from adacur.serving.shapes import CohereRerankRequest, RerankRequest, TextDocument

__all__ = ["Documents", "documents_of"]

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Documents:
    """Texts to be scored for a query by the scorer of an index."""

    served: Served
    query: str
    texts: tuple[str, ...]
    top_n: int
    raw_scores: bool

    @property
    def n_words(self) -> int:
        """Words that the scorer reads: the query's with each document's."""
        return len(self.texts) * len(self.query.split()) + sum(len(text.split()) for text in self.texts)

    async def scored(self) -> list[tuple[int, float]]:
        """Places and relevance, best first; equal ones in the order given."""
        query = as_query(self.query)
        pairs: list[Pair] = [(query, Item(f"document-{at}", text)) for at, text in enumerate(self.texts)]
        scorer = self.served.scorer
        with asking(scorer):
            scores = check_scores(await scorer.ascore(pairs), pairs)
        order = np.argsort(-scores, kind="stable")[: self.top_n]
        shown = scores if self.raw_scores else _chances(scores)
        return [(int(at), float(shown[at])) for at in order]


def documents_of(
    served: Mapping[str, Served], asked: RerankRequest | CohereRerankRequest, *, settings: ServerSettings
) -> Documents:
    """A re-ranking within the limits, or a refusal that names the limit."""
    texts = [one.text if isinstance(one, TextDocument) else one for one in asked.documents]
    for name, text, most in (
        ("query", asked.query, settings.max_query_chars),
        *((f"documents.{at}", text, settings.max_document_chars) for at, text in enumerate(texts)),
    ):
        if len(text) > most:
            raise Refusal(422, "text_too_long", f"{name} may have at most {most} characters here; it has {len(text)}.")
        check_texts("Text", name, text)
    if isinstance(asked, CohereRerankRequest) and asked.max_tokens_per_doc is not None:
        texts = [_first_words(text, asked.max_tokens_per_doc) for text in texts]
    return Documents(
        served=_by_model(served, asked.model),
        query=asked.query,
        texts=tuple(texts),
        top_n=len(texts) if asked.top_n is None else asked.top_n,
        raw_scores=asked.wants_logits,
    )


def _by_model(served: Mapping[str, Served], model: str | None) -> Served:
    if model is None:
        return next(iter(served.values()))
    if model in served:
        return served[model]
    for one in served.values():
        if one.scorer_name == model:
            return one
    names = list(dict.fromkeys((*served, *(one.scorer_name for one in served.values()))))
    raise Refusal(
        404,
        "unknown_model",
        f"No index or scorer here has the name given as model.{did_you_mean(model, names)} There is: "
        f"{', '.join(names)}.",
    )


def _first_words(text: str, most: int) -> str:
    last = next(islice(_WORD.finditer(text), most - 1, None), None)
    return text if last is None else text[: last.end()]


def _chances(scores: FloatArray) -> FloatArray:
    """The logistic function, which is what clients of rerank services expect: between 0 and 1, in the same order."""
    # exp of a large number would overflow; of minus its absolute value it cannot.
    small = np.exp(-np.abs(scores.astype(np.float64)))
    return np.asarray(np.where(scores >= 0, 1 / (1 + small), small / (1 + small)))
