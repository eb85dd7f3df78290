from __future__ import annotations

import numpy as np
import pytest

from adacur.core.errors import InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.core.records import Item, Query
from adacur.scorers import LangChainScorer, SentenceTransformersScorer
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, tiny_transformer

cross_encoders = pytest.importorskip("langchain_core.cross_encoders")


class Scripted(cross_encoders.BaseCrossEncoder):
    """A LangChain cross-encoder that answers by a function, and remembers how it was asked."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def score(self, text_pairs):
        self.asked.append(len(text_pairs))
        return self.answer(text_pairs)


def lengths(pairs):
    return [len(query) - len(item) for query, item in pairs]


def test_a_model_behind_langchain_scores_as_it_does_alone(tmp_path) -> None:
    model = pytest.importorskip("sentence_transformers").CrossEncoder(str(tiny_transformer(tmp_path)), device="cpu")
    alone = SentenceTransformersScorer(model)
    behind = LangChainScorer(
        Scripted(lambda pairs: model.predict(pairs, activation_fn=alone._identity, show_progress_bar=False).tolist())
    )
    np.testing.assert_allclose(behind.score(PAIRS), alone.score(PAIRS), atol=1e-4)


def test_each_pair_is_asked_for_once_in_batches() -> None:
    encoder = Scripted(lengths)
    scores = LangChainScorer(encoder, batch_size=32).score(PAIRS)
    assert encoder.asked == [32, 32, 6]
    assert scores.tolist() == lengths([(query.text, item.text) for query, item in PAIRS])


def test_the_card_has_the_models_name_and_no_secret() -> None:
    encoder = Scripted(lengths)
    assert LangChainScorer(encoder).card.name == "Scripted"
    encoder.model_name, encoder.api_key = "org/model", "secret"
    card = LangChainScorer(encoder, source="my_models:ranker").card
    assert (card.name, card.backend, card.source) == ("org/model", "langchain", "my_models:ranker")
    assert "secret" not in repr(card)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (lambda pairs: [1.0], ScoreCountError, "for 3 pairs"),
        (lambda pairs: [[0.1, 0.9]] * len(pairs), ScoreCountError, r"shape \(3, 2\)"),
        (lambda pairs: [1.0, float("nan"), 2.0], NonFiniteScore, "query 'q' and item 'b'"),
        (lambda pairs: 1 / 0, ScorerFailed, "ZeroDivisionError"),
    ],
)
def test_nonsense_is_refused(answer, error, says) -> None:
    pairs = [(Query("q", "x"), Item(id_, id_)) for id_ in "abc"]
    with pytest.raises(error, match=says):
        LangChainScorer(Scripted(answer)).score(pairs)


@pytest.mark.parametrize("wrong", [Scripted, object()])
def test_what_cannot_score_is_refused(wrong) -> None:
    with pytest.raises(InputError, match=r"score\(text_pairs\)"):
        LangChainScorer(wrong)
