"""How much a few minutes allow, what a trial scores in them, and what follows: quality and recall of every way.

The scorer and the encoder are timed on a sample, and the sizes follow. Of each query the first stages' best are scored,
and what a search asks for. More judged queries are scored less deep, to show what the scorer is worth; their values are
NaN where they were not scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from tqdm import tqdm

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.protocols import FirstStage, Scorer
from adacur.records import Query
from adacur.replay.material import Material
from adacur.replay.measures import FEWEST_QUERIES, can_judge, telling_queries
from adacur.replay.searches import Asked, KnownScores, Searches, Way, all_scored
from adacur.scorers.cached import Cached, ScoresInMemory
from adacur.search import AnchorIndex
from adacur.search.finish import LISTED
from adacur.store import AnchorTable
from adacur.store.estimate import Pace, time_encoder, time_scorer
from adacur.units import duration, duration_range, pace

K, BUDGET = 10, 100
_SHOWN = 10
# With fewer items, a search may as well score all of them.
_FEWEST_ITEMS = 30
_SAMPLE = 512
_TIMING = 0.02
_MOST_TIMED = 3.0
# Encoding may take this share of the time; if it would take more, fewer items are used.
_ENCODING = 0.4
_SPARE = 0.9
_MOST_QUERIES, _FEWEST_CALLS = 60, 20
_PER_STAGE = 0.75
# What a search without anchor queries scores beyond the lists of the first stages.
_BEYOND = 0.3
# Whether the scorer is worth its calls is the first question, and takes many judged queries rather than deep ones: more
# of them, scored to a quarter of the depth, get this share of the pairs.
_PROOF = 0.35


@dataclass(frozen=True, slots=True)
class TrialSizes:
    """What a trial will do: the sizes, the pairs to score, and how long that takes.

    `n_used` of `n_items` items are used. Each of `n_queries` queries is scored against the first stages' best
    `budget`; `n_more` judged ones against the best `shallow` only. Timing the scorer took `timed` calls. Quantities of
    the sample stand for 1 / `share` times as many of all items: its best `k`
    and its `budget` are those of the whole, cut to it.
    """

    collection: str
    n_items: int
    n_used: int
    n_queries: int
    n_judged: int
    first: tuple[str, ...]
    k: int
    budget: int
    pairs: int
    pairs_per_second: float
    timed: int
    encoding_seconds: float
    low: float
    high: float
    n_more: int = 0
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the items that is used."""
        return self.n_used / self.n_items

    @property
    def shallow(self) -> int:
        """The fewest calls that are compared."""
        return _shallow(self.budget)

    def whole(self, calls: float) -> int:
        """Calls for the sample as calls for all items."""
        return round(calls / self.share)

    def summary(self) -> str:
        """One sentence: what is scored, and in what time."""
        sample = f"a sample of {self.n_used:,} of the {self.n_items:,}" if self.share < 1 else f"all {self.n_items:,}"
        encoding = f"encode the items ({duration(self.encoding_seconds)}), " if self.encoding_seconds else ""
        judged = f" ({min(self.n_judged, self.n_queries)} judged)" if self.n_judged else ""
        more = f"; {self.n_more} more judged queries × the best {self.shallow}" if self.n_more else ""
        return (
            f"Plan: {encoding}score {self.pairs:,} pairs of {sample} items at {pace(self.pairs_per_second)}: "
            f"{self.n_queries} queries{judged} × the best {self.budget} of {' and '.join(self.first)}{more}. That "
            f"takes {duration_range(self.low, self.high)}."
        )


def plan_trial(
    material: Material,
    *,
    scorer: Scorer,
    encoder: Any,
    minutes: float,
    items: int | None = None,
    calls: int | None = None,
    seed: int = 0,
) -> tuple[TrialSizes, Material]:
    """The plan for this time and at most this many items and calls, and the part of the material that it uses."""
    if not 0 < minutes < float("inf"):
        raise InputError(f"minutes, the time that a trial may take, must be positive; got {minutes}.")
    if material.n_items < _FEWEST_ITEMS:
        raise InputError(
            f"A trial needs at least {_FEWEST_ITEMS} items; {material.source} has {material.n_items}. Score each of "
            "them instead (adacur build … -n 0, then adacur search … --method exact)."
        )
    seconds, texts = 60 * minutes, list(material.items)
    timing = min(_MOST_TIMED, _TIMING * seconds)
    # A scorer that is paid for is timed on few pairs.
    most = None if calls is None else max(2, calls // 50)
    encoding = Pace(float("inf"), float("inf"), float("inf"))
    if encoder is not None:
        encoding = time_encoder(texts[:_SAMPLE], encoder.encode_items, seed=seed, seconds=timing)
    speed = time_scorer(
        texts[:_SAMPLE], material.queries[:8], scorer=scorer, seed=seed, seconds=timing, most_calls=most
    )
    n_used = min(len(texts), items or len(texts), _steady(_ENCODING * seconds * encoding.mean))
    encoding_seconds = float(encoding.times(n_used)[0])
    affordable = int((seconds - encoding_seconds) * _SPARE * speed.mean)
    pairs = affordable if calls is None else min(affordable, calls - speed.calls_used)
    used = n_used / material.n_items
    stages = ("bm25",) if encoder is None else ("bm25", "dense")
    per_budget = 1.0 if encoder is None else 2 * _PER_STAGE + _BEYOND
    available, judged = len(material.queries), len(material.qrels) if can_judge() else 0
    fewest = min(FEWEST_QUERIES, available)
    most_deep = min(available, _MOST_QUERIES)
    shares = ((1 - _PROOF) * (judged > fewest), 1.0)
    # Where time is short, fewer calls a question are tried.
    for share, largest in product(shares, (BUDGET, BUDGET // 2)):
        budget = max(min(_FEWEST_CALLS, n_used // 3), min(round(largest * used), n_used // 3))
        n_queries = min(most_deep, int(share * pairs / (per_budget * budget)))
        if n_queries >= fewest:
            break
    else:
        needed = int(fewest * per_budget * budget) + 1
        can = f"{max(0, pairs):,} can be scored at {pace(speed.mean)}"
        short = f"the least is {fewest} queries, {needed:,} pairs, and {can}."
        if calls is not None and calls <= affordable:
            raise InputError(f"{calls:,} calls are too few to tell anything: {short} Give about {needed + budget:,}.")
        wall = math.ceil(needed / speed.mean / _SPARE / (1 - _ENCODING) / 60)
        raise InputError(
            f"{minutes:g} minutes are too few to tell anything: {short} Give about {wall} (--minutes {wall}), cut "
            "items to fewer tokens (--max-item-tokens), or take a faster scorer or a quieter machine."
        )
    n_pairs = int(n_queries * per_budget * budget)
    per_query = _shallow(budget) * (1 if encoder is None else 2 * _PER_STAGE)
    n_more = max(0, min(judged - n_queries, int((pairs - n_pairs) / per_query)))
    n_pairs += int(n_more * per_query)
    _, low, high = speed.times(n_pairs).tolist()
    few = f"{available} queries are few: the intervals will be wide." if available < FEWEST_QUERIES else ""
    chosen = material.cut(n_used, n_queries=n_queries + n_more)
    plan = TrialSizes(
        collection=material.name,
        n_items=material.n_items,
        n_used=len(chosen.items),
        n_queries=n_queries,
        n_judged=len(chosen.qrels.keys() & {query.id for query in chosen.queries}),
        first=stages,
        k=max(1, min(round(K * used), budget // 2)),
        budget=budget,
        pairs=n_pairs,
        pairs_per_second=speed.mean,
        timed=speed.calls_used,
        encoding_seconds=encoding_seconds if encoder is not None else 0.0,
        low=low + encoding_seconds,
        high=high + encoding_seconds,
        n_more=n_more,
        notes=(*material.notes, *([few] if few else ())),
    )
    return plan, chosen


def _shallow(budget: int) -> int:
    """A quarter, but as many as are shown."""
    return min(budget, max(_SHOWN, budget // 4))


def _steady(n: float) -> int:
    """Rounded down to 1, 2, 3, 4, 6, 8, 12 …, so that a second run with slightly other timings uses the same."""
    if n >= 2**62:
        return 2**62
    power = 1 << max(0, int(n).bit_length() - 1)
    return power * 3 // 2 if 2 * n >= 3 * power else power


_SHOWN = 10


class Measured:
    """Searches for the queries that were scored in time, among what was scored of them, a row of `scores` each.

    `asked` are all queries, of which the first are `queries`; of others the first stages' best `shallow` are scored.
    """

    def __init__(
        self,
        material: Material,
        plan: TrialSizes,
        index: AnchorIndex,
        asked: tuple[Query, ...],
        *,
        scores: FloatArray,
        stages: Mapping[str, Asked],
        calls: int,
    ) -> None:
        self.material, self.plan, self.index, self.asked, self.calls = material, plan, index, asked, calls
        self.queries = asked[: plan.n_queries]
        self.stages = tuple(stages)
        self.predicts = index.snapshot.item_vectors() is not None
        n_judged = len(telling_queries(asked, material.items, material.qrels))
        self.is_judged = n_judged >= min(FEWEST_QUERIES, len(self.queries)) and can_judge()
        self._scores = scores[: len(self.queries)]
        given: dict[str, Any] = {"k": _SHOWN, "stages": stages, "qrels": material.qrels}
        # Without the card, searches would take other rounds than those that were scored, and ask for other pairs.
        given |= {"scorer": KnownScores(asked, material.items, scores.T, card=index.scorer.card)}
        self._all, self._deep = (Searches(index.anchors, some, **given) for some in (asked, self.queries))

    def budgets(self) -> tuple[int, ...]:
        """The calls that are compared, fewest first."""
        return tuple(sorted({self.plan.shallow, max(self.plan.shallow, self.plan.budget // 2), self.plan.budget}))

    def searched(self) -> Way:
        """A search without anchor queries, from all first stages."""
        return Way("gaussian", self.stages[-1], self.plan.budget)

    def recalls(self, way: Way) -> FloatArray:
        """Of each query, the share of the best k of all that was scored for it: what no way found is not missed."""
        return self._deep.recalls(way, self.plan.k)

    def above(self, line: float) -> IntArray:
        """Of each query, how many of the scored items score this or higher."""
        return np.asarray(np.count_nonzero(self._scores >= line, axis=1))

    def recalls_above(self, way: Way, line: float) -> FloatArray:
        """Of each query that has any, the share of these that is found."""
        found = [np.count_nonzero(all_scored(hits)[1] >= line) for hits in self._deep.scored(way)]
        some = (totals := self.above(line)) > 0
        return np.asarray(np.array(found)[some] / totals[some])

    def quality(self, way: Way) -> FloatArray:
        """Judged quality; NaN for queries that nobody judged, or that were not scored as deep."""
        is_deep = way.method == "gaussian" or way.budget > self.plan.shallow
        values = np.full(len(self.asked), np.nan)
        of_way = (self._deep if is_deep else self._all).quality(way)
        values[: len(of_way)] = of_way
        return values


def measure(
    material: Material,
    plan: TrialSizes,
    *,
    scorer: Scorer,
    first: Mapping[str, FirstStage],
    seconds: float,
    calls: int | None = None,
    progress: bool = False,
) -> Measured:
    """Score what the plan says, query by query, until `seconds` have passed or the next one could exceed `calls`."""
    started = time.monotonic()
    items, queries = material.items, material.queries
    known = ScoresInMemory()
    asked = Cached(scorer, known)
    index = AnchorIndex(AnchorTable.of_items(items), scorer=asked, first=first)
    names = [name for name in (*first, index.snapshot.all_joined) if name]
    depth = min(len(items), max(plan.budget, LISTED))
    stages = {name: Asked(index.first_stage(name)) for name in names}
    lists = [stage.search(queries, depth) for stage in stages.values()]
    n_done = 0
    predicts = index.snapshot.item_vectors() is not None
    with tqdm(total=plan.pairs, desc="scoring", unit=" pairs", unit_scale=True, disable=not progress) as bar:
        for row, query in enumerate(queries):
            is_deep = row < plan.n_queries
            # The time promised holds even where the scorer has become slower than it was timed.
            if row >= min(FEWEST_QUERIES, plan.n_queries) and time.monotonic() - started > seconds:
                break
            budget = plan.budget if is_deep else plan.shallow
            parts = [answers[row].positions[:budget] for answers in lists]
            wanted = np.unique(np.concatenate(parts))
            # A list that is too short is topped up at random.
            short = [stage for stage, part in zip(stages.values(), parts, strict=True) if len(part) < budget]
            ways: list[dict[str, Any]] = [{"method": "rerank", "first": stage} for stage in short]
            if predicts and is_deep:
                ways.append({"method": "gaussian", "first": stages[names[-1]]})
            if calls is not None and asked.misses + len(wanted) + budget * len(ways) > calls:
                break
            asked.score([(query, item) for item in items.at(wanted.tolist())])
            for way in ways:
                index.search(query, min(_SHOWN, budget), budget=budget, fuse=0, **way)
            n_done = row + 1
            bar.update(asked.misses - bar.n)
        bar.total = bar.n
    if not n_done:
        raise InputError(f"{calls:,} calls are not enough for one query of this trial. Give more.")
    scores = np.full((len(queries), len(items)), np.nan, dtype=np.float32)
    rows = {query.id: row for row, query in enumerate(queries)}
    of_queries, of_items = [rows[query.id] for query, _ in known.scores], (item.id for _, item in known.scores)
    scores[of_queries, items.positions(of_items)] = list(known.scores.values())
    return Measured(material, plan, index, queries[:n_done], scores=scores[:n_done], stages=stages, calls=asked.misses)
