"""Predictions that are linear in stored rows: rows · weights + constant, per query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray

__all__ = ["Weights", "predictions"]

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
