"""An index for a share of the calls: each anchor query is scored against some items, the others are predicted.

Until it is finished, such an index lies in a hidden folder beside its path: the items as an index without anchor
queries, with their first stage, and a file with a row of positions and scores for each anchor query that is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation.completion import Completion, ScoredItems
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import IndexFolderError, IndexMismatch, InputError, ScorerError
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Item, Query
from adacur.core.scores import score_pairs
from adacur.data.stored import read_json, read_record
from adacur.index.blocks import as_stored
from adacur.index.build import build_scores, save_rows
from adacur.index.database import digest_texts
from adacur.index.estimate import Estimate
from adacur.index.files import damage_reported, full_disk_reported, is_in_use, locked, sync_path, write_atomically
from adacur.index.folder import IndexFolder, is_finished
from adacur.index.manifest import CONTINUE, Origin, read_manifest, work_folder, write_manifest
from adacur.index.probes import Drift, choose_probes, compare_scores, same_scorer
from adacur.index.progress import Progress, ProgressReports
from adacur.index.source import FINISHED
from adacur.index.versions import ABOUT_CELLS, EXACT, write_exact_cells

_log = logging.getLogger("adacur.build")

_ROWS, _RECORD = "rows.bin", "rows.json"
_PAIRS_PER_CALL = 8192
# Between two save points there are at most this number of pairs, or this time; a query is never cut.
_PAIRS_PER_BLOCK = 4096
_BLOCK_SECONDS = 5.0
_PAIRS_TO_RECOGNISE = 8
_ROWS_AT_ONCE = 8192


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
    file = home / EXACT / ABOUT_CELLS
    with damage_reported(str(file)):
        return read_record(Sparsity, read_json(file)) if file.exists() else None


def sparse_pairs_done(path: str | Path) -> int:
    """How many pairs a sparse build that was begun has scored."""
    begun = _begun(work_folder(path))
    return 0 if begun is None else int(begun["rows"] * begun["items per anchor query"])


class SparseBuild:
    """The build of a sparse index, in a hidden folder beside `path`, where finished scores are kept.

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
            if is_in_use(self.path):
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
            raise IndexMismatch(f"{str(error).removesuffix(FINISHED)}{self._remedy()}") from error
        if staged.manifest.origin is None:
            write_manifest(self.staged, replace(staged.manifest, origin=self._origin))
        return staged

    def score(
        self,
        anchors: Sequence[Query],
        *,
        sparsity: Sparsity,
        choose: Callable[[Sequence[Query]], IntArray],
        progress: Callable[[Progress], None] | None = None,
    ) -> list[ScoredItems]:
        """Score what is not scored yet. `choose` gives each query's best positions, then those drawn at random."""
        items, per_query = IndexFolder.open(self.staged).items, sparsity.per_query
        reports = ProgressReports(progress)
        with self._writing():
            done = self._rows_done(anchors, sparsity)
            rows = self._rows(done, sparsity)
            reports.drift = self._recognise(rows[:1], anchors, items)
            if done:
                _log.info("Continuing the sparse build of %s: finished anchor queries are not scored again.", self.path)
            pairs, pairs_done = len(anchors) * per_query, done * per_query
            n_bytes = len(items) * len(anchors) * np.dtype(self._dtype).itemsize
            cost = Estimate(len(items), len(anchors), pairs=pairs, bytes=n_bytes, pairs_done=pairs_done)
            _log.info("%s", cost.in_words())
            reports.begin(blocks=len(anchors), pairs=pairs, blocks_done=done, pairs_done=pairs_done)
            most, together = max(1, _PAIRS_PER_BLOCK // per_query), 1
            while done < len(anchors):
                began = time.perf_counter()
                queries = anchors[done : done + together]
                some = np.empty(len(queries), dtype=rows.dtype)
                some["positions"] = choose(queries)
                try:
                    some["scores"] = self._scores(queries, some["positions"], items)
                except ScorerError as error:
                    if done:
                        error.args = (f"{error} Finished anchor queries are kept: the same call continues there.",)
                    raise
                self._store(some, done, anchors, sparsity)
                done += len(queries)
                reports.add(blocks=len(queries), pairs=len(queries) * per_query)
                # With a slow scorer, save points must not be minutes apart.
                quick = time.perf_counter() - began < _BLOCK_SECONDS
                together = min(2 * together, most) if quick else max(1, together // 2)
            weights = np.ones(per_query)
            if n_random := sparsity.n_random:
                # Those drawn stand for all that are not among the best.
                weights[per_query - n_random :] = (len(items) - per_query + n_random) / n_random
            rows = self._rows(done, sparsity)
            places = rows["positions"].astype(np.intp)
            if places.min() < 0 or places.max() >= len(items):
                raise IndexFolderError(f"{self.work / _ROWS} names items that are not there. {self._remedy()}")
            return [ScoredItems(*row, weights) for row in zip(places, rows["scores"].astype(np.float64), strict=True)]

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
        with self._writing():
            shutil.rmtree(made, ignore_errors=True)
            save_rows(
                staged.items,
                anchors,
                lambda start, stop: completion[start:stop],
                dtype=self._dtype,
                path=made,
                card=self._scorer.card,
                origin=staged.manifest.origin,
            )
            calls = len(scored) * sparsity.per_query
            about = json.dumps(asdict(replace(sparsity, calls=calls)), indent=1)
            write_exact_cells(made, completion.exact, shape=completion.shape, about=about)
            shutil.copytree(self.staged / "first", made / "first")
            first = tuple(sorted(stage.name for stage in (made / "first").iterdir()))
            folder = IndexFolder.open(made)
            probes = choose_probes(folder.blocks(), exact=folder.exact_cells(), seed=sparsity.seed)
            write_manifest(made, replace(folder.manifest, first=first, probes=probes, seed=sparsity.seed))
            if self.path.exists():
                self.path.rmdir()
            os.replace(made, self.path)
            sync_path(self.path.parent)
        shutil.rmtree(self.work, ignore_errors=True)
        return IndexFolder.open(self.path)

    def _remedy(self) -> str:
        return f"Choose another path, or remove {self.work} to begin anew. {CONTINUE}"

    def _scores(self, queries: Sequence[Query], chosen: IntArray, items: Items) -> FloatArray:
        pairs = [(query, item) for query, places in zip(queries, chosen, strict=True) for item in items.at(places)]
        parts = [
            score_pairs(self._scorer, pairs[start : start + _PAIRS_PER_CALL])
            for start in range(0, len(pairs), _PAIRS_PER_CALL)
        ]
        scores = np.concatenate(parts)
        as_stored(scores, self._dtype, lambda at: pairs[at[0]])
        return scores.reshape(chosen.shape)

    def _begun_with(self, anchors: Sequence[Query], sparsity: Sparsity) -> dict[str, Any]:
        return {
            "anchor queries": digest_texts((query.id, query.text) for query in anchors),
            "items per anchor query": sparsity.per_query,
            "random share": sparsity.random_share,
            "seed": sparsity.seed,
            "dtype": self._dtype,
        }

    def _rows_done(self, anchors: Sequence[Query], sparsity: Sparsity) -> int:
        """How many anchor queries are scored; refused where they were scored for another index."""
        now, before = self._begun_with(anchors, sparsity), _begun(self.work)
        if before is None:
            self._store(np.empty(0), 0, anchors, sparsity)
            return 0
        differences = [f"{name}: {before[name]} before, {now[name]} now" for name in now if before[name] != now[name]]
        if differences:
            raise IndexMismatch(
                f"A sparse build of {self.path} was begun with something else: {'; '.join(differences)}. "
                f"{self._remedy()}"
            )
        return int(before["rows"])

    def _rows(self, n: int, sparsity: Sparsity) -> Any:
        """The first n rows: positions and scores of each anchor query."""
        width = (sparsity.per_query,)
        dtype = np.dtype([("positions", "<i8", width), ("scores", "<f8", width)])
        return np.fromfile(self.work / _ROWS, dtype=dtype, count=n)

    def _store(self, rows: Any, done: int, anchors: Sequence[Query], sparsity: Sparsity) -> None:
        """Append rows to the `done` ones. Their number follows when they are on the disk: no other row is trusted."""
        with (self.work / _ROWS).open("r+b" if done else "wb") as file:
            file.seek(done * rows.dtype.itemsize)
            file.truncate()
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        record = self._begun_with(anchors, sparsity) | {"rows": done + len(rows)}
        write_atomically(self.work / _RECORD, json.dumps(record))

    def _recognise(self, rows: Any, anchors: Sequence[Query], items: Items) -> Drift | None:
        """Compare a few scores, so that one index never holds those of two scorers, where cards do not tell."""
        manifest = replace(read_manifest(self.staged), dtype=self._dtype)
        if not len(rows) or same_scorer(manifest.scorer, self._scorer.card):
            return None
        positions, scores = rows[0]["positions"], rows[0]["scores"]
        some = np.unique(np.linspace(0, len(positions) - 1, _PAIRS_TO_RECOGNISE).astype(int))
        pairs = [(anchors[0], item) for item in items.at(positions[some].tolist())]
        return compare_scores(self._scorer, pairs, scores[some], manifest, where=self.path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder against other writers, and report a full disk as such."""
        safe = "the rows of finished anchor queries are safely stored"
        with full_disk_reported(self.work, lambda: safe), locked(self.work):
            yield


def _begun(work: Path) -> dict[str, Any] | None:
    """What a sparse build was begun with, and the number of rows that it has stored."""
    try:
        return dict(read_json(work / _RECORD))
    except FileNotFoundError:
        return None
