"""A small causal language model learns to say yes, and its folder opens as what was trained."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.extras.train import TrainingSettings
from adacur.scorers import TorchCrossEncoder, scorer
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_decoder, tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from tests.extras.train.test_cross_encoder_training import collection, train  # noqa: E402

ASKED = {"head": None, "prompt": "w1 {query} w2 {item} w3", "readout": "odds('yes', 'no')"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_decoder(tmp_path_factory.mktemp("base") / "tiny", kind="causal")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    settings = TrainingSettings(epochs=16, learning_rate=3e-3, batch_queries=4, warmup=0.1, patience=None)
    return train(tmp_path_factory.mktemp("trained") / "model", base, settings=settings, mixture="near=1", **ASKED)


def test_it_learns_which_items_are_right(trained) -> None:
    assert trained.best["mrr"] > trained.before["mrr"] + 0.2
    tiny = collection()
    with scorer(trained.folder, device="cpu") as opened:
        scores = opened.score_grid(tiny.queries[:6], tiny.items)
    n = len(tiny.queries)
    assert scores[:, :n].mean() > scores[:, n:].mean() + 1


def test_it_opens_with_the_prompt_and_the_readout_that_it_was_trained_with(trained) -> None:
    with scorer(trained.folder, device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)
        assert opened.prompt.text == ASKED["prompt"]
        assert opened.readout.kind == "odds"
        assert opened.card.max_tokens == 64
        ours = opened.score(PAIRS)
    library = pytest.importorskip("sentence_transformers")
    model = library.CrossEncoder(str(trained.folder), device="cpu")
    texts = [(query.text, item.text) for query, item in PAIRS]
    theirs = model.predict(texts, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_what_it_checks_with_is_what_the_scorer_gives(base, tmp_path) -> None:
    from adacur.extras.train.ranking_model import RankingModel

    options = {"max_tokens": 40, "max_item_tokens": 6, "squared": False}
    model = RankingModel(base, "tokens", prompt=ASKED["prompt"], readout=ASKED["readout"], **options).eval()
    scores = model.scores_of(model.tokens.texts(QUERIES, ITEMS).grid())
    model.save(tmp_path / "saved")
    with scorer(tmp_path / "saved", device="cpu", max_item_tokens=6) as opened:
        np.testing.assert_allclose(opened.score_grid(QUERIES, ITEMS).ravel(), scores, atol=1e-3)


def test_without_a_prompt_it_is_asked_in_its_chat_template(base) -> None:
    from adacur.extras.train.ranking_model import untrained_prompted

    _, model = untrained_prompted(base, prompt=None, readout=ASKED["readout"])
    assert "Query: {query}\nDocument: {item}\n" in model.prompt.text
    assert model.prompt.text.startswith("[CLS] w1 w2 ")


@pytest.mark.parametrize(
    "wrong",
    [{"head": "cls"}, {"head": "emb"}, {"prompt": "{item} {query}"}, {"readout": "grades({'yes': 1, 'no': 0})"}],
)
def test_what_a_language_model_cannot_be_trained_with_is_refused(base, tmp_path, wrong) -> None:
    with pytest.raises(InputError, match=r"language model"):
        train(tmp_path / "model", base, **(ASKED | wrong))


def test_an_encoder_takes_no_prompt(tmp_path) -> None:
    with pytest.raises(InputError, match="language model"):
        train(tmp_path / "model", tiny_transformer(tmp_path / "base"), head="cls", prompt="{query} {item}")
