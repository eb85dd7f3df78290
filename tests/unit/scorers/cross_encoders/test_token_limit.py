"""Models take as many tokens as sentence-transformers would give them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.extras.train import export_onnx
from adacur.records import Item, Query
from adacur.scorers import OnnxCrossEncoder, TorchCrossEncoder
from adacur.scorers.cross_encoders.checkpoints import token_limit
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_transformer

library = pytest.importorskip("sentence_transformers")

PAIRS = [
    (Query("q", "w1 w2"), Item(str(n), " ".join(WORDS[(3 * n + at) % 40] for at in range(n)))) for n in (8, 35, 90)
]
TOKENIZER, SAVED = "tokenizer_config.json", "sentence_bert_config.json"


def write(folder: Path, name: str, **settings: object) -> None:
    held = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
    (folder / name).write_text(json.dumps(held | settings))


def saved_with(folder: Path, *, positions: int, modules: bool, tokenizer: int | None, saved: dict | None) -> Path:
    """A cross-encoder of so many positions, with these limits in its files."""
    tiny_transformer(folder, positions=positions)
    if modules:
        library.CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))
    if tokenizer is not None:
        write(folder, TOKENIZER, model_max_length=tokenizer)
    if saved is not None:
        write(folder, SAVED, **saved)
    return folder


@pytest.mark.parametrize(
    ("files", "tokens", "origin"),
    [
        ({"modules": False, "tokenizer": None, "saved": None}, 64, None),
        ({"modules": False, "tokenizer": 30, "saved": None}, 30, TOKENIZER),
        ({"modules": False, "tokenizer": 900, "saved": None}, 64, None),
        ({"modules": False, "tokenizer": 30, "saved": {"max_seq_length": 40}}, 30, TOKENIZER),
        ({"modules": True, "tokenizer": 30, "saved": None}, 30, TOKENIZER),
        ({"modules": True, "tokenizer": 30, "saved": {"max_seq_length": 40}}, 40, SAVED),
        ({"modules": True, "tokenizer": 50, "saved": {"max_seq_length": 40}}, 40, SAVED),
        ({"modules": True, "tokenizer": None, "saved": {"processor_kwargs": {"model_max_length": 28}}}, 28, SAVED),
        ({"modules": True, "tokenizer": 50, "saved": {"processing_kwargs": {"text": {"max_length": 26}}}}, 26, SAVED),
    ],
)
def test_a_folder_is_scored_at_the_length_of_sentence_transformers(tmp_path, files, tokens, origin) -> None:
    folder = saved_with(tmp_path / "model", positions=64, **files)
    theirs = library.CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict(
        [(query.text, item.text) for query, item in PAIRS],
        activation_fn=__import__("torch").nn.Identity(),
        show_progress_bar=False,
    )
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        assert (scorer.card.max_tokens, scorer.card.limited_by) == (tokens, origin)
        np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-5)


def test_a_model_saved_with_max_length_keeps_it_also_as_a_graph_and_in_its_card(tmp_path) -> None:
    folder, graph = tmp_path / "model", tmp_path / "graph"
    plain = tiny_transformer(tmp_path / "plain", positions=64)
    library.CrossEncoder(str(plain), max_length=40, device="cpu").save_pretrained(str(folder))
    write(folder, SAVED, max_seq_length=33)
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        expected = scorer.score(PAIRS)
        assert f"up to 33 tokens ({SAVED})" in str(scorer.card)
    export_onnx(folder, graph)
    with OnnxCrossEncoder(graph) as scorer:
        assert (scorer.card.max_tokens, scorer.card.limited_by) == (33, TOKENIZER)
        np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-4)
    with TorchCrossEncoder(folder, device="cpu", max_tokens=48) as scorer:
        assert "up to 48 tokens (given)" in str(scorer.card)
    with TorchCrossEncoder(plain, device="cpu") as scorer:
        assert "up to 64 tokens ·" in str(scorer.card)


def test_the_token_limit_follows_the_model() -> None:
    def limit(asked=None, *, length=None, **config):
        return token_limit(asked, config=config, tokenizer_length=length)

    assert limit(max_position_embeddings=512, model_type="bert") == (512, None)
    assert limit(max_position_embeddings=514, model_type="xlm-roberta", pad_token_id=1) == (512, None)
    assert limit(max_position_embeddings=8192, model_type="modernbert", length=1024) == (1024, TOKENIZER)
    assert limit(2048, max_position_embeddings=8192, model_type="modernbert", length=1024) == (2048, "given")
    assert limit(1024, max_position_embeddings=8192, model_type="modernbert", length=1024) == (1024, TOKENIZER)
    assert limit(max_position_embeddings=-1, model_type="xlnet") == (512, "default")
    assert limit(length=256) == (256, TOKENIZER)
    assert limit(length=1e30) == limit() == (512, "default")
    with pytest.raises(InputError, match=r"512\b.*\b513"):
        limit(513, max_position_embeddings=512)
