from __future__ import annotations

import numpy as np
import pytest

from adacur.core.errors import InputError, ScoreCountError, ScorerFailed
from adacur.core.records import Item, Query
from adacur.core.scores import score_pairs
from adacur.scorers import RerankersScorer, TorchCrossEncoder
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, tiny_transformer

rerankers = pytest.importorskip("rerankers")
ranking = pytest.importorskip("rerankers.models.ranker")
results = pytest.importorskip("rerankers.results")
documents = pytest.importorskip("rerankers.documents")


def transformer_ranker(folder):
    return rerankers.Reranker(str(folder), model_type="cross-encoder", device="cpu", verbose=0)


class Scripted(ranking.BaseRanker):
    """A ranker that returns what a function makes of the true results."""

    def __init__(self, change=lambda ranked: ranked, *, has_scores: bool = True) -> None:
        self.change = change
        self.has_scores = has_scores
        self.asked: list[tuple[str, int]] = []

    def score(self, query, doc):
        return float(len(query) - len(doc))

    def rank(self, query, docs, doc_ids=None):
        self.asked.append((query, len(docs)))
        ranked = [
            results.Result(documents.Document(doc, doc_id=id_), score=self.score(query, doc), rank=1)
            for doc, id_ in zip(docs, doc_ids, strict=True)
        ]
        ranked.sort(key=lambda result: -result.score)
        return results.RankedResults(self.change(ranked), query, has_scores=self.has_scores)


def test_scores_are_those_of_the_torch_scorer(tmp_path) -> None:
    folder = tiny_transformer(tmp_path / "tiny")
    with TorchCrossEncoder(folder, device="cpu") as plain:
        np.testing.assert_allclose(
            RerankersScorer(transformer_ranker(folder)).score(PAIRS), plain.score(PAIRS), atol=1e-4
        )


def test_scores_are_matched_by_document_and_each_query_is_asked_once() -> None:
    ranker = Scripted()
    order = np.random.default_rng(0).permutation(len(PAIRS))
    pairs = [PAIRS[at] for at in order]
    scores = RerankersScorer(ranker).score(pairs)
    assert scores.tolist() == [len(query.text) - len(item.text) for query, item in pairs]
    assert sorted(ranker.asked) == sorted((query.text, 14) for query in {query for query, _ in pairs})


def test_the_card_has_the_models_name_and_no_secret(tmp_path) -> None:
    assert RerankersScorer(transformer_ranker(tiny_transformer(tmp_path / "tiny"))).card.name == "tiny"
    service = rerankers.Reranker("cohere", api_key="secret", verbose=0)
    card = RerankersScorer(service, source="my_models:ranker").card
    assert (card.backend, card.source) == ("rerankers", "my_models:ranker")
    assert card.name.startswith("rerank-")
    assert "secret" not in repr(card)


def test_two_labels_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="'two' has 2 labels"):
        RerankersScorer(transformer_ranker(tiny_transformer(tmp_path / "two", labels=2)))


@pytest.mark.parametrize(
    ("ranker", "error", "says"),
    [
        (Scripted(lambda ranked: ranked[:2]), ScoreCountError, "3 .*returned 2.* item 'ccc'"),
        (Scripted(lambda ranked: [*ranked, ranked[0]]), ScoreCountError, "3 .*returned 4"),
        (Scripted(has_scores=False), ScorerFailed, "without scores"),
        (Scripted(lambda ranked: 1 / 0), ScorerFailed, "ZeroDivisionError"),
    ],
)
def test_nonsense_is_refused(ranker, error, says) -> None:
    pairs = [(Query("q", "x"), Item(id_, id_)) for id_ in ("ccc", "a", "bb")]
    with pytest.raises(error, match=says):
        score_pairs(RerankersScorer(ranker), pairs)


@pytest.mark.parametrize("wrong", [Scripted, object()])
def test_what_cannot_rank_is_refused(wrong) -> None:
    with pytest.raises(InputError, match="Reranker"):
        RerankersScorer(wrong)
