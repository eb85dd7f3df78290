"""A match under way: batches of rows, each one search of many queries over the right table's index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adacur.errors import ScorerError
from adacur.first_stages import Placed
from adacur.first_stages.joined import parts_of
from adacur.matching.bill import WallReached
from adacur.matching.chances import Chances, Pace, RowChances, Worth
from adacur.matching.one_table import OWN
from adacur.matching.result import Found, is_doubtful
from adacur.model import GaussianModel, TopK
from adacur.protocols import Scorer
from adacur.records import Query
from adacur.results import Hits
from adacur.search import AnchorIndex, rounds
from adacur.search.finding import Above
from adacur.search.methods import Rerank
from adacur.search.plan import Model, at_once
from adacur.search.planning import plan_search

# Rows that fail one after another: then the scorer has failed, and not these rows.
_MOST_FAILED = 3


@dataclass(eq=False)
class Running:
    """A match under way: what was found, row by row, and what the rows have taught."""

    index: AnchorIndex
    above: float
    scorer: Scorer
    calls_per_row: int
    first: Any
    pace: Pace
    learning: bool
    within: bool
    audited: frozenset[int]
    pairs: list[Found] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, bool] = field(default_factory=dict)
    n_done: int = 0
    is_over: bool = False
    _without: list[str] = field(default_factory=list)
    _in_a_row: int = 0
    _seen: set[frozenset[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"budget": self.calls_per_row, "fuse": 0, "scorer": self.scorer}
        plan = plan_search(self.index, 1, first=self.first, **options)
        self._plan = replace(plan, finish=(Above(self.above),))
        model = None if plan.model is None else plan.model.approximator
        stages = parts_of(plan.first) if isinstance(plan.first, Placed) else ()
        self._chances = Chances(self.above, stages, model if isinstance(model, GaussianModel) else None)

    @property
    def first_name(self) -> str | None:
        """The first stage that rows start from."""
        return None if self._plan.first is None else self._plan.first.name

    def rows(self, queries: Sequence[Query], calls_left: int | None, rows_left: int) -> list[Found]:
        """Match a batch of rows; the pairs that it adds."""
        if self.learning:
            self.pace.settle(calls_left=calls_left, rows_left=rows_left)
        return [pair for searched in self._searched(queries) for pair in self._take(*searched)]

    def _searched(self, queries: Sequence[Query]) -> Iterator[tuple[Hits, RowChances, int]]:
        """The answer of each row, with its batch's chances and its place there; rows that fail are noted."""
        chances = self._chances
        chances.begun.clear()
        plan = replace(
            self._plan,
            model=Model(self.index.anchors, chances),
            acquisition=TopK(),
            sizes=matching_rounds,
            stop=Worth(self.above, self.pace.least),
        )
        try:
            answers: Sequence[Hits] = rounds.search(plan, queries, 1)
            self._in_a_row = 0
        except WallReached as wall:
            self.is_over, answers = True, [hits for hits in wall.hits if hits.trace.calls]
        except ScorerError as error:
            if len(queries) > 1:
                # Pairs of the others that were scored are known; only what failed is asked for again.
                for query in queries:
                    if not self.is_over:
                        yield from self._searched([query])
                return
            self.failed[queries[0].id] = str(error)
            self._in_a_row += 1
            if self._in_a_row >= _MOST_FAILED:
                raise
            answers = error.hits
        if self.learning:
            chances.learn()
        places = [(batch, at) for batch in chances.begun for at in range(len(batch.rows))]
        yield from ((hits, *place) for hits, place in zip(answers, places, strict=False))

    def _take(self, hits: Hits, chances: RowChances, at: int) -> list[Found]:
        """Note a row; the pairs that it adds."""
        number, self.n_done = self.n_done, self.n_done + 1
        self.pace.note(hits.trace.rounds, len(hits))
        found = self._found(hits, chances, at)
        if number in self.audited and not self.is_over:
            try:
                missed = self._deeper(hits, {pair.right for pair in found})
            except WallReached:
                # A row that was not audited to its end says nothing.
                self.is_over = True
            else:
                found += missed
                self.lacking[hits.query.id] = bool(missed)
        scores = np.sort(np.concatenate([round_.exact for round_ in hits.trace.rounds] or [np.empty(0)]))[::-1]
        if is_doubtful(scores[scores > OWN], self.above, self._chances.unit or 0.0):
            self.doubtful.append(hits.query.id)
        if not found:
            self._without.append(hits.query.id)
        self.pairs += found
        if self.learning and not self.within:
            taken = self._chances.taken
            for position in self.index.items.positions(pair.right for pair in found).tolist():
                taken[position] = taken.get(position, 0) + 1
        return found

    def _found(self, hits: Hits, chances: RowChances, at: int) -> list[Found]:
        ranks = chances.rows[at].ranks_of(self.index.items.positions(hits.ids))
        relevance = self.index.snapshot.relevance()
        known = [None] * len(hits) if relevance is None else relevance.of(hits.scores).tolist()
        columns = zip(hits.ids, hits.scores.tolist(), known, hits.rounds, ranks, strict=True)
        return [Found(hits.query.id, *row) for row in columns if self._is_new(hits.query.id, row[0])]

    def _is_new(self, left: str, right: str) -> bool:
        """Whether a pair is not of a row with itself, nor was found from its other side."""
        if not self.within:
            return True
        pair = frozenset((left, right))
        is_new = len(pair) > 1 and pair not in self._seen
        self._seen.add(pair)
        return is_new

    def _deeper(self, hits: Hits, known: set[str]) -> list[Found]:
        """The pairs among the first stage's best that the row lacks."""
        plan = replace(self._plan, method=Rerank.name, model=None, sizes=at_once)
        (deep,) = rounds.search(plan, [hits.query], 1)
        return [
            Found(hits.query.id, right, score, None, len(hits.trace.rounds) + 1)
            for right, score in zip(deep.ids, deep.scores.tolist(), strict=True)
            if right not in known and self._is_new(hits.query.id, right)
        ]

    @property
    def unmatched(self) -> list[str]:
        """Rows without a pair, from either side of one table."""
        paired = {pair.right for pair in self.pairs} if self.within else set()
        return [id_ for id_ in self._without if id_ not in paired]


def matching_rounds(affordable: int) -> tuple[int, ...]:
    """The calls of each round of a row: one by one at first, then a quarter of the calls so far."""
    sizes, spent = [], 0
    while spent < affordable:
        sizes.append(min(max(1, spent // 4), affordable - spent))
        spent += sizes[-1]
    return tuple(sizes)
