"""Remembered scores, by which the scorer of an index is recognised."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import DamagedIndex, WrongScorer
from adacur.protocols import AnchorScores, Scorer, ScorerCard
from adacur.records import Pair
from adacur.scorers.cached import past_cache
from adacur.scores import score_pairs
from adacur.store.folder import IndexFolder
from adacur.store.manifest import Manifest, Probe

_PROBES = 32
_VALUE_BINS = 64
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

    @property
    def allowed(self) -> bool:
        """Whether this is near enough to search with the scores of the index."""
        return self.same or (self.correlation >= _MIN_CORRELATION and self.rms_over_std <= _MAX_RMS)

    def summary(self) -> str:
        """The numbers in one clause."""
        return (
            f"over {self.n_probes} remembered pairs, correlation {self.correlation:.4f}, mean difference "
            f"{self.mean_difference:.3g}, largest {self.max_difference:.3g}, rms {self.rms_over_std:.3g} of the spread"
        )


def choose_probes(
    blocks: Iterable[tuple[int, FloatArray]], *, seed: int, exact: BoolArray | None = None, n: int = _PROBES
) -> tuple[Probe, ...]:
    """n scores spread evenly over their range, lowest and highest included; `exact` is true where one may be taken.

    Evenly by value, not by rank: most logits saturate at one end, and quantiles would all lie there. `blocks` yields
    (first position, scores).
    """
    draw = np.random.default_rng(seed)
    candidates: list[Probe] = []
    for start, values in blocks:
        cells = np.ones(values.shape, dtype=np.bool_) if exact is None else exact[start : start + len(values)]
        places = draw.permutation(np.flatnonzero(cells))
        if not len(places):
            continue
        scores = values.ravel()[places].astype(np.float64)
        low, high = scores.min(), scores.max()
        bins = ((scores - low) / ((high - low) or 1.0) * _VALUE_BINS).astype(np.intp)
        # The first of each part of the range in random order, and a few of any value: the range may be one point.
        some = {*np.unique(bins, return_index=True)[1].tolist(), int(scores.argmin()), int(scores.argmax())}
        for at in sorted(some | set(range(min(n, len(places))))):
            row, anchor = divmod(int(places[at]), values.shape[1])
            candidates.append(Probe(item=start + row, anchor=anchor, score=float(scores[at])))
    return spread_probes(candidates, n=n)


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


def check_scorer(folder: IndexFolder, scorer: Scorer, *, warn: bool = True) -> Drift | None:
    """Recognise the scorer of an index, at the cost of its probes' scorer calls; None where its card suffices.

    A scorer that differs a little (another backend or dtype) is accepted with a `DriftWarning`. An index without anchor
    queries holds no scores, so that any scorer will do.
    """
    built, given = folder.manifest.scorer, scorer.card
    if not folder.anchor_queries or same_scorer(built, given):
        return None
    _check_same_prompt(built, given, where=folder.path)
    probes = folder.manifest.probes
    if not probes:
        raise DamagedIndex(
            f"{folder.path} remembers no scores to recognise its scorer by. Restore it from a copy, or build it again."
        )
    pairs, stored = _remembered(folder, probes)
    drift = compare_scores(scorer, pairs, stored, folder.manifest, where=folder.path)
    if warn and not drift.same:
        warnings.warn(
            f"Scorer {_named(given)} is close to, but not the same as, {_named(built)} that built {folder.path}: "
            f"{drift.summary()}.",
            DriftWarning,
            stacklevel=2,
        )
    return drift


def compare_scores(
    scorer: Scorer, pairs: Sequence[Pair], stored: FloatArray, manifest: Manifest, *, where: Path
) -> Drift:
    """How far a scorer is from stored scores of these pairs; too far is another scorer, and refused."""
    drift = _measure(stored.astype(np.float64), score_pairs(past_cache(scorer), pairs), dtype=manifest.dtype)
    if drift.allowed:
        return drift
    raise WrongScorer(
        f"Scorer {_named(scorer.card)} is not the one that built {where}, which was {_named(manifest.scorer)}: "
        f"{drift.summary()} (needed: correlation at least {_MIN_CORRELATION}, rms at most {_MAX_RMS}). Use the scorer "
        "that built it, or build another index with this one."
    )


def drift_now(anchors: AnchorScores, scorer: Scorer, *, n: int) -> Drift:
    """How far a scorer is today from the scores of an index, over n of its pairs; the scorer is called for each."""
    dtype: str
    if isinstance(anchors, IndexFolder):
        probes, dtype = spread_probes(anchors.manifest.probes, n=n), anchors.manifest.dtype
    else:
        probes, dtype = choose_probes([(0, anchors.matrix)], seed=0, n=n), anchors.matrix.dtype.name
    pairs, stored = _remembered(anchors, probes)
    return _measure(stored, score_pairs(past_cache(scorer), pairs), dtype=dtype)


def _remembered(anchors: AnchorScores, probes: Sequence[Probe]) -> tuple[list[Pair], FloatArray]:
    items = anchors.items.at(probe.item for probe in probes)
    pairs = [(anchors.anchor_queries[probe.anchor], item) for probe, item in zip(probes, items, strict=True)]
    return pairs, np.array([probe.score for probe in probes])


def _check_same_prompt(built: ScorerCard | None, given: ScorerCard, *, where: Path) -> None:
    """Refuse another instruction: its scores may lie close by, and still answer another question."""
    for what in ("prompt", "readout"):
        before, now = getattr(built, what, None), getattr(given, what, None)
        if before is not None and now is not None and before != now:
            raise WrongScorer(
                f"Scorer {_named(given)} is not the one that built {where}: its {what} is {now!r}, and was {before!r}. "
                "Open it with the prompt, instruction and readout of the index, or build another index."
            )


def same_scorer(built: ScorerCard | None, given: ScorerCard | None) -> bool:
    """Whether two cards are surely of one scorer, so that it need not be measured."""
    if built is None or given is None or built.weights is None:
        return False
    # Its path and name do not matter. All else does: texts cut at another length, for one, are scored differently by
    # the same weights. An old card of a model has no settings, and so is never the same.
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
