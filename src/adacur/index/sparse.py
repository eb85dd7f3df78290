"""An index for a share of the calls: each anchor query is scored against some items, the others are predicted.

Until it is finished, such an index lies in a hidden folder beside its path: the items and their first stage, and a row
of scores for each anchor query that is done. Only a finished index gets its name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation.completion import Completion, ScoredItems
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import IndexFolderError, IndexMismatch, InputError, ScorerError, StorageFull
from adacur.core.protocols import Items, Scorer, ScorerCard
from adacur.core.records import Item, Query
from adacur.core.scores import check_scores
from adacur.data.stored import read_json
from adacur.index.build import IT_IS_FINISHED, Progress, build_scores, check_not_lost, locked, save_table
from adacur.index.checksums import write_checksums
from adacur.index.folder import IndexFolder, is_finished
from adacur.index.items import digest_texts, error_is_full
from adacur.index.manifest import (
    Origin,
    Probe,
    how_to_continue,
    read_manifest,
    sync_path,
    work_folder,
    write_manifest,
)
from adacur.index.probes import Drift, compare, same_scorer, spread_probes
from adacur.index.table import AnchorTable
from adacur.index.versions import EXACT
from adacur.scorers.asking import asking
from adacur.scorers.cached import past_cache

__all__ = ["SparseBuild", "Sparsity", "read_sparsity"]

_log = logging.getLogger("adacur.build")

_CELLS = "cells.npy"
_ABOUT = "about.json"
_PAIRS = "pairs.sqlite"
_PAIRS_PER_CALL = 8192
# Between two save points, of which the second says when there are fewer pairs; a query is never cut.
_PAIRS_PER_BLOCK = 4096
_BLOCK_SECONDS = 5.0
_PAIRS_TO_RECOGNISE = 8
_PROBES = 32
_ROWS_AT_ONCE = 8192
_SECONDS_TO_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Each anchor query is scored against `per_query` items: a `random_share` of them at random, the others its best
    under the dense first stage. `calls` counts the pairs of the whole index that were scored.
    """

    per_query: int
    random_share: float
    seed: int
    calls: int = 0

    @property
    def n_random(self) -> int:
        """Items of an anchor query that are drawn at random: at least one, or none at a share of 0."""
        return max(1, round(self.per_query * self.random_share)) if self.random_share else 0

    @classmethod
    def of(cls, sparse: float, *, n_items: int, random_share: float, seed: int = 0) -> Sparsity:
        """From a number of items, or a share of them between 0 and 1."""
        if not 0 <= random_share <= 1:
            raise InputError(f"random_share is a share of the items that are scored, 0 to 1; got {random_share}.")
        if not 0 < sparse < np.inf or (sparse >= 1 and sparse != int(sparse)):
            raise InputError(
                f"sparse counts the items that each anchor query is scored against, or is a share of all below 1; "
                f"got {sparse}. Try 0.05."
            )
        per_query = int(sparse) if sparse >= 1 else max(1, round(sparse * n_items))
        if per_query >= n_items:
            raise InputError(
                f"There are {n_items} items, and each anchor query would be scored against {per_query}: nothing is "
                "left to predict. Build without sparse."
            )
        return cls(per_query=per_query, random_share=random_share, seed=seed)


def read_sparsity(home: Path) -> Sparsity | None:
    """How an index was scored; None where every pair was."""
    try:
        data = read_json(home / EXACT / _ABOUT)
        found = {name: data[name] for name in Sparsity.__slots__}
        kinds = {name: (int, float) if name == "random_share" else (int,) for name in found}
        if wrong := [name for name, value in found.items() if type(value) not in kinds[name]]:
            raise ValueError(f"{wrong[0]} is {found[wrong[0]]!r}, not a number")
        return Sparsity(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexFolderError(f"{home / EXACT / _ABOUT} cannot be read ({error}). Restore it from a copy.") from error


def _write_exact_cells(folder: Path, completion: Completion, *, about: Sparsity) -> None:
    """Keep which scores are the scorer's, a bit each, and how they were chosen."""
    (folder / EXACT).mkdir()
    n_items, n_anchors = completion.shape
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_items, -(-n_anchors // 8))}
    # Not through a memory map: on a full disk, that ends the process without a word.
    with (folder / EXACT / _CELLS).open("wb") as cells:
        np.lib.format.write_array_header_1_0(cells, header)
        for start in range(0, n_items, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, n_items)
            cells.write(np.packbits(completion.exact(start, stop), axis=1).tobytes())
    (folder / EXACT / _ABOUT).write_text(json.dumps(asdict(about), indent=1), encoding="utf-8")
    write_checksums(folder / EXACT)
    for file in (*(folder / EXACT).iterdir(), folder / EXACT):
        sync_path(file)


class SparseBuild:
    """A sparse index on its way, in a hidden folder beside `path`; what was paid for there is never paid again.

    First `items` are staged, with what a first stage needs; then `score` fills the rows, and `finish` predicts the rest
    and gives the index its name.
    """

    def __init__(self, path: str | Path, *, scorer: Scorer, dtype: str, origin: Origin | None = None) -> None:
        self.path = Path(path)
        self.work = work_folder(path)
        self._scorer = scorer
        self._dtype = dtype
        self._origin = origin

    @property
    def staged(self) -> Path:
        """The folder of the items, and of their first stage; like an index with one anchor query and no scores."""
        return self.work / "items"

    @property
    def _how_to_go_on(self) -> str:
        origin = None
        with contextlib.suppress(IndexFolderError):
            origin = read_manifest(self.staged).origin
        return f"Choose another path, or remove {self.work} to begin anew. {how_to_continue(origin)}"

    def finished(self, items: Iterable[Item], anchors: Sequence[Query], *, wanted: float) -> IndexFolder | None:
        """The index at `path` where it is finished already and was built just so."""
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
        asked = Sparsity.of(wanted, n_items=len(folder.items), random_share=about.random_share, seed=about.seed)
        if asked.per_query != about.per_query:
            raise IndexMismatch(
                f"{self.path} was built with {about.per_query} items per anchor query, not {asked.per_query}. "
                f"{IT_IS_FINISHED}"
            )
        # Whoever gave it its name may have been killed before it could tidy up.
        shutil.rmtree(self.work, ignore_errors=True)
        return folder

    def stage(self, items: Iterable[Item]) -> IndexFolder:
        """Keep the items; the same ones again are compared with those kept."""
        unscored = _Unscored(self._scorer.card)
        anchors = [Query("unscored", "unscored")]
        try:
            staged = build_scores(items, anchors, scorer=unscored, path=self.staged, block_items=8192)
        except IndexMismatch as error:
            raise IndexMismatch(f"{str(error).removesuffix(IT_IS_FINISHED)}{self._how_to_go_on}") from error
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
        with locked(self.work), self._telling_full_disk(), contextlib.closing(self._pairs()) as pairs:
            self._check_begun(pairs, anchors, sparsity)
            done = {at for (at,) in pairs.execute("SELECT anchor FROM rows")}
            drift = self._recognise(pairs, anchors, items)
            if done:
                _log.info("Continuing the sparse build of %s: finished anchor queries are not scored again.", self.path)
            report = _Reports(progress, done=len(done), anchors=len(anchors), per_query=sparsity.per_query, drift=drift)
            left = [at for at in range(len(anchors)) if at not in done]
            most, together = max(1, _PAIRS_PER_BLOCK // sparsity.per_query), 1
            while left:
                began = time.perf_counter()
                block, left = left[:together], left[together:]
                queries = [anchors[at] for at in block]
                chosen = choose(queries)
                try:
                    scores = self._scores(queries, chosen, items)
                except ScorerError as error:
                    if len(left) + len(block) < len(anchors):
                        error.args = (
                            f"{error} Finished anchor queries are kept: the same call, or command, again goes on from "
                            "there.",
                        )
                    raise
                with pairs:
                    pairs.execute("BEGIN")
                    pairs.executemany(
                        "INSERT INTO rows VALUES (?, ?, ?, ?)",
                        (
                            (at, _bytes(np.concatenate(own)), len(own[1]), _bytes(values))
                            for at, own, values in zip(block, chosen, scores, strict=True)
                        ),
                    )
                report.add(len(block))
                # A slow scorer must not lose minutes of work, nor tell nothing for so long.
                quick = time.perf_counter() - began < _BLOCK_SECONDS
                together = min(2 * together, most) if quick else max(1, together // 2)
            return list(_rows(pairs, n_items=len(items)))

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
        items = IndexFolder.open(self.staged)
        completion = Completion(scored, embeddings=embeddings, query_vectors=query_vectors, dtype=self._dtype)
        made = self.work / "index"
        with locked(self.work), self._telling_full_disk():
            shutil.rmtree(made, ignore_errors=True)
            # Only ever cut into blocks of items, which it predicts when asked for them.
            rows: Any = completion
            table = AnchorTable(items.items, tuple(anchors), rows)
            save_table(table, made, card=self._scorer.card, origin=items.manifest.origin)
            calls = sum(len(own.positions) for own in scored)
            _write_exact_cells(made, completion, about=replace(sparsity, calls=calls))
            shutil.copytree(self.staged / "first", made / "first")
            first = tuple(sorted(stage.name for stage in (made / "first").iterdir()))
            manifest = replace(
                read_manifest(made), first=first, probes=_probes(scored, dtype=self._dtype), seed=sparsity.seed
            )
            write_manifest(made, manifest)
            if self.path.exists():
                self.path.rmdir()
            os.replace(made, self.path)
            sync_path(self.path.parent)
        shutil.rmtree(self.work, ignore_errors=True)
        return IndexFolder.open(self.path)

    def _scores(
        self, queries: Sequence[Query], chosen: Sequence[tuple[IntArray, IntArray]], items: Items
    ) -> list[FloatArray]:
        found = [items.at(np.concatenate(own).tolist()) for own in chosen]
        pairs = [(query, item) for query, own in zip(queries, found, strict=True) for item in own]
        parts = []
        for start in range(0, len(pairs), _PAIRS_PER_CALL):
            some = pairs[start : start + _PAIRS_PER_CALL]
            with asking(self._scorer):
                parts.append(np.asarray(check_scores(self._scorer.score(some), some), dtype=np.float64))
        scores = np.concatenate(parts)
        with np.errstate(over="ignore"):
            stored = scores.astype(self._dtype)
        beyond = np.flatnonzero(np.isinf(stored))
        if len(beyond):
            query, item = pairs[int(beyond[0])]
            raise InputError(
                f"{self._dtype} holds numbers up to {np.finfo(self._dtype).max:g}; query {query.id!r} and item "
                f"{item.id!r} score {scores[beyond[0]]:g}. Build in another folder with a wider dtype."
            )
        check_not_lost(scores, stored)
        return np.split(scores, np.cumsum([len(own) for own in found])[:-1])

    def _pairs(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.work / _PAIRS, isolation_level=None, timeout=_SECONDS_TO_WAIT)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS about (what TEXT NOT NULL)")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS rows (anchor INTEGER PRIMARY KEY, positions BLOB NOT NULL, "
            "n_random INTEGER NOT NULL, scores BLOB NOT NULL)"
        )
        return connection

    def _check_begun(self, pairs: sqlite3.Connection, anchors: Sequence[Query], sparsity: Sparsity) -> None:
        """Refuse to continue with anything but what was begun."""
        what = {
            "anchor queries": digest_texts((query.id, query.text) for query in anchors),
            "items per anchor query": sparsity.per_query,
            "random share": sparsity.random_share,
            "seed": sparsity.seed,
            "dtype": self._dtype,
        }
        begun = pairs.execute("SELECT what FROM about").fetchone()
        if begun is None:
            pairs.execute("INSERT INTO about VALUES (?)", (json.dumps(what),))
            return
        before = json.loads(begun[0])
        differences = [
            f"{name}: {before[name]} before, {value} now" for name, value in what.items() if before[name] != value
        ]
        if differences:
            raise IndexMismatch(
                f"A sparse build of {self.path} was begun with something else: {'; '.join(differences)}. "
                f"{self._how_to_go_on}"
            )

    def _recognise(self, pairs: sqlite3.Connection, anchors: Sequence[Query], items: Items) -> Drift | None:
        """Compare a few scores, so that one index never holds those of two scorers, where cards do not tell."""
        found = pairs.execute("SELECT anchor, positions, scores FROM rows LIMIT 1").fetchone()
        built = read_manifest(self.staged).scorer
        if found is None or same_scorer(built, self._scorer.card):
            return None
        positions, scores = np.frombuffer(found[1], dtype="<i8"), np.frombuffer(found[2], dtype="<f8")
        some = np.unique(np.linspace(0, len(positions) - 1, _PAIRS_TO_RECOGNISE).astype(int))
        asked = [(anchors[found[0]], item) for item in items.at(positions[some].tolist())]
        with asking(self._scorer):
            now = check_scores(past_cache(self._scorer).score(asked), asked)
        return compare(scores[some], now, dtype=self._dtype, where=self.path, built=built, given=self._scorer.card)

    @contextlib.contextmanager
    def _telling_full_disk(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if _tells_full_disk(error):
                raise StorageFull(
                    f"The disk that holds {self.work} is full; the rows of finished anchor queries are safely stored. "
                    "Free some space and run the same build again: it continues where it stopped."
                ) from error
            if isinstance(error, OSError):
                raise
            raise IndexFolderError(f"{self.work / _PAIRS} cannot be used: {error}.") from error


def _tells_full_disk(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, sqlite3.Error):
        return error_is_full(error)
    # Copying a tree of files tells their errors in words only.
    in_words = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT)]
    return isinstance(error, StorageFull) or any(words in str(error) for words in in_words)


class _Unscored:
    """Lets items be kept as every index keeps them, under the scorer's card, before there is a score."""

    def __init__(self, card: ScorerCard) -> None:
        self.card = card

    def score(self, pairs: Sequence[tuple[Query, Item]]) -> FloatArray:
        """Nothing is said of any pair."""
        return np.zeros(len(pairs))


class _Reports:
    """Progress as builds tell it; a block is an anchor query."""

    def __init__(
        self,
        progress: Callable[[Progress], None] | None,
        *,
        done: int,
        anchors: int,
        per_query: int,
        drift: Drift | None,
    ) -> None:
        self._progress = progress
        self._resumed = self._done = done
        self._anchors = anchors
        self._per_query = per_query
        self._drift = drift
        self._began = time.perf_counter()
        self.add(0)

    def add(self, n: int) -> None:
        """So many more are done."""
        self._done += n
        if self._progress is None:
            return
        seconds = time.perf_counter() - self._began
        paid = (self._done - self._resumed) * self._per_query
        self._progress(
            Progress(
                blocks_done=self._done,
                blocks=self._anchors,
                pairs_done=self._done * self._per_query,
                pairs=self._anchors * self._per_query,
                seconds=seconds,
                pairs_per_second=paid / max(seconds, 1e-9),
                resumed_blocks=self._resumed,
                drift=self._drift,
            )
        )


def _bytes(values: Any) -> bytes:
    little = np.asarray(values)
    return little.astype("<i8" if little.dtype.kind == "i" else "<f8").tobytes()


def _rows(pairs: sqlite3.Connection, *, n_items: int) -> Iterator[ScoredItems]:
    for positions, n_random, scores in pairs.execute("SELECT positions, n_random, scores FROM rows ORDER BY anchor"):
        places = np.frombuffer(positions, dtype="<i8").astype(np.intp)
        weights = np.ones(len(places))
        n_best = len(places) - n_random
        if n_random:
            # Those drawn stand for all that are not among the best.
            weights[n_best:] = (n_items - n_best) / n_random
        yield ScoredItems(places, np.frombuffer(scores, dtype="<f8").astype(np.float64), weights)


def _probes(scored: Sequence[ScoredItems], *, dtype: str) -> tuple[Probe, ...]:
    """Scores of the scorer spread evenly over their range, by which it is recognised."""
    scores = np.concatenate([own.scores for own in scored]).astype(dtype)
    items = np.concatenate([own.positions for own in scored])
    anchors = np.repeat(np.arange(len(scored)), [len(own.positions) for own in scored])
    order = np.argsort(scores, kind="stable")
    # Near the places wanted, so that few candidates are left of millions.
    targets = np.linspace(scores[order[0]], scores[order[-1]], _PROBES)
    near = np.searchsorted(scores[order], targets)[:, None] + np.arange(-_PROBES, _PROBES)
    return spread_probes(
        Probe(item=int(items[at]), anchor=int(anchors[at]), score=float(scores[at]))
        for at in order[np.unique(np.clip(near, 0, len(scores) - 1))].tolist()
    )
