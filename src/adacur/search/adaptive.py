"""Ask-and-tell searches: of one query, and of several that share an approximation. No scorer is called."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from adacur.approximation import TopK
from adacur.approximation.acquisition import best_positions
from adacur.approximation.shared_posteriors import SharedPosteriors
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError, ScoreCountError
from adacur.core.protocols import Approximation, UncertainApproximation
from adacur.core.records import Item, Query
from adacur.core.results import Round, Trace
from adacur.core.seeds import stream_key
from adacur.search.effort import entered, signs
from adacur.search.methods import Plan
from adacur.search.prospects import MemoryProspects, Prospects
from adacur.search.spending import Purse

# Unscored items that decide whether to stop, the most promising first; what lies beyond is rarely what is missing.
SHORTLIST = 300
NONE: IntArray = np.empty(0, dtype=np.intp)


class AdaptiveSearch:
    """The search of a plan for one query: `ask()` for positions, score them, `tell()` the scores.

    `prospects` are the items that may be scored. Predictions are passed to `ask`; `in_scores` turns them into the
    scorer's units. `remaining` holds the calls of each round to come, none when the search has ended. `seconds` are
    those of the current round, by step; `stopped` says what ended the search before its calls did: "deadline",
    "settled", "tokens", "cost" or "engine".
    """

    def __init__(
        self,
        plan: Plan,
        query: Query,
        k: int,
        *,
        prospects: Prospects,
        in_scores: Callable[[FloatArray], FloatArray] = np.asarray,
    ) -> None:
        self.query = query
        self.rounds: list[Round] = []
        self.seconds: dict[str, float] = {}
        self.prospects = prospects
        self.stopped: str | None = None
        # The tokens and money spent, where the plan counts them.
        self.purse = None if plan.spending is None else Purse(plan.spending)
        self._plan = plan
        self._in_scores = in_scores
        self._k = k
        if plan.pool is not None and isinstance(prospects, MemoryProspects):
            prospects.confine(self._topped_up(prospects.candidates[: plan.pool], plan.pool, "pool"))
        affordable = min(plan.calls, prospects.n_left)
        self.remaining = list(plan.batch_sizes(affordable)) if affordable else []
        self._n_planned = sum(self.remaining)
        if len(self.remaining) > 1 and (plan.approximator is None or plan.acquisition is None):
            raise InputError("A search of more than one round needs an approximation and an acquisition.")
        self._batch: IntArray | None = None
        self.predicted: Any = None

    def expect_calls(self, n: int) -> None:
        """Plan the rounds for about n calls, as many as tokens and money pay for; before the first round."""
        n, spending = min(n, self._plan.calls, self.prospects.n_left), self._plan.spending
        if n <= 0 or spending is None:
            return
        sizes = list(self._plan.batch_sizes(n))
        if spending.counts_requests and spending.units is not None and len(sizes) > spending.units:
            # A round is at least one request: small early rounds must not use up the money of later ones.
            sizes = [*sizes[: spending.units - 1], sum(sizes[spending.units - 1 :])]
        self.remaining, self._n_planned = sizes, n

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
        self.predicted = predicted
        self.seconds = dict(seconds or {})
        share = 1.0 if predicted is None else self._plan.first_share
        chosen = self.prospects.from_first(round(share * size))
        if predicted is not None:
            assert self._plan.acquisition is not None
            more, _ = self.prospects.best(
                size - len(chosen),
                acquisition=self._plan.acquisition,
                stream=stream_key(self._plan.seed, "round", str(number), self.query.id),
                without=chosen,
                predicted=predicted,
            )
            chosen = np.concatenate([chosen, more])
        if len(chosen) < size:
            # Scores beyond the range of floats give predictions that cannot be ranked; the budget is spent anyway.
            chosen = self._topped_up(chosen, size, "first")
        if not len(chosen):
            # No item left is known: an engine's search for words may find none.
            self.remaining.clear()
            return NONE
        self._spend_later(size - len(chosen))
        self._batch = chosen
        self.seconds["choose"] = time.perf_counter() - started
        return chosen

    def drop(self, gone: IntArray) -> IntArray:
        """Remove items that are gone or cannot be paid from the positions last asked for; returns the others."""
        assert self._batch is not None
        self._batch = batch = self._batch[~np.isin(self._batch, gone)]
        self.prospects.scored(gone)
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
        batch = self._batch[: len(scores)] if self.stopped in ("deadline", "cost") else self._batch
        if len(scores) != len(batch):
            raise ScoreCountError(f"tell needs one score per position: {len(batch)} positions, {len(scores)} scores.")
        self._batch, predicted = None, self.predicted
        self.prospects.scored(batch)
        if len(batch):
            keeps_all = predicted is not None and self._plan.keep_predictions == "all"
            values = None if predicted is None else self._in_scores(self.prospects.predictions(predicted, batch))
            self.rounds.append(
                Round(
                    number=len(self.rounds) + 1,
                    positions=batch,
                    exact=scores,
                    predicted=values,
                    # Shared, so that later steps such as the solve are counted to this round as well.
                    seconds=self.seconds,
                    items=self.prospects.items(batch),
                    all_predicted=self._in_scores(predicted.copy()) if keeps_all else None,
                )
            )
        del self.remaining[:1]
        if self.purse is not None and not self.remaining and self.stopped is None:
            # Pairs may have cost less than expected; then the rest pays for another round.
            n = min(self._plan.calls - self._n_scored, self.prospects.n_left)
            if (more := self.purse.calls_left(n)) > 0:
                self.remaining = [more]
                self._n_planned += more
        return batch

    @property
    def _n_scored(self) -> int:
        return sum(len(round_.positions) for round_ in self.rounds)

    def stop(self, why: str) -> None:
        """End here: time is up ("deadline"), no pair can be paid, or an engine does not answer."""
        self.stopped = why
        self.remaining.clear()

    def settle(self, predicted: Any, chance_above: Callable[..., FloatArray]) -> None:
        """End here if the expected recall of the best k is enough; it is noted in the last round.

        `chance_above(predicted, best, ranks=…)` is that of an `UncertainApproximation`, for this query.
        """
        started = time.perf_counter()
        recall = 0.0
        _, best, _ = self.best(self._k)
        if len(best) >= self._k:
            _, promising = self.prospects.best(
                min(SHORTLIST, self.prospects.n_left),
                acquisition=TopK(),
                stream=0,
                without=NONE,
                predicted=predicted,
            )
            recall = expected_recall(lambda some, ranks: chance_above(promising, some, ranks=ranks), best)
            if self._is_enough(recall):
                self.stop("settled")
        self.rounds[-1] = replace(self.rounds[-1], expected_recall=recall)
        # Counted to the round that has just ended, since there may be no next one.
        self.seconds["settle"] = time.perf_counter() - started

    def _is_enough(self, recall: float) -> bool:
        assert self._plan.stop_when is not None
        if self._plan.effort is None:
            return recall >= self._plan.stop_when
        rule, point = self._plan.effort
        exact = [round_.exact for round_ in self.rounds]
        spent = sum(map(len, exact)) / self._n_planned
        values = signs([recall], entered(exact, k=self._k), k=self._k, spent=spent)
        return bool(rule.expected_loss(values) <= point.loss)

    def best(self, k: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Positions, exact scores and rounds of the best k so far, best first; of each document only the best item."""
        if not self.rounds:
            return NONE, np.empty(0), NONE
        positions = np.concatenate([round_.positions for round_ in self.rounds])
        exact = np.concatenate([round_.exact for round_ in self.rounds])
        numbers = np.repeat([round_.number for round_ in self.rounds], [len(one.positions) for one in self.rounds])
        keys, by_document = self.prospects.keys(positions), self._documents(positions)
        if by_document is None:
            order = best_positions(exact, k, keys=keys)
        else:
            order = best_positions(exact, len(exact), keys=keys)
            # The first of each document is its best passage.
            _, firsts = np.unique(by_document[order], return_index=True)
            order = order[np.sort(firsts)[:k]]
        return positions[order], exact[order], numbers[order]

    def _documents(self, positions: IntArray) -> Any:
        """The documents of these positions, as numbers or ids; None where k counts items."""
        if self._plan.documents is not None:
            return self._plan.documents[positions]
        if self._plan.engine is None or not self._plan.engine.by_document:
            return None
        return np.array([item.document for item in self.prospects.items(positions)])

    def trace(self, *, settings: dict[str, object], approximate_scores: FloatArray | None = None) -> Trace:
        """The rounds so far, and what ended them."""
        stopped, purse, n_scored = self.stopped, self.purse, self._n_scored
        if stopped is None or (stopped == "deadline" and n_scored == self._n_planned):
            stopped = "budget" if self.prospects.n_left else "exhausted"
            if purse is not None and n_scored < self._plan.calls and (purse.ran_out or self.prospects.n_left):
                stopped = purse.ending
        return Trace(
            rounds=tuple(self.rounds),
            stopped=stopped,
            settings=settings,
            approximate_scores=approximate_scores,
            tokens=None if purse is None else purse.tokens,
            cost=None if purse is None else purse.cost,
        )

    def _topped_up(self, chosen: IntArray, size: int, purpose: str) -> IntArray:
        """The chosen positions, and a uniform sample of the rest up to this size."""
        if len(chosen) >= size:
            return chosen
        names = () if self._plan.same_first_for_all and purpose == "first" else (self.query.id,)
        stream = stream_key(self._plan.seed, purpose, *names)
        more = self.prospects.at_random(size - len(chosen), stream=stream, without=chosen)
        return np.concatenate([chosen, more])


class LockStep:
    """Searches of a plan for several queries that share an approximation and move round by round together.

    `ask()` for positions of every query, score them, `tell()` the scores. How queries are grouped never changes an
    answer.
    """

    is_on_device = False

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        prospects: Sequence[Prospects],
        approximation: Approximation | None,
    ) -> None:
        if plan.stop_when is not None and not isinstance(approximation, UncertainApproximation):
            raise InputError(
                "stop_when needs predictions that know how far they may be off, and those of this method do not. "
                "Search with method='gaussian', or with AdaCUR(approximator=GaussianModel(…))."
            )
        in_scores = np.asarray if approximation is None else approximation.in_scores
        self.searches = [
            AdaptiveSearch(plan, query, k, prospects=some, in_scores=in_scores)
            for query, some in zip(queries, prospects, strict=True)
        ]
        self._plan = plan
        self._approximation = approximation
        self._predicted: Sequence[Any] | None = None
        self._batches: list[IntArray] = []

    @property
    def goes_on(self) -> bool:
        """Whether any search has a round left."""
        return any(search.remaining for search in self.searches)

    @property
    def ended_early(self) -> bool:
        """Whether an engine failed after a search's last round was told."""
        return any(search.stopped == "engine" for search in self.searches)

    def items_at(self, positions: Sequence[int]) -> list[Item]:
        """The items at these positions."""
        return self._plan.items.at(positions)

    def wanted(self) -> SharedPosteriors | None:
        """What the next `ask` needs from a device, so that it can be computed with others'; None for nothing."""
        return None

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

    def tell(self, scores: Sequence[FloatArray], *, seconds: float = 0.0) -> None:
        """Exact scores of the positions last asked for, per query; `seconds` is what the scorer took for all."""
        self._predicted = None
        n_scored = max(1, sum(map(len, scores)))
        active = [(at, search) for at, search in enumerate(self.searches) if len(self._batches[at])]
        for at, search in active:
            search.seconds["score"] = seconds * len(scores[at]) / n_scored
            self._batches[at] = search.tell(scores[at])
        # The last solve would be the largest of all.
        if self._approximation is None or not (self._plan.keep_predictions or self.goes_on):
            return
        started = time.perf_counter()
        self._approximation.tell(self._batches, scores)
        solving = (time.perf_counter() - started) / len(self.searches)
        for _, search in active:
            search.seconds["solve"] = solving
        if self._plan.stop_when is not None and self.goes_on:
            self._settle(self._approximation)

    def stop(self) -> None:
        """End here, because time is up: nothing more is asked for, and `tell` takes the first few scores."""
        for search in self.searches:
            if search.remaining:
                search.stop("deadline")

    def final_predictions(self) -> Sequence[FloatArray]:
        """Predicted scores of every item after all rounds, per query."""
        assert self._approximation is not None
        return [self._approximation.in_scores(np.asarray(row)) for row in self._approximation.predict()]

    def _settle(self, approximation: Approximation) -> None:
        assert isinstance(approximation, UncertainApproximation)
        seconds, predicted = self._predict(approximation)
        for at, (search, row) in enumerate(zip(self.searches, predicted, strict=True)):
            # A search whose first items have all gone from an engine has no round yet.
            if search.remaining and search.rounds:
                search.seconds["predict"] = search.seconds.get("predict", 0.0) + seconds
                search.settle(row, partial(approximation.chance_above, at))

    def _predictions(self, approximation: Approximation) -> list[Any]:
        """The predictions of every query, as its prospects read them."""
        return list(approximation.predict())

    def _predict(self, approximation: Approximation) -> tuple[float, Sequence[Any]]:
        """Predict for all queries; the seconds per query, and the predictions."""
        started = time.perf_counter()
        self._predicted = self._predictions(approximation)
        return (time.perf_counter() - started) / len(self.searches), self._predicted


def expected_recall(chance_above: Callable[[FloatArray, IntArray], FloatArray], best: FloatArray) -> float:
    """The expected share of the true top k among the k best scored, whose scores are `best`, best first.

    Let N(s) be the number of unscored items above a score s, and s_1 ≥ s_2 ≥ … ≥ s_k the best scored. Of these, D are
    not in the true top k, where D ≥ d just when at least d unscored items lie above the d-th from their end:

        E[D] = Σ_d P(N(s_{k−d+1}) ≥ d),    expected recall = 1 − E[D] / k

    The first term alone, with N's mean in place of its probability, would count every unscored item above s_k as a
    miss, though each that comes in raises the bar for the next. N is a sum of rare, nearly independent events, so it is
    taken as Poisson.

    `chance_above(scores, ranks)` gives the chances of unscored items to lie above the best scored of these ranks, shape
    (items, scores). Ties with the last of them are not misses.
    """
    k = len(best)
    most = float(chance_above(best[-1:], np.array([k])).sum())
    if not math.isfinite(most):
        return 0.0
    # At greater depth P(N ≥ d) is nothing: N's mean is largest at the lowest score.
    depth = min(k, math.ceil(most + 8 * math.sqrt(most)) + 8)
    ranks = np.arange(k, k - depth, -1)
    means = chance_above(best[ranks - 1], ranks).sum(axis=0)
    return float(1 - _at_least(means).sum() / k)


def _at_least(means: FloatArray) -> FloatArray:
    """P(N_d ≥ d) for d = 1, 2, …, where N_d is Poisson with the d-th mean."""
    fewer = np.arange(len(means))
    log_factorials = np.cumsum(np.log(np.maximum(fewer, 1)))
    logs = fewer * np.log(np.maximum(means, 1e-300))[:, None] - means[:, None] - log_factorials
    return np.asarray(np.maximum(0.0, 1 - np.tril(np.exp(logs)).sum(axis=1)))
