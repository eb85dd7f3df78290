"""The chance that a hit is judged relevant, fitted to judged hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.model.features import rows_at
from adacur.model.scale import KNOTS, ScoreScale
from adacur.protocols import AnchorScores, Items
from adacur.replay.means import chances, cross_fit, likeliest_weights
from adacur.replay.measures import Qrels
from adacur.replay.searches import all_scored
from adacur.results import Hits
from adacur.search.relevance import Calibration, Relevance

# The few scores at the very top are those of hits, so they are distinguished as far as the anchor scores go.
_RAREST = 1e-6
_BINS = 10
_STORED_KNOTS = 64
# Of the constant, the rarity and the log rank. Without it, hits that are all relevant would have infinite weights.
_PRIOR = np.array([0.0, 1.0, 1.0])
_BOUNDS = np.array([-np.inf, 0.0, -np.inf]), np.array([np.inf, np.inf, 0.0])


def judged_relevance(answers: Sequence[Hits], qrels: Qrels, *, anchors: AnchorScores) -> Relevance:
    """By the hits of judged queries, as searches will return them, and by all else that these searches scored.

    The anchor scores of the index tell how rare a score is in it.
    """
    items = anchors.items
    sample = ScoreScale.sample(items.keys, n_anchors=len(anchors.anchor_queries))
    scale = _fewer_knots(ScoreScale.of(rows_at(anchors, sample), rarest=_RAREST))
    relevant = [np.array([qrels[hits.query.id].get(id_, 0) > 0 for id_ in hits.ids], bool) for hits in answers]
    signs = [
        np.stack([np.ones(len(hits)), scale.rarity(hits.scores), np.log(np.arange(1, len(hits) + 1))], axis=1)
        for hits in answers
    ]

    def fitted(half: BoolArray) -> FloatArray:
        told, came = (np.concatenate([own[at] for at in np.flatnonzero(half)]) for own in (signs, relevant))
        return likeliest_weights(told, came, prior=_PRIOR, within=_BOUNDS)

    of_others = cross_fit(len(answers), fitted)
    stated = [chances(own, weights) for own, weights in zip(signs, of_others, strict=True)]
    constant, per_rarity, per_log_rank = fitted(np.ones(len(answers), dtype=np.bool_)).tolist()
    calibration = Calibration(
        scores=tuple(scale.scores.tolist()),
        rarities=tuple(scale.rarities.tolist()),
        constant=constant,
        per_rarity=per_rarity,
        per_log_rank=per_log_rank,
        queries=len(answers),
        error=calibration_error(np.concatenate(stated), np.concatenate(relevant)),
    )
    best, without = zip(*(_best_with_and_without(hits, qrels[hits.query.id], items) for hits in answers), strict=True)
    return Relevance.by(best=np.array(best), without=np.array(without), calibration=calibration)


def calibration_error(stated: FloatArray, came: BoolArray) -> float:
    """Expected calibration error: |chance stated − share that came true| in ten bins of equal width, by their hits."""
    bins = np.minimum((np.asarray(stated) * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((stated[bins == at] - came[bins == at]).sum())) for at in range(_BINS)]
    return sum(gaps) / max(1, len(bins))


def _fewer_knots(scale: ScoreScale) -> ScoreScale:
    if len(scale.scores) <= _STORED_KNOTS:
        return scale
    assert len(scale.scores) <= 2 * KNOTS
    rarities = np.linspace(scale.rarities[0], scale.rarities[-1], _STORED_KNOTS)
    return ScoreScale(scale.score(rarities), rarities)


def _best_with_and_without(hits: Hits, grades: Mapping[str, int], items: Items) -> tuple[float, float]:
    """The best score of all that a search scored, and of what remains without the relevant items."""
    positions, exact = all_scored(hits)
    others = ~np.isin(positions, items.positions(id_ for id_, grade in grades.items() if grade > 0))
    best = float(exact.max())
    return best, float(exact[others].max()) if others.any() else best
