"""Predictions that are linear in stored rows: rows · weights + constant, per query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.approximation.packed_rows import ROWS_PER_BLOCK
from adacur.core.arrays import FloatArray

__all__ = ["Weights", "precise_predictions", "predictions"]

# The weights of the columns, and the constant beside them.
Weights = tuple[FloatArray, float]


def predictions(rows: FloatArray, queries: Sequence[Weights]) -> FloatArray:
    """Every row's prediction in the precision of the rows, shape (queries, rows)."""
    predicted = np.empty((len(queries), len(rows)), dtype=rows.dtype)
    # One product per query: a product for the whole batch rounds differently with the batch's size, and an answer must
    # not depend on its neighbours.
    for row, (weights, constant) in zip(predicted, queries, strict=True):
        np.dot(rows, weights.astype(row.dtype), out=row)
        if constant:
            row += row.dtype.type(constant)
    return predicted


def precise_predictions(rows: FloatArray, queries: Sequence[Weights]) -> FloatArray:
    """The same in float64, whatever the rows are stored in."""
    predicted = np.empty((len(queries), len(rows)))
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = rows[start : start + ROWS_PER_BLOCK].astype(np.float64)
        for row, (weights, constant) in zip(predicted, queries, strict=True):
            row[start : start + len(block)] = block @ weights + constant
    return predicted
