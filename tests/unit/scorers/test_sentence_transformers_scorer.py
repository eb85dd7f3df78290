from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import InputError, ScorerFailed, TextTooLong
from adacur.records import Item, Query
from adacur.scorers import SentenceTransformersScorer, TorchCrossEncoder
from adacur.scores import score_pairs
from tests.real_models import torch_cross_encoder
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, WORDS, tiny_transformer

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("tiny") / "my-cross-encoder")


@pytest.fixture(scope="module")
def model(folder):
    return library.CrossEncoder(str(folder), device="cpu")


def words(n: int) -> str:
    return " ".join(WORDS[at % len(WORDS)] for at in range(n))


def test_scores_are_the_logits_although_the_model_asks_for_a_sigmoid(folder, model) -> None:
    assert isinstance(model.activation_fn, torch.nn.Sigmoid)
    texts = [(query.text, item.text) for query, item in PAIRS]
    probabilities = model.predict(texts, show_progress_bar=False).astype(np.float64)
    scores = SentenceTransformersScorer(model).score(PAIRS)
    assert scores.dtype == np.float32
    assert scores.min() < 0
    np.testing.assert_allclose(scores, np.log(probabilities / (1 - probabilities)), atol=1e-4)
    assert isinstance(model.activation_fn, torch.nn.Sigmoid), "the user's object is left as it was"


def test_scores_of_the_real_model_are_those_of_the_torch_scorer() -> None:
    folder = torch_cross_encoder()
    texts = ["Paris is the capital of France.", "Fleming discovered penicillin. " * 200, " ", "Bread is baked."]
    pairs = [(Query("q", "who discovered penicillin?"), Item(text, text)) for text in texts]
    with TorchCrossEncoder(folder, device="cpu") as plain, SentenceTransformersScorer(folder, device="cpu") as opened:
        np.testing.assert_allclose(opened.score(pairs), plain.score(pairs), atol=1e-4)
        assert opened.card.weights == plain.card.weights
        assert opened.card.max_tokens == plain.card.max_tokens == 512


@pytest.mark.parametrize("query_words", [5, 40, 45])
def test_only_the_item_is_cut(folder, model, query_words) -> None:
    pairs = [(Query("q", words(query_words)), Item("i", words(n))) for n in (3, 60, 25_000)]
    with TorchCrossEncoder(folder, device="cpu") as plain:
        np.testing.assert_allclose(SentenceTransformersScorer(model).score(pairs), plain.score(pairs), atol=1e-4)


def test_a_query_that_leaves_no_room_is_refused(model) -> None:
    with pytest.raises(TextTooLong, match=r"'long'.*60"):
        SentenceTransformersScorer(model).score([*PAIRS[:3], (Query("long", words(60)), Item("i", "w1"))])


def test_the_card_names_folder_weights_and_type(folder, model) -> None:
    with SentenceTransformersScorer(folder, device="cpu") as opened:
        card = opened.card
    assert (card.name, card.backend, card.dtype) == ("my-cross-encoder", "sentence-transformers", "float32")
    assert card.source == str(folder.resolve())
    of_object = SentenceTransformersScorer(model).card
    assert (of_object.name, of_object.source) == (card.name, card.source)
    assert SentenceTransformersScorer(model, name="mine", source="my_models:mine").card.source == "my_models:mine"


def test_an_object_is_known_by_the_weights_it_has_now(folder) -> None:
    model = library.CrossEncoder(str(folder), device="cpu")
    before = SentenceTransformersScorer(model).card.weights
    assert SentenceTransformersScorer(library.CrossEncoder(str(folder), device="cpu")).card.weights == before
    with torch.no_grad():
        model.model.classifier.bias += 1
    assert SentenceTransformersScorer(model).card.weights != before
    assert SentenceTransformersScorer(model.half()).card.dtype == "float16"


def test_what_is_no_cross_encoder_is_refused(tmp_path, folder) -> None:
    headless = tiny_transformer(tmp_path / "headless")
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    with pytest.raises(InputError, match="BertModel"):
        SentenceTransformersScorer(headless, device="cpu")
    (headless / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError):
        SentenceTransformersScorer(headless, device="cpu")
    with pytest.raises(InputError, match="CrossEncoder"):
        SentenceTransformersScorer(library.CrossEncoder)
    with pytest.raises(InputError):
        SentenceTransformersScorer([1, 2])


def test_a_closed_scorer_says_so_keeps_its_card_and_leaves_the_object_alone(model) -> None:
    scorer = SentenceTransformersScorer(model, name="mine")
    scorer.close()
    scorer.close()
    with pytest.raises(ScorerFailed, match="'mine'"):
        scorer.score(PAIRS)
    assert scorer.card.weights
    assert len(model.predict([("w1", "w2")], show_progress_bar=False)) == 1


def test_what_the_model_raises_is_told_with_its_name(folder) -> None:
    model = library.CrossEncoder(str(folder), device="cpu")
    model.max_seq_length = 100
    with pytest.raises(ScorerFailed, match="my-cross-encoder"):
        score_pairs(SentenceTransformersScorer(model), [(Query("q", "w1"), Item("i", words(90)))])
