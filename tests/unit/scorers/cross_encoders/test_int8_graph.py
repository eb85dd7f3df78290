from __future__ import annotations

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from adacur.core.records import Item, Query
from adacur.data import fetch
from adacur.scorers import OnnxCrossEncoder
from adacur.scorers.cross_encoders import onnx as onnx_scorer
from adacur.scorers.cross_encoders.int8_graph import MISLED_FUSION, quantise_pair_by_pair
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, tiny_export, tiny_onnx

SHORT = [(query, item) for query, item in PAIRS if len(item.text.split()) < 20]


@pytest.fixture(autouse=True)
def second_graph_at_once(monkeypatch) -> None:
    monkeypatch.setattr("adacur.scorers.cross_encoders.onnx._SHORT_PAIRS_BEFORE_A_SECOND_GRAPH", 0)


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


def with_second_graph(scorer: OnnxCrossEncoder, pairs) -> np.ndarray:
    """Score pairs, which asks for the second graph, and wait until it is made or given up."""
    scores = scorer.score(pairs)
    assert scorer._maker is not None
    scorer._maker.join()
    return scores


def scores_alone(folder: Path, pairs) -> np.ndarray:
    with OnnxCrossEncoder(folder, threads=1) as scorer:
        return np.concatenate([scorer.score([pair]) for pair in pairs])


def check_that_short_pairs_share_runs(folder: Path, pairs) -> None:
    with OnnxCrossEncoder(folder, threads=2) as scorer:
        with_second_graph(scorer, pairs)
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


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_whatever_the_zero_points_of_the_weights(exported, tmp_path, kind, per_channel) -> None:
    from onnxruntime.quantization import QuantType

    folder = quantised(exported, tmp_path / "other", weight_type=QuantType[kind], per_channel=per_channel)
    check_that_short_pairs_share_runs(folder, SHORT)


def test_long_pairs_run_alone_and_few_pairs_too(exported) -> None:
    many_words = [(query, Item(item.id, " ".join(["w1"] * 29))) for query, item in SHORT]
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        with_second_graph(scorer, SHORT)
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
    monkeypatch.setattr("adacur.scorers.cross_encoders.onnx._SHORT_PAIRS_BEFORE_A_SECOND_GRAPH", 2 * len(SHORT))
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        first = scorer.score(SHORT)
        assert scorer._maker is None
        # Two at a time would gain nothing by company.
        for start in range(0, len(SHORT), 2):
            scorer.score(SHORT[start : start + 2])
        assert scorer._maker is None
        np.testing.assert_array_equal(with_second_graph(scorer, SHORT), first)
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
    # Where items are cut to two tokens, only queries make lengths differ.
    with OnnxCrossEncoder(folder, threads=2, max_item_tokens=2) as scorer:
        with_second_graph(scorer, PAIRS)
        assert scorer._together is None
    with OnnxCrossEncoder(folder, threads=2) as scorer:
        np.testing.assert_array_equal(with_second_graph(scorer, PAIRS), expected)
        assert scorer._together is None


def test_without_the_onnx_package_pairs_run_alone(exported, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer:
        np.testing.assert_array_equal(with_second_graph(scorer, SHORT), scores_alone(exported / "int8", SHORT))
        assert scorer._together is None


def test_a_call_does_not_wait_for_the_second_graph(exported, monkeypatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    make = onnx_scorer.quantise_pair_by_pair

    def slowly(file: Path, target: Path) -> bool:
        begun.set()
        go_on.wait(60)
        return make(file, target)

    monkeypatch.setattr(onnx_scorer, "quantise_pair_by_pair", slowly)
    expected = scores_alone(exported / "int8", SHORT)
    with OnnxCrossEncoder(exported / "int8", threads=2) as scorer, OnnxCrossEncoder(scorer._file, threads=2) as closed:
        for _ in range(3):
            np.testing.assert_array_equal(scorer.score(SHORT), expected)
            assert scorer._together is None
        closed.score(SHORT)
        assert begun.wait(60)
        closed.close()
        go_on.set()
        for one in (scorer, closed):
            one._maker.join()
        assert scorer._together is not None
        # What was made for a closed scorer is not kept.
        assert closed._together is None


def test_a_race_of_shapes_leaves_no_short_pair_alone(exported, monkeypatch) -> None:
    monkeypatch.setattr("adacur.scorers.cross_encoders.onnx._cores", lambda: 4)
    long = [(query, Item(item.id, " ".join(["w1"] * 29))) for query, item in SHORT] * 4
    with OnnxCrossEncoder(exported / "int8") as scorer:
        with_second_graph(scorer, SHORT)
        assert len(scorer._rivals) == 2
        scorer._together, scorer._session = Watched(scorer._together), Watched(scorer._session)
        scorer.score([*long[:192], *SHORT])
        assert len(scorer._rivals) == 1
        assert sum(n_pairs for n_pairs, _ in scorer._together.shapes) >= len(SHORT) - 4


@pytest.mark.parametrize(
    ("weights", "zero_point", "possible"),
    [
        ([[1, 2], [3, 4]] * 20, 0, False),
        ([[251, 252], [253, 254]] * 20, 255, False),
        ([[1, 2], [3, 4]] * 20, 1, False),
        ([[120, 130], [130, 120]] * 20, 128, True),
        # No column to take off: zero has to come into reach all the same.
        ([[100, 156], [156, 100]] * 20, 128, True),
    ],
)
def test_weights_that_cannot_be_taken_off_are_left_alone(tmp_path, weights, zero_point, possible) -> None:
    """Graphs with one product: words as rows of positive numbers, times weights, summed over tokens and columns."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    make, array = onnx.helper, onnx.numpy_helper.from_array
    rng = np.random.default_rng(0)
    constants = [
        array(rng.uniform(1, 9, size=(50, 40)).astype(np.float32), "embeddings"),
        array(np.array(weights, np.uint8), "weights"),
        array(np.array(zero_point, np.uint8), "zero_point"),
    ]
    nodes = [
        make.make_node("Gather", ["embeddings", "input_ids"], ["words"]),
        make.make_node("DynamicQuantizeLinear", ["words"], ["small", "scale", "zero"]),
        make.make_node("MatMulInteger", ["small", "weights", "zero", "zero_point"], ["whole"]),
        make.make_node("Cast", ["whole"], ["unscaled"], to=onnx.TensorProto.FLOAT),
        make.make_node("Mul", ["unscaled", "scale"], ["logits"]),
    ]
    names = ["input_ids", "attention_mask"]
    given = [make.make_tensor_value_info(name, onnx.TensorProto.INT64, ["pairs", "tokens"]) for name in names]
    result = [make.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["pairs", "tokens", 2])]
    graph = make.make_graph(nodes, "one product", given, result, constants)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9), tmp_path / "a.onnx")
    assert quantise_pair_by_pair(tmp_path / "a.onnx", tmp_path / "b.onnx") is possible
    if possible:
        plain = onnx_scorer._session(onnxruntime, tmp_path / "a.onnx")
        together = onnx_scorer._session(onnxruntime, tmp_path / "b.onnx", without=[MISLED_FUSION])
        ids = rng.integers(50, size=(6, 5))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        alone = [plain.run(None, {name: values[at : at + 1] for name, values in inputs.items()})[0] for at in range(6)]
        np.testing.assert_array_equal(together.run(None, inputs)[0], np.concatenate(alone))


def test_graphs_that_are_quantised_otherwise_are_left_alone(exported, tmp_path) -> None:
    onnx = pytest.importorskip("onnx")

    def is_possible(change) -> bool:
        model = onnx.load(exported / "int8" / "model.onnx")
        change(model.graph)
        onnx.save(model, tmp_path / "changed.onnx")
        return quantise_pair_by_pair(tmp_path / "changed.onnx", tmp_path / "target.onnx")

    def quantiser(graph):
        return next(node for node in graph.node if node.op_type == "DynamicQuantizeLinear")

    def also_fused(graph) -> None:
        inputs = [quantiser(graph).input[0], "weights", "scale"]
        graph.node.append(onnx.helper.make_node("DynamicQuantizeMatMul", inputs, ["more"], domain="com.microsoft"))

    def also_restored(graph) -> None:
        graph.node.append(onnx.helper.make_node("DequantizeLinear", quantiser(graph).output, ["restored"]))

    assert not quantise_pair_by_pair(exported / "float" / "model.onnx", tmp_path / "target.onnx")
    assert is_possible(lambda graph: None)
    assert not is_possible(also_fused)
    assert not is_possible(also_restored)
    assert not is_possible(lambda graph: graph.ClearField("initializer"))
    assert not is_possible(lambda graph: graph.ClearField("input"))
