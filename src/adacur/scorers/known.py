"""Scores that are known already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.arrays import FloatArray, IntArray
from adacur.errors import DuplicateId, InputError, UnknownName
from adacur.protocols import ScorerCard
from adacur.records import Item, Pair, Query, repeats


class MatrixScorer:
    """Known scores of shape (queries, items), looked up by id.

    Records may be given as bare ids. The floating type of `scores` is kept; whole numbers become float64.
    """

    can_batch_callers = True

    def __init__(
        self,
        queries: Sequence[Query | str],
        items: Sequence[Item | str],
        scores: npt.ArrayLike,
        *,
        name: str = "matrix",
    ) -> None:
        matrix = np.asarray(scores)
        if matrix.dtype.kind not in "fiub":
            raise InputError(f"A score matrix holds real numbers; got dtype {matrix.dtype}.")
        self._matrix: FloatArray = matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)
        self._rows = _numbered(queries, "Query")
        self._columns = _numbered(items, "Item")
        expected = (len(self._rows), len(self._columns))
        if matrix.shape != expected:
            raise InputError(
                f"A score matrix has one row per query and one column per item; for {expected[0]} queries and "
                f"{expected[1]} items its shape must be {expected}, got {matrix.shape}."
            )
        self._name = name

    @cached_property
    def card(self) -> ScorerCard:
        digest = hashlib.sha256("\0".join((*self._rows, "", *self._columns)).encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(self._matrix).view(np.uint8).data)
        return ScorerCard(
            name=self._name, backend="matrix", weights=digest.hexdigest()[:32], dtype=str(self._matrix.dtype)
        )

    def knows(self, query: Query, item: Item) -> bool:
        """Whether the pair has a score."""
        return query.id in self._rows and item.id in self._columns

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        rows = _positions(self._rows, (query.id for query, _ in pairs), "query")
        columns = _positions(self._columns, (item.id for _, item in pairs), "item")
        return self._matrix[rows, columns]

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        rows = _positions(self._rows, (query.id for query in queries), "query")
        columns = _positions(self._columns, (item.id for item in items), "item")
        return self._matrix[np.ix_(rows, columns)]


def _numbered(records: Sequence[Any], kind: str) -> dict[str, int]:
    ids = [record if isinstance(record, str) else record.id for record in records]
    numbered = {id_: position for position, id_ in enumerate(ids)}
    if len(numbered) < len(ids):
        raise DuplicateId(f"{kind} ids must be unique; {repeats(ids)} more than once.")
    return numbered


def _positions(numbered: dict[str, int], ids: Iterable[str], kind: str) -> IntArray:
    try:
        return np.fromiter((numbered[id_] for id_ in ids), dtype=np.intp)
    except KeyError as error:
        raise UnknownName(
            f"The score matrix has no {kind} with the id {error.args[0]!r}; it knows {len(numbered)} of them."
        ) from None
