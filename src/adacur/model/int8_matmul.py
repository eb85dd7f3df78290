"""Rows of int8 times float weights, without widening the rows: by NumKong, where it is installed (extra `int8`).

It multiplies int8 by int8 and adds in int32, which is exact. Weights are therefore written as four int8 digits to the
base 128, each a column of the product: 28 bits, where float32 has 24 (docs/design/store.md).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from adacur.arrays import FloatArray

_DIGITS = 4
_BASE = 128


class Int8Weights:
    """Weights to multiply rows of int8 by; `units` is what a one is worth in each digit, the first the highest."""

    def __init__(self, weights: FloatArray) -> None:
        largest = float(np.abs(weights).max(initial=0.0))
        unit = largest / (_BASE - 1) if 0 < largest < np.inf else 1.0
        left = np.asarray(weights, dtype=np.float64) / unit
        digits = np.empty((_DIGITS, len(left)), dtype=np.int8)
        for digit in digits:
            # No digit is above 64 but the first, so that none needs the room that −128 would.
            nearest = np.rint(left)
            digit[:] = nearest
            left = (left - nearest) * _BASE
        self._units = (unit / float(_BASE) ** np.arange(_DIGITS)).astype(np.float32)
        self._packed = _numkong().dots_pack(digits)

    def times(self, rows: Any, out: FloatArray) -> None:
        """The product of rows, contiguous, with these weights, float32."""
        digits = np.asarray(_numkong().dots_packed(rows, self._packed))
        np.dot(digits.astype(np.float32), self._units, out=out)


def multiplies_int8() -> bool:
    """Whether NumKong is here, and knows the instructions of this processor: without them it is slower than numpy."""
    return _numkong() is not None


@functools.cache
def _numkong() -> Any:
    try:
        import numkong
    except ImportError:
        return None
    return numkong if any(known for name, known in numkong.get_capabilities().items() if name != "serial") else None
