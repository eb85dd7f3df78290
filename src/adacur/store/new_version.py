"""A version of an index that is being made: parts added and removed, and the switch to it."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.protocols import Items, Scorer
from adacur.records import Item, Query
from adacur.store.database import digest_texts
from adacur.store.executor import On, connected_to
from adacur.store.folder import IndexFolder
from adacur.store.items import StoredItems
from adacur.store.manifest import MANIFEST, PARTS, VERSIONS, Manifest, Probe, point_to, write_manifest
from adacur.store.parts import (
    Part,
    digest_items,
    digest_scores,
    is_whole,
    live_blocks,
    shape_of,
    without,
    write_places,
)
from adacur.store.probes import choose_probes, spread_probes
from adacur.store.progress import Progress
from adacur.store.scored_parts import Scoring, begin_part, score_part, write_part
from adacur.store.versions import AT_HOME, link_files
from adacur.store.writing import locked, made_whole, sync_path, sync_tree

_FEWEST_PROBES = 16

Completes = Callable[[IndexFolder, Collection[str] | None], Iterable[str]]
"""Adds what belongs to a version, given the ids that are new or have a new text, or None where all items are as they
were, with their first stages; to the names of its first stages."""


class NewVersion:
    """The next version of an index, made of the parts of the last one and new ones; nobody sees it before `write`.

    `new_ids` are of items that the last version has not, or not with this text; `card` is of the scorer that it belongs
    to. `calls` of the scorer were paid for its scores, and `recognising` more for its recognition.
    """

    def __init__(self, current: IndexFolder, *, executor: On, progress: bool) -> None:
        self.current = current
        self.parts = current.parts
        self.new_ids: set[str] = set()
        self.has_documents = current.manifest.documents is not None
        self.card = current.manifest.scorer
        self.calls = self.recognising = 0
        self.compacted = False
        self._executor = executor
        self._progress = progress
        self._index = current.path
        self._last_view = current
        self._items_changed = self._scores_changed = False

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to switch to."""
        return self.compacted or self.parts is not self.current.parts

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Several changes of which all are made or none; what was spent stays spent."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).update(before | {"calls": self.calls, "recognising": self.recognising})
            raise

    def view(self) -> IndexFolder:
        """The new version as it stands, to be read from."""
        parts, view = self.parts, self._last_view
        if view.parts is parts:
            return view
        old, (n_items, n_anchors) = self.current.manifest, shape_of(parts)
        manifest = Manifest(
            status="complete",
            n_items=n_items,
            n_anchors=n_anchors,
            dtype=str(np.result_type(*(part.manifest.dtype for part in parts))) if parts else old.dtype,  # type: ignore[arg-type]
            block_items=max((part.manifest.block_items for part in parts), default=1),
            items_digest=digest_items(parts) if self._items_changed else old.items_digest,
            anchors_digest="",
            scores_digest=digest_scores(parts) if self._scores_changed else old.scores_digest,
            scorer=self.card,
            seed=old.seed,
            origin=old.origin,
            fuse=old.fuse,
        )
        view = IndexFolder.of_parts(self._index, parts, manifest=manifest, home=self.current.home)
        digest = digest_texts((query.id, query.text) for query in view.anchor_queries)
        view.manifest = replace(manifest, anchors_digest=digest)
        self._last_view = view
        return view

    def remove(self, *, items: Sequence[int] | IntArray = (), anchors: Sequence[int] | IntArray = ()) -> None:
        """Leave out the items and anchor queries at these positions."""
        self.parts = without(self.parts, items=items, anchors=anchors)
        self._items_changed |= bool(len(items))
        self._scores_changed = True

    def score(
        self,
        of_items: str,
        items: Iterable[Item],
        anchors: Sequence[Query],
        scorer: Scorer,
        *,
        there: Items | None = None,
    ) -> None:
        """Add a part of new items, or of new anchor queries for those `there`, scored as far as it is not yet."""
        old = self.current.manifest
        dtype = "float16" if old.dtype == "float16" else "float32"
        # The same work has the same name, so that an interrupted one is continued.
        name = digest_texts(
            (
                ("items", of_items),
                ("anchors", digest_texts((query.id, query.text) for query in anchors)),
                ("scorer", repr(replace(scorer.card, source=None))),
                ("dtype", dtype),
            )
        )[:16]
        part = self._index / PARTS / name
        if not (part / MANIFEST).exists():
            shutil.rmtree(part, ignore_errors=True)
            given: dict[str, Any] = {"there": there, "brings_anchors": there is not None, "seed": old.seed}
            begin_part(part, items, anchors, dtype=dtype, scorer=scorer.card, **given)
        with Progress(self._progress) as progress, connected_to(self._executor):
            scoring = Scoring(scorer, dtype, old.seed, self._executor, progress=progress)
            try:
                score_part(part, scoring, anchors, StoredItems(part, keep_open=False) if there is None else there)
            finally:
                self.calls += progress.scored
                self.recognising += 0 if progress.drift is None else progress.drift.n_probes
        if not self.view().anchor_queries:
            # An index that had no scores may be searched with any scorer: from now on it must be this one.
            self.card = scorer.card
        self._grow(part)

    def save(
        self,
        items: Iterable[Item],
        anchors: Sequence[Query],
        rows: Callable[[int, int], FloatArray],
        **given: Any,
    ) -> None:
        """Add a part with scores that are known."""
        self._grow(self._written(items, anchors, rows, **given))

    def compact(self) -> None:
        """Copy what counts of all parts into one."""
        self.compacted, view = True, self.view()
        if is_whole(self.parts):
            return  # A copy would be the same.

        def rows(start: int, stop: int) -> FloatArray:
            # One block: both are as large as a block may be.
            return next(live_blocks(view.parts, n_items=stop, n_anchors=view.manifest.n_anchors, first=start))[1]

        facts: dict[str, Any] = {"dtype": view.manifest.dtype, "exact": view.exact_cells(), "cut": self._cut()}
        self.parts = [Part.after((), self._written(view.items, view.anchor_queries, rows, **facts))]

    def _written(
        self, items: Iterable[Item], anchors: Sequence[Query], rows: Callable[[int, int], FloatArray], **given: Any
    ) -> Path:
        part = self._index / PARTS / uuid.uuid4().hex[:16]
        with made_whole(part) as hidden:
            write_part(hidden, items, anchors, rows, scorer=self.current.manifest.scorer, **given)
        return part

    def _grow(self, folder: Path) -> None:
        new = Part.after(self.parts, folder)
        self.parts = [*self.parts, new]
        self._items_changed |= new.manifest.brings_items
        self._scores_changed = True

    def write(self, completes: Completes) -> IndexFolder:
        """Write it and make it the current version. What did not change of the last one stays."""
        index, old, view = self._index, self.current, self.view()
        home = index / VERSIONS / str(old.version + 1)
        probes = self._probes(view)
        home.mkdir()
        places = write_places(home, self.parts)
        if not self._items_changed:
            # Compressing and tuning a version hold its home.
            with locked(old.home):
                link_files(old.home, home, AT_HOME[:1] if self._scores_changed else AT_HOME)
        manifest = replace(
            view.manifest,
            version=old.version + 1,
            parts=tuple(part.folder.name for part in self.parts),
            places=places,
            documents=len({item.document for item in view.items}) if self.has_documents else None,
            cut=self._cut(),
            probes=probes,
        )
        version = IndexFolder.of_parts(index, view.parts, manifest=manifest, home=home)
        names = completes(version, self.new_ids if self._items_changed else None)
        write_manifest(home, replace(manifest, first=tuple(sorted(names))))
        sync_tree(home)
        sync_path(home.parent)
        sync_path(index)
        point_to(index, manifest.version)
        return IndexFolder.open(index)

    def _cut(self) -> int | None:
        """How many items are longer than the scorer takes, as far as that is known."""
        if not self._items_changed:
            return self.current.manifest.cut
        counts = [part.manifest.cut for part in self.view().parts if part.manifest.brings_items]
        return None if None in counts else sum(filter(None, counts))

    def _probes(self, view: IndexFolder) -> tuple[Probe, ...]:
        """Scores by which the scorer of the index is recognised, among those that count and that it gave."""
        if not view.anchor_queries:
            return ()
        cells = view.exact_cells()
        probes = [
            Probe(item, anchor, probe.score)
            for part in view.parts
            for probe in part.manifest.probes
            if (item := int(part.rows[probe.item])) >= 0
            and (anchor := int(part.columns[probe.anchor])) >= 0
            and (cells is None or cells[item, anchor])
        ]
        if len(probes) >= _FEWEST_PROBES:
            return spread_probes(probes)
        probes += choose_probes(view.blocks(), exact=cells, seed=view.manifest.seed)
        if not probes:
            raise InputError(
                f"All scores that would be left in {self._index} are predicted, and its scorer could not be told from "
                "another. Keep an anchor query, or an item, that was scored."
            )
        return spread_probes(probes)
