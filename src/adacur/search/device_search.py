"""Searches whose predictions live on a device: one computation serves all that step together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.approximation import TopK, Uniform
from adacur.approximation.acquisition import best_positions
from adacur.approximation.device_posteriors import Promising
from adacur.approximation.shared_posteriors import SharedPosteriors
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.protocols import Acquisition, Approximation
from adacur.search.adaptive import SHORTLIST, LockStep
from adacur.search.methods import Plan
from adacur.search.prospects import ROUNDING, SCORES_THAT_TELL, Prospects, keys_of


def chooses_on_device(plan: Plan, approximation: Approximation | None) -> bool:
    """Whether items are chosen where predictions live: not where predictions of other items are needed here too."""
    # Items that a budget of tokens or money cannot pay must not be found again, and a device only knows scored ones.
    may_drop = plan.spending is not None and plan.spending.is_limited
    needs_others = plan.keep_predictions or plan.pool is not None or plan.first_share > 0 or may_drop
    return isinstance(approximation, SharedPosteriors) and isinstance(plan.acquisition, TopK) and not needs_others


def device_prospects(plan: Plan, candidates: Sequence[IntArray], allowed: BoolArray) -> list[DeviceProspects]:
    """The prospects of several queries; only the `allowed` items may be scored."""
    n_allowed = len(allowed) if plan.filter is None else int(np.count_nonzero(allowed))
    return [DeviceProspects(some, allowed, n_allowed, keys_of(plan)) for some in candidates]


@dataclass(slots=True, eq=False)
class DeviceProspects(Prospects):
    """The prospects of one query: the most promising items, as the device found them."""

    candidates: IntArray
    allowed: BoolArray
    n_allowed: int
    item_keys: KeyArray
    _scored: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    @property
    def n_left(self) -> int:
        return self.n_allowed - len(self._scored)

    def from_first(self, n: int) -> IntArray:
        return self.candidates[~np.isin(self.candidates, self._scored)][:n] if n else self.candidates[:0]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: Promising
    ) -> tuple[IntArray, FloatArray]:
        positions, raised = predicted.positions, predicted.raised
        if len(without):
            others = ~np.isin(positions, without)
            positions, raised = positions[others], raised[others]
        order = best_positions(raised, n, keys=self.item_keys[positions])
        return positions[order], raised[order]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        left = self.allowed.copy()
        left[self._scored] = False
        left[without] = False
        return Uniform().choose(np.empty(0), unscored=left, n=n, keys=self.item_keys, stream=stream)

    def predictions(self, predicted: Promising, positions: IntArray) -> FloatArray:
        known = dict(zip(predicted.positions.tolist(), predicted.predicted.tolist(), strict=True))
        return np.array([known[position] for position in positions.tolist()])

    def scored(self, positions: IntArray) -> None:
        self._scored = np.concatenate([self._scored, positions])

    def keys(self, positions: IntArray) -> KeyArray:
        return self.item_keys[positions]


class DeviceLockStep(LockStep):
    """Searches that step together, with one computation on the device for all of them."""

    is_on_device = True

    def wanted(self) -> SharedPosteriors | None:
        if self._predicted is not None or not self.goes_on or not any(search.rounds for search in self.searches):
            return None
        assert isinstance(self._approximation, SharedPosteriors)
        n, options = self._options()
        self._approximation.want(n, **options)
        return self._approximation

    def _predictions(self, approximation: Approximation) -> list[Any]:
        assert isinstance(approximation, SharedPosteriors)
        n, options = self._options()
        return list(approximation.best(n, **options))

    def _options(self) -> tuple[int, dict[str, Any]]:
        n = max((search.remaining[0] for search in self.searches if search.remaining), default=0)
        if self._plan.stop_when is not None:
            n = max(n, SHORTLIST)
        prospects = self.searches[0].prospects
        assert isinstance(prospects, DeviceProspects)
        return n, {
            "candidates": [search.prospects.candidates for search in self.searches],
            "first_weight": self._plan.first_weight,
            "scores_that_tell": SCORES_THAT_TELL,
            "rounding": ROUNDING,
            "allowed": None if prospects.n_allowed == len(prospects.allowed) else prospects.allowed,
        }
