"""Turns of a training: before each but the first, searches with the model find the items that it wrongly likes."""

from __future__ import annotations

import io
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.budget import at_least
from adacur.data import split_queries
from adacur.errors import InputError
from adacur.extras.train.judged_queries import JudgedQueries
from adacur.extras.train.negatives import Pool
from adacur.extras.train.run_folder import RunFolder
from adacur.first_stages import AnyStage
from adacur.model import GaussianModel
from adacur.protocols import Items, Scorer
from adacur.records import ItemList, Query
from adacur.scorers.calling import score_grid
from adacur.scorers.cross_encoders.torch import TorchCrossEncoder
from adacur.search import AnchorIndex, Gaussian
from adacur.search.plan import Plan
from adacur.search.snapshot import Snapshot
from adacur.seeds import stream_key
from adacur.store import AnchorTable
from adacur.store.writing import write_atomically

_log = logging.getLogger(__name__)
# One pair in training costs three forward passes; on a GPU, inference is also the faster for its half precision and
# its packed batches.
MINED_PER_TRAINED_PAIR = {"cpu": 4, "cuda": 32}
_LEAST_CALLS = 40_000
_CALLS_PER_SEARCH = 100
# Of these the best are kept; the others are what the search only looked at.
_KEPT = 50
_MOST_ANCHORS, _FEWEST_ANCHORS = 200, 50
_FEWEST_ITEMS = 2 * _CALLS_PER_SEARCH
# Of mondo's top 50 a search of 100 calls finds .66 in two rounds, .69 in three and .72 in five, at 50 anchor queries.
_ROUNDS = 3
_ITEMS_AT_ONCE = 4096
_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class MiningBudget:
    """What one mining scores: the index, anchors × items, and then the searches."""

    anchors: int
    items: int
    queries: int
    calls_per_search: int

    @property
    def calls(self) -> int:
        return self.anchors * self.items + self.queries * self.calls_per_search


def plan_mining(n_queries: int, n_items: int, *, calls: int | None, usual: int = 0) -> MiningBudget:
    """A mining of at most `calls` scorer calls: half for searches, what they leave for the index.

    Where that is too little, some of the queries are searched, and the index holds a sample of the items. Without a
    number the `usual` one is taken, or more where it would be too little to be of use.
    """
    if calls is None:
        calls = max(usual, _LEAST_CALLS)
    at_least(1, mining_calls=calls)
    per_search = min(_CALLS_PER_SEARCH, n_items)
    queries = min(n_queries, calls // 2 // per_search)
    left = calls - queries * per_search
    fewest, most = min(_FEWEST_ANCHORS, n_queries), min(_MOST_ANCHORS, n_queries)
    anchors = min(most, max(fewest, left // n_items))
    items = min(n_items, left // anchors)
    if queries < 1 or items < min(n_items, _FEWEST_ITEMS):
        need = 2 * max(per_search, fewest * min(n_items, _FEWEST_ITEMS))
        raise InputError(
            f"Mining needs an index of at least {fewest} anchor queries × {min(n_items, _FEWEST_ITEMS)} items, so "
            f"mining_calls must be at least {need:,}; got {calls:,}. Raise it, or train in one turn: turns=1."
        )
    return MiningBudget(anchors, items, queries, per_search)


def mine(
    scorer: Scorer,
    judged: JudgedQueries,
    items: Items,
    *,
    first: AnyStage,
    plan: MiningBudget,
    seed: int,
    progress: bool = False,
) -> list[IntArray]:
    """Per query the positions of what searches with this scorer like best, without what is relevant to it; none where a
    query was not searched.
    """
    queries, calls = judged.queries, plan.calls_per_search
    index, at = _index(scorer, queries, items, first=first, plan=plan, seed=seed, progress=progress)
    searched = {query.id for query in _drawn(queries, plan.queries, seed=seed)}
    places = [place for place, query in enumerate(queries) if query.id in searched]
    positions: list[IntArray] = [np.empty(0, np.intp) for _ in queries]
    for some in _parts(places, _QUERIES_AT_ONCE, "mine: search", " queries", progress):
        asked = [queries[place] for place in some]
        answers = index.search(asked, calls, budget=calls, method=Together(rounds=_ROUNDS), fuse=0)
        for place, hits in zip(some, answers, strict=True):
            found = at[index.items.positions(hits.ids)]
            positions[place] = found[~np.isin(found, judged.relevant[place])][:_KEPT]
    return positions


def save_mined(positions: Sequence[IntArray], file: Path) -> None:
    """Write what a mining found, whole or not at all."""
    content = io.BytesIO()
    np.savez(content, sizes=[len(row) for row in positions], positions=np.concatenate(positions))
    write_atomically(file, content.getvalue())


def load_mined(file: Path) -> list[IntArray]:
    """Read what `save_mined` wrote."""
    with np.load(file) as stored:
        return np.split(stored["positions"], np.cumsum(stored["sizes"])[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Gaussian):
    """Searches that predict for all queries in one product, which is many times faster and rounds by their number."""

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        plan = Gaussian.plan(self, base, source, k=k)
        assert plan.model is not None
        assert isinstance(plan.model.approximator, GaussianModel)
        return replace(plan, model=replace(plan.model, approximator=plan.model.approximator.in_one_product()))


def _index(
    scorer: Scorer,
    queries: Sequence[Query],
    items: Items,
    *,
    first: AnyStage,
    plan: MiningBudget,
    seed: int,
    progress: bool,
) -> tuple[AnchorIndex, IntArray]:
    """An index in memory of all items or of a sample, and where its items are among all."""
    anchors, at, held = _drawn(queries, plan.anchors, seed=seed), np.arange(len(items)), items
    # Of a sample it would speak of all items, and what it finds is shown as near misses anyway.
    stages = {getattr(first, "name", "first"): first} if plan.items == len(items) else {}
    if plan.items < len(items):
        at = np.sort(np.random.default_rng(stream_key(seed, "mined items")).choice(len(items), plan.items, False))
        held = ItemList(items.at(at.tolist()))
    scores = np.empty((plan.items, len(anchors)), np.float32)
    for some in _parts(list(range(plan.items)), _ITEMS_AT_ONCE, "mine: index", " items", progress):
        scores[some[0] : some[-1] + 1] = score_grid(scorer, anchors, held.at(some)).T
    table = AnchorTable(held, tuple(anchors), scores)
    return AnchorIndex(table, scorer=scorer, first=stages, card=scorer.card), at


def _drawn(queries: Sequence[Query], n: int, *, seed: int) -> Sequence[Query]:
    """At most n queries at random; the same text only once among them, unless all are taken."""
    if n >= len(queries):
        return queries
    different = len({" ".join(query.text.casefold().split()) for query in queries})
    return split_queries(queries, anchors=min(n, different), seed=seed).anchors


def _parts(of: list[int], size: int, name: str, unit: str, progress: bool) -> Iterator[list[int]]:
    from tqdm import tqdm

    with tqdm(total=len(of), desc=name, unit=unit, disable=not progress) as bar:
        for start in range(0, len(of), size):
            yield of[start : start + size]
            bar.update(len(of[start : start + size]))


@dataclass(slots=True, eq=False)
class Turns:
    """What negatives are drawn from, turn by turn; every turn but the first begins with a mining.

    A mining is stored in the run's folder, so that a run that was killed goes on with the same. `opened` opens the
    model as it is at that moment.
    """

    n: int
    epochs: int
    near: Sequence[IntArray]
    judged: JudgedQueries
    items: Items
    first: AnyStage
    plan: MiningBudget | None
    run: RunFolder
    opened: Callable[[], AbstractContextManager[Scorer]]
    seed: int
    progress: bool = False

    def pools(self, epoch: int) -> list[Pool]:
        """What each query's negatives of this epoch are drawn from; mines where a turn begins."""
        turn = epoch * self.n // self.epochs
        if turn == 0 or self.plan is None:
            return [Pool(row) for row in self.near]
        file = self.run.mined(turn)
        if not file.exists():
            started = time.monotonic()
            with self.opened() as scorer:
                options: dict[str, Any] = {"seed": self.seed + turn, "progress": self.progress}
                found = mine(scorer, self.judged, self.items, first=self.first, plan=self.plan, **options)
            save_mined(found, file)
            _log.info("Mining before turn %d took %.0f s.", turn + 1, time.monotonic() - started)
        return [Pool(near, found) for near, found in zip(self.near, load_mined(file), strict=True)]


@contextmanager
def opened_for_scoring(save: Callable[[Path], None], folder: Path, **options: Any) -> Iterator[TorchCrossEncoder]:
    """A model in training as a scorer, which is many times faster than its steps."""
    # That of a run which was killed meanwhile.
    shutil.rmtree(folder, ignore_errors=True)
    save(folder)
    try:
        with TorchCrossEncoder(folder, **options) as scorer:
            yield scorer
    finally:
        shutil.rmtree(folder)
