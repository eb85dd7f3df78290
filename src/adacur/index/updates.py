"""Changing an index: every change is a new version, written beside the old one and switched to in one step."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import (
    DuplicateId,
    EmptyInput,
    IndexLocked,
    InputError,
    NotAnIndex,
    StorageFull,
    UnknownName,
)
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Item, ItemList, Query, as_queries, check_item, check_texts, first_repeat
from adacur.core.scores import check_grid
from adacur.index.blocks import SCORES
from adacur.index.build import Progress, build_scores, locked, save_table
from adacur.index.checksums import write_checksums
from adacur.index.folder import AT_HOME, IndexFolder
from adacur.index.items import DATABASE, digest_items, digest_texts, metadata_as_json
from adacur.index.links import check_inside
from adacur.index.manifest import (
    FIRST_MANIFEST,
    FORMAT_OF_VERSIONS,
    VERSIONS,
    Manifest,
    Probe,
    home_of,
    keep_first_manifest,
    point_to,
    read_manifest,
    sync_path,
    write_manifest,
)
from adacur.index.mirror import refuse_url
from adacur.index.probes import spread_probes
from adacur.index.table import AnchorTable, distinct_anchors
from adacur.index.versions import EXACT, PARTS, READERS, ROWS, Part, nobody_reads, write_parts

__all__ = ["Update", "WriteFirstStages", "prune", "repeatable", "updating"]

_NAMED = 3
_NO_ITEMS = "There are no items. Give at least one."
_FEWEST_PROBES = 16
_CELLS_TO_PROBE = 4096


@dataclass(frozen=True, slots=True)
class WriteFirstStages:
    """How to bring first stages into a version's home before it is switched to.

    `write` is given the version's home, its items, and the ids that are new or have a new text; it returns the names.
    """

    write: Callable[[Path, Items, Collection[str]], Sequence[str]]


@contextlib.contextmanager
def updating(path: str | Path) -> Iterator[Update]:
    """Hold an index against other writers and begin a change of it; what a crash left behind is removed first."""
    refuse_url(path, "A change of items or anchor queries")
    index = Path(path)
    # Asked first: the lock would make a folder of a path that is none.
    IndexFolder.open(index).release()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(index))
        except IndexLocked:
            raise IndexLocked(
                f"Somebody else is changing {index}. It is as it was; try again when they have finished."
            ) from None
        _prune(index, everything=False)
        update = Update(IndexFolder.open(index))
        try:
            yield update
        except OSError as error:
            # Numpy tells a full disk by the bytes it could not write, without an error number.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) and "requested and" not in str(error):
                raise
            raise StorageFull(
                f"The disk that holds {index} is full; the index is as it was, and what was scored is kept. Free some "
                "space and ask for the same again."
            ) from error
        finally:
            update.close()
            _prune(index, everything=update.compacted)


def prune(path: str | Path) -> None:
    """Delete the versions that are neither current nor open anywhere, and the folders that only they were made of."""
    with locked(Path(path)):
        _prune(Path(path), everything=False)


class Update:
    """A new version in the making: what is asked for is checked at once, and nothing is seen before `switch`."""

    def __init__(self, current: IndexFolder) -> None:
        self._current = current
        self._index = current.path
        self._parts = list(current.parts) or [Part.whole(current.path, ".")]
        self._anchors = list(current.anchor_queries)
        self._n_items = len(current.items)
        # Of the items as they were: where each is now, -1 for one that was removed.
        self._places = np.arange(self._n_items)
        self._new_ids: list[str] = []
        self._card = current.manifest.scorer
        # Scorer calls: for scores to keep, to recognise the scorer, and to time it.
        self.calls = self.recognising = self.timing = 0
        self.compacted = False

    @property
    def current(self) -> IndexFolder:
        """The version that is being changed."""
        return self._current

    @property
    def n_items(self) -> int:
        """How many items the new version has so far."""
        return self._n_items

    @property
    def n_anchors(self) -> int:
        """How many anchor queries the new version has so far."""
        return len(self._anchors)

    def check_new_items(self, items: Iterable[Item]) -> int:
        """Refuse items that are no items, that come twice, or whose ids are there; how many they are."""
        seen: set[str] = set()
        rest = iter(items)
        while some := list(itertools.islice(rest, 1024)):
            for item in some:
                if _checked(item).id in seen:
                    raise DuplicateId(f"Item ids must be unique; {item.id!r} occurs more than once.")
                seen.add(item.id)
            there = self._current.items.found([item.id for item in some])
            if known := [id_ for id_, position in there.items() if self._places[position] >= 0]:
                raise DuplicateId(
                    f"{_named(known)} {'is' if len(known) == 1 else 'are'} in {self._index} already. Use replace to "
                    "give items of the same ids other texts."
                )
        if not seen:
            raise EmptyInput(_NO_ITEMS)
        return len(seen)

    def check_new_anchors(self, queries: Iterable[Query | str]) -> list[Query]:
        """Refuse anchor queries that come twice or are there already."""
        new = list(distinct_anchors(as_queries(queries)))
        there = {query.id for query in self._anchors}
        if known := [query.id for query in new if query.id in there]:
            raise DuplicateId(
                f"{_named(known)} {'is an anchor query' if len(known) == 1 else 'are anchor queries'} of "
                f"{self._index} already."
            )
        return new

    def add(
        self,
        items: Iterable[Item],
        *,
        scorer: Scorer | None,
        progress: Callable[[Progress], None] | None = None,
        **options: Any,
    ) -> None:
        """Score new items against every anchor query; one that was interrupted goes on when asked for again.

        Items are read several times; an iterator is read into memory first. `options` are those of `build_scores`.
        Without anchor queries no scorer is needed.
        """
        items = repeatable(items)
        n_new = self.check_new_items(items)
        if scorer is None:
            unscored = np.empty((n_new, 0), dtype=self._current.manifest.dtype)
            part = self._saved(AnchorTable(ItemList(items), (), unscored), exact=None)
        else:
            part = self._scored(items, self._anchors, scorer=scorer, progress=progress, **options)
        self._parts.append(Part.whole(self._index, part, first_row=self._n_items))
        self._n_items += n_new
        self._new_ids += [item.id for item in items]

    def add_anchors(
        self,
        queries: Iterable[Query | str],
        *,
        scorer: Scorer,
        progress: Callable[[Progress], None] | None = None,
        **options: Any,
    ) -> None:
        """Score new anchor queries against every item; one that was interrupted goes on when asked for again."""
        new = self.check_new_anchors(queries)
        part = self._scored(self._view().items, new, scorer=scorer, progress=progress, **options)
        self._parts.append(Part.whole(self._index, part, first_column=len(self._anchors)))
        # An index that had no scores may be searched with any scorer: from now on it is this one's.
        self._card = self._card if self._anchors else scorer.card
        self._anchors += new

    def add_anchor_scores(self, queries: Iterable[Query | str], scores: Any, *, exact: BoolArray | None = None) -> None:
        """Add anchor queries whose scores are known, (queries, items), at no scorer call.

        `exact`, of the same shape, is false where a score was predicted; the index remembers it.
        """
        new, view = self.check_new_anchors(queries), self._view()
        values = np.asarray(scores)
        if values.shape != (len(new), self._n_items):
            raise InputError(f"Scores are (queries, items), {(len(new), self._n_items)}; got shape {values.shape}.")
        values = check_grid(values, new, view.items)
        cells = None if exact is None else np.asarray(exact, dtype=np.bool_)
        if cells is not None and cells.shape != values.shape:
            raise InputError(f"exact has the shape of the scores, {values.shape}; got {cells.shape}.")
        dtype = np.float64 if self._current.manifest.dtype == "float64" else np.float32
        table = AnchorTable(view.items, tuple(new), np.ascontiguousarray(values.T, dtype=dtype))
        part = self._saved(table, exact=None if cells is None or cells.all() else cells.T)
        self._parts.append(Part.whole(self._index, part, first_column=len(self._anchors)))
        self._anchors += new

    def remove(self, ids: Iterable[str]) -> None:
        """Remove items; each must be there, and one must stay."""
        wanted = _distinct(ids, "item")
        if len(wanted) == self._n_items:
            self._check_there(wanted)
            raise EmptyInput(f"An index needs an item; these are all {self._n_items} of {self._index}.")
        self._take_out(wanted)

    def make_room_for(self, items: Iterable[Item]) -> None:
        """Remove the items whose ids these have, perhaps all, since these are to be added in their places."""
        ids = [_checked(item).id for item in items]
        if not ids:
            raise EmptyInput(_NO_ITEMS)
        wanted = _distinct(ids, "item")
        self._check_there(wanted, instead=" Use add for new items.")
        self._take_out(wanted)

    def _check_there(self, wanted: Sequence[str], *, instead: str = "") -> dict[str, int]:
        there = self._current.items.found(wanted)
        missing = [id_ for id_ in wanted if id_ not in there or self._places[there[id_]] < 0]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UnknownName(f"{_named(missing)} {verb} not in {self._index}.{instead}")
        return there

    def _take_out(self, wanted: Sequence[str]) -> None:
        there = self._check_there(wanted)
        going = self._places[[there[id_] for id_ in wanted]]
        moved = _places_without(going, self._n_items)
        self._places = _moved(self._places, moved)
        self._n_items -= len(wanted)
        self._keep(dataclasses.replace(part, rows=_moved(part.rows, moved)) for part in self._parts)

    def drop_anchors(self, ids: Iterable[str]) -> None:
        """Remove anchor queries; each must be there, and one must stay."""
        wanted = _distinct(ids, "anchor query")
        there = {query.id: column for column, query in enumerate(self._anchors)}
        if missing := [id_ for id_ in wanted if id_ not in there]:
            raise UnknownName(
                f"{_named(missing)} {'is no anchor query' if len(missing) == 1 else 'are no anchor queries'} of "
                f"{self._index}."
            )
        if len(wanted) == len(self._anchors):
            raise EmptyInput(f"An index needs an anchor query; these are all {len(wanted)} of {self._index}.")
        going = {there[id_] for id_ in wanted}
        moved = _places_without(np.array(sorted(going)), len(self._anchors))
        self._anchors = [query for column, query in enumerate(self._anchors) if column not in going]
        self._keep(dataclasses.replace(part, columns=_moved(part.columns, moved)) for part in self._parts)

    def compact(self) -> None:
        """Copy what counts of all parts into one; what nobody uses is deleted after the switch."""
        self.compacted = True
        first = self._parts[0]
        if len(self._parts) == 1 and (first.rows >= 0).all() and (first.columns >= 0).all():
            return  # A copy would be the same.
        view = self._view()
        cells = view.exact_cells()
        part = self._saved(_AsStored(view), exact=None if cells is None or cells.all() else cells)
        self._parts = [Part.whole(self._index, part)]

    def switch(self, first_stages: WriteFirstStages | None = None) -> IndexFolder:
        """Write the new version and make it the current one. Without a change of items, first stages stay."""
        index, old = self._index, self._current
        number = old.version + 1
        home = index / VERSIONS / str(number)
        view = self._view()
        probes = self._probes(view)
        home.mkdir(parents=True)
        (home / READERS).touch()
        records = write_parts(home, self._parts)
        manifest = dataclasses.replace(view.manifest, version=number, parts=records, format=FORMAT_OF_VERSIONS)
        if self._items_changed:
            names = () if first_stages is None else tuple(first_stages.write(home, view.items, set(self._new_ids)))
        else:
            names = old.first_names()
            kept = AT_HOME if [*self._anchors] == [*old.anchor_queries] else AT_HOME[:1]
            # Who compresses or tunes a version holds its home.
            with contextlib.nullcontext() if old.home == index else locked(old.home):
                _link(old.home, home, kept)
        manifest = dataclasses.replace(manifest, first=tuple(sorted(names)), probes=probes)
        write_checksums(home / ROWS)
        write_manifest(home, manifest)
        _sync_tree(home)
        sync_path(home.parent)
        if not old.parts:
            keep_first_manifest(index, old.manifest)
        sync_path(index)
        point_to(index, number)
        return IndexFolder.open(index)

    def close(self) -> None:
        """Let go of the version that was changed."""
        self._current.release()

    @property
    def _items_changed(self) -> bool:
        return bool(self._new_ids) or len(self._places) != self._n_items or bool((self._places < 0).any())

    def _view(self) -> IndexFolder:
        """The new version as it stands, to be read from."""
        old = self._current.manifest
        items_digest = old.items_digest
        if self._items_changed:
            # Of digests and places, since reading all texts again would take longer than most changes.
            items_digest = _digest_parts(self._parts)
        dtype = np.result_type(*(part.manifest.dtype for part in self._parts))
        manifest = Manifest(
            status="complete",
            n_items=self._n_items,
            n_anchors=len(self._anchors),
            dtype=str(dtype),
            block_items=max(part.manifest.block_items for part in self._parts),
            items_digest=items_digest,
            anchors_digest=digest_texts((query.id, query.text) for query in self._anchors),
            scorer=self._card,
            seed=old.seed,
            origin=old.origin,
        )
        return IndexFolder.of_parts(self._index, self._parts, manifest=manifest, home=self._current.home)

    def _scored(
        self,
        items: Iterable[Item],
        anchors: Sequence[Query],
        *,
        scorer: Scorer,
        progress: Callable[[Progress], None] | None,
        **options: Any,
    ) -> str:
        """The part of these items and anchor queries, scored as far as it is not yet; its path in the index."""
        stored = self._current.manifest.dtype
        dtype = "float16" if stored == "float16" else "float32"
        # The same work has the same name, so that it is found again where it was interrupted.
        name = digest_texts(
            (
                ("items", digest_items(items)),
                ("anchors", digest_texts((query.id, query.text) for query in anchors)),
                ("scorer", repr(dataclasses.replace(scorer.card, source=None))),
                ("dtype", dtype),
            )
        )[:16]
        path = f"{PARTS}/{name}"
        calls, recognising, timing = self.calls, self.recognising, self.timing
        found_done: int | None = None

        def told(now: Progress) -> None:
            nonlocal found_done
            found_done = now.pairs_done if found_done is None else found_done
            self.calls = calls + now.pairs_done - found_done
            self.recognising = recognising + (0 if now.drift is None else now.drift.n_probes)
            self.timing = timing + now.timed
            if progress is not None:
                progress(now)

        build_scores(
            items,
            anchors,
            scorer=scorer,
            path=self._index / path,
            dtype=dtype,
            seed=self._current.manifest.seed,
            progress=told,
            **options,
        )
        return path

    def _saved(self, table: Any, *, exact: BoolArray | None) -> str:
        """A part with scores that are known, written whole; its path in the index."""
        name = uuid.uuid4().hex[:16]
        hidden = self._index / PARTS / f".{name}"
        save_table(table, hidden, card=self._current.manifest.scorer)
        if exact is not None:
            (hidden / EXACT).mkdir()
            np.save(hidden / EXACT / "cells.npy", np.packbits(exact, axis=1))
            write_checksums(hidden / EXACT)
            _sync_tree(hidden / EXACT)
        os.replace(hidden, self._index / PARTS / name)
        sync_path(self._index / PARTS)
        return f"{PARTS}/{name}"

    def _keep(self, parts: Iterable[Part]) -> None:
        # Without anchor queries a part counts for its items alone.
        self._parts = [
            part for part in parts if (part.rows >= 0).any() and (not self._anchors or (part.columns >= 0).any())
        ]

    def _probes(self, view: IndexFolder) -> tuple[Probe, ...]:
        """Scores that the scorer of the index is recognised by, among those that count and that it gave."""
        if not self._anchors:
            return ()
        cells = view.exact_cells()
        remembered = [
            Probe(item, anchor, probe.score)
            for part in self._parts
            for probe in part.manifest.probes
            if (item := int(part.rows[probe.item])) >= 0
            and (anchor := int(part.columns[probe.anchor])) >= 0
            and (cells is None or cells[item, anchor])
        ]
        if len(remembered) >= _FEWEST_PROBES:
            return spread_probes(remembered)
        for start, values in view.blocks():
            known = np.ones(values.shape, bool) if cells is None else cells[start : start + len(values)]
            places = np.flatnonzero(known)
            some = places[np.linspace(0, len(places) - 1, min(len(places), _CELLS_TO_PROBE)).astype(np.intp)]
            rows, columns = np.divmod(some, values.shape[1])
            remembered += [
                Probe(start + row, column, float(values[row, column]))
                for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
            ]
            if len(remembered) >= _CELLS_TO_PROBE:
                break
        if not remembered:
            raise InputError(
                f"All scores that would be left in {self._index} are predicted, and nothing would tell its scorer from "
                "another. Keep an anchor query, or an item, that was scored."
            )
        return spread_probes(remembered)


class _AsStored:
    """A version to be copied: its scores in the dtype they are stored in, read block by block and in order."""

    def __init__(self, folder: IndexFolder) -> None:
        self.items = folder.items
        self.anchor_queries = folder.anchor_queries
        self.matrix = _RowsInOrder(folder)


class _RowsInOrder:
    """What `save_table` asks of a matrix, without holding it in memory."""

    def __init__(self, folder: IndexFolder) -> None:
        self.shape = (folder.manifest.n_items, folder.manifest.n_anchors)
        self.dtype = np.dtype(folder.manifest.dtype)
        self._blocks = folder.blocks()
        self._start = 0
        self._values: FloatArray = np.empty((0, self.shape[1]), dtype=self.dtype)

    def __getitem__(self, rows: slice) -> FloatArray:
        while self._start + len(self._values) < rows.stop:
            keep = self._values[rows.start - self._start :]
            self._start = rows.start
            self._values = np.concatenate([keep, next(self._blocks)[1]])
        return self._values[rows.start - self._start : rows.stop - self._start]


def _prune(index: Path, *, everything: bool) -> None:
    """Delete what no version and no reader uses; of folders that no version was ever made of only what is hidden.

    Those are scores that were paid for, by an addition that was interrupted: they go with `everything`.
    """
    home = home_of(index)
    homes = [folder for folder in (index / VERSIONS).glob("*") if folder.is_dir()]
    current = int(home.name) if home != index else 1
    used = _parts_of(home)
    with contextlib.ExitStack() as held:
        leaving = []
        for old in [*homes, *([index] if home != index and (index / FIRST_MANIFEST).exists() else [])]:
            if old == home:
                continue
            if old != index and (not old.name.isdecimal() or int(old.name) > current):
                # A version that was never switched to: its parts are scores that were paid for.
                _delete(index, old)
            elif held.enter_context(nobody_reads(old)):
                leaving.append(old)
            else:
                used |= _parts_of(old)
        unused = {part for old in leaving for part in _parts_of(old)} - used
        if everything:
            unused |= {f"{PARTS}/{part.name}" for part in (index / PARTS).glob("*")} - used
        # Left behind by what was interrupted while it was written whole, or while it was deleted.
        for left_over in (*(index / PARTS).glob(".*"), *index.glob(".*.gone")):
            _delete(index, left_over)
        # Parts first: what is left of a version says which they were, should this be interrupted.
        for part in unused - {"."}:
            _delete(index, index / part)
        if "." in unused:
            for name in (SCORES, EXACT, *(DATABASE + suffix for suffix in ("", "-wal", "-shm", "-journal"))):
                _delete(index, index / name)
        for old in leaving:
            for name in (*AT_HOME, ROWS) if old == index else ():
                _delete(index, index / name)
            if old != index:
                _delete(index, old)
        if "." in unused:
            _delete(index, index / FIRST_MANIFEST)


def _parts_of(home: Path) -> set[str]:
    """The parts that a version is made of; none where it was never written to the end."""
    if home.parent.name != VERSIONS:
        return {"."}
    try:
        return {part.path for part in read_manifest(home).parts}
    except NotAnIndex:
        return set()


def _delete(index: Path, path: Path) -> None:
    """Delete a file or folder of an index, out of sight at once, and of a link only the link.

    Where somebody holds it open and that matters, it stays.
    """
    if not path.exists() and not path.is_symlink():
        return
    check_inside(index, path)
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        if not path.name.startswith("."):
            gone = path.with_name(f".{path.name}.{uuid.uuid4().hex}.gone")
            path.rename(gone)
            path = gone
        shutil.rmtree(path)


def _link(old: Path, new: Path, names: Iterable[str]) -> None:
    """Bring files and folders to a new home; none is ever written to again, so they need no second copy."""

    def link(source: str, target: str) -> str:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
        return target

    for name in names:
        if (old / name).is_dir():
            shutil.copytree(old / name, new / name, copy_function=link, ignore=shutil.ignore_patterns(".*"))
        elif (old / name).exists():
            link(str(old / name), str(new / name))


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def _digest_parts(parts: Iterable[Part]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.manifest.items_digest.encode())
        digest.update(np.ascontiguousarray(part.rows, dtype="<i8").data)
    return digest.hexdigest()


def _places_without(going: IntArray, n: int) -> IntArray:
    """Where each of n places goes when some are removed; -1 for these."""
    stays = np.ones(n, dtype=np.bool_)
    stays[going] = False
    return np.where(stays, np.cumsum(stays) - 1, -1)


def _moved(places: IntArray, moved: IntArray) -> IntArray:
    return np.where(places >= 0, moved[places], -1)


def repeatable(items: Iterable[Item]) -> Iterable[Item]:
    """Items that can be read several times."""
    if isinstance(items, Item | str):
        raise InputError("Expected a list of items and got one. Wrap it in a list: [item].")
    return list(items) if iter(items) is items else items


def _checked(item: Item) -> Item:
    check_item(item)
    metadata_as_json(item)
    return item


def _distinct(ids: Iterable[str], what: str) -> list[str]:
    if isinstance(ids, str):
        raise InputError(f"Expected a list of ids and got one. Wrap it in a list: [{ids!r}].")
    wanted = list(ids)
    if not wanted:
        raise EmptyInput(f"There are no ids. Name at least one {what}.")
    if not all(isinstance(id_, str) for id_ in wanted):
        raise InputError("Ids are strings.")
    for id_ in wanted:
        check_texts(what.capitalize(), id_, "")
    if len(set(wanted)) < len(wanted):
        raise DuplicateId(f"Each {what} is named once; {first_repeat(wanted)!r} occurs more than once.")
    return wanted


def _named(ids: Sequence[str]) -> str:
    some = ", ".join(repr(id_) for id_ in ids[:_NAMED])
    return some if len(ids) <= _NAMED else f"{some} and {len(ids) - _NAMED} more"
