"""The features of an index in less memory: in fewer columns, and in narrower numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from adacur.arrays import FloatArray
from adacur.model.constants import NOISE, embedding_share
from adacur.model.features import Extraction, Features, query_kernel
from adacur.model.rows import Allocate, ItemFactors, PackedRows, Storage, check_storage, in_memory

# A quarter of the columns lead: by them it is chosen which items are predicted by the other columns too.
_LEADING = 4


def compressed(extraction: Extraction, *, rank: int, storage: Storage, allocate: Allocate = in_memory) -> Features:
    """Features in `rank` columns more than embeddings have, packed as `storage`; all is read three times.

    The columns kept are those that matter most to queries like the anchor queries.
    """
    check_storage(storage)
    n_anchors, n_features = len(extraction.precisions), extraction.n_features
    inner, squares, start = np.zeros((n_features, n_features)), 0.0, 0
    means: FloatArray | None = None
    for block_means, residuals, rows in extraction.feature_blocks():
        # The scores' dtype is known once the first block is read.
        if means is None:
            means = allocate("means", (extraction.n_items,), str(residuals.dtype))
        means[start : start + len(rows)] = block_means
        inner += rows.T @ rows
        squares += float(np.square(residuals, dtype=np.float64).sum())
        start += len(rows)
    assert means is not None
    variance = squares / extraction.n_items / n_anchors
    of_embeddings = extraction.embedding_variance
    root = np.eye(n_features)
    if of_embeddings:
        root *= np.sqrt(embedding_share(n_anchors) * (variance or 1.0) / of_embeddings)
    root[:n_anchors, :n_anchors] = np.linalg.cholesky(_query_covariance(extraction) / n_anchors)
    factors = packed(
        lambda: (rows for _, _, rows in extraction.feature_blocks()),
        n_items=extraction.n_items,
        inner=inner,
        columns=rank + n_features - n_anchors,
        storage=storage,
        root=root,
        allocate=allocate,
    )
    return extraction.made(means, factors, squares=squares)


def _query_covariance(extraction: Extraction) -> FloatArray:
    """Covariance of the residuals' weights over queries like the anchor queries, times the number of these."""
    directions = np.eye(len(extraction.precisions))
    vectors = extraction.query_vectors
    if vectors is None:
        return directions
    # A query starts from the regression on the anchor queries, and then moves like any of them. Left out of the
    # regression, anchor query j would start from row j of `starts`.
    starts = query_kernel(vectors, vectors) + NOISE * directions
    starts = starts * extraction.precisions - directions
    return np.asarray(directions + starts.T @ starts)


def packed(
    blocks: Callable[[], Iterator[FloatArray]],
    *,
    n_items: int,
    inner: FloatArray,
    columns: int,
    storage: Storage,
    root: FloatArray,
    allocate: Allocate = in_memory,
) -> ItemFactors:
    """Features that come in blocks of rows, in `columns` columns: those that keep most of features · `root`.

    `root` is a square root of the covariance of the features' weights, and `inner` is features.T @ features. No
    fewer columns than there are features means that nothing is mixed. The blocks are read once, into "part0" and
    "part1" of `allocate`.
    """
    n_features = len(inner)
    whole = columns >= n_features
    turn, mixing = np.eye(n_features), None
    if not whole:
        # The eigenvectors of rootᵀ inner root are the right singular vectors of features · root. At these
        # widths a randomised decomposition would read the features more often and cost more.
        _, vectors = np.linalg.eigh(root.T @ inner @ root)
        vectors = vectors[:, : -columns - 1 : -1]
        turn, mixing = root @ vectors, np.linalg.solve(root.T, vectors).T
    ends = [n_features] if whole else [-(-columns // _LEADING), columns]
    parts = [
        PackedRows.unfilled((n_items, stop - start), storage=storage, allocate=allocate, name=f"part{number}")
        for number, (start, stop) in enumerate(itertools.pairwise([0, *ends]))
    ]
    start = 0
    for block in blocks():
        turned = block if whole else block @ turn
        for part, columns_of_part in zip(parts, np.split(turned, ends[:-1], axis=1), strict=True):
            part.fill(start, columns_of_part)
        start += len(block)
    return ItemFactors(parts, np.zeros(ends[-1]), mixing=mixing, leading=not whole)
