"""How likely an unscored pair is to be accepted: what the first stages' ranks and this row's scores say of it.

The chance is a logistic regression on a few signs. Its weights begin as what other tables taught (`PRIOR`), and rows
that were matched before move them: each pair scored is one example, with its signs before it was scored. A pair is
scored as long as its chance is worth a call, so a row ends when none is left that is. Which chance is worth a call
follows from the recall that is asked for, and from what the calls left to spend allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.first_stages import Placed
from adacur.matching.one_table import OWN
from adacur.model import GaussianModel
from adacur.protocols import AnchorScores, Approximation, Ranking
from adacur.records import Query
from adacur.results import Round
from adacur.search.stopping import Standing

# Signs of a pair: a constant; of the first stages, the logarithms of its best rank and of its mean rank, how far its
# score stands out among the best 100 and its share of the best one's, means over the stages that list it; how many rows
# matched the right one before; how far it is predicted above the line, where a model predicts. And of its row: whether
# it has a pair, and how many more; how far its best score lies below the line where it has none; how many were scored.
OF_LISTS = ("best rank", "mean rank", "stands out", "share of best")
SIGNS = ("constant", *OF_LISTS, "taken", "predicted", "found", "more found", "near miss", "scored")
_LISTS, _TAKEN, _PREDICTED, _FOUND = slice(1, 5), 5, 6, 7
# Fitted to validation rows of abt-buy, walmart-amazon and mondo, each with equal weight.
PRIOR = np.array([-3.5, -1.1, -0.9, 0.4, 2.1, -1.2, 0.4, -0.4, 2.4, -0.1, 0.4])
# How far other tables' weights may be off.
_SPREAD = np.array([2.0, 0.5, 0.5, 0.3, 1.5, 1.0, 0.4, 1.2, 0.8, 0.4, 0.7])
# First-stage scores that are compared.
_COMPARED, _MOST_OUT = 100, 8.0
_BEYOND = np.log1p(1000.0)
_FARTHEST = 4.0
_NEWTON_STEPS = 12
# As first stages are joined.
_JOINT = 60
# Examples that are kept; of more, the oldest go.
_MOST_EXAMPLES = 50_000
# A chance below which no call is made, and above which every call is.
_LEAST, _MOST = 1e-4, 0.5
# Rows before which nothing is known of what a chance costs.
_FEWEST_ROWS = 16
# A batch of rows moves the chance by no more than this factor.
_STEP = 2.0


@dataclass(slots=True, eq=False)
class Chances:
    """An `Approximator` of log-odds: the weights of the signs, and the scored pairs that taught them.

    State of one match. `model` predicts scores besides, where there is something to predict from.

    - `unit`: in which scores are compared with the line; None for each row's own;
    - `taken`: how many rows have matched a right one, by its position;
    - `begun`: the rows under way, with what they have seen.
    """

    above: float
    stages: Sequence[Placed] = ()
    model: GaussianModel | None = None
    weights: FloatArray = field(default_factory=PRIOR.copy)
    unit: float | None = None
    taken: dict[int, int] = field(default_factory=dict)
    begun: list[RowChances] = field(default_factory=list)
    _signs: FloatArray = field(default_factory=lambda: np.empty((0, len(SIGNS))))
    _scores: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def slopes(self) -> object:
        """Asks for the first stages' ranks."""
        return self

    def begin(
        self, anchors: AnchorScores, queries: Sequence[Query], ranks: Sequence[Sequence[IntArray]] = (), **features: Any
    ) -> RowChances:
        """Chances of the pairs of these rows."""
        inner: Approximation | None = None
        if self.model is not None:
            of_model: dict[str, Any] = {"ranks": ranks} if self.model.slopes is not None else {}
            inner = self.model.begin(anchors, queries, **of_model, **features)
        scored = zip(*(stage.search(queries, _COMPARED) for stage in self.stages), strict=True)
        lists = [_Row(of_row, some) for of_row, some in zip(ranks, scored, strict=True)]
        self.begun.append(RowChances(self, len(anchors.items), lists, inner))
        return self.begun[-1]

    def learn(self) -> None:
        """Take the pairs of the rows under way: their signs before they were scored, and their scores."""
        if examples := [example for rows in self.begun for example in rows.examples]:
            signs, scores = zip(*examples, strict=True)
            self._signs = np.vstack([self._signs, *signs])[-_MOST_EXAMPLES:]
            self._scores = np.concatenate([self._scores, *scores])[-_MOST_EXAMPLES:]
            self.weights = fitted(self._signs, (self._scores >= self.above).astype(float))
            self.unit = float(np.std(self._scores)) or None

    def __repr__(self) -> str:
        return f"Chances(weights={np.round(self.weights, 3).tolist()}, model={self.model!r})"


def fitted(signs: FloatArray, accepted: FloatArray) -> FloatArray:
    """The most likely weights, given the prior."""
    weights, precision = PRIOR.copy(), 1 / _SPREAD**2
    for _ in range(_NEWTON_STEPS):
        chance = _chance(signs @ weights)
        slope = signs.T @ (accepted - chance) - precision * (weights - PRIOR)
        curve = (signs * (chance * (1 - chance))[:, None]).T @ signs + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        # Far from the optimum a full step may overshoot.
        weights = weights + step / max(1.0, float(np.abs(step).max()))
    return weights


class RowChances:
    """The chances of a batch of rows, which share nothing but the scorer's calls: an `UncertainApproximation`."""

    def __init__(self, of: Chances, n_items: int, rows: Sequence[_Row], inner: Approximation | None) -> None:
        self._of, self._n_items, self._inner, self.rows = of, n_items, inner, rows
        taken = sorted(of.taken.items())
        self._taken = np.array([at for at, _ in taken], np.intp)
        # The last is for what no row has matched.
        self._times = np.log1p([*(n for _, n in taken), 0])
        self.examples: list[tuple[FloatArray, FloatArray]] = []
        self._predicted: Any = None

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per row."""
        others = [np.flatnonzero(np.asarray(exact) > OWN) for exact in scores]
        positions = [where[some] for where, some in zip(positions, others, strict=True)]
        scores = [np.asarray(exact)[some] for exact, some in zip(scores, others, strict=True)]
        for at, (where, exact) in enumerate(zip(positions, scores, strict=True)):
            if len(where):
                self.examples.append((self._signs(at, where), exact))
                self.rows[at].scored(exact, self._of.above)
        if self._inner is not None:
            self._inner.tell(positions, scores)

    def predict(self) -> list[FloatArray]:
        """Log-odds of every pair, a row per query."""
        self._predicted = None if self._inner is None else self._in_units(self._inner.predict())
        return [self._log_odds(at) for at in range(len(self.rows))]

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Log-odds as chances."""
        return _chance(predicted)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """The chances that pairs are accepted; the line is the only score that it knows of."""
        return np.repeat(_chance(predicted)[:, None], len(best), axis=1)

    def _in_units(self, predicted: Any) -> list[FloatArray]:
        """How far each is predicted above the line."""
        assert self._inner is not None
        away = []
        for at, some in enumerate(predicted):
            unit = self.rows[at].unit(self._of.unit)
            # Without a unit nothing is far.
            with np.errstate(over="ignore", invalid="ignore"):
                scores = (self._inner.in_scores(at, np.asarray(some)) - self._of.above) / (unit or np.inf)
            away.append(np.nan_to_num(np.clip(scores, -_FARTHEST, _FARTHEST)))
        return away

    def _signs(self, at: int, positions: IntArray) -> FloatArray:
        """Signs of some pairs of a row."""
        row = self.rows[at]
        signs = np.empty((len(positions), len(SIGNS)))
        signs[:] = row.own_signs(self._of.above, self._of.unit)
        signs[:, _LISTS] = row.signs[_places(row.listed, positions)]
        signs[:, _TAKEN] = self._times[_places(self._taken, positions)]
        if self._predicted is not None:
            signs[:, _PREDICTED] = self._predicted[at][positions]
        return signs

    def _log_odds(self, at: int) -> FloatArray:
        """Of all items: most are listed by no first stage, and differ by their predictions alone."""
        row, weights = self.rows[at], self._of.weights
        own = float(row.own_signs(self._of.above, self._of.unit) @ weights)
        by_lists = row.signs @ weights[_LISTS]
        values = np.full(self._n_items, own + by_lists[-1])
        values[row.listed] = own + by_lists[:-1]
        values[self._taken] += weights[_TAKEN] * self._times[:-1]
        if self._predicted is not None:
            values += weights[_PREDICTED] * self._predicted[at]
        return values


def _places(known: IntArray, wanted: IntArray) -> IntArray:
    """Where these are among `known`, which are sorted; -1 where they are not."""
    places = np.searchsorted(known, wanted)
    return np.where(np.isin(wanted, known), places, -1)


class _Row:
    """What is known of a row: its lists, and what of it was scored."""

    def __init__(self, lists: Sequence[IntArray], scored: Sequence[Ranking]) -> None:
        self.listed = np.unique(np.concatenate([*lists, np.empty(0, np.intp)])).astype(np.intp)
        logs = np.full((len(lists), len(self.listed) + 1), _BEYOND)
        for stage, some in enumerate(lists):
            logs[stage, np.searchsorted(self.listed, some)] = np.log1p(np.arange(len(some)))
        out, share = np.zeros((2, len(scored), len(self.listed) + 1))
        for stage, (positions, scores) in enumerate(scored):
            if len(scores):
                values = np.asarray(scores, np.float64)
                away = (values - values.mean()) / (float(values.std()) or 1.0)
                for kept, of_stage in ((out, away), (share, values / (float(np.abs(values).max()) or 1.0))):
                    kept[stage] = of_stage[-1]
                    kept[stage, np.searchsorted(self.listed, positions)] = of_stage
        out = np.clip(out, -_MOST_OUT, _MOST_OUT)
        # The last is for what no stage lists. Of other items a stage that does not list them says nothing.
        says = (logs < _BEYOND) | (logs.min(axis=0) == _BEYOND)
        means = ((of * says).sum(axis=0) / says.sum(axis=0) for of in (logs, out, share))
        self.signs, self._lists = np.stack([logs.min(axis=0), *means], axis=1), lists
        self._scores: list[float] = []
        self._found, self._best = 0, -np.inf

    def ranks_of(self, positions: IntArray) -> list[int | None]:
        """The ranks, from 1, of some items among what the first stages list, joined by reciprocal ranks."""
        joint = np.zeros(len(self.listed))
        for some in self._lists:
            joint[np.searchsorted(self.listed, some)] += 1 / (_JOINT + 1 + np.arange(len(some)))
        rank_of = {int(self.listed[at]): rank for rank, at in enumerate(np.argsort(-joint, kind="stable"), 1)}
        return [rank_of.get(position) for position in positions.tolist()]

    def scored(self, exact: FloatArray, above: float) -> None:
        self._scores += exact.tolist()
        self._found += int(np.count_nonzero(exact >= above))
        self._best = max(self._best, float(exact.max()))

    def unit(self, learned: float | None) -> float | None:
        """What scores differ by; None while nothing tells."""
        if learned is not None or not self._scores:
            return learned if self._scores else None
        return float(np.std(self._scores)) or None

    def own_signs(self, above: float, learned: float | None) -> FloatArray:
        """The signs that all pairs of the row share; 0 for the others."""
        signs, unit = np.zeros(len(SIGNS)), self.unit(learned)
        signs[0], signs[_FOUND], signs[_FOUND + 1] = 1.0, float(self._found > 0), np.log1p(max(0, self._found - 1))
        if unit is not None and not self._found:
            signs[_FOUND + 2] = max(-_FARTHEST, (self._best - above) / unit)
        signs[_FOUND + 3] = np.log1p(len(self._scores))
        return signs


@dataclass(frozen=True, slots=True)
class Worth:
    """Ends a row when no pair of it has at least this chance."""

    above: float
    least: float

    def after(self, now: Standing) -> tuple[float, bool]:
        """As for any rule: the expected recall, and whether to end here."""
        chances = now.chance_above(np.zeros(1), np.ones(1, np.intp))
        missing = float(chances.sum())
        found = max(1, int(np.count_nonzero(now.best >= self.above)))
        return found / (found + missing), float(chances.max(initial=0.0)) < self.least

    def settings(self) -> Mapping[str, Any]:
        return {"least_chance": self.least}


@dataclass(slots=True, eq=False)
class Pace:
    """What rows have cost and brought, and from it the `least` chance that is worth a call; state of one match.

    `recall` is the share of all accepted pairs to find. What is expected to be missing says whether that is kept; each
    batch of rows moves the chance towards it, and no lower than the calls left for each row to come allow.
    """

    recall: float
    least: float = field(init=False)
    rows: int = 0
    calls: int = 0
    found: int = 0
    missing: float = 0.0

    def __post_init__(self) -> None:
        self.least = (1 - self.recall) / 2

    def note(self, rounds: Sequence[Round], found: int) -> None:
        """Take a row; `found` are its pairs."""
        expected = next((one.expected_recall for one in reversed(rounds) if one.expected_recall), 1.0)
        self.missing += max(1, found) * (1 / expected - 1)
        self.rows, self.found = self.rows + 1, self.found + found
        self.calls += sum(int(np.count_nonzero(one.exact > OWN)) for one in rounds)

    @property
    def expected_recall(self) -> float:
        """The share found of the pairs that there are expected to be; 1 where none is expected."""
        return self.found / (self.found + self.missing) if self.found + self.missing else 1.0

    def settle(self, *, calls_left: int | None = None, rows_left: int = 0) -> None:
        """Move the chance that is worth a call from now on."""
        if self.rows < _FEWEST_ROWS:
            return
        factor = (1 - self.recall) / max(1 - self.expected_recall, _LEAST)
        if calls_left is not None and rows_left:
            factor = max(factor, self.calls / self.rows * rows_left / max(1, calls_left))
        self.least = min(_MOST, max(_LEAST, self.least * min(_STEP, max(1 / _STEP, factor))))


def _chance(log_odds: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -50, 50))))
