"""What a teacher thinks: for some queries, the scores of some items."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import is_whole
from adacur.core.errors import DuplicateId, EmptyInput, FileFormatError, InputError
from adacur.core.protocols import AnchorScores, Items, Retriever, Scorer
from adacur.core.records import Query, as_queries, first_repeat
from adacur.data.lines import existing, json_lines, open_text, reading
from adacur.training.candidates import found_by
from adacur.training.teachers import mean_scores

__all__ = ["TeacherScores"]

_log = logging.getLogger(__name__)
_QUERIES_AT_ONCE = 64
_FEWEST = 2


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScores:
    """Queries and, for each, positions of items and their scores, in any order: two different ones at least.

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
            raise EmptyInput("A teacher without a query teaches nothing. Give at least one.")
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
            raise EmptyInput("This index has no anchor queries, so that it holds no scores to learn from.")
        cells = getattr(index, "exact_cells", lambda: None)()
        if cells is not None and not cells.all():
            raise InputError(
                "Some scores of this index are predicted, and only the scorer's own are worth learning from. Use "
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
        return _told_apart(index.anchor_queries, positions, scores, of_all_items=True)

    @classmethod
    def from_scorers(
        cls,
        scorers: Sequence[Scorer],
        queries: Iterable[Query | str],
        items: Items,
        *,
        first: Retriever,
        top: int = 100,
        cache: str | Path | None = None,
        progress: bool = False,
    ) -> TeacherScores:
        """The first stage's best items, scored now: `top` calls per query and scorer; of several the mean is taken.

        With `cache`, a file, no pair is paid for twice.
        """
        asked = as_queries(queries)
        if not scorers or not asked:
            raise EmptyInput(f"There must be a scorer and a query to learn from; got {len(scorers)} and {len(asked)}.")
        _check_top(top, items)
        found = found_by(first, asked, items, depth=top)
        enough = [place for place, own in enumerate(found) if len(own) >= _FEWEST]
        if not enough:
            _check_number(asked[0], len(found[0]))
        if len(enough) < len(asked):
            # A query that shares no word with any item, as BM25 sees it, must not end it for all others.
            left_out = [query for query, own in zip(asked, found, strict=True) if len(own) < _FEWEST]
            _warn_of(left_out, len(asked), f"the first stage finds fewer than {_FEWEST} items for them")
        asked, positions = [asked[place] for place in enough], [found[place] for place in enough]
        scores = mean_scores(
            scorers, asked, positions, items, cache=None if cache is None else Path(cache), progress=progress
        )
        return _told_apart(asked, positions, scores)

    @classmethod
    def read(cls, file: str | Path, items: Items) -> TeacherScores:
        """Scores from JSON lines: {"query": {"id": "q1", "text": "…"}, "items": ["i1", "i2"], "scores": [7, 2]}.

        Where every line has "of_all_items": true, they are the best of all.
        """
        file = existing(Path(file))
        queries: list[Query] = []
        positions: list[IntArray] = []
        scores: list[FloatArray] = []
        of_all_items = True
        with reading(file), open_text(file) as lines:
            for number, row in json_lines(lines, file):
                try:
                    query = Query(row["query"]["id"], row["query"]["text"])
                    ids, values = list(row["items"]), np.array(row["scores"], np.float64)
                except (KeyError, TypeError, ValueError) as error:
                    raise FileFormatError(
                        f"{file}, line {number}: a line has a query with id and text, items (ids) and scores "
                        f"(numbers); {type(error).__name__}: {error}."
                    ) from error
                queries += as_queries([query])
                positions.append(items.positions(ids))
                scores.append(values)
                of_all_items = of_all_items and row.get("of_all_items") is True
        return cls(queries, positions, scores, of_all_items=of_all_items)

    def write(self, file: str | Path, items: Items) -> None:
        """Write what `read` reads."""
        with Path(file).open("w", encoding="utf-8") as opened:
            for query, positions, scores in zip(self.queries, self.positions, self.scores, strict=True):
                row = {
                    "query": {"id": query.id, "text": query.text},
                    "items": [items.ids[position] for position in positions],
                    "scores": [float(score) for score in scores],
                } | ({"of_all_items": True} if self.of_all_items else {})
                opened.write(json.dumps(row, ensure_ascii=False) + "\n")

    @property
    def fingerprint(self) -> str:
        """A hash of everything in it."""
        digest = hashlib.blake2b(bytes([self.of_all_items]), digest_size=16)
        for query, positions, scores in zip(self.queries, self.positions, self.scores, strict=True):
            digest.update(f"{query.id}\0{query.text}\0".encode(errors="replace"))
            digest.update(np.asarray(positions, "<i8").tobytes() + np.asarray(scores, "<f8").tobytes())
        return digest.hexdigest()


def _told_apart(
    queries: Sequence[Query],
    positions: Sequence[IntArray],
    scores: Sequence[FloatArray],
    *,
    of_all_items: bool = False,
) -> TeacherScores:
    """Without the queries whose items all score alike: one of them must not end it for all others."""
    told = [place for place, own in enumerate(scores) if own.min() != own.max()]
    if 0 < len(told) < len(queries):
        left_out = [query for query, own in zip(queries, scores, strict=True) if own.min() == own.max()]
        _warn_of(left_out, len(queries), "all of their items have one score")
    kept = told or range(len(queries))
    return TeacherScores(
        [queries[place] for place in kept],
        [positions[place] for place in kept],
        [scores[place] for place in kept],
        of_all_items=of_all_items,
    )


def _warn_of(left_out: Sequence[Query], n_queries: int, why: str) -> None:
    _log.warning("%d of %d queries are left out, such as %r: %s.", len(left_out), n_queries, left_out[0].id, why)


def _check(query: Query, positions: IntArray, scores: FloatArray) -> None:
    if positions.shape != scores.shape or positions.ndim != 1:
        raise InputError(
            f"A teacher gives one score per item; for query {query.id!r} there are positions of shape "
            f"{positions.shape} and scores of shape {scores.shape}."
        )
    _check_number(query, len(positions))
    if len(np.unique(positions)) < len(positions) or positions.min() < 0:
        raise InputError(f"A teacher scores an item once; the positions for query {query.id!r} repeat, or are below 0.")
    if not np.isfinite(scores).all():
        worst = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise InputError(
            f"A teacher's scores are finite; that of query {query.id!r} and the item at position {positions[worst]} is "
            f"{scores[worst]}."
        )
    if scores.min() == scores.max():
        raise InputError(
            f"A teacher tells items apart; its {len(scores)} scores for query {query.id!r} are all {scores[0]:g}. "
            "Leave the query out, or take raw scores rather than saturated ones."
        )


def _check_number(query: Query, n: int) -> None:
    if n < _FEWEST:
        raise InputError(f"A query needs at least {_FEWEST} scored items to learn from; {query.id!r} has {n}.")


def _check_top(top: int, items: Items) -> None:
    if not (is_whole(top) and 2 <= top <= len(items)):
        raise InputError(f"top lies between 2 and the number of items, here {len(items)}; got {top!r}.")
