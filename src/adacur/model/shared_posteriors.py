"""Posteriors on a device that are computed together with those of other searches over the same features.

Scores and requests of a search are only noted. They are computed when it reads the answer, or before, by
`compute_together` for many searches: those at the same point become rows of one batch, with one product for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import DeviceFailed
from adacur.model.device_posteriors import DevicePosteriors, Promising
from adacur.model.features import Features
from adacur.model.posteriors import Posterior, Priors
from adacur.requirements import require

# For so few queries, numpy solves the systems before a device would have received them.
_FEW_QUERIES = 6


class SharedPosteriors:
    """The approximation of the queries of one search: some rows of a batch that it may share with other searches.

    `priors` and `on_host` make what a batch starts from: on the device, or on numpy where queries are few. One thread
    at a time may use it, alone or through `compute_together`.
    """

    def __init__(
        self,
        features: Features,
        priors: Callable[[], Priors],
        *,
        on_host: Callable[[], Sequence[Posterior]],
        n_queries: int,
    ) -> None:
        self._features, self._priors, self._on_host = features, cache(priors), on_host
        self._batch: DevicePosteriors | None = None
        self._rows = range(n_queries)
        self._told: tuple[Sequence[IntArray], Sequence[FloatArray]] | None = None
        self._n_wanted = 0
        self._candidates: Sequence[IntArray] = ()
        self._options: dict[str, Any] = {}
        self._best: list[Promising] | None = None

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        if self._told is not None:
            with _device_of(self):
                _told([self])
        self._told, self._best = (positions, scores), None

    def want(self, n: int, *, candidates: Sequence[IntArray], allowed: BoolArray | None, **options: float) -> None:
        """Note what the next `best` will be asked for."""
        self._n_wanted, self._candidates, self._options = n, candidates, {"allowed": allowed, **options}

    def best(self, n: int, *, candidates: Sequence[IntArray], **options: Any) -> list[Promising]:
        """As `DevicePosteriors.best`: the n most promising unscored items of each query, or a few more."""
        if self._best is None:
            self.want(n, candidates=candidates, **options)
            compute_together([self])
        best, self._best = self._best, None
        assert best is not None
        return best

    def predict(self) -> FloatArray:
        """Predictions for every item on the score scale, a row per query, on the host."""
        with _device_of(self):
            return _told([self]).predict()

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions as scores of the scorer."""
        return self._features.scale.score(predicted)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best)."""
        with _device_of(self):
            return _told([self]).chance_above(query, predicted, best, ranks=ranks)

    def _point(self) -> Hashable:
        """A key that searches which can be computed together have in common."""
        if self._batch is not None and self._batch.is_on_host:
            return id(self)
        told = () if self._told is None else tuple({len(some) for some in self._told[0]})
        priors, options = self._priors(), self._options
        return (
            (id(self._features), priors.noise, priors.level_variance),
            None if self._batch is None else self._batch.widths,
            told if len(told) < 2 else id(self),
            tuple(sorted((name, id(value) if name == "allowed" else value) for name, value in options.items())),
        )


def compute_together(searches: Sequence[SharedPosteriors]) -> None:
    """Add the noted scores of these searches and find what they request, in one batch for all at the same point.

    Their next `best` only reads the answer.
    """
    groups: dict[Hashable, list[SharedPosteriors]] = {}
    are_few = sum(len(search._rows) for search in searches) <= _FEW_QUERIES
    for search in searches:
        if are_few and search._batch is None:
            search._batch = DevicePosteriors(search._features, search._priors, on_host=search._on_host())
        groups.setdefault(search._point(), []).append(search)
    for group in groups.values():
        with _device_of(group[0]):
            found = _told(group).best(
                max(search._n_wanted for search in group),
                candidates=[some for search in group for some in search._candidates],
                **group[0]._options,
            )
        for search in group:
            search._best = found[search._rows.start : search._rows.stop]


def _told(group: Sequence[SharedPosteriors]) -> DevicePosteriors:
    """One batch of exactly these searches, in order, with the scores noted of them."""
    first = group[0]
    if first._batch is None:
        priors = Priors.joined([search._priors() for search in group])
        batch = DevicePosteriors(first._features, lambda: priors)
    else:
        parts: list[tuple[DevicePosteriors, list[int]]] = []
        for search in group:
            assert search._batch is not None
            if not parts or parts[-1][0] is not search._batch:
                parts.append((search._batch, []))
            parts[-1][1].extend(search._rows)
        batch = DevicePosteriors.joined(parts)
    if any(search._told is not None for search in group):
        # A copy: if the device fails halfway, each search is where it was, and can be tried alone.
        batch = copy.copy(batch)
        nothing: Any = [np.empty(0, dtype=np.intp)]
        told = [search._told or (nothing * len(search._rows), nothing * len(search._rows)) for search in group]
        batch.tell([one for where, _ in told for one in where], [one for _, scores in told for one in scores])
    start = 0
    for search in group:
        search._batch, search._rows, search._told = batch, range(start, start + len(search._rows)), None
        start = search._rows.stop
    return batch


@contextmanager
def _device_of(search: SharedPosteriors) -> Iterator[None]:
    """Turn whatever torch raises inside into one error that names the device."""
    torch = require("torch", extra="torch")
    try:
        yield
    except torch.linalg.LinAlgError:
        raise
    except RuntimeError as error:
        raise DeviceFailed(
            f"Predictions on the device {search._features.device_means.device} failed with {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]} A process whose GPU has failed can rarely use it again: start it "
            "again, or open the index without a device, so that predictions are made on the processor."
        ) from error
