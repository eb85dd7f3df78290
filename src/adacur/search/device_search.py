"""Searches whose predictions live on a device: one computation serves all that step together."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.model import TopK
from adacur.model.acquire import best_positions
from adacur.model.device_posterior import DevicePosterior, Request, TopN
from adacur.protocols import Acquisition, Approximation
from adacur.search.asktell import SHORTLIST, QueryBatch
from adacur.search.candidates import CandidatesInMemory
from adacur.search.plan import Plan


def chooses_on_device(plan: Plan, approximation: Approximation | None) -> bool:
    """Whether items are chosen where predictions live: not where predictions of other items are needed here too."""
    # Items that cannot be paid must not be found again, and a device only knows scored ones.
    needs_others = plan.keeps or plan.purse.may_refuse
    return isinstance(approximation, DevicePosterior) and isinstance(plan.acquisition, TopK) and not needs_others


class CandidatesOnDevice(CandidatesInMemory):
    """The candidates of one query: the most promising items, as the device found them."""

    __slots__ = ()

    def best(self, n: int, *, acquisition: Acquisition, stream: int, predicted: TopN) -> tuple[IntArray, FloatArray]:
        positions, values = predicted
        order = best_positions(values, n, keys=self.item_keys[positions])
        return positions[order], values[order]

    def predictions(self, predicted: TopN, positions: IntArray) -> FloatArray:
        known = dict(zip(predicted.positions.tolist(), predicted.predicted.tolist(), strict=True))
        return np.array([known[position] for position in positions.tolist()])


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
