"""Changing an index: a change is a new version, written beside the current one and switched to in one step."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import DuplicateId, EmptyInput, InputError, UnknownName
from adacur.protocols import Items, Scorer, ScorerCard
from adacur.records import Item, ItemList, Query, as_queries, check_item, check_texts, repeats
from adacur.scores import check_grid
from adacur.store.anchor_table import distinct_anchors
from adacur.store.database import digest_given, digest_texts, metadata_as_json
from adacur.store.documents import check_all_passages, items_of_documents, whole_documents
from adacur.store.folder import IndexFolder
from adacur.store.manifest import PARTS, VERSIONS, Manifest, PartRecord, Probe, point_to, write_manifest
from adacur.store.parts import Layout, digest_items, digest_scores, live_blocks, write_removed_items
from adacur.store.probes import choose_probes, spread_probes
from adacur.store.progress import Progress
from adacur.store.scored_parts import Scoring, new_part, write_part
from adacur.store.versions import AT_HOME, link_files, prune_locked
from adacur.store.workers import On, connected_to
from adacur.store.writing import folder_at, full_disk_reported, locked, sync_path, sync_tree

_IDS_SHOWN = 3
_FEWEST_PROBES = 16

Completes = Callable[[IndexFolder, Collection[str] | None], Iterable[str]]
"""Adds what belongs to a version, given the ids that are new or have a new text, or None where all items are as they
were, with their first stages; to the names of its first stages."""


@contextlib.contextmanager
def updating(path: str | Path, *, executor: On = None, progress: bool = False) -> Iterator[Update]:
    """Hold an index against other writers and begin a change of it; what a crash left behind is removed first.

    - executor: where new pairs are scored.
    - progress: show bars.
    """
    index = folder_at(path)
    # Before locking, which would create a folder at a path where there is no index.
    IndexFolder.open(index).release()
    with locked(index):
        prune_locked(index)
        update = Update(IndexFolder.open(index), executor=executor, progress=progress)
        safe = "the index is as it was, and scores that were paid for are stored"
        try:
            with full_disk_reported(index, lambda: safe, what="change"):
                yield update
        finally:
            update.close()
            prune_locked(index, unused_parts=update.compacted)


class Update:
    """A new version that is being made, by any number of changes; readers see nothing of it before `switch`."""

    def __init__(self, current: IndexFolder, *, executor: On = None, progress: bool = False) -> None:
        self.current = current
        self._executor = executor
        self._progress = progress
        self._index = current.path
        self._layout = current.layout
        self._items_changed = self._scores_changed = False
        self._has_documents = current.manifest.documents is not None
        self._new_ids: set[str] = set()
        self._card = current.manifest.scorer
        self._last_view: tuple[Layout, IndexFolder] = current.layout, current
        # Scorer calls: for stored scores, and to recognise the scorer.
        self.calls = self.recognising = 0
        self.compacted = False

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to switch to."""
        return self.compacted or self._layout is not self.current.layout

    @property
    def n_items(self) -> int:
        """How many items the new version has so far."""
        return len(self._view().items)

    @property
    def n_anchors(self) -> int:
        """How many anchor queries the new version has so far."""
        return len(self._anchors)

    @property
    def _anchors(self) -> Sequence[Query]:
        return self._view().anchor_queries

    def check_new_items(self, items: Iterable[Item]) -> int:
        """Refuse bad items, repeated ones, and ids that are in the index; how many items there are."""
        ids: list[str] = []
        for item in items:
            check_item(item)
            metadata_as_json(item)
            ids.append(item.id)
        if not ids:
            raise EmptyInput("There are no items. Give at least one.")
        if len(set(ids)) < len(ids):
            raise DuplicateId(f"Item ids must be unique; {repeats(ids)} more than once.")
        if known := list(self._view().items.known_positions(ids)):
            raise DuplicateId(
                f"Ids of new items must be new; already in {self._index}: {_shown(known)}. Use replace to change the "
                "texts of items."
            )
        named = [item.document for item in items if item.document != item.id]
        if self._has_documents or named:
            there = self._documents() if self._has_documents else self._view().items.known_positions(named)
            if split := sorted({item.document for item in items} & set(there)):
                raise DuplicateId(
                    f"All passages of a document must come together, and {self._index} has some of {_shown(split)} "
                    "already. Replace a document with all its passages."
                )
        return len(ids)

    def check_new_anchors(self, queries: Iterable[Query | str]) -> list[Query]:
        """Refuse anchor queries that come twice or are in the index."""
        new = list(distinct_anchors(as_queries(queries)))
        there = {query.id for query in self._anchors}
        if known := [query.id for query in new if query.id in there]:
            raise DuplicateId(f"Ids of new anchor queries must be new; already in {self._index}: {_shown(known)}.")
        return new

    def add(self, items: Iterable[Item], *, scorer: Scorer | None) -> None:
        """Score new items against every anchor query; an interrupted call continues when it is repeated.

        Items are read several times; an iterator is read into memory first. Without anchor queries no scorer is needed.
        """
        items = repeatable(items)
        n_new = self.check_new_items(items)
        if scorer is None:
            part = self._saved(ItemList(items), (), lambda *_: np.empty((n_new, 0)), dtype=self.current.manifest.dtype)
        else:
            part = self._scored(digest_given(items), self._anchors, scorer, items=items)
        self._layout = self._layout.grown(part, n_items=n_new)
        self._new_ids = self._new_ids | {item.id for item in items}
        self._has_documents = self._has_documents or any(item.document != item.id for item in items)
        self._items_changed = self._scores_changed = True

    def add_anchors(self, queries: Iterable[Query | str], *, scorer: Scorer) -> None:
        """Score new anchor queries against every item; an interrupted call continues when it is repeated."""
        new = self.check_new_anchors(queries)
        view = self._view()
        part = self._scored(view.manifest.items_digest, new, scorer, there=view.items)
        # An index that had no scores may be searched with any scorer: from now on it must be this one.
        self._card = self._card if self._anchors else scorer.card
        self._layout = self._layout.grown(part, n_anchors=len(new))
        self._scores_changed = True

    def add_anchor_scores(
        self,
        queries: Iterable[Query | str],
        scores: Any,
        *,
        exact: BoolArray | None = None,
        card: ScorerCard | None = None,
    ) -> None:
        """Add anchor queries whose scores are known, (queries, items), at no scorer call.

        `exact`, of the same shape, is false where a score was predicted; the index remembers it. `card` is the scorer's
        whose index this becomes where it has no anchor queries.
        """
        new, items = self.check_new_anchors(queries), self._view().items
        if card is not None and not self._anchors:
            self._card = card
        values = np.asarray(scores)
        if values.shape != (len(new), len(items)):
            raise InputError(f"scores must have shape (queries, items), {(len(new), len(items))}; got {values.shape}.")
        values = check_grid(values, new, items)
        cells = None if exact is None else np.asarray(exact, dtype=np.bool_)
        if cells is not None and cells.shape != values.shape:
            raise InputError(f"exact must have the shape of the scores, {values.shape}; got {cells.shape}.")
        dtype = "float64" if self.current.manifest.dtype == "float64" else "float32"
        rows = np.ascontiguousarray(values.T, dtype=dtype)
        given: dict[str, Any] = {"dtype": dtype, "exact": None if cells is None else cells.T, "brings_items": False}
        part = self._saved(items, new, lambda start, stop: rows[start:stop], **given)
        self._layout = self._layout.grown(part, n_anchors=len(new))
        self._scores_changed = True

    def remove(self, ids: Iterable[str], *, replaced: bool = False) -> None:
        """Remove items, or documents with all their passages; one item must stay, unless they are `replaced`."""
        names = _distinct(ids, "item")
        if self._has_documents:
            names = whole_documents(names, self._documents())
        there = self._view().items.known_positions(names)
        if missing := [id_ for id_ in names if id_ not in there]:
            remedy = " Use add for new items." if replaced else ""
            raise UnknownName(f"Not in {self._index}: {_shown(missing)}.{remedy}")
        if len(names) == self.n_items and not replaced:
            raise EmptyInput(f"An index must keep an item; these are all {len(names)} of {self._index}.")
        self._layout = self._layout.without(items=np.array([there[id_] for id_ in names]))
        self._new_ids = self._new_ids - set(names)
        self._items_changed = self._scores_changed = True

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Several changes of which all are made or none."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            costs = {name: getattr(self, name) for name in ("calls", "recognising")}
            vars(self).update(before | costs)
            raise

    def drop_anchors(self, ids: Iterable[str], *, replaced: bool = False) -> None:
        """Remove anchor queries; each must be there, and one must stay, unless they are to be `replaced`."""
        names = _distinct(ids, "anchor query")
        there = {query.id: column for column, query in enumerate(self._anchors)}
        if missing := [id_ for id_ in names if id_ not in there]:
            raise UnknownName(f"Not among the anchor queries of {self._index}: {_shown(missing)}.")
        if len(names) == len(self._anchors) and not replaced:
            raise EmptyInput(f"An index must keep an anchor query; these are all {len(names)} of {self._index}.")
        self._layout = self._layout.without(anchors=np.array(sorted(there[id_] for id_ in names)))
        self._scores_changed = True

    def compact(self) -> None:
        """Copy what counts of all parts into one; parts that no version in use needs are deleted after the switch."""
        self.compacted = True
        if self._layout.is_whole:
            return  # A copy would be the same.
        view, n_anchors = self._view(), self.n_anchors

        def rows(start: int, stop: int) -> FloatArray:
            # One block: both are as large as a block may be.
            return next(live_blocks(view.parts, n_items=stop, n_anchors=n_anchors, first=start))[1]

        dtype, items = view.manifest.dtype, view.items
        part = self._saved(items, self._anchors, rows, dtype=dtype, exact=view.exact_cells(), cut=self._cut())
        self._layout = Layout.of([PartRecord(part, len(items), n_anchors)])

    def switch(self, completes: Completes) -> IndexFolder:
        """Write the new version and make it the current one. What did not change of the last one stays."""
        index, old, view = self._index, self.current, self._view()
        home = index / VERSIONS / str(old.version + 1)
        probes = self._probes(view)
        home.mkdir()
        removed = write_removed_items(home, self._layout.items)
        if not self._items_changed:
            # Compressing and tuning a version hold its home.
            with locked(old.home):
                link_files(old.home, home, AT_HOME[:1] if self._scores_changed else AT_HOME)
        manifest = replace(
            view.manifest,
            version=old.version + 1,
            parts=self._layout.records(),
            removed_items=removed,
            removed_anchors=tuple((place, parts) for place, parts in self._layout.anchors.removed.tolist()),
            documents=len(self._documents()) if self._has_documents else None,
            cut=self._cut(),
            probes=probes,
        )
        version = IndexFolder.of_parts(index, self._layout, view.parts, manifest=manifest, home=home)
        names = completes(version, self._new_ids if self._items_changed else None)
        write_manifest(home, replace(manifest, first=tuple(sorted(names))))
        sync_tree(home)
        sync_path(home.parent)
        sync_path(index)
        point_to(index, manifest.version)
        return IndexFolder.open(index)

    def close(self) -> None:
        """Release the version that was changed."""
        self.current.release()

    def _view(self) -> IndexFolder:
        """The new version as it stands, to be read from."""
        layout, view = self._last_view
        if layout is self._layout:
            return view
        old = self.current.manifest
        parts = self._layout.parts(self._index)
        manifest = Manifest(
            status="complete",
            n_items=int(self._layout.items.counts.sum()),
            n_anchors=int(self._layout.anchors.counts.sum()),
            dtype=str(np.result_type(*(part.manifest.dtype for part in parts))) if parts else old.dtype,  # type: ignore[arg-type]
            block_items=max((part.manifest.block_items for part in parts), default=1),
            items_digest=digest_items(parts) if self._items_changed else old.items_digest,
            anchors_digest="",
            scores_digest=digest_scores(parts) if self._scores_changed else old.scores_digest,
            scorer=self._card,
            seed=old.seed,
            origin=old.origin,
            fuse=old.fuse,
        )
        view = IndexFolder.of_parts(self._index, self._layout, parts, manifest=manifest, home=self.current.home)
        digest = digest_texts((query.id, query.text) for query in view.anchor_queries)
        view.manifest = replace(manifest, anchors_digest=digest)
        self._last_view = self._layout, view
        return view

    def _cut(self) -> int | None:
        """How many items are longer than the scorer takes, as far as that is known."""
        if not self._items_changed:
            return self.current.manifest.cut
        counts = [part.manifest.cut for part in self._view().parts if part.items]
        return None if None in counts else sum(filter(None, counts))

    def check_replacing(self, items: Iterable[Item]) -> None:
        """Refuse some of a document's passages in place of all."""
        check_all_passages(items, self._documents())

    def _documents(self) -> dict[str, list[str]]:
        """The ids of the items of every document of the new version so far."""
        return items_of_documents(self._view().items)

    def _scored(self, of_items: str, anchors: Sequence[Query], scorer: Scorer, **items: Any) -> str:
        """The part of these items and anchor queries, scored as far as it is not yet; its name."""
        dtype = "float16" if self.current.manifest.dtype == "float16" else "float32"
        # The same work has the same name, so that an interrupted one is continued.
        name = digest_texts(
            (
                ("items", of_items),
                ("anchors", digest_texts((query.id, query.text) for query in anchors)),
                ("scorer", repr(replace(scorer.card, source=None))),
                ("dtype", dtype),
            )
        )[:16]
        with Progress(self._progress) as progress, connected_to(self._executor):
            seed = self.current.manifest.seed
            scoring = Scoring(scorer, dtype, seed, self._executor, progress=progress)
            try:
                new_part(self._index / PARTS / name, scoring, anchors, **items)
            finally:
                self.calls += progress.scored
                self.recognising += 0 if progress.drift is None else progress.drift.n_probes
        return name

    def _saved(
        self, items: Items, anchors: Sequence[Query], rows: Callable[[int, int], FloatArray], **given: Any
    ) -> str:
        """A part with scores that are known, written whole; its name."""
        name = uuid.uuid4().hex[:16]
        hidden = self._index / PARTS / f".{name}"
        write_part(hidden, items, anchors, rows, card=self.current.manifest.scorer, **given)
        os.replace(hidden, self._index / PARTS / name)
        sync_path(self._index / PARTS)
        return name

    def _probes(self, view: IndexFolder) -> tuple[Probe, ...]:
        """Scores by which the scorer of the index is recognised, among those that count and that it gave."""
        if not self._anchors:
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


def repeatable(items: Iterable[Item]) -> Iterable[Item]:
    """Items that can be read several times."""
    if isinstance(items, Item | str):
        raise InputError("Expected a list of items and got one. Wrap it in a list: [item].")
    return list(items) if iter(items) is items else items


def _distinct(ids: Iterable[str], what: str) -> list[str]:
    if isinstance(ids, str):
        raise InputError(f"Expected a list of ids and got one. Wrap it in a list: [{ids!r}].")
    names = list(ids)
    if not names:
        raise EmptyInput(f"There are no ids. Name at least one {what}.")
    if not all(isinstance(id_, str) for id_ in names):
        raise InputError("Ids must be strings.")
    for id_ in names:
        check_texts(what.capitalize(), id_, "")
    if len(set(names)) < len(names):
        raise DuplicateId(f"Each {what} must be named once; {repeats(names)} more than once.")
    return names


def _shown(ids: Sequence[str]) -> str:
    some = ", ".join(repr(id_) for id_ in ids[:_IDS_SHOWN])
    return some if len(ids) <= _IDS_SHOWN else f"{some} and {len(ids) - _IDS_SHOWN} more"
