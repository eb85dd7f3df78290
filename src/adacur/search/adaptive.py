"""The heart: an ask/tell search that never calls a scorer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from adacur.approximation import TopK, Uniform
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.errors import InputError, ScoreCountError
from adacur.core.protocols import Acquisition, Approximation, UncertainApproximation
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.results import Round, Trace
from adacur.core.seeds import stream_key
from adacur.search.prospects import RANKS_THAT_COUNT, LocalProspects, Prospects, Request
from adacur.search.stopping import SHORTLIST, expected_recall

__all__ = ["RANKS_THAT_COUNT", "AdaptiveSearch"]


class AdaptiveSearch:
    """Searches for a batch of queries in lock-step: `ask()` for positions, score them, `tell()` the scores.

    Per query: `candidates` are the first stage's positions, best first (a short list is topped up with a uniform
    sample); `allowed` marks the items that may be scored; `batch_sizes` are the calls of each round. A `first_share`
    of each later round goes to the first stage's next best as well; `first_weight` raises the predictions of what it
    ranks high. With `stop_when`, a query's search ends after the round that lets its best `k` be expected to be that
    share of the true top k. The last round's scores, which nothing is predicted from any more, reach the approximation
    only with `predicts_at_the_end`. The trace counts `first_stage_seconds` to the first round. `prospects` stand in for
    `allowed`, `keys` and `first_weight` where these are not held here.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        *,
        candidates: Sequence[IntArray],
        batch_sizes: Sequence[Sequence[int]],
        allowed: Sequence[BoolArray] = (),
        keys: KeyArray | None = None,
        prospects: Prospects | None = None,
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
                "Search with method='gaussian', or with method='adacur' and approximator=GaussianModel(…)."
            )
        self._queries = queries
        self._candidates = candidates
        if prospects is None:
            if keys is None or len(allowed) != len(queries):
                raise InputError("A search needs the items' keys and, per query, which of them are allowed.")
            prospects = LocalProspects(allowed, keys=keys, approximation=approximation, first_weight=first_weight)
        self._prospects = prospects
        self._batch_sizes = batch_sizes
        self._seed = seed
        self._approximation = approximation
        self._acquisition = acquisition
        self._same_first_for_all = same_first_for_all
        self._first_share = first_share
        self._k = k
        self._stop_when = stop_when
        self._settled = [False] * len(queries)
        self._keep_predictions = keep_predictions
        self._predicts_at_the_end = predicts_at_the_end
        self._clock = clock
        self._rounds: list[list[Round]] = [[] for _ in queries]
        self._asked: list[IntArray] | None = None
        self._has_predicted = False
        self._has_looked_ahead = False
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
        elif not self._has_looked_ahead:
            self._predict()
        self._has_looked_ahead = False
        with _Timed(self, "choose"):
            self._asked = self._first_batch(sizes) if number == 1 else self._next_batch(sizes)
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
        self._prospects.mark_scored(asked)
        if self._approximation is not None:
            with _Timed(self, "solve"):
                # The last solve would be the largest of all.
                if self._predicts_at_the_end or any(self._goes_on()):
                    self._approximation.tell(asked, scores)
        n_pairs = sum(len(positions) for positions in asked)
        in_scores = self._approximation.in_scores if self._approximation is not None else np.asarray
        predicted = self._prospects.predicted_at(asked) if self._has_predicted else [None] * len(asked)
        all_predicted = [
            in_scores(self._prospects.all_predicted(index))
            if self._keep_predictions and self._has_predicted and len(positions)
            else None
            for index, positions in enumerate(asked)
        ]
        recalls = self._look_ahead(scores)
        for index, (positions, exact) in enumerate(zip(asked, scores, strict=True)):
            if not len(positions):
                continue
            own = {step: total / len(asked) for step, total in self._seconds.items()}
            own_predicted = predicted[index]
            self._rounds[index].append(
                Round(
                    number=len(self._rounds[index]) + 1,
                    positions=positions,
                    exact=np.asarray(exact),
                    predicted=None if own_predicted is None else in_scores(own_predicted),
                    seconds=own | {"score": seconds * len(positions) / n_pairs},
                    all_predicted=all_predicted[index],
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
        order = best_positions(exact, k, keys=self._prospects.keys_at(positions))
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
            stopped = "budget" if self._prospects.n_left(index) else "exhausted"
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

    def _predict(self) -> None:
        with _Timed(self, "predict"):
            self._prospects.predict()
        self._has_predicted = True

    def _look_ahead(self, scores: Sequence[FloatArray]) -> list[float | None]:
        """The recall to expect of each query that has calls left, after these scores; whoever has enough is settled."""
        recalls: list[float | None] = [None] * len(self._queries)
        goes_on = self._goes_on()
        if self._stop_when is None or not any(goes_on):
            return recalls
        # Counted to the round that has just ended, since the next one may never be.
        self._predict()
        self._has_looked_ahead = True
        with _Timed(self, "settle"):
            exact = {
                index: np.concatenate([*(round_.exact for round_ in self._rounds[index]), scores[index]])
                for index in np.flatnonzero(goes_on).tolist()
            }
            # Fewer than k are no top k.
            counted = [index for index, own in exact.items() if len(own) >= self._k]
            recalls = [0.0 if index in exact else None for index in range(len(recalls))]
            for index, promising in zip(counted, self._shortlists(counted), strict=True):
                recalls[index] = recall = self._expected_recall(index, promising, exact[index])
                self._settled[index] = recall >= self._stop_when
        return recalls

    def _expected_recall(self, index: int, promising: FloatArray, exact: FloatArray) -> float:
        approximation = self._approximation
        assert isinstance(approximation, UncertainApproximation)
        return expected_recall(
            lambda best, ranks: approximation.chance_above(index, promising, best, ranks=ranks),
            np.sort(exact)[: -self._k - 1 : -1],
        )

    def _shortlists(self, indices: Sequence[int]) -> list[FloatArray]:
        """What the most promising unscored items of these queries are predicted, the first stage's say included."""
        requests = [
            Request(
                index,
                min(SHORTLIST, self._prospects.n_left(index)),
                acquisition=TopK(),
                stream=0,
                known=self._candidates[index],
            )
            for index in indices
        ]
        return [chosen.raised for chosen in self._prospects.choose(requests)]

    def _first_batch(self, sizes: Sequence[int]) -> list[IntArray]:
        return self._topped_up([self._of_first_stage(index, size) for index, size in enumerate(sizes)], sizes)

    def _of_first_stage(self, index: int, size: int) -> IntArray:
        candidates = self._candidates[index]
        return candidates[self._prospects.are_left(index, candidates)][:size]

    def _topped_up(self, chosen: list[IntArray], sizes: Sequence[int]) -> list[IntArray]:
        """The chosen positions, and a uniform sample of the rest where they are too few."""
        short = [index for index, (own, size) in enumerate(zip(chosen, sizes, strict=True)) if len(own) < size]
        requests = [
            Request(
                index,
                sizes[index] - len(chosen[index]),
                acquisition=Uniform(),
                stream=self._stream("first", alike=self._same_first_for_all, index=index),
                without=chosen[index],
            )
            for index in short
        ]
        for index, more in zip(short, self._prospects.choose(requests) if requests else (), strict=True):
            chosen[index] = np.concatenate([chosen[index], more.positions])
        return chosen

    def _stream(self, *names: str, index: int, alike: bool = False) -> int:
        return stream_key(self._seed, *names) if alike else stream_key(self._seed, *names, self._queries[index].id)

    def _next_batch(self, sizes: Sequence[int]) -> list[IntArray]:
        assert self._acquisition is not None
        chosen = [self._of_first_stage(index, round(self._first_share * size)) for index, size in enumerate(sizes)]
        requests = [
            Request(
                index,
                size - len(chosen[index]),
                acquisition=self._acquisition,
                stream=self._stream("round", str(self.round), index=index),
                without=chosen[index],
                known=self._candidates[index],
            )
            for index, size in enumerate(sizes)
            if size
        ]
        for request, predicted in zip(requests, self._prospects.choose(requests), strict=True):
            chosen[request.query] = np.concatenate([chosen[request.query], predicted.positions])
        # Scores beyond the range of floats make predictions that nobody can rank; the budget is spent all the same.
        return self._topped_up(chosen, sizes)


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
