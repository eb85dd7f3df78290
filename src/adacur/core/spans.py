"""Spans of items: what is summed up over all items is summed up span by span, on one machine or on many.

Floating-point sums depend on their order. With spans that the number of items alone decides, whoever holds some of
them whole gets the same sums of each as whoever holds them all, and the few sums are added in one order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adacur.core.arrays import FloatArray

__all__ = ["SHORTEST_SPAN", "span_length", "span_moments", "span_sums", "standard_deviation"]

SHORTEST_SPAN = 64
_MOST_SPANS = 256
_NUMBERS_AT_ONCE = 1 << 20


def span_length(n_items: int) -> int:
    """Items in a span, a power of two: at least 64, and so many that there are at most 256 spans."""
    length = SHORTEST_SPAN
    while length * _MOST_SPANS < n_items:
        length *= 2
    return length


def span_sums(values: FloatArray, length: int) -> FloatArray:
    """The sum of each span of `values`, float64."""
    return _by_span(values, length, lambda block: block.sum(axis=1, dtype=np.float64))


def span_moments(values: FloatArray, length: int) -> FloatArray:
    """Per span how many values there are, its first, and the sums of the others less that and of the squares.

    Shape (spans, 4), float64; `standard_deviation` makes one of all.
    """
    return _by_span(values, length, _moments)


def standard_deviation(moments: FloatArray) -> float:
    """Of all values, as numpy counts it; what is no number stays none."""
    counts, firsts, sums, squares = moments.T
    n_values = counts.sum()
    mean = (sums + counts * firsts).sum() / n_values
    off = mean - firsts
    variance = (squares - 2 * off * sums + counts * off**2).sum() / n_values
    return float(np.sqrt(np.maximum(0.0, variance)))


def _by_span(values: FloatArray, length: int, summed: Callable[[FloatArray], FloatArray]) -> FloatArray:
    whole = len(values) - len(values) % length
    rows = values[:whole].reshape(-1, length)
    # A few spans at a time: the float64 in between would take twice the memory of the values.
    height = max(1, _NUMBERS_AT_ONCE // length)
    blocks = [rows[start : start + height] for start in range(0, len(rows), height)]
    if whole < len(values):
        blocks.append(values[None, whole:])
    return np.concatenate([summed(block) for block in blocks])


def _moments(block: FloatArray) -> FloatArray:
    moments = np.empty((len(block), 4))
    moments[:, 0], moments[:, 1] = block.shape[1], block[:, 0]
    numbers = np.subtract(block, block[:, :1], dtype=np.float64)
    numbers.sum(axis=1, out=moments[:, 2])
    # Never with BLAS, whose sums depend on its threads.
    np.square(numbers, out=numbers).sum(axis=1, out=moments[:, 3])
    return moments
