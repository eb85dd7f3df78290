"""Whether a scorer can be searched: judged quality by depth, and the items that only the scorer likes.

Re-ranking protects a scorer from most items. Quality against depth shows what it does without that protection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.first_stages import Matrix, placed
from adacur.first_stages.placing import AnyStage, Placed, best_by_id
from adacur.protocols import Scorer
from adacur.records import Item, ItemList, Query
from adacur.replay.comparison import JUDGED, Mean
from adacur.replay.depth_verdict import DepthVerdict, depth_verdict
from adacur.replay.measures import judged_quality
from adacur.replay.runs import PairedDifference, bootstrap_interval
from adacur.results import Hits
from adacur.scorers.calling import score_grid
from adacur.scores import score_pairs

DEPTHS = (10, 50, 100, 500)
_SHOWN = 10
_RECIPROCAL = "RR@10"
# What the first stage has among its best 100, it could have vouched for.
_VOUCHED = 100
_MOST_PHANTOMS = 20


@dataclass(frozen=True, slots=True)
class Depth:
    """Judged quality when the scorer ranks the first stage's best n; 0: the first stage's own order, None: all items.

    `change` is nDCG@10 minus that of the depth to which the verdict would go; None for that depth itself.
    """

    n: int | None
    ndcg: Mean
    mrr: Mean
    change: PairedDifference | None

    @property
    def name(self) -> str:
        """How a table calls it."""
        return "all" if self.n is None else f"{self.n:,}" if self.n else "its own order"


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality by depth from one first stage, shallow to deep, what follows from it, and the command lines for that."""

    first: str
    depths: tuple[Depth, ...]
    verdict: DepthVerdict
    commands: tuple[str, ...] = ()

    @property
    def kept(self) -> str:
        """The name of the depth that the others are compared with."""
        return next((depth.name for depth in self.depths if depth.change is None), "")


@dataclass(frozen=True, slots=True)
class Phantom:
    """An item that the scorer prefers to all that was judged relevant, and that every first stage ranks far down.

    They rank it far down for the query and for the text of `expected`, the relevant item that the scorer likes best.
    `ranks` are those for the query, from 1; None: beyond the deepest depth, or not returned. A good item that nobody
    judged looks the same: read the texts.
    """

    query: Query
    item: Item
    score: float
    ranks: Mapping[str, int | None]
    expected: Item
    expected_score: float

    @property
    def margin(self) -> float:
        """How far the scorer prefers it."""
        return self.score - self.expected_score

    def where(self) -> str:
        """Its ranks in words."""
        return ", ".join(f"{name} {f'rank {rank:,}' if rank else 'far down'}" for name, rank in self.ranks.items())


@dataclass(frozen=True, slots=True)
class Searchability:
    """Quality by depth from each first stage, and phantom hits, the strongest first and one per query.

    `n_haunted` of the `n_queries` have a phantom among the scorer's best ten: an item beyond the first stages' best
    `beyond`. `left_out` queries have no relevant item here, or nothing but relevant ones.
    """

    n_items: int
    n_queries: int
    left_out: int
    curves: tuple[Curve, ...]
    beyond: int
    n_haunted: int
    phantoms: tuple[Phantom, ...]

    def summary(self) -> str:
        """How many queries have a phantom hit, and what that is."""
        stages = " and ".join(curve.first for curve in self.curves)
        if not self.beyond:
            return "There are too few items for phantom hits."
        if not self.n_haunted:
            return f"None of {self.n_queries} judged queries has a phantom hit."
        return (
            f"Phantom hits: for {self.n_haunted} of {self.n_queries} judged queries the scorer puts an item above all "
            f"that is judged relevant which {stages} would not have among the best {self.beyond}, neither for the "
            "query nor for the text of the relevant item. A good item that nobody judged looks the same: read them."
        )


def searchability(
    queries: Sequence[Query],
    items: Sequence[Item],
    qrels: Mapping[str, Mapping[str, int]],
    *,
    scorer: Scorer,
    first: Mapping[str, AnyStage],
    depths: Sequence[int] = DEPTHS,
    all_items: bool = True,
    progress: bool = False,
) -> Searchability:
    """nDCG@10 and MRR@10 against depth: the scorer re-ranks the first stage's best n, up to all items.

    - qrels: grades by query id and item id; above 0 is relevant. Queries that cannot tell are left out.
    - scorer: asked once for each pair; a `MatrixScorer` or a `Cached` one replays scores that are known.
    - first: first stages by name, each with a curve and a verdict of its own.
    - depths: the numbers of items to re-rank; those that reach the number of items are left out.
    - all_items: also score every item, which takes queries × items calls; otherwise the deepest of `depths` and the
      relevant items are all that is scored.

    A first stage that returns fewer items than a depth is re-ranked as far as it goes.
    """
    if not first or (depths and min(depths) < 1):
        raise InputError(f"Give at least one first stage, and depths from 1 up; got {list(first)} and {list(depths)}.")
    held = ItemList(items)
    usable = telling_queries(queries, held, qrels)
    if not usable:
        raise InputError(
            f"A searchability report needs queries with some items judged relevant and others not; none of these "
            f"{len(queries):,} queries has both among the {len(held):,} items. Check the ids of the judgements."
        )
    finite = sorted({depth for depth in depths if depth < len(held)})
    if not finite and not all_items:
        raise InputError(f"Depths must be below the number of items, {len(held):,}, unless all are scored.")
    stages = {name: placed(stage, held) for name, stage in first.items()}
    asked = list(usable)
    rankings = {name: stage.search(asked, finite[-1] if finite else _SHOWN) for name, stage in stages.items()}
    steps: list[int | None] = [0, *finite, *([None] if all_items else [])]
    # The deepest depth would leave nothing beyond it.
    beyond = max((depth for depth in finite[: None if all_items else -1] if depth <= _VOUCHED), default=0)
    ranked: dict[tuple[str, int | None], list[Hits]] = {(name, n): [] for name in stages for n in steps}
    suspects: dict[Query, list[Phantom]] = {}
    n_last = 0
    bar = tqdm(usable.items(), desc="re-ranking", unit=" queries", disable=not progress)
    for row, (query, relevant) in enumerate(bar):
        orders = {name: np.asarray(answers[row].positions) for name, answers in rankings.items()}
        wanted = None if all_items else np.unique(np.concatenate([*orders.values(), relevant]))
        scores = _scores(scorer, query, held, wanted)
        top = _best(scores, held, wanted)
        for (name, n), hits in ranked.items():
            order = orders[name]
            best = order[:_SHOWN] if n == 0 else top if n is None else _best(scores, held, order[:n])
            hits.append(Hits(query, tuple(held.ids[at] for at in best.tolist()), scores[best]))
        expected = int(relevant[np.argmax(scores[relevant])])
        n_last += all_items and int(np.count_nonzero(scores > scores[expected])) > len(held) / 2
        vouched = np.concatenate([relevant, *(order[:beyond] for order in orders.values())])
        above = [at for at in top.tolist() if scores[at] > scores[expected] and at not in vouched]
        if beyond and above:
            ranks = [{name: _rank(order, at) for name, order in orders.items()} for at in above]
            suspects[query] = [
                Phantom(query, held[at], float(scores[at]), rank, held[expected], float(scores[expected]))
                for at, rank in zip(above, ranks, strict=True)
            ]
    curves = []
    for name in stages:
        quality = [judged_quality(ranked[name, n], qrels, measures=[JUDGED, _RECIPROCAL]) for n in steps]
        verdict = depth_verdict(steps, [of_depth[JUDGED] for of_depth in quality], n_last=n_last)
        curves.append(Curve(name, tuple(_depths(steps, quality, verdict)), verdict))
    phantoms = sorted(_unlike_expected(suspects, stages, beyond), key=lambda phantom: -phantom.margin)
    return Searchability(
        n_items=len(held),
        n_queries=len(usable),
        left_out=len(queries) - len(usable),
        curves=tuple(curves),
        beyond=beyond,
        n_haunted=len(phantoms),
        phantoms=tuple(phantoms[:_MOST_PHANTOMS]),
    )


def telling_queries(
    queries: Sequence[Query], items: ItemList, qrels: Mapping[str, Mapping[str, int]]
) -> dict[Query, IntArray]:
    """The queries with relevant and other items, and the positions of the relevant ones."""
    known = {id_: position for position, id_ in enumerate(items.ids)}
    usable = {}
    for query in queries:
        grades = qrels.get(query.id, {})
        relevant = np.array([known[id_] for id_, grade in grades.items() if grade > 0 and id_ in known], dtype=np.intp)
        if 0 < len(relevant) < len(items):
            usable[query] = relevant
    return usable


def _scores(scorer: Scorer, query: Query, items: ItemList, wanted: IntArray | None) -> FloatArray:
    """Scores by position; NaN where an item was not wanted."""
    if wanted is None:
        return np.asarray(score_grid(scorer, [query], list(items))[0])
    scores = np.full(len(items), np.nan)
    scores[wanted] = score_pairs(scorer, [(query, item) for item in items.at(wanted.tolist())])
    return scores


def _best(scores: FloatArray, items: ItemList, of: IntArray | None) -> IntArray:
    """The ten best of these positions, or of all."""
    if of is None:
        return best_by_id(scores, items.ids, _SHOWN)
    return of[best_by_id(scores[of], [items.ids[at] for at in of.tolist()], _SHOWN)]


def _rank(order: IntArray, at: int) -> int | None:
    place = np.flatnonzero(order == at)
    return int(place[0]) + 1 if len(place) else None


def _unlike_expected(
    suspects: Mapping[Query, Sequence[Phantom]], stages: Mapping[str, Placed], beyond: int
) -> Iterator[Phantom]:
    """The first suspect of each query that no first stage finds by the text of the relevant item.

    One that it does find is a near miss (another type of the same disease, a second copy), not a phantom.
    """
    if not suspects:
        return
    texts = [Query(query.id, of_query[0].expected.text) for query, of_query in suspects.items()]
    near: list[set[int]] = [set() for _ in texts]
    for stage in stages.values():
        # A stage of known scores answers no other texts than those it knows.
        if not isinstance(stage.source, Matrix):
            for known, answer in zip(near, stage.search(texts, beyond), strict=True):
                known.update(np.asarray(answer.positions).tolist())
    ids = next(iter(stages.values())).items.ids
    for known, of_query in zip(near, suspects.values(), strict=True):
        near_ids = {ids[at] for at in known}
        yield from [phantom for phantom in of_query if phantom.item.id not in near_ids][:1]


def _depths(
    steps: Sequence[int | None], quality: Sequence[Mapping[str, FloatArray]], verdict: DepthVerdict
) -> Iterator[Depth]:
    for n, of_depth, change in zip(steps, quality, verdict.changes, strict=True):
        ndcg, mrr = (
            Mean(float(values.mean()), *bootstrap_interval(values), len(values))
            for values in (of_depth[JUDGED], of_depth[_RECIPROCAL])
        )
        yield Depth(n, ndcg, mrr, change)
