from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from adacur.core.errors import InputError, ScorerFailed
from adacur.core.records import Item, Query
from adacur.data import fetch
from adacur.scorers import OnnxCrossEncoder
from tests.unit.scorers.tiny_models import ITEMS, PAIRS, QUERIES, tiny_onnx, tiny_tokenizer


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory) -> Path:
    return tiny_onnx(tmp_path_factory.mktemp("int8"), dynamic=True)


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory) -> Path:
    return tiny_onnx(tmp_path_factory.mktemp("float"))


def alone(scorer: OnnxCrossEncoder, pairs) -> np.ndarray:
    return np.concatenate([scorer.score([pair]) for pair in pairs])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_dynamic_int8_score_does_not_depend_on_its_batch(int8_folder, threads) -> None:
    with OnnxCrossEncoder(int8_folder, threads=threads) as scorer:
        together = scorer.score(PAIRS)
        np.testing.assert_array_equal(together, alone(scorer, PAIRS))
        np.testing.assert_array_equal(together[::-1], scorer.score(PAIRS[::-1]))


def test_a_real_int8_score_does_not_depend_on_its_batch() -> None:
    folder = fetch("ms-marco-MiniLM-L-12-v2")
    texts = ["Penicillin was discovered by Alexander Fleming.", "Paris is in France. " * 12, "", "bananas"]
    pairs = [(Query(q, q), Item(i, i)) for q in ("who discovered penicillin?", "capital of france") for i in texts]
    with OnnxCrossEncoder(folder) as scorer, OnnxCrossEncoder(folder, threads=1) as other:
        together = scorer.score(pairs)
        np.testing.assert_array_equal(together, alone(other, pairs))
        assert together.dtype == np.float32
        assert together[0] > 5 > -5 > together[3]
        assert scorer.card.dtype == "int8"
        assert scorer.card.max_tokens == 512


def test_a_float_model_is_batched_and_its_scores_agree(float_folder) -> None:
    with OnnxCrossEncoder(float_folder) as scorer:
        np.testing.assert_allclose(scorer.score(PAIRS), alone(scorer, PAIRS), atol=1e-5)
        assert scorer.card.dtype == "float32"


def test_an_input_the_graph_lacks_is_not_fed(tmp_path) -> None:
    with OnnxCrossEncoder(tiny_onnx(tmp_path, "roberta", types=False)) as scorer:
        assert scorer.score_grid(QUERIES, ITEMS).shape == (len(QUERIES), len(ITEMS))


def test_a_graph_below_its_tokenizer_is_opened_by_file(float_folder, tmp_path) -> None:
    (tmp_path / "onnx").mkdir()
    shutil.copy(float_folder / "model.onnx", tmp_path / "onnx" / "graph.onnx")
    shutil.copy(float_folder / "tokenizer.json", tmp_path)
    with (
        OnnxCrossEncoder(tmp_path / "onnx" / "graph.onnx", name="mine") as scorer,
        OnnxCrossEncoder(float_folder) as same,
    ):
        assert scorer.card.name == "mine"
        assert scorer.card.weights == same.card.weights
        np.testing.assert_array_equal(scorer.score(PAIRS), same.score(PAIRS))


def test_weights_beside_the_graph_count(float_folder, tmp_path) -> None:
    shutil.copytree(float_folder, tmp_path / "other")
    (tmp_path / "other" / "model.onnx_data").write_bytes(b"weights")
    with OnnxCrossEncoder(tmp_path / "other") as other, OnnxCrossEncoder(float_folder) as scorer:
        assert other.card.weights != scorer.card.weights


def test_two_labels_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"one logit per pair.*shape \(1, 2\)"):
        OnnxCrossEncoder(tiny_onnx(tmp_path, labels=2))


@pytest.mark.parametrize("content", [b"", b"not a graph"])
def test_an_unreadable_graph_is_refused(tmp_path, content) -> None:
    tiny_tokenizer("bert").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as an ONNX model"):
        OnnxCrossEncoder(tmp_path)


def test_what_is_missing_or_damaged_is_said(float_folder, tmp_path) -> None:
    with pytest.raises(InputError, match="it holds none"):
        OnnxCrossEncoder(tmp_path)
    for name in ("one.onnx", "two.onnx"):
        shutil.copy(float_folder / "model.onnx", tmp_path / name)
    with pytest.raises(InputError, match=r"one\.onnx', 'two\.onnx'\]; name one"):
        OnnxCrossEncoder(tmp_path)
    with pytest.raises(InputError, match=r"needs a tokenizer\.json"):
        OnnxCrossEncoder(tmp_path / "one.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        OnnxCrossEncoder(tmp_path / "one.onnx")
    with pytest.raises(InputError, match="threads must be at least 1"):
        OnnxCrossEncoder(float_folder, threads=0)


def test_a_closed_scorer_says_so_and_keeps_its_card(int8_folder) -> None:
    with OnnxCrossEncoder(int8_folder) as scorer:
        pass
    with pytest.raises(ScorerFailed, match="closed"):
        scorer.score(PAIRS)
    assert scorer.card.backend == "onnx"


def test_a_failing_graph_is_reported_with_its_cause(float_folder, tmp_path) -> None:
    shutil.copy(float_folder / "model.onnx", tmp_path)
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens(["beyond"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with OnnxCrossEncoder(tmp_path) as scorer, pytest.raises(ScorerFailed, match="failed on 1 pairs"):
        scorer.score([(QUERIES[0], Item("i", "beyond"))])
