"""Anchor scores of which only some were paid for: the others are predicted from embeddings.

Each anchor query has scores for some items. On the `ScoreScale`, its scores are regressed on the items' embeddings, and
the residual at an item is shared with similar anchor queries. An item drawn at random stands for all the items that it
was drawn from, so that the many items that no first stage would name get their due weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.features import normalised, query_kernel
from adacur.model.scale import KNOTS, RAREST, ScoreScale

# Chosen by replay of held-out anchor queries; recall hardly depends on either (docs/design/anchors.md).
_RIDGE = 1.0
_DOUBT = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ScoredItems:
    """The items that an anchor query was scored against, by position, and how many items each stands for."""

    positions: IntArray
    scores: FloatArray
    weights: FloatArray


class Completion:
    """Scores of all items for every anchor query: those given, and a prediction in place of each that is missing.

    `embeddings` are the items', in the order of their positions, and `query_vectors` those of the anchor queries.
    """

    def __init__(
        self,
        scored: Sequence[ScoredItems],
        *,
        embeddings: FloatArray,
        query_vectors: FloatArray,
        dtype: str = "float32",
    ) -> None:
        if len(scored) != len(query_vectors):
            raise InputError(f"One vector per anchor query is needed; got {len(query_vectors)} for {len(scored)}.")
        if not scored or not all(len(anchor.positions) for anchor in scored):
            raise InputError("Every anchor query needs at least one score to predict the others from.")
        self.shape = (len(embeddings), len(scored))
        self.dtype = np.dtype(dtype)
        self._embeddings = embeddings
        self._scale = _scale(scored)
        fits = [self._fitted(anchor) for anchor in scored]
        self._vectors = np.stack([vector for vector, _, _ in fits]).astype(np.float32)
        self._constants = np.array([constant for _, constant, _ in fits], dtype=np.float32)
        directions = normalised(query_vectors)
        self._likeness = query_kernel(directions, directions).astype(np.float32)
        # By item, so that those of a block lie together.
        items = np.concatenate([anchor.positions for anchor in scored])
        order = np.argsort(items, kind="stable")
        self._items = items[order]
        self._anchors = np.repeat(np.arange(len(scored)), [len(anchor.positions) for anchor in scored])[order]
        self._scores = np.concatenate([anchor.scores for anchor in scored])[order]
        self._residuals = np.concatenate([left for _, _, left in fits]).astype(np.float32)[order]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, positions: slice) -> FloatArray:
        """The scores of items that follow one another, shape (items, anchor queries)."""
        start, stop, _ = positions.indices(self.shape[0])
        (rows, columns), known = self._known(start, stop)
        residuals = np.zeros((stop - start, self.shape[1]), dtype=np.float32)
        there = np.zeros_like(residuals)
        residuals[rows, columns] = self._residuals[known]
        there[rows, columns] = 1.0
        predicted = np.asarray(self._embeddings[start:stop], dtype=np.float32) @ self._vectors.T + self._constants
        predicted += (residuals @ self._likeness) / (there @ self._likeness + np.float32(_DOUBT))
        # Nothing is predicted to be rarer, or more common, than what was seen.
        predicted = np.clip(predicted, self._scale.rarities[0], self._scale.rarities[-1])
        scores = self._scale.score(predicted).astype(self.dtype)
        scores[rows, columns] = self._scores[known]
        return scores

    def exact(self, start: int, stop: int) -> BoolArray:
        """Which of these items' scores were given."""
        cells = np.zeros((stop - start, self.shape[1]), dtype=np.bool_)
        (rows, columns), _ = self._known(start, stop)
        cells[rows, columns] = True
        return cells

    def _known(self, start: int, stop: int) -> tuple[tuple[IntArray, IntArray], slice]:
        low, high = np.searchsorted(self._items, [start, stop])
        return (self._items[low:high] - start, self._anchors[low:high]), slice(low, high)

    def _fitted(self, anchor: ScoredItems) -> tuple[FloatArray, float, FloatArray]:
        """The vector and the constant of an anchor query, and their residuals."""
        rows: FloatArray = np.asarray(self._embeddings[anchor.positions], dtype=np.float64)
        rarities = self._scale.rarity(anchor.scores)
        weights = anchor.weights / anchor.weights.sum()
        centre, level = weights @ rows, float(weights @ rarities)
        rows -= centre
        ridge = _RIDGE * (float(np.square(rows).sum(axis=1).mean()) or 1.0)
        missing = rarities - level
        if len(rows) < rows.shape[1]:
            inner = rows @ rows.T
            inner[np.diag_indices_from(inner)] += ridge / anchor.weights
            vector = rows.T @ np.linalg.solve(inner, missing)
        else:
            inner = (rows * anchor.weights[:, None]).T @ rows
            inner[np.diag_indices_from(inner)] += ridge
            vector = np.linalg.solve(inner, rows.T @ (anchor.weights * missing))
        return vector, level - float(centre @ vector), missing - rows @ vector


def _scale(scored: Sequence[ScoredItems]) -> ScoreScale:
    """The scale of all scores as far as those given can tell, each counted for the items that it stands for."""
    scores = np.concatenate([anchor.scores for anchor in scored]).astype(np.float64)
    weights = np.concatenate([anchor.weights for anchor in scored]).astype(np.float64)
    order = np.argsort(scores, kind="stable")
    scores, up_to = scores[order], np.cumsum(weights[order])
    steps, first = np.unique(scores, return_index=True)
    if len(steps) < 2:
        return ScoreScale(steps[0] + np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    up_to /= up_to[-1]
    below = np.where(first > 0, up_to[first - 1], 0.0)
    upper = up_to[np.append(first[1:], len(scores)) - 1]
    rarities = np.log1p(RAREST) - np.log(np.maximum(1 - (below + upper) / 2, 0.0) + RAREST)
    if len(steps) > KNOTS:
        # Even in number and in rarity: the top decides, and the bulk needs few knots.
        by_rarity = np.searchsorted(rarities, np.linspace(rarities[0], rarities[-1], KNOTS // 2))
        by_number = np.linspace(0, len(steps) - 1, KNOTS // 2).astype(np.intp)
        knots = np.unique(np.concatenate([np.minimum(by_rarity, len(steps) - 1), by_number]))
        steps, rarities = steps[knots], rarities[knots]
    rising = np.append(True, np.diff(rarities) > 0)
    return ScoreScale(steps[rising], rarities[rising])
