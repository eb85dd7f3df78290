"""Scores that teachers give to items, for a student to learn from; each pair is paid for once."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import is_whole
from adacur.errors import DuplicateId, EmptyInput, InputError
from adacur.extras.train.judged_queries import JudgedQueries, update_with_texts
from adacur.extras.train.mining import SetAside, found_by_search, margin_of, plan_mining
from adacur.extras.train.negatives import NEAR_ALONE, Mixture, first_stage_positions, mixed
from adacur.first_stages import AnyStage
from adacur.protocols import Items, Scorer
from adacur.records import Query, as_queries, repeats
from adacur.scorers.cached import Cached
from adacur.scores import check_scores
from adacur.search import AnchorIndex

_log = logging.getLogger(__name__)
_QUERIES_AT_ONCE = 64
_PAIRS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class TeacherRow:
    """A query, positions of items and their scores, in any order: at least two different scores."""

    query: Query
    positions: IntArray = field(repr=False)
    scores: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        positions, scores = np.asarray(self.positions), np.asarray(self.scores)
        if (
            positions.shape != scores.shape
            or not teaches(scores)
            or not np.isfinite(scores).all()
            or len(np.unique(positions)) < len(positions)
            or positions.min() < 0
        ):
            raise InputError(
                "A teacher must give at least two different finite scores, and each a position that occurs once; for "
                f"query {self.query.id!r} got the positions {positions.tolist()} and the scores {scores.tolist()}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScores:
    """What teachers said of items, query by query.

    `of_all_items` says that these are the best of all items: no other scores higher than any of them.
    """

    rows: Sequence[TeacherRow]
    of_all_items: bool = False

    def __post_init__(self) -> None:
        if not self.rows:
            raise EmptyInput("A teacher needs at least one query.")
        ids = [row.query.id for row in self.rows]
        if len(set(ids)) < len(ids):
            raise DuplicateId(f"Query ids must be unique; {repeats(ids)} more than once.")

    @classmethod
    def from_index(cls, index: AnchorIndex, *, top: int = 100) -> TeacherScores:
        """The best items of each anchor query: the index holds their exact scores, so nothing is scored."""
        _check_top(top, index.items)
        if not len(index.anchor_queries):
            raise EmptyInput("This index has no anchor queries, so it holds no scores to learn from.")
        cells = index.snapshot.exact_cells()
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
        return cls(_usable(index.anchor_queries, positions, scores), of_all_items=True)

    @classmethod
    def from_scorers(
        cls,
        scorers: Sequence[Scorer],
        queries: Iterable[Query | str],
        items: Items,
        *,
        first: AnyStage,
        top: int = 100,
        mixture: Mixture = NEAR_ALONE,
        mining_calls: int | None = None,
        seed: int = 0,
        cache: str | Path | None = None,
        progress: bool = False,
    ) -> TeacherScores:
        """The first stage's best items, scored now: `top` calls per query and scorer; of several the mean is taken.

        - `mixture`: of the `top` items, shares of the first stage's best, of random ones, and of what searches with the
          one scorer find best
        - `mining_calls`: pairs that those searches may score, for their index too; by default four times the others
        - `cache`: a file, thanks to which no pair is paid for twice
        """
        all_queries = as_queries(queries)
        if not scorers or not all_queries:
            raise EmptyInput(f"Learning needs a scorer and a query; got {len(scorers)} and {len(all_queries)}.")
        _check_top(top, items)
        positions = first_stage_positions(first, all_queries, items, depth=top)
        if mixture != NEAR_ALONE:
            found: Sequence[IntArray] | None = None
            if mixture.found:
                if len(scorers) > 1:
                    raise InputError(f"Searches find items with one scorer; got {len(scorers)}. Give one, or found=0.")
                usual = 4 * top * len(all_queries)
                plan = plan_mining(len(all_queries), len(items), calls=mining_calls, usual=usual)
                described = plan.describe(n_items=len(items), n_queries=len(all_queries))
                _log.info("Mining with %s: %s.", scorers[0].card.name, described)
                miner = scorers[0] if cache is None else Cached(scorers[0], cache)
                answers = found_by_search(
                    miner, all_queries, items, first=first, plan=plan, seed=seed, progress=progress
                )
                found = [best for best, _ in answers]
            positions = mixed(all_queries, items, positions, found, mixture, n=top, seed=seed)
        scores = mean_scores(scorers, all_queries, positions, items, cache=cache, progress=progress)
        return cls(_usable(all_queries, positions, scores))

    @property
    def fingerprint(self) -> str:
        """A hash of everything in it."""
        digest = hashlib.blake2b(bytes([self.of_all_items]), digest_size=16)
        for row in self.rows:
            update_with_texts(digest, [row.query])
            digest.update(np.asarray(row.positions, "<i8").tobytes() + np.asarray(row.scores, "<f8").tobytes())
        return digest.hexdigest()


def teaches(scores: FloatArray) -> bool:
    """Whether these scores put any item above another."""
    return scores.ndim == 1 and len(scores) > 1 and bool(scores.min() != scores.max())


def _usable(queries: Sequence[Query], positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> list[TeacherRow]:
    """A row per query, without those that teach nothing: one of them must not end it for all others."""
    every = list(zip(queries, positions, scores, strict=True))
    rows = [TeacherRow(*row) for row in every if teaches(row[2])]
    if len(rows) < len(every):
        query, _, of_query = next(row for row in every if not teaches(row[2]))
        _log.warning(
            "%d of %d queries are left out, such as %r: a teacher must give two different scores; it gave %s.",
            len(every) - len(rows),
            len(every),
            query.id,
            of_query[:3].tolist(),
        )
    if not rows:
        raise InputError(
            f"For none of the {len(every)} queries, such as {every[0][0].id!r}, are there two items with different "
            "scores. Use another first stage, or raw scores rather than saturated ones."
        )
    return rows


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


class Taught:
    """What teachers say of the items that judged queries are shown: scored when first needed, and once."""

    def __init__(
        self, teachers: Sequence[Scorer], judged: JudgedQueries, items: Items, cache: Path, *, progress: bool
    ) -> None:
        self._judged = judged
        self._ask = partial(mean_scores, teachers, items=items, cache=cache, progress=progress)
        self._known: list[dict[int, float]] = [{} for _ in judged.queries]

    def of(self, queries: Sequence[Query], positions: Sequence[IntArray]) -> list[FloatArray]:
        """The teachers' scores of items for any queries."""
        return self._ask(queries=queries, positions=positions)

    def learn(self, positions: Sequence[IntArray]) -> None:
        """Ask for what is not known yet of each judged query's items."""
        fresh = [
            np.array([one for one in row.tolist() if one not in known], np.intp)
            for row, known in zip(positions, self._known, strict=True)
        ]
        answers = self.of(self._judged.queries, fresh)
        for known, row, scores in zip(self._known, fresh, answers, strict=True):
            known.update(zip(row.tolist(), scores.tolist(), strict=True))

    def scores(self, place: int, positions: IntArray) -> FloatArray:
        """Scores of items that `learn` has asked for, for the query at this place."""
        return np.array([self._known[place][position] for position in positions.tolist()])

    def set_aside(self) -> list[SetAside]:
        """The items that the teachers put above every relevant one by a margin."""
        rows = [np.array(list(known.values())) for known in self._known]
        margin = margin_of(rows)
        found = []
        for place, (known, relevant) in enumerate(zip(self._known, self._judged.relevant, strict=True)):
            liked = max(known[position] for position in relevant.tolist())
            above = [(position, score) for position, score in known.items() if score > liked + margin]
            found += [SetAside(place, position, liked, score, "under the teacher") for position, score in above]
        return found


def _check_top(top: int, items: Items) -> None:
    if not (is_whole(top) and 2 <= top <= len(items)):
        raise InputError(f"top must lie between 2 and the number of items, {len(items)}; got {top!r}.")
