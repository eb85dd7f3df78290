"""Products of many rows with one vector, the same to the bit for a row whichever rows are beside it."""

from __future__ import annotations

import functools
import os

import numpy as np

from adacur.core.arrays import FloatArray

__all__ = ["blas_threads", "row_products"]

# OpenBLAS multiplies four rows at a time, and what remains of a thread's share in another order of sums.
_ROWS_AT_A_TIME = 4


def row_products(rows: FloatArray, weights: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Every row · weights, in the precision of the rows.

    A product does not depend on how many rows come before, where that is a multiple of four, nor on the number of
    threads: so whoever holds a part of the rows gets what whoever holds all of them gets.
    """
    if out is None:
        out = np.empty(len(rows), dtype=rows.dtype)
    # Shares of all threads that are multiples of four, then the rest of these, then the last few.
    start, n_rows = 0, len(rows)
    for group in (_ROWS_AT_A_TIME * blas_threads(), _ROWS_AT_A_TIME, 1):
        stop = n_rows - n_rows % group
        if start < stop:
            np.dot(rows[start:stop], weights, out=out[start:stop])
            start = stop
    return out


@functools.cache
def blas_threads() -> int:
    """Cores that this process may use, and was not told to leave to others: the threads that BLAS runs on.

    Asked once, as BLAS does.
    """
    told = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS, nor on Windows.
        cores = os.cpu_count() or 1
    return min([cores, *(int(number) for number in told if number.isdecimal() and int(number))])
