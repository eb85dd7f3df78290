"""Which settings of "gaussian" searches suit an index, and what recall to expect, by replaying its anchor queries."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation import GaussianModel
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.budget import Budget, check_k
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query
from adacur.first_stages import Placed
from adacur.index import AnchorTable, locked
from adacur.index.files import write_atomically
from adacur.search import AnchorIndex
from adacur.search.adaptive import RANKS_THAT_COUNT, LockStep
from adacur.search.methods import Plan
from adacur.search.planning import plan_search
from adacur.search.tuned import (
    TUNED,
    Gain,
    GaussianSettings,
    Prediction,
    Tuning,
    as_stored,
    default_settings,
    read_tunings,
)
from adacur.tuning.held_out import AnchorScorer, HeldOut, check_anchors, check_exact, exact_anchors
from adacur.tuning.replaying import method_of, replayed

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
# A change must gain more than this many standard errors of the gain.
_STANDARD_ERRORS = 1.0
# Seconds: another tuning is written in far less, and what was tuned for minutes is not to be lost to it.
_PATIENCE = 10.0
# What an index has to add to re-ranking before one would build it for that.
_WORTH = 0.02
_RIVALS = ("adacur", "anncur", "rerank")
_DRAWS = 20_000
# Queries that move in lock-step share memory: their predictions, and the covariance of the scored items.
_PREDICTIONS_AT_ONCE = 20_000_000
_SCORED_AT_ONCE = 20_000


def tune(
    index: AnchorIndex,
    *,
    k: int = 10,
    budget: int = 100,
    queries: int = 100,
    seed: int = 0,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Choose the settings of "gaussian" for k items within a budget, and predict the recall of four methods.

    Anchor queries are searched for as if they were new; no scorer is called. Searches for about this k within about
    this budget (up to twice or half) then use these settings, unless they start from another first stage. They are
    stored in the index folder, or in memory where it cannot be written to.

    Starting from the defaults, one setting is changed at a time, where that gains more than its standard error. The
    recall predicted for "gaussian" is measured on queries that the choice has not seen: each half of them is searched
    with the settings that the other half would have chosen.

    - `k`, `budget`: what to tune for. A budget of every item or more is exact: there is nothing to choose or store;
    - `queries`: how many anchor queries to replay at most, by a draw with this `seed`;
    - `quick`: try only what matters most, once;
    - `progress`: called after each replay with the number done and the most there may be.
    """
    check_anchors(index, "Tuning")
    check_k(k, Budget(budget).calls)
    # A damaged file is reported before the work and not after it.
    _ = index.tunings
    exact = np.flatnonzero(exact_anchors(index))
    if budget < len(index):
        if len(exact) < FEWEST_QUERIES <= len(index.anchor_queries):
            check_exact(index)
        check_anchors(index, "Tuning", fewest=FEWEST_QUERIES)
        if queries < FEWEST_QUERIES:
            raise InputError(f"queries must be at least {FEWEST_QUERIES}; got {queries}.")
    anchors, model = index.anchors, index.snapshot.gaussian_model()
    if len(exact) < len(index.anchor_queries):
        # Predicted scores have seen those of the queries replayed: anchor queries that have any are left out.
        some = tuple(index.anchor_queries[at] for at in exact.tolist())
        anchors = AnchorTable(index.items, some, np.ascontiguousarray(index.matrix[:, exact]))
        model = index.snapshot.uncompressed_model()
    replays = Replays(
        HeldOut(anchors, queries=queries, seed=seed), index.snapshot.stage(None), model, k=k, budget=budget
    )
    tuning = choose_settings(replays, seed=seed, quick=quick, progress=progress)
    if not tuning.is_exact:
        _store(index, tuning)
    return tuning


def prediction_of(method: str, recalls: FloatArray) -> Prediction:
    """The recall to expect of new queries, from the recalls of as many replayed."""
    mean, variance = float(recalls.mean()), float(recalls.var(ddof=1))
    # As if each query were several yes-or-no questions: their means are never outside 0 … 1, and a method that has not
    # failed yet may still fail.
    per_query = max(1.0, mean * (1 - mean) / variance) if variance else 1.0
    n = max(1, round(per_query * len(recalls)))
    draws = np.random.default_rng(0)
    chances = draws.beta(mean * n + 0.5, (1 - mean) * n + 0.5, size=_DRAWS)
    low, high = np.quantile(draws.binomial(n, chances) / n, [0.025, 0.975])
    return Prediction(method=method, recall=mean, low=float(low), high=float(high))


def choose_settings(
    replays: Replays, *, seed: int = 0, quick: bool = False, progress: Callable[[int, int], None] | None = None
) -> Tuning:
    """The tuning that these replays come to; `tune` says how."""
    queries, k = replays.held_out.queries, replays.k
    tuning = Tuning(
        k=k,
        budget=min(replays.budget, replays.n_items),
        settings=default_settings(k),
        first=replays.first.name if replays.first else None,
        n_queries=len(queries),
        seed=seed,
        pseudo=sum(query.id.startswith("pq-") for query in queries) * 2 > len(queries),
    )
    if replays.budget >= replays.n_items:
        certain = tuple(Prediction(method, 1.0, 1.0, 1.0) for method in ("gaussian", *_RIVALS))
        return replace(tuning, predictions=certain, gain=Gain(0.0, 0.0, 0.0))
    choices, passes = (_QUICK, 1) if quick else (_FULL, 2)
    at_most = 1 + len(_RIVALS) + passes * sum(len(values) - 1 for values in choices.values())
    replays.report = None if progress is None else lambda done: progress(done, max(at_most, done))

    def chosen(among: BoolArray) -> GaussianSettings:
        return _descend(lambda settings: replays.recalls(settings)[among], default_settings(k), choices, passes=passes)

    one_half = np.arange(len(queries)) % 2 == 0
    settings = chosen(np.ones(len(queries), dtype=np.bool_))
    unseen = np.where(one_half, replays.recalls(chosen(~one_half)), replays.recalls(chosen(one_half)))
    rivals = {method: replays.recalls(method) for method in _RIVALS}
    predictions = {"gaussian": unseen, **rivals}
    return replace(
        tuning,
        settings=settings,
        predictions=tuple(prediction_of(name, values) for name, values in predictions.items()),
        gain=_gain(unseen - rivals["rerank"]),
    )


def verdict(tuning: Tuning) -> str:
    """In words: what the index adds to re-ranking, and whether that is worth having."""
    k, budget, gain = tuning.k, tuning.budget, tuning.gain
    if gain is None:
        return "There were too few anchor queries to tune with. The default settings are used."
    if tuning.is_exact:
        return f"{budget} calls score every item: every method finds the exact top {k}. Nothing to tune."
    plain, more, low, high = (
        f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")
        for value in (tuning.recall_of("rerank").recall, gain.recall, gain.low, gain.high)
    )
    without = f"Re-ranking {tuning.first}'s best {budget}" if tuning.first else f"Scoring {budget} at random"
    if gain.high < 0:
        advice = "re-ranking does better here. Search with method='rerank'."
    elif gain.low <= 0 and gain.high >= _WORTH:
        # Queries that would tell this gain from none, or from one that is not worth having, if it stays as it is.
        narrow = max(gain.recall, _WORTH - gain.recall)
        needed = -(-math.ceil(tuning.n_queries * ((gain.high - gain.low) / 2 / narrow) ** 2) // 10) * 10
        advice = f"too few anchor queries to tell; {tuning.n_queries} were replayed, and about {needed:,} are needed."
    else:
        advice = "probably not worth building for this." if gain.recall < _WORTH else "worth having."
    if tuning.pseudo:
        advice += " The anchor queries are pseudo-queries, made from the items: real queries may give other numbers."
    return f"{without} finds {plain} of the top {k}; the index adds {more} [{low}, {high}]: {advice}"


def store_tuning(folder: Path, tuning: Tuning, *, anchor_queries: Sequence[Query]) -> tuple[Tuning, ...]:
    """Add a tuning to a folder's, in the place of one for the same k and budget; all of them."""
    with locked(folder, wait=_PATIENCE):
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        tunings = _with(read_tunings(folder, anchor_queries=anchor_queries, warn=False), tuning)
        write_atomically(folder / TUNED, as_stored(tunings, anchor_queries=anchor_queries))
    return tunings


def _with(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    others = (one for one in tunings if (one.k, one.budget) != (tuning.k, tuning.budget))
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def _store(index: AnchorIndex, tuning: Tuning) -> None:
    snapshot = index.snapshot
    snapshot.tunings = _with(snapshot.tunings, tuning)
    if snapshot.home is None or index.is_read_only:
        return
    try:
        snapshot.tunings = store_tuning(snapshot.home, tuning, anchor_queries=snapshot.anchors.anchor_queries)
    except OSError as error:
        # An index may be served from a folder that cannot be written to.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


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


def _gain(differences: FloatArray) -> Gain:
    mean = float(differences.mean())
    reach = 1.96 * float(differences.std(ddof=1)) * float(np.sqrt(2 / len(differences)))
    return Gain(recall=mean, low=mean - reach, high=mean + reach)


class Replays:
    """Top-k-Recall of held-out anchor queries within a budget, by method; each method is replayed once."""

    def __init__(self, held_out: HeldOut, first: Placed | None, model: GaussianModel, *, k: int, budget: int) -> None:
        self.held_out = held_out
        self.first = first
        self.k = k
        self.budget = budget
        self.report: Callable[[int], None] | None = None
        self._model = model
        self._candidates: list[IntArray] | None = None
        self._recalls: dict[str | GaussianSettings, FloatArray] = {}

    @property
    def n_items(self) -> int:
        """How many items the queries are searched among."""
        return len(self.held_out.anchors.items)

    def recalls(self, method: str | GaussianSettings) -> FloatArray:
        """Of each query: by a method's name, or by "gaussian" with these settings."""
        if method not in self._recalls:
            self._recalls[method] = self.held_out.recalls(self._searched(self._plan(method)), k=self.k)
            if self.report is not None:
                self.report(len(self._recalls))
        return self._recalls[method]

    def _plan(self, method: str | GaussianSettings) -> Plan:
        anchors: AnchorScores = self.held_out.anchors
        chosen = method if isinstance(method, str) else method_of(method, self._model)
        index = AnchorIndex(anchors, scorer=AnchorScorer(anchors))
        plan = plan_search(index, self.k, budget=self.budget, method=chosen, first=self.first)
        return replace(plan, seed=self.held_out.seed)

    def _searched(self, plan: Plan) -> list[FloatArray]:
        """Exact scores of what a plan finds for each query, best first."""
        held_out, candidates = self.held_out, self._first_stage()
        together = max(1, min(_PREDICTIONS_AT_ONCE // self.n_items, _SCORED_AT_ONCE // plan.calls))
        best: list[FloatArray] = []
        for start in range(0, len(held_out.queries), together):
            group = slice(start, start + together)
            approximation = None
            if plan.approximator is not None:
                approximation = replayed(plan.approximator, held_out.anchors, held_out.positions[group])
            steps = LockStep(
                plan,
                held_out.queries[group],
                self.k,
                candidates=candidates[group],
                allowed=np.ones(self.n_items, dtype=np.bool_),
                approximation=approximation,
            )
            exact = held_out.exact[group]
            while steps.goes_on:
                steps.tell([scores[batch] for scores, batch in zip(exact, steps.ask(), strict=True)])
            best += [search.best(self.k)[1] for search in steps.searches]
        return best

    def _first_stage(self) -> list[IntArray]:
        if self._candidates is None:
            queries = self.held_out.queries
            self._candidates = [np.empty(0, dtype=np.intp)] * len(queries)
            if self.first is not None:
                n = min(self.n_items, max(self.budget, RANKS_THAT_COUNT))
                self._candidates = [positions for positions, _ in self.first.search(queries, n)]
        return self._candidates
