"""Searches by asking and telling: of one query, and of several that share an approximation. No scorer is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from adacur.approximation import TopK, Uniform
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.errors import InputError, ScoreCountError
from adacur.core.protocols import Acquisition, Approximation, UncertainApproximation
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.results import Round, Trace
from adacur.core.seeds import stream_key
from adacur.search.plan import Plan
from adacur.search.stopping import SHORTLIST, expected_recall

__all__ = ["RANKS_THAT_COUNT", "AdaptiveSearch", "LockStep", "Prospects"]

# Beyond this rank the first stage does not influence what is scored next.
RANKS_THAT_COUNT = 1000
# A tenfold rank counts one step less, the first ten being much alike.
_ALIKE = 10
# Predictions in float32 that differ by less, relative to their height, differ by how they were rounded.
_ROUNDING = 1e-6
_RISE = np.log((_ALIKE + RANKS_THAT_COUNT) / (_ALIKE + np.arange(RANKS_THAT_COUNT)))

_NONE: IntArray = np.empty(0, dtype=np.intp)


class Prospects:
    """The items that may still be scored for one query, and which of them are the most promising.

    `candidates` are the first stage's positions, best first; `first_weight` is its weight beside the predictions. This
    is the one place that reads predictions of all items, a row of them in memory or on a device. Where item vectors
    live elsewhere, `best` is the question to ask there: the n best by prediction, without those scored.
    """

    def __init__(self, allowed: BoolArray, *, keys: KeyArray, candidates: IntArray, first_weight: float = 0.0) -> None:
        self.unscored = allowed.copy()
        self.keys = keys
        self._candidates = candidates
        self._first_weight = first_weight

    def of_first_stage(self, n: int) -> IntArray:
        """The first stage's best n that may still be scored."""
        return self._candidates[self.unscored[self._candidates]][:n]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: FloatArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """At most n unscored positions as `acquisition` chooses them, and the raised predictions they were chosen by.

        Without predictions, `acquisition` must not look at any.
        """
        unscored = self.unscored
        if len(without):
            unscored = unscored.copy()
            unscored[without] = False
        else:
            # An acquisition must not be able to have an item scored twice.
            unscored = unscored.view()
            unscored.flags.writeable = False
        raised = np.empty(0) if predicted is None else self._raised(predicted)
        positions = acquisition.choose(raised, unscored=unscored, n=n, keys=self.keys, stream=stream)
        return positions, raised if predicted is None else raised[positions]

    def _raised(self, predicted: FloatArray) -> FloatArray:
        """Predictions, higher by the logarithm of the first stage's rank, in units of their standard deviation."""
        known = self._candidates[:RANKS_THAT_COUNT]
        if not self._first_weight or not len(known):
            return predicted
        values = predicted[known]
        with np.errstate(over="ignore", invalid="ignore"):
            height = abs(float(values[0]))
            spread = float(predicted.std(dtype=np.float64))
        if spread <= _ROUNDING * height:
            # Predictions that are all alike say nothing: the first stage alone leads.
            spread = max(1.0, height)
        unit = self._first_weight * spread
        if not np.isfinite(unit):
            return predicted
        raised = predicted.copy()
        raised[known] = values + (unit * _RISE[: len(known)]).astype(predicted.dtype)
        return raised


class AdaptiveSearch:
    """The search of a plan for one query: `ask()` for positions, score them, `tell()` the scores.

    `candidates` are the first stage's positions, best first; a short list is topped up with a uniform sample.
    `allowed` marks the items that may be scored. Predictions are handed in, a value per item; `in_scores` turns them
    into scores of the scorer.
    """

    def __init__(
        self,
        plan: Plan,
        query: Query,
        k: int,
        *,
        candidates: IntArray,
        allowed: BoolArray,
        in_scores: Callable[[FloatArray], FloatArray] = np.asarray,
    ) -> None:
        self.query = query
        self.rounds: list[Round] = []
        self._seconds: dict[str, float] = {}
        self._plan = plan
        self._in_scores = in_scores
        self._k = k
        self.keys = plan.items.keys if plan.keys is None else plan.keys
        self._prospects = Prospects(allowed, keys=self.keys, candidates=candidates, first_weight=plan.first_weight)
        if plan.pool is not None:
            pool = self._topped_up(candidates[: plan.pool], plan.pool, "pool")
            self._prospects.unscored[:] = False
            self._prospects.unscored[pool] = True
        affordable = min(plan.calls, int(self._prospects.unscored.sum()))
        self._sizes = plan.batch_sizes(affordable) if affordable else ()
        if len(self._sizes) > 1 and (plan.approximator is None or plan.acquisition is None):
            raise InputError("A search of more than one round needs an approximation and an acquisition.")
        self._asked: IntArray | None = None
        self._predicted: FloatArray | None = None
        self._settled = False
        self._out_of_time = False

    @property
    def size(self) -> int:
        """Calls of the next round; 0 when the search has ended."""
        number = len(self.rounds)
        ended = self._settled or self._out_of_time or number >= len(self._sizes)
        return 0 if ended else self._sizes[number]

    def ask(self, predicted: FloatArray | None = None, *, seconds: Mapping[str, float] | None = None) -> IntArray:
        """Positions to score next, most promising first; none when the search has ended.

        From the second round on they are chosen by `predicted`. `seconds` are those already spent on this round.
        """
        if self._asked is not None:
            raise InputError("The last positions asked for have no scores yet. Call tell(scores) first.")
        size, number = self.size, len(self.rounds) + 1
        if not size:
            return _NONE
        started = time.perf_counter()
        self._predicted = predicted
        self._seconds = dict(seconds or {})
        if predicted is None:
            chosen = self._prospects.of_first_stage(size)
        else:
            assert self._plan.acquisition is not None
            chosen = self._prospects.of_first_stage(round(self._plan.first_share * size))
            more, _ = self._prospects.best(
                size - len(chosen),
                acquisition=self._plan.acquisition,
                stream=stream_key(self._plan.seed, "round", str(number), self.query.id),
                without=chosen,
                predicted=predicted,
            )
            chosen = np.concatenate([chosen, more])
        # Scores beyond the range of floats make predictions that cannot be ranked; the budget is spent all the same.
        self._asked = self._topped_up(chosen, size, "first")
        self.count("choose", time.perf_counter() - started)
        return self._asked

    def tell(self, scores: FloatArray) -> IntArray:
        """Exact scores of the positions last asked for, which are returned; after `stop()`, of the first few."""
        if self._asked is None:
            raise InputError("No positions were asked for. Call ask() before tell(scores).")
        asked = self._asked[: len(scores)] if self._out_of_time else self._asked
        if len(scores) != len(asked):
            raise ScoreCountError(f"Tell one score per position: asked for {len(asked)}, got {len(scores)}.")
        self._asked, predicted = None, self._predicted
        self._prospects.unscored[asked] = False
        keeps = self._plan.keep_predictions == "all"
        if len(asked):
            self.rounds.append(
                Round(
                    number=len(self.rounds) + 1,
                    positions=asked,
                    exact=scores,
                    predicted=None if predicted is None else self._in_scores(predicted[asked]),
                    # What is counted after this, such as the solve, belongs to the round as well.
                    seconds=self._seconds,
                    all_predicted=None if predicted is None or not keeps else self._in_scores(predicted.copy()),
                )
            )
        return asked

    def stop(self) -> None:
        """End here, because time is up: nothing more is asked for."""
        self._out_of_time = True

    def count(self, step: str, seconds: float) -> None:
        """Add to the seconds of a step of this round."""
        self._seconds[step] = self._seconds.get(step, 0.0) + seconds

    def settle(self, predicted: FloatArray, chance_above: Callable[..., FloatArray]) -> None:
        """End here if the best k are expected to have the recall that is enough; the last round remembers it.

        `chance_above(predicted, best, ranks=…)` is that of an `UncertainApproximation`, for this query.
        """
        assert self._plan.stop_when is not None
        started = time.perf_counter()
        recall = 0.0
        exact = np.concatenate([round_.exact for round_ in self.rounds])
        # Fewer than k are no top k.
        if len(exact) >= self._k:
            _, promising = self._prospects.best(
                min(SHORTLIST, int(self._prospects.unscored.sum())),
                acquisition=TopK(),
                stream=0,
                without=_NONE,
                predicted=predicted,
            )
            best = np.sort(exact)[: -self._k - 1 : -1]
            recall = expected_recall(lambda some, ranks: chance_above(promising, some, ranks=ranks), best)
            self._settled = recall >= self._plan.stop_when
        self.rounds[-1] = replace(self.rounds[-1], expected_recall=recall)
        # Counted to the round that has just ended, since the next one may never be.
        self.count("settle", time.perf_counter() - started)

    def best(self, k: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Positions, exact scores and rounds of the best k scored so far, best first."""
        if not self.rounds:
            return _NONE, np.empty(0), _NONE
        positions = np.concatenate([round_.positions for round_ in self.rounds])
        exact = np.concatenate([round_.exact for round_ in self.rounds])
        numbers = np.repeat([round_.number for round_ in self.rounds], [len(one.positions) for one in self.rounds])
        order = best_positions(exact, k, keys=self.keys[positions])
        return positions[order], exact[order], numbers[order]

    def trace(self, *, settings: dict[str, object], approximate_scores: FloatArray | None = None) -> Trace:
        """What was done so far."""
        n_scored = sum(len(round_.positions) for round_ in self.rounds)
        if self._settled:
            stopped = "settled"
        elif self._out_of_time and n_scored < sum(self._sizes):
            stopped = "deadline"
        else:
            stopped = "budget" if self._prospects.unscored.any() else "exhausted"
        return Trace(
            rounds=tuple(self.rounds), stopped=stopped, settings=settings, approximate_scores=approximate_scores
        )

    def _topped_up(self, chosen: IntArray, size: int, purpose: str) -> IntArray:
        """The chosen positions, and a uniform sample of the rest where they are too few."""
        if len(chosen) >= size:
            return chosen
        names = () if self._plan.same_first_for_all and purpose == "first" else (self.query.id,)
        more, _ = self._prospects.best(
            size - len(chosen),
            acquisition=Uniform(),
            stream=stream_key(self._plan.seed, purpose, *names),
            without=chosen,
        )
        return np.concatenate([chosen, more])


class LockStep:
    """Searches of a plan for several queries that share an approximation and move round by round together.

    `ask()` for positions of every query, score them, `tell()` the scores. How queries are grouped never changes what
    is asked for.
    """

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        candidates: Sequence[IntArray],
        allowed: BoolArray,
        approximation: Approximation | None,
    ) -> None:
        if plan.stop_when is not None and not isinstance(approximation, UncertainApproximation):
            raise InputError(
                "stop_when needs predictions that know how far they may be off, and those of this method do not. "
                "Search with method='gaussian', or with AdaCUR(approximator=GaussianModel(…))."
            )
        in_scores = np.asarray if approximation is None else approximation.in_scores
        self.searches = [
            AdaptiveSearch(plan, query, k, candidates=some, allowed=allowed, in_scores=in_scores)
            for query, some in zip(queries, candidates, strict=True)
        ]
        self._plan = plan
        self._approximation = approximation
        self._predicted: Sequence[FloatArray] | None = None
        self._asked: list[IntArray] = []

    @property
    def goes_on(self) -> bool:
        """Whether any search has a round left."""
        return any(search.size for search in self.searches)

    def ask(self, *, seconds: float = 0.0) -> list[IntArray]:
        """Positions to score next, per query, most promising first; all empty when every search has ended.

        `seconds` are those of the first stage, which count to the first round.
        """
        n_queries = len(self.searches)
        rows: Sequence[FloatArray | None] = [None] * n_queries
        spent = {"first": seconds / n_queries}
        if self.goes_on and any(search.rounds for search in self.searches):
            # Predictions that decided whether to stop serve the next round too.
            spent = {} if self._predicted is not None else {"predict": self._predict()}
            rows = self._predicted or rows
        self._asked = [search.ask(row, seconds=spent) for search, row in zip(self.searches, rows, strict=True)]
        return self._asked

    def tell(self, scores: Sequence[FloatArray], *, seconds: float = 0.0) -> None:
        """Exact scores of the positions last asked for, per query; `seconds` is what the scorer took for all."""
        self._predicted = None
        n_scored = max(1, sum(map(len, scores)))
        active = [(at, search) for at, search in enumerate(self.searches) if len(self._asked[at])]
        for at, search in active:
            search.count("score", seconds * len(scores[at]) / n_scored)
            self._asked[at] = search.tell(scores[at])
        # The last solve would be the largest of all.
        if self._approximation is None or not (self._plan.keep_predictions or self.goes_on):
            return
        started = time.perf_counter()
        self._approximation.tell(self._asked, scores)
        solving = (time.perf_counter() - started) / len(self.searches)
        for _, search in active:
            search.count("solve", solving)
        if self._plan.stop_when is not None and self.goes_on:
            self._settle(self._approximation)

    def stop(self) -> None:
        """End here, because time is up: nothing more is asked for, and `tell` takes the first few scores."""
        for search in self.searches:
            search.stop()

    def final_predictions(self) -> Sequence[FloatArray | None]:
        """Predicted scores of every item after all rounds, per query, where they are to be kept."""
        if not self._plan.keep_predictions or self._approximation is None:
            return [None] * len(self.searches)
        return [self._approximation.in_scores(np.asarray(row)) for row in self._approximation.predict()]

    def _settle(self, approximation: Approximation) -> None:
        assert isinstance(approximation, UncertainApproximation)
        seconds = self._predict()
        assert self._predicted is not None
        for at, (search, row) in enumerate(zip(self.searches, self._predicted, strict=True)):
            if search.size:
                search.count("predict", seconds)
                search.settle(row, partial(approximation.chance_above, at))

    def _predict(self) -> float:
        """Predict all items for all queries; each query's share of the seconds that it took."""
        assert self._approximation is not None
        started = time.perf_counter()
        self._predicted = list(self._approximation.predict())
        return (time.perf_counter() - started) / len(self.searches)
