"""Editing an index: several changes, one new version, one rebuild of the first stages."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacur.arrays import BoolArray
from adacur.data import ItemFile, Passages
from adacur.errors import AdacurError, IndexLocked, InputError
from adacur.protocols import FirstStage, Scorer
from adacur.records import Item, Query, as_queries, check_item
from adacur.search.at_rest import store_at_rest
from adacur.search.index_stages import update_first_stages
from adacur.search.snapshot import Snapshot
from adacur.search.tuned import TUNED, read_tunings
from adacur.store import IndexFolder, On, Origin, Update, check_scorer, prune, updating
from adacur.store.model_file import is_compressed
from adacur.store.updates import repeatable
from adacur.store.workers import check_workers

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

_log = logging.getLogger("adacur.change")


@dataclass(frozen=True, slots=True)
class Change:
    """The result of an edit: the new `version`, its items and anchor queries, and the scorer `calls` for new scores.

    Further calls went into `recognising` the scorer. `lost` names what the old version had and must be made again:
    "compressed features", "tunings"; the latter were for the pairs of k and budget in `tuned_for`.
    """

    version: int
    items: int
    anchors: int
    calls: int
    recognising: int = 0
    lost: tuple[str, ...] = ()
    tuned_for: tuple[tuple[int, int], ...] = ()


@contextlib.contextmanager
def edit_index(index: AnchorIndex, *, executor: On = None, progress: bool = True) -> Iterator[Edit]:
    """Lock an index against other writers while it is changed; at the end it moves on to the new version.

    New scores are paid for where a change is requested, and stored at once: after an interruption or an error the
    index is as it was, and the same edit again continues where it stopped. First stages are updated at the end;
    compressed features and tunings must be made again.
    """
    writable_home(index)
    path = index.path
    assert path is not None
    with updating(path, executor=executor, progress=progress) as update:
        edit = Edit(index, update, executor=executor, progress=progress)
        try:
            yield edit
            folder = edit._finish()
        finally:
            edit._is_over = True
    if folder is not None:
        _move(index, folder)
        # The old version could not be deleted while this index had it open.
        with contextlib.suppress(IndexLocked):
            prune(path)


class Edit:
    """The changes of an index that are made together; `change` describes the result after the `with` block."""

    def __init__(self, index: AnchorIndex, update: Update, *, executor: On, progress: bool) -> None:
        self._index = index
        self._update = update
        self._executor = executor
        self._progress = progress
        self._is_over = False
        self._scorer: Scorer | None = None
        self._change: Change | None = None

    @property
    def change(self) -> Change:
        """The result and its cost; after the `with` block."""
        if self._change is None:
            raise InputError("edit.change is known after the `with` block, where no error ended it.")
        return self._change

    def add(self, items: Iterable[Item] | str | Path) -> None:
        """Add items, at one scorer call per anchor query each.

        A path is read by the fields that the index was built with.
        """
        self._add(self._split(self._given(items)))

    def _add(self, items: Iterable[Item]) -> None:
        update = self._open()
        n_new = update.check_new_items(items)
        for stage in _stages(self._index, update.current).values():
            # Before anything is paid for.
            stage.check_can_grow()
        scorer = self._opened_scorer() if update.n_anchors else None
        _log_calls(n_new, update.n_anchors)
        update.add(items, scorer=scorer)

    def replace(self, items: Iterable[Item] | str | Path) -> None:
        """Give items of the index new texts and metadata, at the cost of adding them.

        A document is replaced as a whole, with all its passages; replacing only some of them is refused.
        """
        update, given = self._open(), self._given(items)
        update.check_replacing(check_item(item) for item in given)
        items = self._split(given)
        # Repeated ids are refused by the update; passages of one document are not repetitions.
        documents = [check_item(item).document for item in items]
        names = [item.id for item in items if item.document == item.id]
        whole = set(names)
        passages = dict.fromkeys(name for name in documents if name not in whole)
        with update.undone_on_error():
            update.remove([*names, *passages], replaced=True)
            self._add(items)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove items by their ids, or documents with all their passages by theirs; calls no scorer."""
        self._open().remove(ids)

    def add_anchors(self, queries: Iterable[Query | str]) -> None:
        """Add anchor queries, at one scorer call per item each."""
        update, queries = self._open(), as_queries(queries)
        n_new = len(update.check_new_anchors(queries))
        scorer = self._opened_scorer()
        _log_calls(update.n_items, n_new)
        update.add_anchors(queries, scorer=scorer)

    def add_anchor_scores(self, queries: Iterable[Query | str], scores: Any, *, exact: BoolArray | None = None) -> None:
        """Add anchor queries whose scores are known, without a scorer call.

        - scores: (queries, items), items in the order of the index.
        - exact: of the same shape, false where a score was predicted.
        """
        self._open().add_anchor_scores(queries, scores, exact=exact)

    def drop_anchors(self, ids: Iterable[str]) -> None:
        """Remove anchor queries by their ids; calls no scorer."""
        self._open().drop_anchors(ids)

    def compact(self) -> None:
        """Copy the live scores into one part and delete what no version in use needs; tunings and the like stay."""
        self._open().compact()

    def _open(self) -> Update:
        if self._is_over:
            raise InputError("This edit is over. Start another: with index.edit() as edit: …")
        return self._update

    def _given(self, items: Iterable[Item] | str | Path) -> Iterable[Item]:
        if not isinstance(items, str | Path):
            return repeatable(items)
        return ItemFile(items, id_field=self._origin.id_field, text_fields=self._origin.text_fields)

    def _split(self, items: Iterable[Item]) -> Iterable[Item]:
        """Split into passages as the build did, if it did."""
        return items if self._origin.passages is None else Passages(items, self._origin.passages)

    @property
    def _origin(self) -> Origin:
        return self._update.current.manifest.origin or Origin()

    def _opened_scorer(self) -> Scorer:
        """The scorer of the index, recognised once; called last, when all else has been checked."""
        if self._scorer is None:
            self._scorer, calls = _recognised_scorer(self._index, self._update.current, self._executor)
            self._update.recognising += calls
        return self._scorer

    def _finish(self) -> IndexFolder | None:
        """Write the new version, if there is a change."""
        update, old = self._update, self._update.current
        if not update.is_changed:
            self._change = Change(old.version, len(old.items), len(old.anchor_queries), calls=0)
            return None

        def complete(version: IndexFolder, new: Collection[str] | None) -> Iterable[str]:
            if new is not None:
                stages = _stages(self._index, old)
                update_first_stages(stages, version, new=new, progress=self._progress)
            assert self._index.reopen is not None
            return store_at_rest(Snapshot(version, first=self._index.reopen.first(version)))

        folder = update.switch(complete)
        lost = {
            "compressed features": is_compressed(old.home) and not is_compressed(folder.home),
            "tunings": (old.home / TUNED).exists() and not (folder.home / TUNED).exists(),
        }
        self._change = Change(
            folder.version,
            len(folder.items),
            len(folder.anchor_queries),
            calls=update.calls,
            recognising=update.recognising,
            lost=tuple(what for what, is_lost in lost.items() if is_lost),
            tuned_for=_tuned_for(old) if lost["tunings"] else (),
        )
        return folder


def _tuned_for(folder: IndexFolder) -> tuple[tuple[int, int], ...]:
    # An unreadable file must not fail an edit that has been made.
    with contextlib.suppress(AdacurError):
        tunings = read_tunings(folder.home, anchor_queries=folder.anchor_queries, warn=False)
        return tuple((one.k, one.budget) for one in tunings)
    return ()


def _log_calls(n_items: int, n_anchors: int) -> None:
    _log.info(f"{n_items:,} items × {n_anchors:,} anchor queries: {n_items * n_anchors:,} scorer calls.")


def writable_home(index: AnchorIndex) -> Path:
    """The folder of this version; refused where there is none, or where it must not be written to."""
    home = index.snapshot.home
    if not index.snapshot.in_memory:
        raise InputError("The items of this index are in a vector engine: change them there.")
    if home is None:
        raise InputError("Only an index in a folder can be changed. Save it, and open that: index.save(path).")
    return home


def _move(index: AnchorIndex, folder: IndexFolder) -> None:
    """Let new searches of the index use another version."""
    assert index.reopen is not None
    with index._opening:
        index.anchors = folder
        index._snapshot = Snapshot(folder, first=index.reopen.first(folder), device=index._device)
        if index._scorer is not None and not isinstance(index._scorer, Scorer):
            # Opened later, it is recognised by the scores of this version, and the old version is released.
            index._scorer = functools.partial(index.reopen.scorer, folder)


def _recognised_scorer(index: AnchorIndex, version: IndexFolder, executor: On) -> tuple[Scorer, int]:
    """The scorer, recognised as the one that built the index, and the number of calls that took."""
    was_open = isinstance(index._scorer, Scorer)
    check_workers(executor, index.scorer)
    drifts = [None if was_open else index.drift]
    if not index.recognised:
        drifts.append(check_scorer(version, index.scorer))
    index.recognised = True
    return index.scorer, sum(drift.n_probes for drift in drifts if drift is not None)


def _stages(index: AnchorIndex, version: IndexFolder) -> Mapping[str, FirstStage]:
    """The first stages of a version, opened; the index's own if it is on that version."""
    if version.version == index.version:
        stages = {name: index.first_stage(name).stage for name in index.snapshot.named_stages}
        return {name: stage for name, stage in stages.items() if stage is not None}
    assert index.reopen is not None
    return {name: open_stage() for name, open_stage in index.reopen.first(version).items()}
