"""What an index can be tuned by, and what can be promised of it: its own anchor queries, searched again.

Every anchor query has all its exact scores in the index. Searched for as if it had never been an anchor query, it shows
what a new query will meet, without a call to the scorer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adacur.approximation import GaussianModel
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.budget import Budget
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.first_stages import Placed
from adacur.search.adaptive import LockStep
from adacur.search.methods import AdaCUR, Method
from adacur.search.plan import Plan
from adacur.search.planning import plan_search
from adacur.search.prospects import RANKS_THAT_COUNT
from adacur.search.replay import AnchorScorer, Replayable
from adacur.search.settings import GaussianSettings, default_settings

__all__ = ["FEWEST_QUERIES", "Gain", "Prediction", "Replay", "Tuning", "first_name", "prediction_of", "tune"]

# With fewer, the noise of a mean recall is larger than anything that a setting could gain.
FEWEST_QUERIES = 20
# In the order in which they are tried: what matters most, first.
_QUICK: Mapping[str, tuple[Any, ...]] = {
    "first_weight": (0.0, 0.1, 0.25, 0.5),
    "rounds": (5, 10),
    "first_batch": (None, 0.3),
    "first_share": (0.0, 0.2),
}
_FULL: Mapping[str, tuple[Any, ...]] = {
    **_QUICK,
    "first_batch": (None, 0.3, 0.5),
    "embedding_weight": (None, 0.5, 2.0),
    "noise": (0.1, 0.3, 0.8),
    "locality": (None, 0.15),
}
# A change is kept if its gain is so many times as large as the noise of the gain.
_STANDARD_ERRORS = 1.0
_RIVALS = ("adacur", "anncur", "rerank")
_DRAWS = 20_000
# What an index has to add to re-ranking before one would build it for that.
_WORTH = 0.02
# Queries that move in lock-step share memory: their predictions, and what is kept of the items scored.
_PREDICTIONS_AT_ONCE = 20_000_000
_SCORED_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Prediction:
    """The mean Top-k-Recall that a method is expected to reach, and where it will lie in 19 of 20 cases.

    The interval is for the mean over as many new queries as were replayed: both samples' noise is in it.
    """

    method: str
    recall: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Gain:
    """What the Gaussian is expected to add to re-ranking, query by query, with an interval of the same kind."""

    recall: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings chosen for k items within a budget, and the recall to expect of them and of the other methods.

    `first` names the first stage that was replayed. `n_queries` counts the anchor queries replayed: 0 where there were
    too few to tune by, and the defaults are kept. `pseudo` says that they were pseudo-queries.
    """

    k: int
    budget: int
    settings: GaussianSettings
    first: str | None = None
    n_queries: int = 0
    seed: int = 0
    pseudo: bool = False
    predictions: tuple[Prediction, ...] = ()
    gain: Gain | None = None

    @property
    def is_default(self) -> bool:
        """Whether the settings are those of an index that was never tuned."""
        return self.settings == default_settings(self.k)

    def recall_of(self, method: str) -> Prediction:
        """The prediction for a method."""
        found = next((prediction for prediction in self.predictions if prediction.method == method), None)
        if found is None:
            raise InputError(f"Nothing is predicted of {method!r}; only of: {', '.join(self._methods) or 'no method'}.")
        return found

    @property
    def is_exact(self) -> bool:
        """Whether the budget covers every item, so that all methods find the same and there is nothing to choose."""
        return bool(self.predictions) and all(one.low == one.high == 1.0 for one in self.predictions)

    @property
    def _methods(self) -> tuple[str, ...]:
        return tuple(prediction.method for prediction in self.predictions)

    @property
    def verdict(self) -> str:
        """In words: what the index adds to re-ranking, and whether that is worth having."""
        if self.gain is None:
            return (
                f"Too few anchor queries to tune with: at least {FEWEST_QUERIES} are needed. The default settings are "
                "kept."
            )
        if self.is_exact:
            return f"{self.budget} calls score every item: every method finds the exact top {self.k}. Nothing to tune."
        plain = self.recall_of("rerank").recall
        without = f"Re-ranking {self.first}'s best {self.budget}" if self.first else f"Scoring {self.budget} at random"
        more, low, high = self.gain.recall, self.gain.low, self.gain.high
        adds = f"{without} finds {_share(plain)} of the top {self.k}; the index adds {_share(more)} "
        adds += f"[{_share(low)}, {_share(high)}]: "
        if high < 0:
            adds += "re-ranking does better here. Search with method='rerank'."
        elif low <= 0 and high >= _WORTH:
            needed = _queries_needed(self.gain, n=self.n_queries)
            adds += f"too few anchor queries to tell; {self.n_queries} were replayed, and about {needed:,} are needed."
        elif more < _WORTH:
            adds += "probably not worth building for this."
        else:
            adds += "worth having."
        if self.pseudo:
            adds += " The anchor queries are pseudo-queries, made from the items: real queries may give other numbers."
        return adds


def tune(
    replay: Replay,
    *,
    k: int = 10,
    budget: int = 100,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Choose settings by replay, and predict the recall of the four methods.

    Starting from the defaults, one setting is changed at a time, where that gains more than its own standard error.
    What is predicted for the Gaussian is measured on queries that the choice has not seen: each half of them is
    searched with what the other half would have chosen. `quick` tries only what matters most, once.
    `progress` is told after each replay how many are done, of how many at most.
    """
    Budget(budget).check_k(k)
    pseudo = sum(query.id.startswith("pq-") for query in replay.queries) * 2 > len(replay.queries)
    kept = Tuning(
        k=k, budget=budget, settings=default_settings(k), first=replay.first_name, seed=replay.seed, pseudo=pseudo
    )
    n_queries = len(replay.queries)
    if budget >= replay.n_items:
        kept = replace(kept, budget=replay.n_items)
        certain = tuple(Prediction(method, 1.0, 1.0, 1.0) for method in ("gaussian", *_RIVALS))
        return replace(kept, n_queries=n_queries, predictions=certain, gain=Gain(0.0, 0.0, 0.0))
    choices = _QUICK if quick else _FULL
    passes = 1 if quick else 2
    at_most = 1 + len(_RIVALS) + passes * sum(len(values) - 1 for values in choices.values())
    done: set[str | GaussianSettings] = set()

    def recalls(method: str | GaussianSettings) -> FloatArray:
        values = replay.recalls(method, k=k, budget=budget)
        if method not in done:
            done.add(method)
            if progress is not None:
                progress(len(done), max(at_most, len(done)))
        return values

    def chosen(among: BoolArray) -> GaussianSettings:
        return _descend(lambda settings: recalls(settings)[among], default_settings(k), choices, passes=passes)

    one_half = np.arange(n_queries) % 2 == 0
    settings = chosen(np.ones(n_queries, dtype=np.bool_))
    unseen = np.where(one_half, recalls(chosen(~one_half)), recalls(chosen(one_half)))
    rivals = {method: recalls(method) for method in _RIVALS}
    return replace(
        kept,
        settings=settings,
        n_queries=n_queries,
        predictions=(
            prediction_of("gaussian", unseen),
            *(prediction_of(name, values) for name, values in rivals.items()),
        ),
        gain=_gain(unseen - rivals["rerank"]),
    )


def first_name(first: Placed | None) -> str | None:
    """What a first stage is called in traces and tunings."""
    return None if first is None else getattr(first, "name", type(first).__name__)


def _descend(
    recalls: Callable[[GaussianSettings], FloatArray],
    start: GaussianSettings,
    choices: Mapping[str, tuple[Any, ...]],
    *,
    passes: int,
) -> GaussianSettings:
    current = start
    for _ in range(passes):
        before = current
        for name, values in choices.items():
            rivals = [replace(current, **{name: value}) for value in values if value != getattr(current, name)]
            best = max(rivals, key=lambda rival: float(recalls(rival).mean()))
            gain = recalls(best) - recalls(current)
            if gain.mean() > _STANDARD_ERRORS * gain.std(ddof=1) / np.sqrt(len(gain)):
                current = best
        if current == before:
            break
    return current


def prediction_of(method: str, recalls: FloatArray) -> Prediction:
    """The recall to expect of new queries, from the recalls of as many replayed."""
    mean, variance = float(recalls.mean()), float(recalls.var(ddof=1))
    # As if each query were so many questions of yes or no: the means of those are never outside 0 … 1, and a method
    # that has not failed yet may still fail.
    per_query = max(1.0, mean * (1 - mean) / variance) if variance else 1.0
    n = max(1, round(per_query * len(recalls)))
    draws = np.random.default_rng(0)
    chances = draws.beta(mean * n + 0.5, (1 - mean) * n + 0.5, size=_DRAWS)
    low, high = np.quantile(draws.binomial(n, chances) / n, [0.025, 0.975])
    return Prediction(method=method, recall=mean, low=float(low), high=float(high))


def _gain(differences: FloatArray) -> Gain:
    mean = float(differences.mean())
    reach = 1.96 * float(differences.std(ddof=1)) * float(np.sqrt(2 / len(differences)))
    return Gain(recall=mean, low=mean - reach, high=mean + reach)


def _queries_needed(gain: Gain, *, n: int) -> int:
    """How many queries would tell this gain from none, or from one that is not worth having, if it stays as it is."""
    reach = (gain.high - gain.low) / 2
    narrow = max(gain.recall, _WORTH - gain.recall)
    return -(-math.ceil(n * (reach / narrow) ** 2) // 10) * 10


def _share(value: float) -> str:
    """A share without the zero before the point."""
    return f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")


class Replay:
    """Searches for anchor queries, each as if it had never been one; no scorer is called.

    Takes up to `queries` of them, by a seeded draw. What was searched once is remembered.
    """

    def __init__(
        self,
        anchors: AnchorScores,
        *,
        first: Placed | None,
        approximator: GaussianModel,
        queries: int,
        seed: int = 0,
    ) -> None:
        keys = item_keys(query.id for query in anchors.anchor_queries)
        draws = uniform(stream_key(seed, "held out"), keys)
        self._anchors = anchors
        self._first = first
        self._gaussian = approximator
        self._asked = queries
        self.seed = seed
        self.positions = np.sort(best_positions(draws, min(queries, len(keys)), keys=keys))
        self.queries = [anchors.anchor_queries[at] for at in self.positions.tolist()]
        self._candidates: list[IntArray] = []
        self._n_candidates = 0
        self._found: dict[tuple[Any, int], FloatArray] = {}
        self._thresholds: dict[int, FloatArray] = {}

    @property
    def n_items(self) -> int:
        """How many items the queries are searched among."""
        return len(self._anchors.items)

    @property
    def first_name(self) -> str | None:
        """The first stage that the queries start from."""
        return first_name(self._first)

    def serves(self, first: Placed | None, approximator: GaussianModel, *, queries: int, seed: int) -> bool:
        """Whether a new replay of these would be no other than this one."""
        same = first is self._first and approximator is self._gaussian
        return same and (queries, seed) == (self._asked, self.seed)

    def recalls(self, method: str | GaussianSettings, *, k: int, budget: int) -> FloatArray:
        """Top-k-Recall of each query: by a method's name, or by the Gaussian with these settings."""
        if (method, budget) not in self._found:
            self._found[method, budget] = self._best(self._plan(method, budget))
        found = self._found[method, budget]
        k = min(k, len(self._anchors.items))
        return np.asarray((found[:, :k] >= self._kth_best(k)[:, None]).sum(axis=1) / k)

    def _plan(self, method: str | GaussianSettings, budget: int) -> Plan:
        from adacur.search.anchor_index import AnchorIndex

        chosen: str | Method = (
            method
            if isinstance(method, str)
            else AdaCUR(
                rounds=method.rounds,
                approximator=method.approximator(self._gaussian),
                first_batch=method.first_batch,
                first_share=method.first_share,
                first_weight=method.first_weight,
            )
        )
        index = AnchorIndex(self._anchors, scorer=AnchorScorer(self._anchors))
        return replace(plan_search(index, 1, budget=budget, method=chosen, first=self._first), seed=self.seed)

    def _best(self, plan: Plan) -> FloatArray:
        """Exact scores of what a plan finds for each query, best first, shape (queries, calls)."""
        n_items = len(self._anchors.items)
        calls = min(plan.calls, n_items)
        candidates = self._first_stage(min(n_items, max(calls, RANKS_THAT_COUNT)))
        together = max(1, min(_PREDICTIONS_AT_ONCE // n_items, _SCORED_AT_ONCE // calls))
        found = np.empty((len(self.queries), calls))
        for start in range(0, len(self.queries), together):
            group = slice(start, start + together)
            found[group] = self._searched(plan, self.positions[group], self.queries[group], candidates[group], calls)
        return found

    def _searched(
        self, plan: Plan, positions: IntArray, queries: list[Query], candidates: list[IntArray], calls: int
    ) -> FloatArray:
        approximator: Replayable | None = plan.approximator  # type: ignore[assignment]
        exact = self._anchors.matrix[:, positions]
        search = LockStep(
            plan,
            queries,
            calls,
            candidates=candidates,
            allowed=np.ones(len(exact), dtype=np.bool_),
            approximation=approximator.replay(self._anchors, positions) if approximator else None,
        )
        while search.goes_on:
            search.tell([exact[asked, column] for column, asked in enumerate(search.ask())])
        return np.stack([one.best(calls)[1] for one in search.searches])

    def _first_stage(self, wanted: int) -> list[IntArray]:
        if self._first is None:
            return [np.empty(0, dtype=np.intp)] * len(self.queries)
        if self._n_candidates < wanted:
            self._candidates = [positions for positions, _ in self._first.search(self.queries, wanted)]
            self._n_candidates = wanted
        return self._candidates

    def _kth_best(self, k: int) -> FloatArray:
        if k not in self._thresholds:
            cut = len(self._anchors.items) - k
            columns = (self._anchors.matrix[:, at] for at in self.positions.tolist())
            self._thresholds[k] = np.array([np.partition(column, cut)[cut] for column in columns])
        return self._thresholds[k]
