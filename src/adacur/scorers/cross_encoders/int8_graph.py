"""int8 graphs in which each pair of a run is quantised for itself, to the bits that it has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.extras import require

__all__ = ["MISLED_FUSION", "quantise_pair_by_pair"]

# It would take the scales of the pairs for one scale of the run.
MISLED_FUSION = "MatMulIntegerToFloatFusion"

_MASK = "attention_mask"
# Some processors add two products of eight bits in sixteen, and saturate: 2 * 255 * 64 still fits.
_FARTHEST_FROM_ZERO = 64
# More columns than both of these would cost more than the company of other pairs saves.
_MOST_EXTRA_COLUMNS, _MOST_EXTRA_SHARE = 64, 0.25

_Integers = npt.NDArray[np.int64]


def quantise_pair_by_pair(file: Path, target: Path) -> bool:
    """Write a dynamically quantised graph with one scale per pair instead of one per run; False if it is no such graph.

    Dynamic quantisation takes its scale and its zero point z from the least and the largest activation of a run, so
    that a score depends on the pairs beside it. Here both are taken within each pair, padding left out. But
    onnxruntime multiplies integers with one z for all rows. So rows are multiplied as if z were 0, and what that adds,
    z times the sum of each column of weights, is taken off by the product itself: rows get some more columns, zeros,
    which are quantised to z, and the weights more rows, which sum to minus the sum of their column. In whole numbers
    this is exact.
    """
    onnx = require("onnx", extra="onnx")
    model = onnx.load(file)
    try:
        _Rewriting(onnx, model).run()
    except _Unknown:
        return False
    onnx.save(model, target)
    return True


class _Unknown(Exception):
    """The graph is quantised in a way that is not known here."""


class _Rewriting:
    """Takes over the nodes of a graph one by one, and those that quantise and multiply in their new form."""

    def __init__(self, onnx: Any, model: Any) -> None:
        self._onnx = onnx
        self._graph = model.graph
        self._has_functions = bool(model.functions)
        self._opset = max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=0)
        self._arrays = {array.name: array for array in self._graph.initializer}
        self._longer: dict[tuple[str, ...], str] = {}
        self._nodes: list[Any] = []
        self._n_named = 0

    def run(self) -> None:
        nodes = list(self._graph.node)
        products = [node for node in nodes if node.op_type == "MatMulInteger"]
        quantisers = [node for node in nodes if node.op_type == "DynamicQuantizeLinear"]
        # QuantizeLinear has an axis from opset 13 on.
        if self._opset < 13 or self._has_functions or any(map(_may_quantise_otherwise, nodes)):
            raise _Unknown
        if not products or _MASK not in (given.name for given in self._graph.input):
            raise _Unknown
        if {product.input[0] for product in products} != {node.output[0] for node in quantisers}:
            raise _Unknown
        integers = {name for node in quantisers for name in (node.output[0], node.output[2])}
        if any(integers & set(node.input) for node in nodes if node.op_type != "MatMulInteger"):
            raise _Unknown
        mask = self._add("Cast", _MASK, to=self._onnx.TensorProto.FLOAT)
        for node in nodes:
            if node.op_type == "DynamicQuantizeLinear":
                self._quantise_and_multiply(node, [one for one in products if one.input[0] == node.output[0]], mask)
            elif node.op_type != "MatMulInteger":
                self._nodes.append(node)
        used = {name for node in self._nodes for name in node.input}
        kept = [array for array in self._arrays.values() if array.name in used]
        for field, content in ((self._graph.node, self._nodes), (self._graph.initializer, kept)):
            del field[:]
            field.extend(content)
        # The shapes that an exporter noted are no longer true of pooled rows.
        del self._graph.value_info[:]

    def _quantise_and_multiply(self, quantiser: Any, products: list[Any], mask: str) -> None:
        weights = [self._weights_of(product) for product in products]
        width = len(weights[0][0])
        at_most = max(_MOST_EXTRA_COLUMNS, int(_MOST_EXTRA_SHARE * width))
        corrections = [_minus_column_sums(array, zero, at_most) for array, zero in weights]
        # At least one: it also brings zero into the reach of every pair, as dynamic quantisation does.
        n_extra = max(1, *map(len, corrections))
        quantised, scale, _ = quantiser.output
        # (pairs, tokens, width), or (pairs, 1, width) of what was pooled.
        rows = self._add("Reshape", quantiser.input[0], self._constant(np.array([0, -1, width])))
        rows = self._add("Pad", rows, self._constant(np.array([0, 0, 0, 0, 0, n_extra])))
        low, high = self._extreme("ReduceMin", rows, mask), self._extreme("ReduceMax", rows, mask)
        step = self._add("Div", self._add("Sub", high, low), self._constant(np.float32(255)))
        # Where everything is zero any step will do, but zero.
        step = self._add("Max", step, self._constant(np.finfo(np.float32).tiny))
        zero = self._add("Round", self._add("Div", self._add("Neg", low), step))
        zero = self._add("Cast", zero, to=self._onnx.TensorProto.UINT8)
        self._add("QuantizeLinear", rows, step, zero, output=quantised, axis=0)
        self._add("Reshape", step, self._constant(np.array([-1, 1, 1])), output=scale)
        for product, (array, zero_point), correction in zip(products, weights, corrections, strict=True):
            # Layers may share their weights.
            key = (*product.input[1:2], *product.input[3:], str(n_extra))
            if key not in self._longer:
                nothing = np.zeros((n_extra - len(correction), array.shape[1]), np.int64)
                below = np.concatenate((correction, nothing)) + zero_point
                self._longer[key] = self._constant(np.concatenate((array, below.astype(array.dtype))))
            zero_points = ["", *product.input[3:]] if len(product.input) > 3 else []
            self._add("MatMulInteger", quantised, self._longer[key], *zero_points, output=product.output[0])

    def _extreme(self, reduce: str, rows: str, mask: str) -> str:
        """The least or largest value of each pair. Zero is among them, so padding cannot matter once it is zero."""
        by_token = self._reduced(reduce, rows, axis=2)
        return self._reduced(reduce, self._add("Mul", by_token, mask), axis=1)

    def _reduced(self, reduce: str, what: str, *, axis: int) -> str:
        if self._opset >= 18:
            return self._add(reduce, what, self._constant(np.array([axis])), keepdims=0)
        return self._add(reduce, what, axes=[axis], keepdims=0)

    def _weights_of(self, product: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Weights (width, columns), and their zero point or points."""
        _, weights, _, *zero_points = product.input
        if not all(name in self._arrays for name in (weights, *zero_points)):
            raise _Unknown
        array, *zeros = (self._onnx.numpy_helper.to_array(self._arrays[name]) for name in (weights, *zero_points))
        # Neighbours are added in pairs: with an odd width a weight would be added to a row below it.
        if array.ndim != 2 or len(array) % 2:
            raise _Unknown
        return array, zeros[0] if zeros else np.zeros((), array.dtype)

    def _constant(self, value: npt.NDArray[Any] | np.float32) -> str:
        name = self._name()
        self._arrays[name] = self._onnx.numpy_helper.from_array(np.asarray(value), name)
        return name

    def _add(self, operator: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        """A new node; the name of its output."""
        output = output or self._name()
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def _name(self) -> str:
        self._n_named += 1
        return f"adacur_pair_by_pair_{self._n_named}"


def _may_quantise_otherwise(node: Any) -> bool:
    """Whether a node may scale by the run in a way that would stay as it is, by its name or in a graph of its own."""
    if node.op_type == "DynamicQuantizeLinear":
        return False
    has_graphs = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
    return has_graphs or "Dynamic" in node.op_type or node.op_type in ("QAttention", "ConvInteger")


def _minus_column_sums(weights: npt.NDArray[Any], zero_point: npt.NDArray[Any], at_most: int) -> _Integers:
    """Rows (n, columns) that sum to minus the sums of the weights."""
    kind, zero = np.iinfo(weights.dtype), zero_point.astype(np.int64)
    least = np.maximum(kind.min - zero, -_FARTHEST_FROM_ZERO)
    largest = np.minimum(kind.max - zero, _FARTHEST_FROM_ZERO)
    rest = -(weights.astype(np.int64) - zero).sum(axis=0)
    rows: list[_Integers] = []
    while rest.any():
        # With a zero point at the end of its type no row can take anything off on one side.
        if len(rows) == at_most:
            raise _Unknown
        rows.append(np.clip(rest, least, largest))
        rest = rest - rows[-1]
    return np.array(rows, np.int64).reshape(-1, weights.shape[1])
