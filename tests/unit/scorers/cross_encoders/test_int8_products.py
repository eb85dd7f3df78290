from __future__ import annotations

import numpy as np
import pytest

import adacur
from adacur.records import Item, Query
from adacur.scorers import OnnxCrossEncoder
from adacur.scorers.cross_encoders import onnx as onnx_scorer
from adacur.store import DriftWarning
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, WORDS, tiny_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ITEMS = [Item(f"i{n}", " ".join(WORDS[(3 * n + step) % 40] for step in range(n % 7 + 2))) for n in range(40)]
ANCHORS = [Query(f"a{n}", f"{WORDS[n]} {WORDS[39 - n]}") for n in range(4)]


def test_the_product_that_is_measured_is_one_of_the_largest_integers() -> None:
    make, tensor = onnx.helper, onnx.TensorProto
    weights = onnx.numpy_helper.from_array(np.full((8, 16), 127, np.int8), "w")
    graph = make.make_graph(
        [make.make_node("MatMulInteger", ["a", "w"], ["y"])],
        "g",
        [make.make_tensor_value_info("a", tensor.UINT8, [1, 8])],
        [make.make_tensor_value_info("y", tensor.INT32, [1, 16])],
        [weights],
    )
    assert onnx.load_from_string(onnx_scorer._PRODUCT).graph == graph
    assert onnx_scorer._EXACT == 259_080


@pytest.mark.parametrize(
    ("exact_when", "told"),
    [
        ((False, True), "exact products"),
        ((True,), "exact products, widened"),
        ((), "saturating products"),
    ],
)
def test_the_arithmetic_is_what_was_measured_with_and_without_the_precise_kernels(
    monkeypatch, exact_when, told
) -> None:
    monkeypatch.setattr(onnx_scorer, "_is_exact", lambda *, precise: precise in exact_when)
    assert onnx_scorer.int8_products.__wrapped__() == told


def test_products_are_exact_here_one_way_or_the_other() -> None:
    assert onnx_scorer.int8_products() in ("exact products", "exact products, widened")
    assert onnx_scorer._is_exact(precise=True)


def test_only_the_card_of_a_quantised_model_says_how_it_multiplied(tmp_path) -> None:
    with OnnxCrossEncoder(tiny_onnx(tmp_path / "int8", dynamic=True)) as quantised:
        assert quantised.card.arithmetic == onnx_scorer.int8_products()
        # Where products saturate without it, scores are wrong, and nothing here would show it.
        assert quantised._session.get_session_options().get_session_config_entry(onnx_scorer.PRECISE) == "1"
    with OnnxCrossEncoder(tiny_onnx(tmp_path / "float")) as plain:
        assert plain.card.arithmetic is None


def test_an_index_built_where_products_saturate_reports_its_drift(tmp_path, monkeypatch) -> None:
    folder = tiny_onnx(tmp_path / "model", dynamic=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(onnx_scorer, "int8_products", lambda: "saturating products")
        moved = OnnxCrossEncoder(folder)
        as_it_is = moved._scores
        elsewhere.setattr(moved, "_scores", lambda pairs: as_it_is(pairs) * np.float32(1.01) + np.float32(0.02))
        adacur.build(ITEMS, ANCHORS, scorer=moved, path=tmp_path / "index", progress=False).close()
    with OnnxCrossEncoder(folder) as here:
        with pytest.warns(DriftWarning, match=r"exact products.*saturating products"):
            index = adacur.load(tmp_path / "index", scorer=here)
        assert not index.drift.same


def test_an_index_built_with_the_same_arithmetic_is_recognised_without_a_call(tmp_path) -> None:
    folder = tiny_onnx(tmp_path / "model", dynamic=True)
    with OnnxCrossEncoder(folder) as scorer:
        adacur.build(ITEMS, ANCHORS, scorer=scorer, path=tmp_path / "index", progress=False)
        paid = adacur.scorers.Metered(scorer)
        assert adacur.load(tmp_path / "index", scorer=paid).drift is None
        assert paid.calls == 0
        assert np.isfinite(scorer.score(PAIRS)).all()
