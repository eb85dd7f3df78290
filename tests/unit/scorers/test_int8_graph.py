from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from adacur.core.records import Item, Query
from adacur.data import fetch
from adacur.scorers import OnnxCrossEncoder
from adacur.scorers.int8_graph import quantised_pair_by_pair
from tests.unit.scorers.tiny_models import PAIRS, tiny_export, tiny_onnx

SHORT = [(query, item) for query, item in PAIRS if len(item.text.split()) < 20]


@pytest.fixture(autouse=True)
def second_graph_at_once(monkeypatch) -> None:
    monkeypatch.setattr("adacur.scorers.onnx._SHORT_PAIRS_BEFORE_A_SECOND_GRAPH", 0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    _, graph = tiny_export(tmp_path_factory, "bert-cls")
    (folder / "float").symlink_to(graph)
    # As exports with int8=True are, without the seconds of exporting twice.
    quantised(folder, folder / "int8", per_channel=True, reduce_range=True)
    return folder


def quantised(exported: Path, target: Path, **options) -> Path:
    """The float export, quantised in another way than ours."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    shutil.copytree(exported / "float", target)
    model = pytest.importorskip("onnx").load(target / "model.onnx")
    del model.graph.value_info[:]
    for file in target.glob("model.onnx*"):
        file.unlink()
    quantization.quantize_dynamic(model, target / "model.onnx", **options)
    return target


class Watched:
    """A session that remembers how many pairs and tokens each run had."""

    def __init__(self, session) -> None:
        self.session = session
        self.shapes: list[tuple[int, int]] = []
        self.padded = False

    def run(self, outputs, fed):
        self.shapes.append(fed["input_ids"].shape)
        self.padded |= not fed["attention_mask"].all()
        return self.session.run(outputs, fed)


def scores_alone(folder: Path, pairs) -> np.ndarray:
    with OnnxCrossEncoder(folder, threads=1) as scorer:
        return np.concatenate([scorer.score([pair]) for pair in pairs])


def check_that_short_pairs_share_runs(folder: Path, pairs) -> None:
    with OnnxCrossEncoder(folder, threads=2) as scorer:
        scorer.score(pairs)
        assert scorer._together
        scorer._together = watched = Watched(scorer._together)
        for chosen in (pairs, pairs[::-1], pairs[: len(pairs) // 2]):
            np.testing.assert_array_equal(scorer.score(chosen), scores_alone(folder, chosen))
        assert max(n_pairs for n_pairs, _ in watched.shapes) >= 8
        assert watched.padded


def test_real_short_pairs_share_runs_and_score_as_alone_to_the_last_bit() -> None:
    questions = ["capital of france", "who discovered penicillin?", "fruit", "the longest river in the world"]
    titles = ["Paris", "Alexander Fleming", "bananas", "", "Nile", "The Amazon, a river in South America", "Mars " * 9]
    pairs = [(Query(q, q), Item(t, t)) for q in questions for t in titles]
    check_that_short_pairs_share_runs(fetch("ms-marco-MiniLM-L-12-v2"), pairs)


@pytest.mark.parametrize(("kind", "per_channel"), [("QInt8", False), ("QInt8", True), ("QUInt8", False)])
def test_whatever_the_zero_points_of_the_weights(exported, tmp_path, kind, per_channel) -> None:
    from onnxruntime.quantization import QuantType

    folder = quantised(exported, tmp_path / "other", weight_type=QuantType[kind], per_channel=per_channel)
    check_that_short_pairs_share_runs(folder, SHORT)


def test_long_pairs_run_alone_and_few_pairs_too(exported) -> None:
    many_words = [(query, Item(item.id, " ".join(["w1"] * 29))) for query, item in SHORT]
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        scorer.score(SHORT)
        scorer._together, scorer._session = Watched(scorer._together), Watched(scorer._session)
        mixed = [pair for pairs in zip(SHORT, many_words, strict=True) for pair in pairs]
        np.testing.assert_array_equal(scorer.score(mixed), scores_alone(exported / "int8", mixed))
        assert max(tokens for _, tokens in scorer._together.shapes) <= 32
        assert all(n_pairs == 1 for n_pairs, _ in scorer._session.shapes)
        assert sum(n for n, _ in scorer._together.shapes + scorer._session.shapes) == len(mixed)
        n_shared = len(scorer._together.shapes)
        scorer.score(SHORT[:6])
        assert len(scorer._together.shapes) == n_shared


def test_the_second_graph_is_made_when_it_pays(exported, monkeypatch) -> None:
    monkeypatch.setattr("adacur.scorers.onnx._SHORT_PAIRS_BEFORE_A_SECOND_GRAPH", 2 * len(SHORT))
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        first = scorer.score(SHORT)
        assert scorer._together is None
        np.testing.assert_array_equal(scorer.score(SHORT), first)
        assert scorer._together


def test_threads_that_come_while_it_is_made_get_the_same(exported) -> None:
    expected = scores_alone(exported / "int8", SHORT)
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer, ThreadPoolExecutor(8) as callers:
        for scores in callers.map(scorer.score, [SHORT] * 16):
            np.testing.assert_array_equal(scores, expected)


def test_where_a_bit_would_change_pairs_run_alone(tmp_path) -> None:
    # It adds up over tokens: padding changes the order of the sum.
    folder = tiny_onnx(tmp_path / "sums", dynamic=True)
    expected = scores_alone(folder, PAIRS)
    with OnnxCrossEncoder(folder, threads=2) as scorer:
        np.testing.assert_array_equal(scorer.score(PAIRS), expected)
        assert scorer._together is False


def test_without_the_onnx_package_pairs_run_alone(exported, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        np.testing.assert_array_equal(scorer.score(SHORT), scores_alone(exported / "int8", SHORT))
        assert scorer._together is False


def test_graphs_that_are_quantised_otherwise_are_left_alone(exported, tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    assert quantised_pair_by_pair(exported / "float" / "model.onnx") is None
    model = onnx.load(exported / "int8" / "model.onnx")
    quantiser = next(node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear")
    # Somebody else multiplies what was quantised, or weights that are not constant.
    model.graph.node.append(onnx.helper.make_node("DequantizeLinear", quantiser.output, ["restored"]))
    onnx.save(model, tmp_path / "more.onnx")
    assert quantised_pair_by_pair(tmp_path / "more.onnx") is None
    for field in ("input", "initializer"):
        model = onnx.load(exported / "int8" / "model.onnx")
        model.graph.ClearField(field)
        onnx.save(model, tmp_path / "damaged.onnx")
        assert quantised_pair_by_pair(tmp_path / "damaged.onnx") is None
