"""Which settings of "gaussian" searches suit an index, and what recall to expect, by replaying its anchor queries."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.first_stages import Placed
from adacur.first_stages.joined import SEPARATOR
from adacur.model import GaussianModel
from adacur.model.rank_slopes import RANKS_THAT_COUNT, RankSlopes
from adacur.protocols import AnchorScores
from adacur.records import Query
from adacur.replay.held_out import AnchorScorer, HeldOut, by_items, exact_anchors, method_of, replayed
from adacur.replay.learned_effort import Course, course_of, learned_effort
from adacur.search import AnchorIndex
from adacur.search.asktell import AskTell, QueryBatch
from adacur.search.effort import FIRST_BATCH, NEVER, ROUNDS
from adacur.search.methods import AdaCUR
from adacur.search.places import in_memory
from adacur.search.plan import Plan
from adacur.search.planning import plan_search
from adacur.search.stopping import Stop
from adacur.search.tuned import (
    TUNED,
    Gain,
    GaussianSettings,
    Judged,
    Mean,
    Prediction,
    TriedFirst,
    Tuning,
    as_stored,
    default_settings,
    read_tunings,
)
from adacur.store import AnchorTable, locked
from adacur.store.writing import full_disk_reported, write_atomically

# With fewer, the noise of a mean recall is larger than anything that a setting could gain.
FEWEST_QUERIES = 20
# In the order in which they are tried: what matters most, first.
_QUICK: Mapping[str, tuple[Any, ...]] = {
    "first_weight": (None, 0.1, 0.25, 0.5),
    "rounds": (5, 10),
    "first_batch": (None, 0.3),
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


def stages_of(index: AnchorIndex) -> dict[str | None, Placed | None]:
    """What searches of an index may start from, in order of preference: the default, the others, all together."""
    snapshot = index.snapshot
    names = dict.fromkeys((snapshot.default_first, *snapshot.named_stages, snapshot.all_joined))
    stages: dict[str | None, Placed | None] = {
        name: snapshot.stage(name) for name in names if name is not None and name != "random"
    }
    return stages or {None: None}


def replayable(index: AnchorIndex, *, queries: int, seed: int) -> tuple[HeldOut, GaussianModel]:
    """Some anchor queries whose scores are all exact, and the model to replay them with."""
    exact = np.flatnonzero(exact_anchors(index))
    anchors, model = index.anchors, index.snapshot.gaussian_model()
    if len(exact) < len(index.anchor_queries):
        # Predicted scores have seen those of the queries replayed: anchor queries that have any are left out.
        some = tuple(index.anchor_queries[at] for at in exact.tolist())
        anchors = AnchorTable(index.items, some, np.ascontiguousarray(index.matrix[:, exact]))
        model = index.snapshot.uncompressed_model()
    return HeldOut(anchors, queries=queries, seed=seed), model


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
    replays: Replays,
    *,
    first: str | None = None,
    seed: int = 0,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """The tuning that these replays come to; `tune` says how. `first` is the first stage where it is chosen already."""
    queries, k, stages = replays.held_out.queries, replays.k, list(replays.stages)
    tuning = Tuning(
        k=k,
        budget=min(replays.budget, replays.n_items),
        settings=default_settings(k),
        first=first or stages[0],
        n_queries=len(queries),
        seed=seed,
        pseudo=sum(query.id.startswith("pq-") for query in queries) * 2 > len(queries),
    )
    if replays.budget >= replays.n_items:
        certain = tuple(Prediction(method, 1.0, 1.0, 1.0) for method in ("gaussian", *_RIVALS))
        return replace(tuning, predictions=certain, gain=Gain(0.0, 0.0, 0.0))
    choices, passes = (_QUICK, 1) if quick else (_FULL, 2)
    at_most = len(_RIVALS) - 1 + 2 * len(stages) + passes * sum(len(values) - 1 for values in choices.values())
    replays.report = None if progress is None else lambda done: progress(done, max(at_most, done))
    usual = default_settings(k)

    def best_first(method: str | GaussianSettings, among: BoolArray) -> str | None:
        return best_stage({stage: replays.recalls(method, stage)[among] for stage in stages})

    def chosen(stage: str | None, among: BoolArray) -> GaussianSettings:
        """One setting after another is changed to its best value, until no change gains."""

        def recalls(settings: GaussianSettings) -> FloatArray:
            return replays.recalls(settings, stage)[among]

        current = usual
        for _ in range(passes):
            before = current
            for name, values in choices.items():
                rivals = [replace(current, **{name: value}) for value in values if value != getattr(current, name)]
                best = max(rivals, key=lambda rival: float(recalls(rival).mean()))
                if gains(recalls(best) - recalls(current)):
                    current = best
            if current == before:
                break
        return current

    every, one_half = np.ones(len(queries), dtype=np.bool_), np.arange(len(queries)) % 2 == 0
    start, rerank_first = first or best_first(usual, every), best_first("rerank", every)
    settings = chosen(start, every)

    def by_the_other(half: BoolArray) -> FloatArray:
        """Recalls with what the other half would have chosen; from another first stage, with the default settings."""
        stage = first or best_first(usual, ~half)
        return replays.recalls(chosen(stage, ~half) if stage == start else usual, stage)

    def reranked(half: BoolArray) -> FloatArray:
        return replays.recalls("rerank", best_first("rerank", ~half))

    unseen = np.where(one_half, by_the_other(one_half), by_the_other(~one_half))
    rivals = {method: replays.recalls(method, start) for method in _RIVALS}
    rivals["rerank"] = np.where(one_half, reranked(one_half), reranked(~one_half))
    tried = [(stage, replays.recalls(usual, stage), replays.recalls("rerank", stage)) for stage in stages if stage]
    return replace(
        tuning,
        settings=settings,
        first=start,
        rerank_first=rerank_first,
        tried=tuple(TriedFirst(stage, float(ours.mean()), float(theirs.mean())) for stage, ours, theirs in tried),
        predictions=tuple(prediction_of(name, values) for name, values in {"gaussian": unseen, **rivals}.items()),
        gain=_gain(unseen - rivals["rerank"]),
        effort=None
        if quick or start is None
        else learned_effort(replays.courses(settings, start), whole=replays.recalls(settings, start)),
    )


def best_stage(values: Mapping[str | None, FloatArray]) -> str | None:
    """The first stage to take, given values per query of each, the default first.

    Another takes the default's place, and all together that of one, only for a gain that can be seen.
    """
    chosen, *others = values
    single = [other for other in others if SEPARATOR not in (other or "")]
    for rivals in (single, [other for other in others if other not in single]):
        best = max(rivals, key=lambda rival: float(values[rival].mean()), default=chosen)
        if gains(values[best] - values[chosen]):
            chosen = best
    return chosen


def gains(differences: FloatArray) -> bool:
    """Whether a mean difference, query by query, is a gain of more than its standard error."""
    return bool(differences.mean() > _STANDARD_ERRORS * differences.std(ddof=1) / np.sqrt(len(differences)))


def verdict(tuning: Tuning) -> str:
    """In words: what the judges prefer, what the index adds to re-ranking, and whether that is worth having."""
    k, budget, gain = tuning.k, tuning.budget, tuning.gain
    by_judges = f"{_judges_verdict(tuning, tuning.judged)} " if tuning.judged else ""
    if gain is None:
        return "There were too few anchor queries to tune with. The default settings are used."
    if tuning.is_exact:
        return f"{by_judges}{budget} calls score every item: every method finds the exact top {k}. Nothing to tune."
    plain, more, low, high = map(_short, (tuning.recall_of("rerank").recall, gain.recall, gain.low, gain.high))
    reranked = tuning.rerank_first or tuning.first
    without = f"Re-ranking {reranked}'s best {budget}" if reranked else f"Scoring {budget} at random"
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
    return f"{by_judges}{without} finds {plain} of the top {k}; the index adds {more} [{low}, {high}]: {advice}"


def _judges_verdict(tuning: Tuning, judged: Judged) -> str:
    order = f"fuse {judged.fuse:g}" if judged.fuse else "the scorer's order"
    pool = f" and a pool of {judged.pool}" if judged.pool else ""
    means = (judged.chosen, judged.plain, judged.rerank, judged.alone)
    quality, plain, rerank, alone = (_short(mean.value) for mean in means)
    said = (
        f"By {judged.n_queries} judged queries: {tuning.budget} calls from {tuning.first} with {order}{pool} reach "
        f"{judged.measure} {quality}, {_more(judged.gain)} more than a search of {judged.largest} calls without "
        f"tuning ({plain}); re-ranking as many with the same order reaches {rerank}."
    )
    if (worth := judged.worth) is None:
        return said
    said += f" {judged.alone_first} alone, 0 calls, reaches {alone}: the calls add {_more(worth)}."
    if worth.high < 0:
        return f"{said} Use no scorer here."
    if worth.low <= 0:
        return f"{said} No gain is proved: use no scorer here, or judge more queries."
    if judged.rerank.value >= judged.chosen.value:
        said += " The judges see nothing in what the search finds beyond re-ranking."
    return said


def _more(gain: Mean) -> str:
    return f"{_short(gain.value)} [{_short(gain.low)}, {_short(gain.high)}]"


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")


def store_tuning(folder: Path, tuning: Tuning, *, anchor_queries: Sequence[Query]) -> tuple[Tuning, ...]:
    """Add a tuning to a folder's, in the place of one for the same k and budget; all of them.

    Of tunings by judgements there is one for each k: it says how much to spend.
    """
    with locked(folder, wait=_PATIENCE):
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        tunings = _with(read_tunings(folder, anchor_queries=anchor_queries, warn=False), tuning)
        write_atomically(folder / TUNED, as_stored(tunings, anchor_queries=anchor_queries))
    return tunings


def _with(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    others = (
        one
        for one in tunings
        if (one.k, one.budget) != (tuning.k, tuning.budget) and not (one.k == tuning.k and one.judged and tuning.judged)
    )
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def store(index: AnchorIndex, tuning: Tuning) -> None:
    """Let searches of an index use a tuning, and keep it in its folder, where that can be written to."""
    snapshot = index.snapshot
    snapshot.tunings = _with(snapshot.tunings, tuning)
    if snapshot.home is None:
        return
    with where_writable(snapshot.home):
        snapshot.tunings = store_tuning(snapshot.home, tuning, anchor_queries=snapshot.anchors.anchor_queries)


@contextlib.contextmanager
def where_writable(home: Path) -> Iterator[None]:
    """Write to an index, or leave it: it may be served from a folder that cannot be written to."""
    try:
        with full_disk_reported(home, lambda: "the index is as it was", what="tuning"):
            yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _gain(differences: FloatArray) -> Gain:
    mean = float(differences.mean())
    reach = 1.96 * float(differences.std(ddof=1)) * float(np.sqrt(2 / len(differences)))
    return Gain(recall=mean, low=mean - reach, high=mean + reach)


@dataclass(eq=False)
class Replays:
    """Top-k-Recall of held-out anchor queries within a budget, by method and first stage; each is replayed once.

    `report` is called after each replay with the number done.
    """

    held_out: HeldOut
    stages: Mapping[str | None, Placed | None]
    model: GaussianModel
    k: int
    budget: int
    slopes: Callable[[Placed | None], RankSlopes | None] = lambda first: None
    report: Callable[[int], None] | None = None
    _candidates: dict[str | None, tuple[list[IntArray], list[list[IntArray]]]] = field(default_factory=dict)
    _recalls: dict[tuple[str | GaussianSettings, str | None], FloatArray] = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        """How many items the queries are searched among."""
        return len(self.held_out.anchors.items)

    def recalls(self, method: str | GaussianSettings, first: str | None) -> FloatArray:
        """Of each query, from a first stage: by a method's name, or by "gaussian" with these settings."""
        key = method, first
        if key not in self._recalls:
            plan = self._plan(method, self.stages[first])
            best = [search.best()[1][: self.k] for search in self._searched(plan, *self._first_stage(first))]
            self._recalls[key] = self.held_out.recalls(best, k=self.k)
            if self.report is not None:
                self.report(len(self._recalls))
        return self._recalls[key]

    def courses(self, settings: GaussianSettings, first: str | None) -> list[Course]:
        """Of each query, what a search in the small rounds of `effort` knows and finds as it goes."""
        plan = self._plan(replace(settings, rounds=ROUNDS, first_batch=FIRST_BATCH), self.stages[first])
        searches = self._searched(replace(plan, stop=Stop(NEVER)), *self._first_stage(first))
        return [
            course_of(search.rounds, k=self.k, budget=self.budget, threshold=float(least))
            for search, least in zip(searches, self.held_out.least(self.k), strict=True)
        ]

    def _plan(self, method: str | GaussianSettings, first: Placed | None) -> Plan:
        anchors: AnchorScores = self.held_out.anchors
        chosen: str | AdaCUR = (
            method
            if isinstance(method, str)
            else method_of(method, self.model, n_anchors=len(anchors.anchor_queries), slopes=self.slopes(first))
        )
        index = AnchorIndex(anchors, scorer=AnchorScorer(anchors))
        # What was tuned before must not have a say.
        index.snapshot.tunings = ()
        plan = plan_search(index, self.k, budget=self.budget, method=chosen, first=first, fuse=0)
        return by_items(replace(plan, seed=self.held_out.seed))

    def _searched(
        self, plan: Plan, candidates: Sequence[IntArray], lists: Sequence[list[IntArray]]
    ) -> Iterator[AskTell]:
        """The search of each query by a plan, at its end."""
        held_out = self.held_out
        together = max(1, min(_PREDICTIONS_AT_ONCE // self.n_items, _SCORED_AT_ONCE // plan.purse.calls))
        for start in range(0, len(held_out.queries), together):
            group = slice(start, start + together)
            approximation = None
            if plan.model is not None:
                ranks = {"ranks": lists[group]} if plan.uses_ranks else {}
                approximation = replayed(plan.model.approximator, held_out.anchors, held_out.positions[group], **ranks)
            steps = QueryBatch(
                plan,
                held_out.queries[group],
                self.k,
                candidates=in_memory(plan, candidates[group], np.ones(self.n_items, dtype=np.bool_)),
                approximation=approximation,
            )
            exact = held_out.exact[group]
            while steps.goes_on:
                steps.tell([scores[batch] for scores, batch in zip(exact, steps.ask(), strict=True)])
            yield from steps.searches

    def _first_stage(self, first: str | None) -> tuple[list[IntArray], list[list[IntArray]]]:
        """Per query, the candidates and the lists of the stages they come from."""
        if first not in self._candidates:
            queries, stage = self.held_out.queries, self.stages[first]
            self._candidates[first] = [np.empty(0, dtype=np.intp)] * len(queries), []
            if stage is not None:
                n = min(self.n_items, max(self.budget, RANKS_THAT_COUNT))
                answers, lists = stage.search_parts(queries, n)
                self._candidates[first] = [positions for positions, _ in answers], lists
        return self._candidates[first]
