"""Ask-and-tell searches: of one query, and of several that share an approximation. No scorer is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError, ScoreCountError
from adacur.model import TopK
from adacur.model.acquire import best_positions
from adacur.protocols import Approximation, UncertainApproximation
from adacur.records import Item, Pair, Query
from adacur.results import Round, Trace
from adacur.search.candidates import NONE, Candidates
from adacur.search.plan import Plan
from adacur.search.spending import PRICED_BEFOREHAND
from adacur.search.stopping import Standing
from adacur.seeds import stream_key

# Unscored items that decide whether to stop, the most promising first; what lies beyond is rarely what is missing.
SHORTLIST = 300
# A budget that pays for none of this many items is refused, or ends the search.
_MOST_REFUSED = 64
# Scores may come near the end of the range of floats, and predictions lie beyond it: `_finite` leaves those out.
_OVERFLOWING = np.errstate(over="ignore", invalid="ignore")


class AskTell:
    """The search of a plan for one query: `ask()` for positions, score them, `tell()` the scores.

    Predictions are passed to `ask`; `in_scores` turns them into the scorer's units. `remaining` holds the calls of each
    round to come, none when the search has ended. `seconds` are those of the current round, by step; `stopped` says
    what ended the search before its calls did, such as "deadline", "settled" or "error".
    """

    def __init__(
        self,
        plan: Plan,
        query: Query,
        k: int,
        *,
        candidates: Candidates,
        in_scores: Callable[[FloatArray], FloatArray] = np.asarray,
    ) -> None:
        self.query = query
        self.rounds: list[Round] = []
        self.seconds: dict[str, float] = {}
        self.candidates = candidates
        self.stopped: str | None = None
        self.purse = plan.purse.of_query()
        self._plan = plan
        self._in_scores = in_scores
        self._k = k
        affordable = min(plan.purse.calls, candidates.n_left)
        # Where an audit would be of all that a filter leaves, all of it is searched.
        self._audit = plan.purse.audit if plan.purse.audit < affordable else 0
        self.remaining = list(plan.sizes(affordable - self._audit)) if affordable else []
        self.remaining += [self._audit] * bool(self._audit)
        self.n_planned = sum(self.remaining)
        self._batch: IntArray | None = None
        self.predicted: Any = None
        self._is_audit = False

    def expect(self, items_at: Callable[[Sequence[int]], Sequence[Item]]) -> None:
        """Before the first round: plan the rounds for as many calls as the purse is expected to pay for."""
        if len(few := self.candidates.found[:PRICED_BEFOREHAND]):
            pairs = [(self.query, item) for item in items_at(few.tolist())]
            n = max(1, self.purse.expected_calls(pairs, self.n_planned))
            if (n := min(n, self._plan.purse.calls, self.candidates.n_left)) > 0:
                self.remaining, self.n_planned = self.purse.rounds(self._plan.sizes(n)), n

    def ask(self, predicted: Any = None, *, seconds: Mapping[str, float] | None = None) -> IntArray:
        """Positions to score next, most promising first; none when the search has ended.

        From the second round on they are chosen by `predicted`. `seconds` are those already spent on this round.
        """
        if self._batch is not None:
            raise InputError("The last positions asked for have no scores yet. Call tell(scores) first.")
        if not self.remaining:
            return NONE
        size, number = self.remaining[0], len(self.rounds) + 1
        started = time.perf_counter()
        self.seconds = dict(seconds or {})
        self._is_audit = bool(self._audit) and len(self.remaining) == 1
        self.predicted = predicted = None if self._is_audit else predicted
        if predicted is None:
            chosen = NONE if self._is_audit else self.candidates.from_first(size)
        else:
            assert self._plan.acquisition is not None
            chosen, _ = self.candidates.best(
                size,
                acquisition=self._plan.acquisition,
                stream=stream_key(self._plan.seed, "round", str(number), self.query.id),
                predicted=predicted,
            )
        if len(chosen) < size:
            # Scores beyond the range of floats give predictions that cannot be ranked; the budget is spent anyway.
            stream = stream_key(self._plan.seed, "audit" if self._is_audit else "first", self.query.id)
            more = self.candidates.at_random(size - len(chosen), stream=stream, without=chosen)
            chosen = np.concatenate([chosen, more])
        if not len(chosen):
            # No item left is known: a search for words alone may find none.
            self.remaining.clear()
            return NONE
        self._spend_later(size - len(chosen))
        self._batch = chosen
        self.seconds["choose"] = time.perf_counter() - started
        return chosen

    def afford(
        self, positions: IntArray, items_at: Callable[[Sequence[int]], Sequence[Item]], *, refuses: bool, seeks: bool
    ) -> tuple[IntArray, list[Pair]]:
        """Those of the positions last asked for that can be paid as one call, and their pairs.

        The search ends if there are none: by an error before its first round if it `refuses`. It `seeks` cheaper items
        first, where all are known beforehand.
        """
        if not len(positions):
            return positions, []
        while True:
            pairs = [(self.query, item) for item in items_at(positions.tolist())]
            pays = self.purse.afford(pairs)
            if not pays.all():
                pairs = [pair for pair, paid in zip(pairs, pays, strict=True) if paid]
                positions = self.drop(positions[~pays])
            may_seek = seeks and self.purse.n_refused < _MOST_REFUSED and self.candidates.n_left
            if len(positions) or not may_seek:
                break
            positions = self.ask(self.predicted, seconds=self.seconds)
        if not len(positions):
            # A budget that pays for nothing must be refused before anything is paid.
            if refuses and not self.rounds:
                raise self.purse.too_small(self.query)
            self.stop(self.purse.over or "budget")
        return positions, pairs

    def drop(self, gone: IntArray) -> IntArray:
        """Remove items that are gone or cannot be paid from the positions last asked for; returns the others."""
        assert self._batch is not None
        self._batch = batch = self._batch[~np.isin(self._batch, gone)]
        self.candidates.scored(gone)
        if len(self.remaining) == 1:
            self.remaining.append(0)
        self._spend_later(len(gone))
        if not len(batch):
            self.tell(np.empty(0))
        return batch

    def _spend_later(self, calls: int) -> None:
        """Move calls that this round cannot spend to the next one."""
        if len(self.remaining) > 1:
            self.remaining[1] += calls

    def tell(self, scores: FloatArray) -> IntArray:
        """Take the exact scores of the positions last asked for, after `stop()` of the first few; returns these."""
        if self._batch is None:
            raise InputError("No positions were asked for. Call ask() before tell(scores).")
        batch = self._batch if self.stopped is None else self._batch[: len(scores)]
        if len(scores) != len(batch):
            raise ScoreCountError(f"tell needs one score per position: {len(batch)} positions, {len(scores)} scores.")
        self._batch, predicted = None, self.predicted
        self.candidates.scored(batch)
        if len(batch):
            keeps_all = predicted is not None and self._plan.keeps == "all"
            values = None
            if predicted is not None:
                values = _finite(self._in_scores(self.candidates.predictions(predicted, batch)))
            self.rounds.append(
                Round(
                    number=len(self.rounds) + 1,
                    positions=batch,
                    exact=scores,
                    predicted=values,
                    # Shared, so that later steps such as the solve are counted to this round as well.
                    seconds=self.seconds,
                    items=self.candidates.items(batch),
                    is_audit=self._is_audit,
                    all_predicted=_finite(self._in_scores(predicted.copy())) if keeps_all else None,
                )
            )
        del self.remaining[:1]
        if not self.remaining and self.stopped is None:
            # Pairs may have cost less than expected; then the rest pays for another round.
            n = min(self._plan.purse.calls - self._n_scored, self.candidates.n_left)
            if (more := self.purse.more_calls(n)) > 0:
                self.remaining = [more]
                self.n_planned += more
        return batch

    @property
    def _n_scored(self) -> int:
        return sum(len(round_.positions) for round_ in self.rounds)

    def stop(self, why: str) -> None:
        """End here, for this reason: time is up, no pair can be paid, the scorer failed."""
        self.stopped = why
        self.remaining.clear()

    def settle(self, predicted: Any, chance_above: Callable[..., FloatArray]) -> None:
        """End here, but for an audit, if the plan's rule says that it is enough; the last round notes what it expects.

        `chance_above(predicted, best, ranks=…)` is that of an `UncertainApproximation`, for this query.
        """
        started = time.perf_counter()
        _, promising = self.candidates.best(
            min(SHORTLIST, self.candidates.n_left),
            acquisition=TopK(),
            stream=0,
            predicted=predicted,
        )
        now = Standing(
            k=self._k,
            planned=self.n_planned,
            exact=[round_.exact for round_ in self.rounds],
            best=self.best()[1],
            n_left=self.candidates.n_left,
            chance_above=lambda some, ranks: chance_above(promising, some, ranks=ranks),
        )
        assert self._plan.stop is not None
        expected, is_enough = self._plan.stop.after(now)
        if is_enough and (self._audit or not self._plan.purse.audit):
            audit = self.remaining[-1:] if self._audit else []
            self.stop("settled")
            self.remaining = audit
        self.rounds[-1] = replace(self.rounds[-1], expected_recall=expected)
        # Counted to the round that has just ended, since there may be no next one.
        self.seconds["settle"] = time.perf_counter() - started

    def best(self) -> tuple[IntArray, FloatArray, IntArray]:
        """Positions, exact scores and rounds of all that was scored so far, best first."""
        if not self.rounds:
            return NONE, np.empty(0), NONE
        positions = np.concatenate([round_.positions for round_ in self.rounds])
        exact = np.concatenate([round_.exact for round_ in self.rounds])
        numbers = np.repeat([round_.number for round_ in self.rounds], [len(one.positions) for one in self.rounds])
        order = best_positions(exact, len(exact), keys=self.candidates.keys(positions))
        return positions[order], exact[order], numbers[order]

    def trace(self, *, settings: dict[str, object], approximate_scores: FloatArray | None = None) -> Trace:
        """The rounds so far, and what ended them."""
        stopped, n_scored = self.stopped, self._n_scored
        if stopped is None or (stopped == "deadline" and n_scored == self.n_planned):
            stopped = "budget" if self.candidates.n_left else "exhausted"
            if n_scored < self._plan.purse.calls and (self.candidates.n_left or self.purse.n_refused):
                stopped = self.purse.over or stopped
        return Trace(
            rounds=tuple(self.rounds),
            stopped=stopped,
            settings=settings,
            approximate_scores=approximate_scores,
            **self.purse.spent,
        )


class QueryBatch:
    """Searches of a plan for several queries that share an approximation and move round by round together.

    `ask()` for positions of every query, score them, `tell()` the scores. How queries are grouped never changes an
    answer. `listed` are the scores of what the first stage found, per query, where `finish` needs them.

    `computes_together`: several batches are best asked after what they `wanted` was computed for all.
    """

    computes_together = False

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        candidates: Sequence[Candidates],
        approximation: Approximation | None,
        listed: Sequence[FloatArray] = (),
    ) -> None:
        self.searches = [
            AskTell(
                plan,
                query,
                k,
                candidates=some,
                in_scores=np.asarray if approximation is None else partial(approximation.in_scores, at),
            )
            for at, (query, some) in enumerate(zip(queries, candidates, strict=True))
        ]
        self.listed = listed
        self._plan = plan
        self._approximation = approximation
        self._predicted: Sequence[Any] | None = None
        self._batches: list[IntArray] = []

    @property
    def goes_on(self) -> bool:
        """Whether any search has a round left."""
        return any(search.remaining for search in self.searches)

    def items_at(self, positions: Sequence[int]) -> list[Item]:
        """The items at these positions."""
        return self._plan.items.at(positions)

    def wanted(self) -> Any:
        """What the next `ask` needs, if it can be computed with others'; None for nothing."""
        return None

    @_OVERFLOWING
    def ask(self, *, seconds: float = 0.0) -> list[IntArray]:
        """Positions to score next, per query, most promising first; all empty when every search has ended.

        `seconds` are those of the first stage, which count to the first round.
        """
        n_queries = len(self.searches)
        rows: Sequence[Any] = [None] * n_queries
        spent = {"first": seconds / n_queries}
        if self._approximation is not None and self.goes_on and any(search.rounds for search in self.searches):
            # Predictions that decided whether to stop serve the next round too.
            spent, rows = {}, self._predicted or rows
            if self._predicted is None:
                spent["predict"], rows = self._predict(self._approximation)
        self._batches = [search.ask(row, seconds=spent) for search, row in zip(self.searches, rows, strict=True)]
        return self._batches

    @_OVERFLOWING
    def tell(self, scores: Sequence[FloatArray], *, seconds: float = 0.0) -> None:
        """Exact scores of the positions last asked for, per query; `seconds` is what the scorer took for all."""
        self._predicted = None
        n_scored = max(1, sum(map(len, scores)))
        active = [(at, search) for at, search in enumerate(self.searches) if len(self._batches[at])]
        for at, search in active:
            search.seconds["score"] = seconds * len(scores[at]) / n_scored
            self._batches[at] = search.tell(scores[at])
        # The last solve would be the largest of all.
        if self._approximation is None or not (self._plan.keeps or self.goes_on):
            return
        started = time.perf_counter()
        self._approximation.tell(self._batches, scores)
        solving = (time.perf_counter() - started) / len(self.searches)
        for _, search in active:
            search.seconds["solve"] = solving
        if self._plan.stop is not None and self.goes_on:
            self._settle(self._approximation)

    def stop(self, why: str = "deadline") -> None:
        """End here, because time is up or by an error: nothing is asked for, and `tell` takes the first few scores."""
        for search in self.searches:
            if search.remaining:
                search.stop(why)

    @_OVERFLOWING
    def final_predictions(self) -> Sequence[FloatArray | None]:
        """Predicted scores of every item after all rounds, per query."""
        assert self._approximation is not None
        in_scores, rows = self._approximation.in_scores, self._approximation.predict()
        return [_finite(in_scores(at, np.asarray(row))) for at, row in enumerate(rows)]

    def _settle(self, approximation: Approximation) -> None:
        assert isinstance(approximation, UncertainApproximation)
        seconds, predicted = self._predict(approximation)
        for at, (search, row) in enumerate(zip(self.searches, predicted, strict=True)):
            # A search whose first items are all gone has no round yet.
            if search.remaining and search.rounds:
                search.seconds["predict"] = search.seconds.get("predict", 0.0) + seconds
                search.settle(row, partial(approximation.chance_above, at))

    def _predictions(self, approximation: Approximation) -> list[Any]:
        """The predictions of every query, as its candidates read them."""
        return list(approximation.predict())

    def _predict(self, approximation: Approximation) -> tuple[float, Sequence[Any]]:
        """Predict for all queries; the seconds per query, and the predictions."""
        started = time.perf_counter()
        self._predicted = self._predictions(approximation)
        return (time.perf_counter() - started) / len(self.searches), self._predicted


def _finite(predicted: FloatArray) -> FloatArray | None:
    """The predictions; None where some lie beyond the range of floats."""
    return predicted if np.isfinite(predicted).all() else None
