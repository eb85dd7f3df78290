"""An index for a share of the calls: each anchor query is scored against some items, the others are predicted.

Until it is finished, such an index lies in a hidden folder beside its path: the items as an index without anchor
queries, with their first stage, and a database with a row of scores for each anchor query that is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from adacur.approximation.completion import Completion, ScoredItems
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import IndexFolderError, IndexMismatch, InputError, ScorerError, StorageFull
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Item, Query
from adacur.core.scores import score_pairs
from adacur.data.stored import read_json
from adacur.index.blocks import as_stored
from adacur.index.build import build_scores, save_rows
from adacur.index.checksums import write_checksums
from adacur.index.database import digest_texts
from adacur.index.estimate import Estimate
from adacur.index.files import is_full, locked, sync_path, sync_tree
from adacur.index.folder import IndexFolder, is_finished
from adacur.index.manifest import Origin, Probe, how_to_continue, read_manifest, work_folder, write_manifest
from adacur.index.probes import Drift, compare, same_scorer, spread_probes
from adacur.index.progress import Progress, ProgressReports
from adacur.index.source import FINISHED
from adacur.index.versions import EXACT
from adacur.scorers.cached import past_cache

__all__ = ["Sparse", "SparseBuild", "Sparsity", "read_sparsity", "sparse_pairs_done"]

_log = logging.getLogger("adacur.build")

_ABOUT = "about.json"
_PAIRS = "pairs.sqlite"
_PAIRS_PER_CALL = 8192
# Between two save points there are at most this number of pairs, or this time; a query is never cut.
_PAIRS_PER_BLOCK = 4096
_BLOCK_SECONDS = 5.0
_PAIRS_TO_RECOGNISE = 8
_PROBES = 32
_ROWS_AT_ONCE = 8192
_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sparse:
    """Score each anchor query against `items` items only, a number or a share of all such as .05.

    Of these, `random_share` are drawn at random; the others are its best under the dense first stage.
    """

    items: float
    # Chosen by replay (docs/decisions/0034-cheap-index.md).
    random_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.random_share <= 1:
            raise InputError(f"random_share must be between 0 and 1; got {self.random_share}.")
        if not 0 < self.items < np.inf or (self.items >= 1 and self.items != int(self.items)):
            raise InputError(
                f"sparse must be a number of items, or a share of all below 1; got {self.items}. Try 0.05."
            )

    def per_query(self, n_items: int) -> int:
        """How many of `n_items` each anchor query is scored against."""
        number = int(self.items) if self.items >= 1 else max(1, round(self.items * n_items))
        if number >= n_items:
            raise InputError(
                f"There are {n_items} items, and each anchor query would be scored against {number}: nothing is left "
                "to predict. Build without sparse."
            )
        return number


@dataclass(frozen=True, slots=True)
class Sparsity:
    """How a sparse index was scored: `calls` counts the scored pairs of the whole index."""

    per_query: int
    random_share: float
    seed: int
    calls: int = 0

    @property
    def n_random(self) -> int:
        """Items of an anchor query that are drawn at random: at least one, or none at a share of 0."""
        return max(1, round(self.per_query * self.random_share)) if self.random_share else 0


def read_sparsity(home: Path) -> Sparsity | None:
    """How an index was scored; None where every pair was."""
    try:
        data = read_json(home / EXACT / _ABOUT)
        values = {name: data[name] for name in Sparsity.__slots__}
        kinds = {name: (int, float) if name == "random_share" else (int,) for name in values}
        if wrong := [name for name, value in values.items() if type(value) not in kinds[name]]:
            raise ValueError(f"{wrong[0]} is {values[wrong[0]]!r}, not a number")
        return Sparsity(**values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexFolderError(f"{home / EXACT / _ABOUT} cannot be read ({error}). Restore it from a copy.") from error


def sparse_pairs_done(path: str | Path) -> int:
    """How many pairs a sparse build that was begun has scored."""
    rows = work_folder(path) / _PAIRS
    if not rows.exists():
        return 0
    with contextlib.closing(sqlite3.connect(rows, timeout=_LOCK_SECONDS)) as connection:
        return int(connection.execute("SELECT coalesce(sum(length(scores)), 0) / 8 FROM rows").fetchone()[0])


class SparseBuild:
    """A sparse index in the making, in a hidden folder beside `path`; scores that were paid for are kept there.

    `stage` stores the items, for the first stage to be built on; `score` fills the rows; `finish` predicts the rest and
    gives the index its name.
    """

    def __init__(self, path: str | Path, *, scorer: Scorer, dtype: str, origin: Origin | None = None) -> None:
        self.path = Path(path)
        self.work = work_folder(path)
        self.staged = self.work / "items"
        self._scorer = scorer
        self._dtype = dtype
        self._origin = origin

    def finished(self, items: Iterable[Item], anchors: Sequence[Query], *, sparse: Sparse) -> IndexFolder | None:
        """The index at `path` where it is finished already and was built from the same."""
        if not is_finished(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise IndexMismatch(
                    f"{self.path} is in use already, and not by a sparse index. Choose another path for this one."
                )
            return None
        about = read_sparsity(self.path)
        if about is None:
            raise IndexMismatch(f"{self.path} is an index in which every pair was scored. Choose another path.")
        # It checks items, anchor queries and scorer against those of the folder, and scores nothing.
        folder = build_scores(items, anchors, scorer=self._scorer, path=self.path, dtype=self._dtype)
        per_query = sparse.per_query(len(folder.items))
        if per_query != about.per_query:
            raise IndexMismatch(
                f"{self.path} was built with {about.per_query} items per anchor query, not {per_query}. {FINISHED}"
            )
        # The process that named it may have been killed before it could tidy up.
        shutil.rmtree(self.work, ignore_errors=True)
        return folder

    def stage(self, items: Iterable[Item]) -> IndexFolder:
        """Store the items, as an index without anchor queries; the same ones again are compared with those stored."""
        try:
            staged = build_scores(items, None, scorer=self._scorer, path=self.staged)
        except IndexMismatch as error:
            raise IndexMismatch(f"{str(error).removesuffix(FINISHED)}{self._remedy}") from error
        if staged.manifest.origin is None:
            write_manifest(self.staged, replace(staged.manifest, origin=self._origin))
        return staged

    def score(
        self,
        anchors: Sequence[Query],
        *,
        sparsity: Sparsity,
        choose: Callable[[Sequence[Query]], Sequence[tuple[IntArray, IntArray]]],
        progress: Callable[[Progress], None] | None = None,
    ) -> list[ScoredItems]:
        """Score what is not scored yet. `choose` gives each query's best positions, and those drawn at random."""
        items = IndexFolder.open(self.staged).items
        per_query = sparsity.per_query
        reports = ProgressReports(progress)
        with self._writing(), contextlib.closing(self._rows_database()) as database:
            self._check_begun(database, anchors, sparsity)
            done = {at for (at,) in database.execute("SELECT anchor FROM rows")}
            reports.drift = self._recognise(database, anchors, items)
            if done:
                _log.info("Continuing the sparse build of %s: finished anchor queries are not scored again.", self.path)
            left = [at for at in range(len(anchors)) if at not in done]
            pairs, pairs_done = len(anchors) * per_query, len(done) * per_query
            n_bytes = len(items) * len(anchors) * np.dtype(self._dtype).itemsize
            cost = Estimate(len(items), len(anchors), pairs=pairs, bytes=n_bytes, pairs_done=pairs_done)
            _log.info("%s", cost.in_words())
            reports.begin(blocks=len(anchors), pairs=pairs, blocks_done=len(done), pairs_done=pairs_done)
            most, together = max(1, _PAIRS_PER_BLOCK // per_query), 1
            while left:
                began = time.perf_counter()
                block, left = left[:together], left[together:]
                queries = [anchors[at] for at in block]
                chosen = choose(queries)
                try:
                    scores = self._scores(queries, chosen, items)
                except ScorerError as error:
                    if reports.blocks_done:
                        error.args = (f"{error} Finished anchor queries are kept: the same call continues there.",)
                    raise
                with database:
                    database.execute("BEGIN")
                    database.executemany(
                        "INSERT INTO rows VALUES (?, ?, ?, ?)",
                        (
                            (at, np.concatenate(places).astype("<i8").tobytes(), len(places[1]), values.tobytes())
                            for at, places, values in zip(block, chosen, scores, strict=True)
                        ),
                    )
                reports.add(blocks=len(block), pairs=len(block) * per_query)
                # With a slow scorer, save points must not be minutes apart.
                quick = time.perf_counter() - began < _BLOCK_SECONDS
                together = min(2 * together, most) if quick else max(1, together // 2)
            return list(_stored_rows(database, n_items=len(items)))

    def finish(
        self,
        anchors: Sequence[Query],
        scored: Sequence[ScoredItems],
        *,
        embeddings: FloatArray,
        query_vectors: FloatArray,
        sparsity: Sparsity,
    ) -> IndexFolder:
        """Predict what was not scored, and give the finished index its name."""
        staged = IndexFolder.open(self.staged)
        completion = Completion(scored, embeddings=embeddings, query_vectors=query_vectors, dtype=self._dtype)
        made = self.work / "index"
        card, origin = self._scorer.card, staged.manifest.origin
        with self._writing():
            shutil.rmtree(made, ignore_errors=True)
            save_rows(
                staged.items,
                anchors,
                lambda start, stop: completion[start:stop],
                dtype=self._dtype,
                path=made,
                card=card,
                origin=origin,
            )
            calls = sum(len(row.positions) for row in scored)
            _write_exact_cells(made, completion, about=replace(sparsity, calls=calls))
            shutil.copytree(self.staged / "first", made / "first")
            first = tuple(sorted(stage.name for stage in (made / "first").iterdir()))
            probes = _probes(scored, dtype=self._dtype)
            write_manifest(made, replace(read_manifest(made), first=first, probes=probes, seed=sparsity.seed))
            if self.path.exists():
                self.path.rmdir()
            os.replace(made, self.path)
            sync_path(self.path.parent)
        shutil.rmtree(self.work, ignore_errors=True)
        return IndexFolder.open(self.path)

    @property
    def _remedy(self) -> str:
        origin = None
        with contextlib.suppress(IndexFolderError):
            origin = read_manifest(self.staged).origin
        return f"Choose another path, or remove {self.work} to begin anew. {how_to_continue(origin)}"

    def _scores(
        self, queries: Sequence[Query], chosen: Sequence[tuple[IntArray, IntArray]], items: Items
    ) -> list[FloatArray]:
        per_query = [items.at(np.concatenate(places).tolist()) for places in chosen]
        pairs = [(query, item) for query, some in zip(queries, per_query, strict=True) for item in some]
        parts = []
        for start in range(0, len(pairs), _PAIRS_PER_CALL):
            some = pairs[start : start + _PAIRS_PER_CALL]
            parts.append(np.asarray(score_pairs(self._scorer, some), dtype="<f8"))
        scores = np.concatenate(parts)
        as_stored(scores, self._dtype, lambda at: pairs[at[0]])
        return np.split(scores, np.cumsum([len(some) for some in per_query])[:-1])

    def _rows_database(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.work / _PAIRS, isolation_level=None, timeout=_LOCK_SECONDS)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS about (what TEXT NOT NULL)")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS rows (anchor INTEGER PRIMARY KEY, positions BLOB NOT NULL, "
            "n_random INTEGER NOT NULL, scores BLOB NOT NULL)"
        )
        return connection

    def _check_begun(self, database: sqlite3.Connection, anchors: Sequence[Query], sparsity: Sparsity) -> None:
        """Refuse to continue with anything but what was begun."""
        now = {
            "anchor queries": digest_texts((query.id, query.text) for query in anchors),
            "items per anchor query": sparsity.per_query,
            "random share": sparsity.random_share,
            "seed": sparsity.seed,
            "dtype": self._dtype,
        }
        begun = database.execute("SELECT what FROM about").fetchone()
        if begun is None:
            database.execute("INSERT INTO about VALUES (?)", (json.dumps(now),))
            return
        before = json.loads(begun[0])
        if differences := [
            f"{name}: {before[name]} before, {value} now" for name, value in now.items() if before[name] != value
        ]:
            raise IndexMismatch(
                f"A sparse build of {self.path} was begun with something else: {'; '.join(differences)}. {self._remedy}"
            )

    def _recognise(self, database: sqlite3.Connection, anchors: Sequence[Query], items: Items) -> Drift | None:
        """Compare a few scores, so that one index never holds those of two scorers, where cards do not tell."""
        row = database.execute("SELECT anchor, positions, scores FROM rows LIMIT 1").fetchone()
        built = read_manifest(self.staged).scorer
        if row is None or same_scorer(built, self._scorer.card):
            return None
        positions, scores = np.frombuffer(row[1], dtype="<i8"), np.frombuffer(row[2], dtype="<f8")
        some = np.unique(np.linspace(0, len(positions) - 1, _PAIRS_TO_RECOGNISE).astype(int))
        pairs = [(anchors[row[0]], item) for item in items.at(positions[some].tolist())]
        now = score_pairs(past_cache(self._scorer), pairs)
        return compare(scores[some], now, dtype=self._dtype, where=self.path, built=built, given=self._scorer.card)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder against other writers, and report a full disk as such."""
        try:
            with locked(self.work):
                yield
        except (sqlite3.Error, OSError) as error:
            if is_full(error):
                raise StorageFull(
                    f"The disk that holds {self.work} is full; the rows of finished anchor queries are safely stored. "
                    "Free some space and run the same build again: it continues where it stopped."
                ) from error
            if isinstance(error, sqlite3.Error):
                raise IndexFolderError(f"{self.work / _PAIRS} cannot be used: {error}.") from error
            raise


def _write_exact_cells(folder: Path, completion: Completion, *, about: Sparsity) -> None:
    """Keep which scores are the scorer's, a bit each, and how they were chosen."""
    (folder / EXACT).mkdir()
    n_items, n_anchors = completion.shape
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_items, -(-n_anchors // 8))}
    # Not through a memory map: on a full disk, that ends the process without an error.
    with (folder / EXACT / "cells.npy").open("wb") as cells:
        np.lib.format.write_array_header_1_0(cells, header)
        for start in range(0, n_items, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, n_items)
            cells.write(np.packbits(completion.exact(start, stop), axis=1).tobytes())
    (folder / EXACT / _ABOUT).write_text(json.dumps(asdict(about), indent=1), encoding="utf-8")
    write_checksums(folder / EXACT)
    sync_tree(folder / EXACT)


def _stored_rows(database: sqlite3.Connection, *, n_items: int) -> Iterator[ScoredItems]:
    for positions, n_random, scores in database.execute("SELECT positions, n_random, scores FROM rows ORDER BY anchor"):
        places = np.frombuffer(positions, dtype="<i8").astype(np.intp)
        weights = np.ones(len(places))
        n_best = len(places) - n_random
        if n_random:
            # Those drawn stand for all that are not among the best.
            weights[n_best:] = (n_items - n_best) / n_random
        yield ScoredItems(places, np.frombuffer(scores, dtype="<f8").astype(np.float64), weights)


def _probes(scored: Sequence[ScoredItems], *, dtype: str) -> tuple[Probe, ...]:
    """Scores of the scorer spread evenly over their range, by which it is recognised."""
    scores = np.concatenate([row.scores for row in scored]).astype(dtype)
    items = np.concatenate([row.positions for row in scored])
    anchors = np.repeat(np.arange(len(scored)), [len(row.positions) for row in scored])
    order = np.argsort(scores, kind="stable")
    # Near the targets, so that few candidates are left of millions.
    targets = np.linspace(scores[order[0]], scores[order[-1]], _PROBES)
    near = np.searchsorted(scores[order], targets)[:, None] + np.arange(-_PROBES, _PROBES)
    return spread_probes(
        Probe(item=int(items[at]), anchor=int(anchors[at]), score=float(scores[at]))
        for at in order[np.unique(np.clip(near, 0, len(scores) - 1))].tolist()
    )
