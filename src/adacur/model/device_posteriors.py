"""The Gaussian's posterior for many queries at once, in torch: predictions, and the choice of items, on the device.

Everything has a first axis of queries. Queries may have different numbers of scores: shorter ones are padded with rows
that carry no information. Only chosen positions and their predictions come back to the host.

Memory on the device, besides the features: queries × (12 bytes an item + 16 bytes × scores × features + 24 bytes ×
scores²), of which the first two are taken for fewer queries at a time where there is too little.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.model.features import Features
from adacur.model.listed_features import ListedFeatures, room_for
from adacur.model.posteriors import FEWEST_RESIDUALS, Posterior, Priors, chance_above
from adacur.model.rank_slopes import RANKS_THAT_COUNT, RISE
from adacur.requirements import require

_log = logging.getLogger(__name__)
_loading = threading.Lock()
# Items found beyond those wanted, so that ties with the last of them are seen, and are broken by the items' keys.
_SLACK = 32
# The tensors with a row per query.
_PER_QUERY = (
    *("_prior", "_variances", "_trusts", "_weights", "_levels", "_offsets"),
    *("_at", "_filled", "_inverse", "_targets", "_solved"),
    *("_listed", "_values", "_listed_means", "_listed_covariances", "_listed_weights"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Promising:
    """The most promising unscored items of one query, best first: their predictions, and those as they were raised."""

    positions: IntArray
    predicted: FloatArray
    raised: FloatArray


class DevicePosteriors:
    """The approximation of a batch of queries on a torch device.

    For few queries, posteriors may be given `on_host`: numpy solves a small system before a device has begun. The
    device then only predicts and chooses.
    """

    def __init__(
        self,
        features: Features,
        priors: Callable[[], Priors],
        *,
        on_host: Sequence[Posterior] = (),
    ) -> None:
        self._torch = require("torch", extra="torch")
        self._features = features
        self._on_host = on_host
        self._is_behind = False
        self._raised_at: tuple[Any, Any, Any] | None = None
        self._means = features.device_means
        self._device = self._means.device
        with _loading:
            _load_linalg(self._device)
        self._n_items = len(self._means)
        self._make_priors, self._is_placed = priors, False
        self._n_queries = len(on_host)
        if not on_host:
            self._place()

    def _place(self) -> None:
        """Send the priors to the device."""
        torch, priors = self._torch, self._make_priors()
        self._is_placed = True
        self._n_queries = len(priors.weights)
        self._at_once = max(1, self._n_queries)
        self._prior, self._variances = self._sent(priors.weights), self._sent(priors.variances)
        self._trusts = self._sent(priors.trusts)
        self._level_variance, self._noise = priors.level_variance, priors.noise
        self._weights = self._prior
        self._levels = self._offsets = torch.zeros(self._n_queries, dtype=torch.float64, device=self._device)
        self._place_listed(priors.listed)
        # Of the scored items: where they are, which of these places are filled, L⁻¹ of their covariance, the targets.
        self._at = torch.zeros((self._n_queries, 0), dtype=torch.int64, device=self._device)
        self._filled = torch.zeros((self._n_queries, 0), dtype=torch.bool, device=self._device)
        self._inverse = torch.zeros((self._n_queries, 0, 0), dtype=torch.float64, device=self._device)
        self._targets = torch.zeros((self._n_queries, 0), dtype=torch.float64, device=self._device)
        self._solved = self._targets

    def _place_listed(self, listed: Sequence[ListedFeatures]) -> None:
        """Send the listed features to the device: padding lies behind the last item, and features that lack are 0."""
        n_items, n_features = room_for(listed)
        shape = (len(listed), n_items, n_features)
        at, values = np.full(shape[:2], self._n_items, dtype=np.int64), np.zeros(shape)
        means, covariances = np.zeros((len(listed), n_features)), np.zeros((len(listed), n_features, n_features))
        for query, some in enumerate(listed):
            n, m = len(some.positions), some.n_features
            at[query, :n], values[query, :n, :m] = some.positions, some.values
            means[query, :m], covariances[query, :m, :m] = some.means, some.covariance
        self._listed, self._values = self._torch.from_numpy(at).to(self._device), self._sent(values)
        self._listed_means, self._listed_covariances = self._sent(means), self._sent(covariances)
        self._listed_weights = self._listed_means

    @property
    def is_on_host(self) -> bool:
        """Whether numpy solves for the posteriors: such a batch cannot be joined with others."""
        return bool(self._on_host)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many scores, listed items and listed features there is room for: joined batches must agree in all."""
        return self._at.shape[1], *self._values.shape[1:]

    @classmethod
    def joined(cls, parts: Sequence[tuple[DevicePosteriors, Sequence[int]]]) -> DevicePosteriors:
        """These queries of several batches as one; the batch itself where they are all of one."""
        first = parts[0][0]
        if len(parts) == 1 and list(parts[0][1]) == list(range(first._n_queries)):
            return first
        torch, together = first._torch, copy.copy(first)
        rows = [torch.tensor(at, dtype=torch.int64, device=first._device) for _, at in parts]
        for name in _PER_QUERY:
            chosen = [getattr(batch, name)[at] for (batch, _), at in zip(parts, rows, strict=True)]
            setattr(together, name, chosen[0] if len(chosen) == 1 else torch.cat(chosen))
        together._n_queries = sum(len(at) for _, at in parts)
        together._raised_at = None
        # What did not fit for one batch will not fit for all.
        limits = [batch._at_once for batch, _ in parts if batch._at_once < batch._n_queries]
        together._at_once = max(1, min([together._n_queries, *limits]))
        return together

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        torch, features = self._torch, self._features
        width = max(map(len, positions), default=0)
        if not width:
            return
        if self._on_host:
            # Copies: if the device fails in what follows, a search is where it was.
            self._on_host = [query.copied() for query in self._on_host]
            for query, where, exact in zip(self._on_host, positions, scores, strict=True):
                if len(where):
                    query.tell(where, exact)
            self._is_behind = True
            return
        at, filled = self._padded(positions, width)
        rarities = np.zeros((self._n_queries, width))
        for row, exact in zip(rarities, scores, strict=True):
            row[: len(exact)] = features.scale.rarity(exact)
        exact_rarities = self._sent(rarities)
        if not len(features.precisions) and not self._at.shape[1]:
            # Without anchor queries nothing else says where a query's scores lie.
            counts = filled.sum(1).clamp(min=1)
            self._offsets = (exact_rarities * filled).sum(1) / counts
        known = self._at.shape[1]
        self._at, self._filled = torch.cat([self._at, at], 1), torch.cat([self._filled, filled], 1)
        covariance, residuals = self._in_parts(lambda part: self._related(part, at[part], exact_rarities[part]))
        # Padding is independent of all else, with variance 1: it changes nothing.
        covariance = torch.where(filled[:, :, None] & self._filled[:, None, :], covariance, 0.0)
        among = covariance[:, :, known:] + torch.diag_embed(torch.where(filled, self._noise, 1.0))
        self._append(covariance[:, :, :known], among, torch.where(filled, residuals, 0.0))
        (self._weights,) = self._in_parts(self._moved)
        moved = self._steps(slice(None), self._at).transpose(1, 2) @ self._solved[:, :, None]
        self._listed_weights = self._listed_means + (self._listed_covariances @ moved)[:, :, 0]
        self._levels = self._offsets + self._level_variance * self._solved.sum(1)

    def _catch_up(self) -> None:
        """Send to the device what numpy has solved."""
        if not self._is_placed:
            self._place()
        if not self._is_behind:
            return
        self._is_behind = False
        # All in one transfer.
        n_features, n_listed = self._prior.shape[1], self._values.shape[2]
        told = np.zeros((self._n_queries, n_features + 1 + n_listed))
        for row, query in zip(told, self._on_host, strict=True):
            row[: n_features + 1 + query.listed.n_features] = [*query.weights, query.level, *query.listed_weights]
        sent = self._sent(told)
        self._weights, self._levels = sent[:, :n_features], sent[:, n_features]
        self._listed_weights = sent[:, n_features + 1 :]
        self._at, self._filled = self._padded([query.scored for query in self._on_host])

    def _recorded_best(self, n: int, candidates: IntArray, *, first_weight: float, rounding: float) -> Any:
        """The choice for a single query by one launch; None where it cannot be recorded."""
        (query,), recorded = self._on_host, self._features.recorded
        raises = bool(first_weight and len(candidates))
        sizes = {"n_scored": len(query.scored), "n": n + _SLACK, "n_items": self._n_items}
        if recorded is None or not len(query.scored):
            return None
        choice = recorded.of(
            self._features, listed=len(query.listed.positions), raises=raises, **sizes, rounding=rounding
        )
        if choice is None:
            return None
        values, plain, positions, rows = choice.best(
            weights=query.weights,
            level=query.level,
            trust=query.trust,
            listed=query.listed.positions,
            rises=query.rises(),
            candidates=candidates[:RANKS_THAT_COUNT],
            first_weight=first_weight,
            scored=query.scored,
        )
        query.expect(positions, rows)
        there = values > -math.inf
        return [Promising(positions[there], plain[there].astype(np.float32), values[there].astype(np.float32))]

    def _related(self, part: slice, at: Any, rarities: Any) -> tuple[Any, Any]:
        """Covariance of newly scored items with all scored ones, and their residuals, of some queries."""
        features = self._features
        new, rows = self._rows(at), self._rows(self._at[part])
        means = features.centre + self._trusts[part, None] * (self._means[at].double() - features.centre)
        covariance = (new * self._variances[part, None, :]) @ rows.transpose(1, 2) + self._level_variance
        residuals = rarities - means - (new @ self._prior[part, :, None])[:, :, 0] - self._offsets[part, None]
        steps, all_steps = self._steps(part, at), self._steps(part, self._at[part])
        covariance += steps @ self._listed_covariances[part] @ all_steps.transpose(1, 2)
        return covariance, residuals - (steps @ self._listed_means[part, :, None])[:, :, 0]

    def _moved(self, part: slice) -> tuple[Any]:
        """The weights of some queries, given their scores."""
        rows = self._rows(self._at[part])
        return (self._prior[part] + self._variances[part] * (rows * self._solved[part, :, None]).sum(1),)

    def _in_parts(self, compute: Callable[[slice], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Compute for all queries, some at a time: fewer where the device runs out of memory."""
        torch, answers, start = self._torch, [], 0
        while start < self._n_queries:
            try:
                answers.append(compute(slice(start, start + self._at_once)))
            except torch.OutOfMemoryError:
                if self._at_once == 1:
                    raise
                self._at_once = max(1, min(self._at_once, self._n_queries) // 2)
                torch.cuda.empty_cache()
                _log.warning(
                    "The device %s ran out of memory; searches go on %d at a time.", self._device, self._at_once
                )
                continue
            start += self._at_once
        return tuple(torch.cat(parts) for parts in zip(*answers, strict=True))

    def predict(self) -> FloatArray:
        """Predictions for every item on the score scale, a row per query, on the host."""
        self._catch_up()
        (predicted,) = self._in_parts(lambda part: (self._predicted(part).cpu(),))
        return np.asarray(predicted.numpy())

    def best(
        self,
        n: int,
        *,
        candidates: Sequence[IntArray],
        first_weight: float,
        scores_that_tell: float,
        rounding: float,
        allowed: BoolArray | None,
    ) -> list[Promising]:
        """The n most promising unscored items of each query.

        `candidates` are the first stage's, which raise predictions by `first_weight` as `search.candidates.raised_by`
        says; `allowed` marks the items that may be scored, or all may.
        """
        if allowed is None and len(self._on_host) == 1:
            weight = 1 / (1 / first_weight + len(self._on_host[0].scored) / scores_that_tell) if first_weight else 0.0
            found = self._recorded_best(n, candidates[0], first_weight=weight, rounding=rounding)
            if found is not None:
                return list(found)
        self._catch_up()
        if self._raised_at is None:
            # The candidates of a search never change.
            at, filled = self._padded([some[:RANKS_THAT_COUNT] if first_weight else some[:0] for some in candidates])
            self._raised_at = at, filled, self._sent(RISE[: at.shape[1]]).float()
        at, filled, rise = self._raised_at
        may = None if allowed is None else self._torch.from_numpy(np.array(allowed)).to(self._device)
        # After `scores_that_tell` scores of a query, a weight of 1 is halved.
        weights = 1 / (1 / first_weight + self._filled.sum(1) / scores_that_tell) if first_weight else None

        def choose(part: slice) -> tuple[Any]:
            predicted = self._predicted(part)
            raised = predicted.clone()
            if weights is not None and at.shape[1]:
                units = self._units(predicted, at[part], rounding) * weights[part]
                raised.scatter_add_(1, at[part], self._torch.where(filled[part], units[:, None] * rise, 0.0))
            if may is not None:
                raised.masked_fill_(~may, -math.inf)
            self._without_scored(raised, part)
            values, positions = raised.topk(min(n + _SLACK, self._n_items), dim=1)
            # In one transfer: float64 holds a position exactly.
            found = self._torch.stack([values.double(), predicted.gather(1, positions).double(), positions.double()])
            return (found.cpu().movedim(1, 0),)

        (chosen,) = (one.numpy() for one in self._in_parts(choose))
        values, plain = chosen[:, 0].astype(np.float32), chosen[:, 1].astype(np.float32)
        positions = chosen[:, 2].astype(np.intp)
        return [
            Promising(positions[query][there], plain[query][there], values[query][there])
            for query, there in enumerate(values > -math.inf)
        ]

    def _units(self, predicted: Any, candidates: Any, rounding: float) -> Any:
        """The standard deviations of predictions, or a substitute where predictions are all alike."""
        deviations = predicted.std(1, correction=0)
        heights = predicted.gather(1, candidates[:, :1])[:, 0].abs()
        # Predictions that are all alike say nothing: the first stage alone leads.
        deviations = self._torch.where(deviations <= rounding * heights, heights.clamp(min=1.0), deviations)
        return self._torch.where(deviations.isfinite(), deviations, 0.0)

    def _without_scored(self, raised: Any, part: slice) -> None:
        """Take scored items out of some queries' predictions, in place."""
        at, filled = self._at[part], self._filled[part]
        if not at.shape[1]:
            return
        # Padding names a scored item, or item 0: that one is kept unless it is scored itself.
        first = raised[:, :1].clone()
        raised.scatter_(1, at, -math.inf)
        is_scored = (filled & (at == 0)).any(1, keepdim=True)
        raised[:, :1] = self._torch.where(is_scored, raised[:, :1], first)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best)."""
        return chance_above(self._features.scale, self._residual_deviation(query), predicted, best, ranks)

    def _residual_deviation(self, query: int) -> float:
        if self._on_host:
            return self._on_host[query].residual_deviation
        filled = self._filled[query]
        if int(filled.sum()) < FEWEST_RESIDUALS:
            return math.inf
        # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
        precisions = self._inverse[query].square().sum(0)
        return float((self._solved[query] / precisions)[filled].std(correction=0))

    def _predicted(self, part: slice) -> Any:
        """Predictions of every item for some queries, (queries, items), float32 on the device."""
        features, trusts = self._features, self._trusts[part]
        predicted = features.factors.products_here(self._weights[part])
        constants = self._levels[part] + (1 - trusts) * features.centre
        predicted.addcmul_(trusts.float()[:, None], self._means[None, :]).add_(constants.float()[:, None])
        if self._listed.shape[1]:
            rises = (self._values[part] @ self._listed_weights[part, :, None])[:, :, 0].float()
            # Padding has no place of its own, and rises by 0.
            predicted.scatter_add_(1, self._listed[part].clamp(max=self._n_items - 1), rises)
        return predicted

    def _append(self, across: Any, among: Any, targets: Any) -> None:
        """Let the inverse factor grow by a block of rows, as `GrowingCholesky` does for one query."""
        torch, size = self._torch, self._inverse.shape[1]
        new = among.shape[1]
        beside = across @ self._inverse.transpose(1, 2)
        factor = torch.linalg.cholesky(among - beside @ beside.transpose(1, 2))
        identity = torch.eye(new, dtype=torch.float64, device=self._device).expand_as(factor)
        corner = torch.linalg.solve_triangular(factor, identity, upper=False)
        grown = torch.zeros((self._n_queries, size + new, size + new), dtype=torch.float64, device=self._device)
        grown[:, :size, :size] = self._inverse
        grown[:, size:, :size] = -corner @ (beside @ self._inverse)
        grown[:, size:, size:] = corner
        self._inverse = grown
        self._targets = torch.cat([self._targets, targets], 1)
        self._solved = (grown.transpose(1, 2) @ (grown @ self._targets[:, :, None]))[:, :, 0]

    def _rows(self, at: Any) -> Any:
        """Features of items, (queries, items, features), float64."""
        rows = self._features.factors.rows_here(at.flatten())
        return rows.view(*at.shape, rows.shape[-1])

    def _steps(self, part: slice, at: Any) -> Any:
        """The listed features of these items of some queries, (queries, items, features), float64."""
        listed, values = self._listed[part], self._values[part]
        if not listed.shape[1]:
            return values.new_zeros((*at.shape, values.shape[2]))
        places = self._torch.searchsorted(listed, at.contiguous()).clamp(max=listed.shape[1] - 1)
        found = listed.gather(1, places) == at
        chosen = values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))
        return self._torch.where(found[:, :, None], chosen, 0.0)

    def _padded(self, positions: Sequence[IntArray], width: int | None = None) -> tuple[Any, Any]:
        """Positions of several queries, padded with their first or with 0, and which of them are not padding."""
        width = max((len(some) for some in positions), default=0) if width is None else width
        shape = (len(positions), width)
        at, filled = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        for row, marks, some in zip(at, filled, positions, strict=True):
            row[: len(some)], marks[: len(some)] = some, True
            row[len(some) :] = some[0] if len(some) else 0
        torch = self._torch
        return torch.from_numpy(at).to(self._device), torch.from_numpy(filled).to(self._device)

    def _sent(self, values: FloatArray) -> Any:
        return self._torch.from_numpy(np.array(values, dtype=np.float64)).to(self._device)


@functools.cache
def _load_linalg(device: Any) -> None:
    """Torch loads CUDA's linear algebra at its first use, and fails where two threads are the first at once."""
    torch = require("torch", extra="torch")
    torch.linalg.cholesky(torch.eye(2, dtype=torch.float64, device=device))
