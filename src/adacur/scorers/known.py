"""Known scores of a matrix as a scorer."""

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
        self._rows = _numbered(queries, "Query")
        self._columns = _numbered(items, "Item")
        expected = (len(self._rows), len(self._columns))
        matrix = np.asarray(scores)
        if matrix.dtype.kind not in "fiub":
            raise InputError(f"A score matrix holds real numbers; got dtype {matrix.dtype}.")
        self.matrix: FloatArray = matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)
        if matrix.shape != expected:
            raise InputError(
                f"A score matrix has one row per query and one column per item; for {expected[0]} queries and "
                f"{expected[1]} items its shape must be {expected}, got {matrix.shape}."
            )
        self._name = name

    @cached_property
    def card(self) -> ScorerCard:
        digest = hashlib.sha256("\0".join((*self._rows, "", *self._columns)).encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(self.matrix).view(np.uint8).data)
        return ScorerCard(
            name=self._name, backend="matrix", weights=digest.hexdigest()[:32], dtype=str(self.matrix.dtype)
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        queries, items = [query for query, _ in pairs], [item for _, item in pairs]
        return self.matrix[_positions(self._rows, queries, "query"), _positions(self._columns, items, "item")]

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        return self.matrix[np.ix_(_positions(self._rows, queries, "query"), _positions(self._columns, items, "item"))]


def _numbered(records: Sequence[Any], kind: str) -> dict[str, int]:
    ids = [record if isinstance(record, str) else record.id for record in records]
    numbered = {id_: position for position, id_ in enumerate(ids)}
    if len(numbered) < len(ids):
        raise DuplicateId(f"{kind} ids must be unique; {repeats(ids)} more than once.")
    return numbered


def _positions(numbered: dict[str, int], records: Iterable[Query | Item], kind: str) -> IntArray:
    try:
        return np.fromiter((numbered[record.id] for record in records), dtype=np.intp)
    except KeyError as error:
        raise UnknownName(
            f"The score matrix has no {kind} with the id {error.args[0]!r}; it knows {len(numbered)} of them."
        ) from None
