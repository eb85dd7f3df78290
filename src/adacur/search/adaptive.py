"""The heart: an ask/tell search that never calls a scorer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from adacur.acquisition import TopK
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.errors import InputError, ScoreCountError
from adacur.core.protocols import Acquisition, Approximation, UncertainApproximation
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.results import Round, Trace
from adacur.core.seeds import stream_key, uniform
from adacur.search.stopping import SHORTLIST, expected_recall

__all__ = ["RANKS_THAT_COUNT", "AdaptiveSearch"]

# Beyond this rank the first stage has no say in what is scored next.
RANKS_THAT_COUNT = 1000
# A tenfold rank counts one step less, the first ten being much alike.
_ALIKE = 10
# Predictions in float32 that differ by less, relative to their height, differ by how they were rounded.
_ROUNDING = 1e-6


class AdaptiveSearch:
    """Searches for a batch of queries in lock-step: `ask()` for positions, score them, `tell()` the scores.

    Per query: `candidates` are the first stage's positions, best first (a short list is topped up with a uniform
    sample); `allowed` marks the items that may be scored; `batch_sizes` are the calls of each round. A `first_share`
    of each later round goes to the first stage's next best as well; `first_weight` raises the predictions of what it
    ranks high. With `stop_when`, a query's search ends after the round that lets its best `k` be expected to be that
    share of the true top k. The last round's scores, which nothing is predicted from any more, reach the approximation
    only with `predicts_at_the_end`. The trace counts `first_stage_seconds` to the first round.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        *,
        candidates: Sequence[IntArray],
        allowed: Sequence[BoolArray],
        batch_sizes: Sequence[Sequence[int]],
        keys: KeyArray,
        seed: int = 0,
        approximation: Approximation | None = None,
        acquisition: Acquisition | None = None,
        same_first_for_all: bool = False,
        first_share: float = 0.0,
        first_weight: float = 0.0,
        k: int = 1,
        stop_when: float | None = None,
        keep_predictions: bool = False,
        predicts_at_the_end: bool = False,
        first_stage_seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if any(len(sizes) > 1 for sizes in batch_sizes) and (approximation is None or acquisition is None):
            raise InputError("A search of more than one round needs an approximation and an acquisition.")
        if stop_when is not None and not isinstance(approximation, UncertainApproximation):
            raise InputError(
                "stop_when needs predictions that know how far they may be off, and those of this method do not. "
                "Search with method='gaussian', or with method='adacur' and approximator=Gaussian(…)."
            )
        self._queries = queries
        self._candidates = candidates
        self._unscored = [mask.copy() for mask in allowed]
        self._batch_sizes = batch_sizes
        self._keys = keys
        self._seed = seed
        self._approximation = approximation
        self._acquisition = acquisition
        self._same_first_for_all = same_first_for_all
        self._first_share = first_share
        self._first_weight = first_weight
        self._k = k
        self._stop_when = stop_when
        self._settled = [False] * len(queries)
        self._keep_predictions = keep_predictions
        self._predicts_at_the_end = predicts_at_the_end
        self._clock = clock
        self._rounds: list[list[Round]] = [[] for _ in queries]
        self._asked: list[IntArray] | None = None
        self._predicted: FloatArray | None = None
        self._predicted_next: FloatArray | None = None
        self._first_stage_seconds = first_stage_seconds
        self._seconds: dict[str, float] = {}
        self._deadline_passed = False

    @property
    def round(self) -> int:
        """The round that is asked for next, counted from 1."""
        return 1 + max((len(rounds) for rounds in self._rounds), default=0)

    def stop(self) -> None:
        """End here, because time is up: nothing more is asked."""
        self._deadline_passed = True

    def ask(self) -> list[IntArray]:
        """Positions to score next, per query, most promising first; all empty when the search has ended."""
        if self._asked is not None:
            raise InputError("The last positions asked for have not been told. Call tell(scores) first.")
        number = self.round
        sizes = [self._size(index, number) for index in range(len(self._queries))]
        if self._deadline_passed or not any(sizes):
            return [np.empty(0, dtype=np.intp) for _ in self._queries]
        self._seconds = {}
        if number == 1:
            self._seconds["first"] = self._first_stage_seconds
            choose = self._first_batch
        else:
            self._predicted = self._predict() if self._predicted_next is None else self._predicted_next
            self._predicted_next = None
            choose = self._next_batch
        with _Timed(self, "choose"):
            self._asked = [choose(index, size) for index, size in enumerate(sizes)]
        return self._asked

    def tell(self, scores: Sequence[FloatArray], *, seconds: float = 0.0) -> None:
        """Exact scores of the positions last asked for; `seconds` is what the scorer took for all of them.

        After `stop()`, scores of the first few positions are enough.
        """
        if self._asked is None:
            raise InputError("Nothing was asked. Call ask() before tell(scores).")
        told = [len(exact) for exact in scores]
        if self._deadline_passed and len(told) == len(self._asked):
            self._asked = [positions[:n] for positions, n in zip(self._asked, told, strict=True)]
        wanted = [len(positions) for positions in self._asked]
        if told != wanted:
            raise ScoreCountError(f"Tell one score per position asked for: asked for {wanted}, told {told}.")
        asked, self._asked = self._asked, None
        if self._approximation is not None:
            with _Timed(self, "solve"):
                # The last solve would be the largest of all.
                if self._predicts_at_the_end or any(self._goes_on()):
                    self._approximation.tell(asked, scores)
        n_pairs = sum(len(positions) for positions in asked)
        for unscored, positions in zip(self._unscored, asked, strict=True):
            unscored[positions] = False
        recalls = self._look_ahead(scores)
        for index, (positions, exact) in enumerate(zip(asked, scores, strict=True)):
            if not len(positions):
                continue
            own = {step: total / len(asked) for step, total in self._seconds.items()}
            predicted = None if self._predicted is None else self._predicted[index]
            in_scores = self._approximation.in_scores if self._approximation is not None else np.asarray
            self._rounds[index].append(
                Round(
                    number=len(self._rounds[index]) + 1,
                    positions=positions,
                    exact=np.asarray(exact),
                    predicted=None if predicted is None else in_scores(predicted[positions]),
                    seconds=own | {"score": seconds * len(positions) / n_pairs},
                    all_predicted=in_scores(predicted.copy())
                    if self._keep_predictions and predicted is not None
                    else None,
                    expected_recall=recalls[index],
                )
            )

    def best(self, index: int, k: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Positions, exact scores and rounds of the best k scored so far for one query, best first."""
        rounds = self._rounds[index]
        if not rounds:
            return np.empty(0, dtype=np.intp), np.empty(0), np.empty(0, dtype=np.intp)
        positions = np.concatenate([round_.positions for round_ in rounds])
        exact = np.concatenate([round_.exact for round_ in rounds])
        found = np.repeat([round_.number for round_ in rounds], [len(round_.positions) for round_ in rounds])
        order = best_positions(exact, k, keys=self._keys[positions])
        return positions[order], exact[order], found[order]

    def trace(self, index: int, *, settings: dict[str, object], approximate_scores: FloatArray | None) -> Trace:
        """What was done for one query so far."""
        planned = sum(self._batch_sizes[index])
        done = sum(len(round_.positions) for round_ in self._rounds[index])
        if self._settled[index]:
            stopped = "settled"
        elif done < planned and self._deadline_passed:
            stopped = "deadline"
        else:
            stopped = "budget" if self._unscored[index].any() else "exhausted"
        return Trace(
            rounds=tuple(self._rounds[index]),
            stopped=stopped,
            settings=settings,
            approximate_scores=approximate_scores,
        )

    def _size(self, index: int, number: int) -> int:
        """Calls planned for a query's round of this number."""
        sizes = self._batch_sizes[index]
        return sizes[number - 1] if number <= len(sizes) and not self._settled[index] else 0

    def _goes_on(self) -> list[bool]:
        """Whether a round follows the one that is being told, per query."""
        number = self.round + 1
        return [not self._deadline_passed and self._size(index, number) > 0 for index in range(len(self._queries))]

    def _predict(self) -> FloatArray:
        with _Timed(self, "predict"):
            assert self._approximation is not None
            return self._approximation.predict()

    def _look_ahead(self, scores: Sequence[FloatArray]) -> list[float | None]:
        """The recall to expect of each query that has calls left, after these scores; whoever has enough is settled."""
        recalls: list[float | None] = [None] * len(self._queries)
        goes_on = self._goes_on()
        if self._stop_when is None or not any(goes_on):
            return recalls
        # Counted to the round that has just ended, since the next one may never be.
        self._predicted_next = self._predict()
        with _Timed(self, "settle"):
            for index in np.flatnonzero(goes_on).tolist():
                recalls[index] = recall = self._expected_recall(index, self._predicted_next[index], scores[index])
                self._settled[index] = recall >= self._stop_when
        return recalls

    def _expected_recall(self, index: int, predicted: FloatArray, news: FloatArray) -> float:
        approximation = self._approximation
        assert isinstance(approximation, UncertainApproximation)
        exact = np.concatenate([*(round_.exact for round_ in self._rounds[index]), news])
        if len(exact) < self._k:
            return 0.0
        _, promising = self._shortlist(index, predicted)
        return expected_recall(
            lambda best, ranks: approximation.chance_above(index, promising, best, ranks=ranks),
            np.sort(exact)[: -self._k - 1 : -1],
        )

    def _shortlist(self, index: int, predicted: FloatArray) -> tuple[IntArray, FloatArray]:
        """The most promising unscored positions and what they are predicted, the first stage's say included."""
        unscored = self._unscored[index]
        raised = self._raised(predicted, self._candidates[index])
        n = min(SHORTLIST, int(np.count_nonzero(unscored)))
        positions = TopK().choose(raised, unscored=unscored, n=n, keys=self._keys, stream=0)
        return positions, raised[positions]

    def _first_batch(self, index: int, size: int) -> IntArray:
        unscored = self._unscored[index]
        candidates = self._candidates[index]
        return self._topped_up(index, candidates[unscored[candidates]][:size], size)

    def _topped_up(self, index: int, chosen: IntArray, size: int) -> IntArray:
        """The chosen positions, and a uniform sample of the rest where they are too few."""
        if len(chosen) == size:
            return chosen
        names = ("first",) if self._same_first_for_all else ("first", self._queries[index].id)
        rest = self._unscored[index].copy()
        rest[chosen] = False
        draws = np.where(rest, uniform(stream_key(self._seed, *names), self._keys), -np.inf)
        return np.concatenate([chosen, best_positions(draws, size - len(chosen), keys=self._keys)])

    def _next_batch(self, index: int, size: int) -> IntArray:
        if not size:
            return np.empty(0, dtype=np.intp)
        assert self._predicted is not None
        assert self._acquisition is not None
        unscored = self._unscored[index]
        candidates = self._candidates[index]
        guarded = candidates[unscored[candidates]][: round(self._first_share * size)]
        if len(guarded):
            unscored = unscored.copy()
            unscored[guarded] = False
        else:
            # Whoever chooses must not be able to have an item scored twice.
            unscored = unscored.view()
            unscored.flags.writeable = False
        predicted = self._acquisition.choose(
            self._raised(self._predicted[index], candidates),
            unscored=unscored,
            n=size - len(guarded),
            keys=self._keys,
            stream=stream_key(self._seed, "round", str(self.round), self._queries[index].id),
        )
        chosen = np.concatenate([guarded, predicted])
        # Scores beyond the range of floats make predictions that nobody can rank; the budget is spent all the same.
        return self._topped_up(index, chosen, size)

    def _raised(self, predicted: FloatArray, candidates: IntArray) -> FloatArray:
        """Predictions, higher by the logarithm of the first stage's rank, in units of their own spread."""
        known = candidates[:RANKS_THAT_COUNT]
        if not self._first_weight or not len(known):
            return predicted
        values = predicted[known]
        with np.errstate(over="ignore", invalid="ignore"):
            spread, height = float(predicted.std()), abs(float(values[0]))
        if spread <= _ROUNDING * height:
            # Predictions that are all alike say nothing: the first stage alone leads.
            spread = max(1.0, height)
        unit = self._first_weight * spread
        if not np.isfinite(unit):
            return predicted
        raised = predicted.copy()
        raised[known] = values + (unit * _RISE[: len(known)]).astype(raised.dtype)
        return raised


_RISE = np.log((_ALIKE + RANKS_THAT_COUNT) / (_ALIKE + np.arange(RANKS_THAT_COUNT)))


class _Timed:
    """Adds the seconds of a block to one step of the current round."""

    def __init__(self, search: AdaptiveSearch, step: str) -> None:
        self._search = search
        self._step = step

    def __enter__(self) -> None:
        self._start = self._search._clock()

    def __exit__(self, *_: object) -> None:
        seconds = self._search._seconds
        seconds[self._step] = seconds.get(self._step, 0.0) + self._search._clock() - self._start
