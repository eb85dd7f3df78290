"""Remembered scores, by which the scorer of an index is recognised."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DamagedIndex, WrongScorer
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.scores import score_pairs
from adacur.core.seeds import stream_key, uniform
from adacur.index.folder import IndexFolder
from adacur.index.manifest import Probe
from adacur.scorers.cached import past_cache

__all__ = ["Drift", "DriftWarning", "check_scorer", "choose_probes", "compare", "same_scorer", "spread_probes"]

_PROBES = 32
_VALUE_BINS = 256
_DRAWS_PER_BIN = 32
_ENTRIES_AT_ONCE = 2**18
_SAME = 1e-3
_MIN_CORRELATION = 0.99
_MAX_RMS = 0.3


class DriftWarning(UserWarning):
    """The scorer is near enough to the one that the index was built with, but not the same."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a scorer is from the scores of an index, over `n_probes` remembered pairs.

    Differences are in score units, `rms_over_std` in standard deviations of the remembered scores;
    `correlation` is NaN where either side is constant. `same` allows for rounding only.
    """

    n_probes: int
    correlation: float
    max_difference: float
    mean_difference: float
    rms_over_std: float
    same: bool

    def in_words(self) -> str:
        """The numbers in one clause."""
        return (
            f"over {self.n_probes} remembered pairs, correlation {self.correlation:.4f}, mean difference "
            f"{self.mean_difference:.3g}, largest {self.max_difference:.3g}, rms {self.rms_over_std:.3g} of the spread"
        )


def choose_probes(
    blocks: Callable[[], Iterable[tuple[int, FloatArray]]], *, seed: int, n: int = _PROBES
) -> tuple[Probe, ...]:
    """n scores spread evenly over their range, lowest and highest included.

    Evenly by value, not by rank: most logits saturate at one end, and quantiles would all lie there. `blocks`
    is called twice and yields (first position, scores); how the items are cut into blocks makes no difference.
    """
    lowest = highest = Probe(item=0, anchor=0, score=np.nan)
    for start, values in blocks():
        for sign, best in ((1, lowest), (-1, highest)):
            row, anchor = np.unravel_index(int(np.argmin(sign * values)), values.shape)
            score = float(values[row, anchor])
            if not sign * score >= sign * best.score:
                probe = Probe(item=start + int(row), anchor=int(anchor), score=score)
                lowest, highest = (probe, highest) if sign > 0 else (lowest, probe)
    if np.isnan(lowest.score):
        return ()  # There are no scores.
    drawn = _draw_per_bin(blocks(), low=lowest.score, high=highest.score, seed=seed)
    return spread_probes([lowest, highest, *drawn], n=n)


def spread_probes(probes: Iterable[Probe], *, n: int = _PROBES) -> tuple[Probe, ...]:
    """n of these probes, spread evenly over the range of their scores."""
    candidates = list(dict.fromkeys(probes))
    if not candidates:
        return ()
    scores = np.array([probe.score for probe in candidates])
    free = np.ones(len(candidates), dtype=bool)
    for target in np.linspace(scores.min(), scores.max(), n):
        if free.any():
            free[np.argmin(np.where(free, np.abs(scores - target), np.inf))] = False
    chosen = [candidates[index] for index in np.flatnonzero(~free)]
    return tuple(sorted(chosen, key=lambda probe: (probe.score, probe.item, probe.anchor)))


def _draw_per_bin(blocks: Iterable[tuple[int, FloatArray]], *, low: float, high: float, seed: int) -> list[Probe]:
    """Up to `_DRAWS_PER_BIN` random entries of each part of the value range.

    An entry's draw is a hash of its place and the smallest draw wins, so that blocks can come in any cut.
    """
    stream = stream_key(seed, "probes")
    step = (high - low) / _VALUE_BINS or 1.0
    smallest = np.full(_VALUE_BINS * _DRAWS_PER_BIN, np.inf)
    winners: dict[int, Probe] = {}
    for start, block in blocks:
        width = block.shape[1]
        rows = max(1, _ENTRIES_AT_ONCE // width)
        for top in range(0, len(block), rows):
            scores = block[top : top + rows].astype(np.float64).ravel()
            places = np.arange(len(scores), dtype=np.uint64) + np.uint64((start + top) * width)
            draws = uniform(stream, places)
            value_bins = np.minimum(((scores - low) / step).astype(np.intp), _VALUE_BINS - 1)
            bins = value_bins * _DRAWS_PER_BIN + (draws * _DRAWS_PER_BIN).astype(np.intp)
            np.minimum.at(smallest, bins, draws)
            for index in np.flatnonzero(draws == smallest[bins]):
                item, anchor = divmod(int(places[index]), width)
                winners[int(bins[index])] = Probe(item=item, anchor=anchor, score=float(scores[index]))
    return [winners[bin_] for bin_ in sorted(winners)]


def check_scorer(folder: IndexFolder, scorer: Scorer, *, warn: bool = True) -> Drift | None:
    """Recognise the scorer of an index, at the cost of its probes' scorer calls; None where its card suffices.

    A scorer that differs a little (another backend or dtype) is accepted with a `DriftWarning`. An index without anchor
    queries holds no scores, so that any scorer will do.
    """
    built, given = folder.manifest.scorer, scorer.card
    if not folder.anchor_queries or same_scorer(built, given):
        return None
    probes = folder.manifest.probes
    if not probes:
        raise DamagedIndex(
            f"{folder.path} remembers no scores to recognise its scorer by. Restore it from a copy, or build it again."
        )
    items = folder.items.at(probe.item for probe in probes)
    pairs = [(folder.anchor_queries[probe.anchor], item) for probe, item in zip(probes, items, strict=True)]
    scores = score_pairs(past_cache(scorer), pairs)
    stored = np.array([probe.score for probe in probes])
    drift = compare(stored, scores, dtype=folder.manifest.dtype, where=folder.path, built=built, given=given)
    if warn and not drift.same:
        warnings.warn(
            f"Scorer {_named(given)} is close to, but not the same as, {_named(built)} that built {folder.path}: "
            f"{drift.in_words()}.",
            DriftWarning,
            stacklevel=2,
        )
    return drift


def compare(
    stored: FloatArray,
    scores: FloatArray,
    *,
    dtype: str,
    where: str | Path,
    built: ScorerCard | None,
    given: ScorerCard,
) -> Drift:
    """How far scores are from stored ones; too far is another scorer, and refused."""
    drift = _measure(stored, scores, dtype=dtype)
    if drift.same or (drift.correlation >= _MIN_CORRELATION and drift.rms_over_std <= _MAX_RMS):
        return drift
    raise WrongScorer(
        f"Scorer {_named(given)} is not the one that built {where}, which was {_named(built)}: {drift.in_words()} "
        f"(needed: correlation at least {_MIN_CORRELATION}, rms at most {_MAX_RMS}). Use the scorer that built it, or "
        "build another index with this one."
    )


def same_scorer(built: ScorerCard | None, given: ScorerCard | None) -> bool:
    """Whether two cards are surely of one scorer, so that it need not be measured."""
    if built is None or given is None or built.weights is None:
        return False
    # Where it lies and what it is called says nothing. All else does: texts cut at another length, for one, are scored
    # differently by the same weights. A model's card of before has no settings, and so is never the same.
    return replace(built, name="", source=None) == replace(given, name="", source=None)


def _measure(stored: FloatArray, scores: FloatArray, *, dtype: str) -> Drift:
    differences = np.abs(np.asarray(scores, dtype=np.float64) - stored)
    spread = float(stored.std())
    rms = float(np.sqrt(np.mean(differences**2)))
    constant = spread == 0 or float(np.std(scores)) == 0
    rounding = float(np.finfo(dtype).eps * np.abs(stored).max())
    return Drift(
        n_probes=len(stored),
        correlation=float("nan") if constant else float(np.corrcoef(stored, scores)[0, 1]),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        rms_over_std=rms / spread if spread else (float("inf") if rms else 0.0),
        same=bool(differences.max() <= _SAME * spread + rounding),
    )


def _named(card: ScorerCard | None) -> str:
    if card is None:
        return "an unknown scorer"
    # Two cards of one model may differ in the settings alone.
    hashes = (part[:8] if part else None for part in (card.weights, card.settings))
    traits = ", ".join(part for part in (card.backend, card.dtype, card.arithmetic, *hashes) if part)
    # Functions of one name are told apart by where they come from; a URL may carry a key.
    source = f" from {card.source}" if card.backend == "function" and card.source else ""
    return f"{card.name!r} ({traits}{source})"
