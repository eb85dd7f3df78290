"""Searches whose predictions live on a device: all that step together are predicted and chosen for in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.approximation import TopK
from adacur.approximation.acquisition import best_positions
from adacur.approximation.device_posteriors import Promising
from adacur.approximation.shared_posteriors import SharedPosteriors
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.protocols import Acquisition, Approximation
from adacur.core.records import Item, Query
from adacur.core.seeds import uniform
from adacur.search.adaptive import SHORTLIST, LockStep
from adacur.search.methods import Plan
from adacur.search.prospects import ROUNDING, SCORES_THAT_TELL


def chooses_on_device(plan: Plan, approximation: Approximation | None) -> bool:
    """Whether items are chosen where predictions live: not where more of these are needed than of the chosen."""
    # Items that a budget of tokens or money cannot pay must not be found again, and a device knows scored ones only.
    may_drop = plan.spending is not None and plan.spending.is_limited
    needs_others = plan.keep_predictions or plan.pool is not None or plan.first_share > 0 or may_drop
    return isinstance(approximation, SharedPosteriors) and isinstance(plan.acquisition, TopK) and not needs_others


class DeviceProspects:
    """The prospects of one query: the most promising items, as the device found them."""

    def __init__(self, candidates: IntArray, *, allowed: BoolArray, n_allowed: int, keys: KeyArray) -> None:
        self.candidates = candidates
        self._allowed = allowed
        self._n_allowed = n_allowed
        self._keys = keys
        self._scored: IntArray = np.empty(0, dtype=np.intp)

    @property
    def n_left(self) -> int:
        """How many items may still be scored."""
        return self._n_allowed - len(self._scored)

    def from_first(self, n: int) -> IntArray:
        """The first stage's best n that may still be scored, best first."""
        if not n:
            return self.candidates[:0]
        left = self.candidates if not len(self._scored) else self.candidates[~np.isin(self.candidates, self._scored)]
        return left[:n]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: Promising
    ) -> tuple[IntArray, FloatArray]:
        """The n best of those that the device found; ties go to the smaller key."""
        positions, raised = predicted.positions, predicted.raised
        if len(without):
            others = ~np.isin(positions, without)
            positions, raised = positions[others], raised[others]
        order = best_positions(raised, n, keys=self._keys[positions])
        return positions[order], raised[order]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """A uniform sample."""
        left = self._allowed.copy()
        left[self._scored] = False
        left[without] = False
        return best_positions(np.where(left, uniform(stream, self._keys), -np.inf), n, keys=self._keys)

    def predictions(self, predicted: Promising, positions: IntArray) -> FloatArray:
        """The predictions of those that the device found."""
        known = dict(zip(predicted.positions.tolist(), predicted.predicted.tolist(), strict=True))
        return np.array([known[position] for position in positions.tolist()])

    def scored(self, positions: IntArray) -> None:
        """These were scored, and must not be again."""
        self._scored = np.concatenate([self._scored, positions])

    def keys(self, positions: IntArray) -> KeyArray:
        """The random keys of these items."""
        return self._keys[positions]

    def items(self, positions: IntArray) -> tuple[Item, ...]:
        """None: positions are those of the index."""
        return ()


class DeviceLockStep(LockStep):
    """Searches that step together, predicted and chosen for in one go."""

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        candidates: Sequence[IntArray],
        allowed: BoolArray,
        approximation: Approximation,
    ) -> None:
        self._n_allowed = len(allowed) if plan.filter is None else int(np.count_nonzero(allowed))
        self._allowed = allowed
        self._candidates = candidates
        keys = plan.items.keys if plan.keys is None else plan.keys
        prospects = [
            DeviceProspects(some, allowed=allowed, n_allowed=self._n_allowed, keys=keys) for some in candidates
        ]
        super().__init__(plan, queries, k, prospects=prospects, approximation=approximation)

    def wanted(self) -> SharedPosteriors | None:
        """The approximation, told what the next `ask` reads of it; None where that reads nothing, or has it."""
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
        return n, {
            "candidates": self._candidates,
            "first_weight": self._plan.first_weight,
            "scores_that_tell": SCORES_THAT_TELL,
            "rounding": ROUNDING,
            "allowed": None if self._n_allowed == len(self._allowed) else self._allowed,
        }
