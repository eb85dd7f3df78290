"""The final order: exact scores and the first stage's scores, blended."""

from __future__ import annotations

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError
from adacur.protocols import Ranking

# Both scales are made of the best of each, however many are scored: further down, a first stage's scores are noise.
LISTED = 100
# Of the largest score: what differs by less differs by rounding.
_EQUAL = 1e-12


def check_fuse(fuse: float | None) -> None:
    """Refuse what cannot be a weight."""
    if fuse is not None and not 0 <= fuse < float("inf"):
        raise InputError(f"fuse must be a weight from 0 (the scorer's own order) up; got {fuse}.")


def fused(
    exact: FloatArray, positions: IntArray, *, weight: float, listed: IntArray, listed_scores: FloatArray
) -> FloatArray:
    """The values to order scored positions by, given the first stage's list for the query, best first.

    An exact score, and `weight` × the first stage's, each in standard deviations from the mean of its best 100. What is
    not among the first stage's best 100 counts as their lowest.
    """
    best = -np.sort(-exact)[:LISTED]
    listed, of_listed = listed[:LISTED], listed_scores[:LISTED]
    standing = dict(zip(listed.tolist(), _standard(of_listed, of_listed).tolist(), strict=True))
    lowest = min(standing.values(), default=0.0)
    by_first = np.array([standing.get(position, lowest) for position in positions.tolist()])
    return np.asarray(_standard(exact, best) + weight * by_first)


def listed_by(answer: Ranking, *, allowed: BoolArray) -> tuple[IntArray, FloatArray]:
    """The allowed positions of a first stage's answer, and their scores."""
    is_allowed = allowed[answer.positions]
    scores = np.asarray(answer.scores, dtype=np.float64)[is_allowed]
    if not np.isfinite(scores[:LISTED]).all():
        raise InputError("The first stage's scores are needed here, and these hold NaN or infinity.")
    return answer.positions[is_allowed], scores


def _standard(values: FloatArray, among: FloatArray) -> FloatArray:
    """Values in standard deviations from the mean of some; 0 where these are equal."""
    # Squares of scores like 1e200 would be infinite.
    unit = float(np.abs(among).max(initial=0.0)) or 1.0
    values, among = np.asarray(values, dtype=np.float64) / unit, np.asarray(among, dtype=np.float64) / unit
    deviation = float(among.std()) if len(among) else 0.0
    return np.asarray((values - among.mean()) / deviation) if deviation > _EQUAL else np.zeros(len(values))
