"""Searches whose predictions live on a device: one computation serves all that step together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.model import TopK, Uniform
from adacur.model.acquire import best_positions
from adacur.model.device_posterior import DevicePosterior, Request, TopN
from adacur.protocols import Acquisition, Approximation
from adacur.records import Query
from adacur.search.asktell import SHORTLIST, QueryBatch
from adacur.search.candidates import Candidates
from adacur.search.plan import Plan


def chooses_on_device(plan: Plan, approximation: Approximation | None) -> bool:
    """Whether items are chosen where predictions live: not where predictions of other items are needed here too."""
    # Items that cannot be paid must not be found again, and a device only knows scored ones.
    needs_others = plan.keeps or plan.purse.may_refuse
    return isinstance(approximation, DevicePosterior) and isinstance(plan.acquisition, TopK) and not needs_others


def batch_on_device(
    plan: Plan,
    queries: Sequence[Query],
    k: int,
    *,
    found: Sequence[IntArray],
    listed: Sequence[FloatArray],
    allowed: BoolArray,
    n_allowed: int,
    keys: KeyArray,
    approximation: Any,
) -> BatchOnDevice:
    """Searches of these queries, given what the first stage found; only the `allowed` items may be scored."""
    candidates = [CandidatesOnDevice(some, allowed, n_allowed, keys) for some in found]
    return BatchOnDevice(plan, queries, k, candidates=candidates, listed=listed, approximation=approximation)


@dataclass(slots=True, eq=False)
class CandidatesOnDevice(Candidates):
    """The candidates of one query: the most promising items, as the device found them."""

    found: IntArray
    allowed: BoolArray
    n_allowed: int
    item_keys: KeyArray
    _scored: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    @property
    def n_left(self) -> int:
        return self.n_allowed - len(self._scored)

    def from_first(self, n: int) -> IntArray:
        return self.found[~np.isin(self.found, self._scored)][:n]

    def best(self, n: int, *, acquisition: Acquisition, stream: int, predicted: TopN) -> tuple[IntArray, FloatArray]:
        positions, values = predicted
        order = best_positions(values, n, keys=self.item_keys[positions])
        return positions[order], values[order]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        left = self.allowed.copy()
        left[self._scored] = False
        left[without] = False
        return Uniform().choose(np.empty(0), unscored=left, n=n, keys=self.item_keys, stream=stream)

    def predictions(self, predicted: TopN, positions: IntArray) -> FloatArray:
        known = dict(zip(predicted.positions.tolist(), predicted.predicted.tolist(), strict=True))
        return np.array([known[position] for position in positions.tolist()])

    def scored(self, positions: IntArray) -> None:
        self._scored = np.concatenate([self._scored, positions])

    def keys(self, positions: IntArray) -> KeyArray:
        return self.item_keys[positions]


class BatchOnDevice(QueryBatch):
    """Searches that step together, with one computation on the device for all of them."""

    computes_together = True

    def wanted(self) -> DevicePosterior | None:
        if self._predicted is not None or not self.goes_on or not any(search.rounds for search in self.searches):
            return None
        assert isinstance(self._approximation, DevicePosterior)
        self._approximation.want(self._request())
        return self._approximation

    def _predictions(self, approximation: Approximation) -> list[Any]:
        assert isinstance(approximation, DevicePosterior)
        return list(approximation.best(self._request()))

    def _request(self) -> Request:
        n = max((search.remaining[0] for search in self.searches if search.remaining), default=0)
        if self._plan.stop is not None:
            n = max(n, SHORTLIST)
        candidates = self.searches[0].candidates
        assert isinstance(candidates, CandidatesOnDevice)
        allowed = None if candidates.n_allowed == len(candidates.allowed) else candidates.allowed
        return Request(n, allowed)
