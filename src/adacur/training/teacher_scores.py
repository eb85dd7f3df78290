"""Scores that teachers give to items, for a student to learn from; each pair is paid for once."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import is_whole
from adacur.core.errors import DuplicateId, EmptyInput, InputError
from adacur.core.protocols import AnchorScores, Items, Scorer
from adacur.core.records import Query, as_queries, first_repeat
from adacur.core.scores import check_scores
from adacur.first_stages import AnyStage
from adacur.scorers.cached import Cached
from adacur.training.judged_queries import first_stage_positions

__all__ = ["TeacherScores", "mean_scores"]

_log = logging.getLogger(__name__)
_FEWEST = 2
_QUERIES_AT_ONCE = 64
_PAIRS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScores:
    """Queries and, for each, positions of items and their scores, in any order: at least two different scores.

    `of_all_items` says that these are the best of all items: no other scores higher than any of them.
    """

    queries: Sequence[Query] = field(repr=False)
    positions: Sequence[IntArray] = field(repr=False)
    scores: Sequence[FloatArray] = field(repr=False)
    of_all_items: bool = False

    def __post_init__(self) -> None:
        if not len(self.queries) == len(self.positions) == len(self.scores):
            raise InputError(
                f"A teacher gives positions and scores for each query; got {len(self.queries)} queries, "
                f"{len(self.positions)} lists of positions and {len(self.scores)} of scores."
            )
        if not self.queries:
            raise EmptyInput("A teacher needs at least one query.")
        ids = [query.id for query in self.queries]
        if len(set(ids)) < len(ids):
            raise DuplicateId(f"Query ids must be unique; {first_repeat(ids)!r} occurs more than once.")
        for query, positions, scores in zip(self.queries, self.positions, self.scores, strict=True):
            _check(query, np.asarray(positions), np.asarray(scores))

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def from_index(cls, index: AnchorScores, *, top: int = 100) -> TeacherScores:
        """The best items of each anchor query: the index holds their exact scores, so nothing is scored."""
        _check_top(top, index.items)
        if not len(index.anchor_queries):
            raise EmptyInput("This index has no anchor queries, so it holds no scores to learn from.")
        cells = getattr(index, "exact_cells", lambda: None)()
        if cells is not None and not cells.all():
            raise InputError(
                "Some scores of this index are predicted, and only exact ones are worth learning from. Use "
                "TeacherScores.from_scorers, or an index in which every pair was scored."
            )
        positions: list[IntArray] = []
        scores: list[FloatArray] = []
        for start in range(0, len(index.anchor_queries), _QUERIES_AT_ONCE):
            for row in np.ascontiguousarray(index.matrix[:, start : start + _QUERIES_AT_ONCE].T):
                best = np.argpartition(-row, top - 1)[:top]
                best = best[np.lexsort((best, -row[best]))]
                positions.append(best)
                scores.append(row[best])
        return cls._usable(index.anchor_queries, positions, scores, of_all_items=True)

    @classmethod
    def from_scorers(
        cls,
        scorers: Sequence[Scorer],
        queries: Iterable[Query | str],
        items: Items,
        *,
        first: AnyStage,
        top: int = 100,
        cache: str | Path | None = None,
        progress: bool = False,
    ) -> TeacherScores:
        """The first stage's best items, scored now: `top` calls per query and scorer; of several the mean is taken.

        With `cache`, a file, no pair is paid for twice.
        """
        all_queries = as_queries(queries)
        if not scorers or not all_queries:
            raise EmptyInput(f"Learning needs a scorer and a query; got {len(scorers)} and {len(all_queries)}.")
        _check_top(top, items)
        lists = first_stage_positions(first, all_queries, items, depth=top)
        # A query that shares no word with any item, as BM25 sees it, must not end it for all others.
        enough = [place for place, positions in enumerate(lists) if len(positions) >= _FEWEST]
        if not enough:
            raise InputError(f"The first stage finds fewer than {_FEWEST} items for each of {len(lists)} queries.")
        learnt, positions = [all_queries[place] for place in enough], [lists[place] for place in enough]
        if len(learnt) < len(all_queries):
            _warn(all_queries, learnt, f"the first stage finds fewer than {_FEWEST} items for them")
        return cls._usable(
            learnt, positions, mean_scores(scorers, learnt, positions, items, cache=cache, progress=progress)
        )

    @classmethod
    def _usable(
        cls,
        queries: Sequence[Query],
        positions: Sequence[IntArray],
        scores: Sequence[FloatArray],
        *,
        of_all_items: bool = False,
    ) -> TeacherScores:
        """Without the queries whose items all score alike: one of them must not end it for all others."""
        # If none is usable, the check of the first one names the reason.
        places = [place for place, of_query in enumerate(scores) if of_query.min() != of_query.max()] or [0]
        if len(places) < len(queries):
            _warn(queries, [queries[place] for place in places], "all of their items have one score")
        return _at(places, queries, positions, scores, of_all_items)

    def part(self, queries: Sequence[Query]) -> TeacherScores:
        """The scores for these of the queries, in their order."""
        place_of = {query.id: place for place, query in enumerate(self.queries)}
        return _at(
            [place_of[query.id] for query in queries], self.queries, self.positions, self.scores, self.of_all_items
        )

    @property
    def fingerprint(self) -> str:
        """A hash of everything in it."""
        digest = hashlib.blake2b(bytes([self.of_all_items]), digest_size=16)
        for query, positions, scores in zip(self.queries, self.positions, self.scores, strict=True):
            digest.update(f"{query.id}\0{query.text}\0".encode(errors="replace"))
            digest.update(np.asarray(positions, "<i8").tobytes() + np.asarray(scores, "<f8").tobytes())
        return digest.hexdigest()


def _at(
    places: Sequence[int],
    queries: Sequence[Query],
    positions: Sequence[IntArray],
    scores: Sequence[FloatArray],
    of_all_items: bool,
) -> TeacherScores:
    return TeacherScores(
        [queries[place] for place in places],
        [positions[place] for place in places],
        [scores[place] for place in places],
        of_all_items,
    )


def mean_scores(
    teachers: Sequence[Scorer],
    queries: Sequence[Query],
    positions: Sequence[IntArray],
    items: Items,
    *,
    cache: str | Path | None,
    progress: bool = False,
) -> list[FloatArray]:
    """Per query, the teachers' mean score of the items at these positions.

    With `cache`, each score is written there as it comes, so that nothing is paid twice after a kill.
    """
    from tqdm import tqdm

    sizes = [len(of_query) for of_query in positions]
    query_of, item_of = np.repeat(np.arange(len(queries)), sizes), np.concatenate([*positions, np.empty(0, np.intp)])
    total = np.zeros(len(item_of), np.float32)
    with tqdm(total=len(teachers) * len(item_of), desc="teach", unit=" pairs", disable=not progress) as bar:
        for teacher in teachers:
            scorer = teacher if cache is None else Cached(teacher, cache)
            for start in range(0, len(item_of), _PAIRS_AT_ONCE):
                part = slice(start, start + _PAIRS_AT_ONCE)
                some = [queries[query] for query in query_of[part]]
                pairs = list(zip(some, items.at(item_of[part].astype(int)), strict=True))
                total[part] += check_scores(scorer.score(pairs), pairs)
                bar.update(len(pairs))
    return np.split(total / max(1, len(teachers)), np.cumsum(sizes)[:-1])


def _warn(queries: Sequence[Query], usable: Sequence[Query], why: str) -> None:
    ids = {query.id for query in usable}
    example = next(query.id for query in queries if query.id not in ids)
    _log.warning("%d of %d queries are left out, such as %r: %s.", len(queries) - len(ids), len(queries), example, why)


def _check(query: Query, positions: IntArray, scores: FloatArray) -> None:
    if positions.shape != scores.shape or positions.ndim != 1 or len(positions) < _FEWEST:
        raise InputError(
            f"A teacher must give one score for each of at least {_FEWEST} items; for query {query.id!r} there are "
            f"positions of shape {positions.shape} and scores of shape {scores.shape}."
        )
    if len(np.unique(positions)) < len(positions) or positions.min() < 0:
        raise InputError(f"Positions for query {query.id!r} must differ and be at least 0; got {positions.tolist()}.")
    if not np.isfinite(scores).all() or scores.min() == scores.max():
        raise InputError(
            f"Scores for query {query.id!r} must be finite and not all equal; got {scores.tolist()}. Leave the query "
            "out, or use raw scores rather than saturated ones."
        )


def _check_top(top: int, items: Items) -> None:
    if not (is_whole(top) and 2 <= top <= len(items)):
        raise InputError(f"top must lie between 2 and the number of items, {len(items)}; got {top!r}.")
