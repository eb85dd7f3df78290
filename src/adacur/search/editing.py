"""Editing an index: several changes, one new version, one rebuild of the first stages."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from adacur.errors import AdacurError, IndexLocked, InputError
from adacur.protocols import FirstStage, Scorer
from adacur.search.at_rest import store_at_rest
from adacur.search.index_stages import update_first_stages
from adacur.search.snapshot import Snapshot
from adacur.search.tuned import TUNED, read_tunings
from adacur.store import Change, Edit, IndexFolder, On, check_scorer, editing, prune
from adacur.store.executor import check_workers
from adacur.store.model_file import is_compressed

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex


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

    def recognised(version: IndexFolder) -> tuple[Scorer, int]:
        return _recognised_scorer(index, version, executor)

    def check_can_grow(version: IndexFolder) -> None:
        for stage in _stages(index, version).values():
            stage.check_can_grow()

    with editing(path, scorer=recognised, check_can_grow=check_can_grow, executor=executor, progress=progress) as edit:
        yield edit
        folder = _finished(index, edit, progress=progress)
    if folder is not None:
        _move(index, folder)
        # The old version could not be deleted while this index had it open.
        with contextlib.suppress(IndexLocked):
            prune(path)


def _finished(index: AnchorIndex, edit: Edit, *, progress: bool) -> IndexFolder | None:
    """Write the new version, if there is a change."""
    old = edit.new.current
    if not edit.new.is_changed:
        edit.made(Change(old.version, len(old.items), len(old.anchor_queries), calls=0))
        return None

    def complete(version: IndexFolder, new: Collection[str] | None) -> Iterable[str]:
        if new is not None:
            update_first_stages(_stages(index, old), version, new=new, progress=progress)
        assert index.reopen is not None
        return store_at_rest(Snapshot(version, first=index.reopen.first(version)))

    folder = edit.new.write(complete)
    lost = {
        "compressed features": is_compressed(old.home) and not is_compressed(folder.home),
        "tunings": (old.home / TUNED).exists() and not (folder.home / TUNED).exists(),
    }
    change = Change(
        folder.version,
        len(folder.items),
        len(folder.anchor_queries),
        calls=edit.new.calls,
        recognising=edit.new.recognising,
        lost=tuple(what for what, is_lost in lost.items() if is_lost),
        tuned_for=_tuned_for(old) if lost["tunings"] else (),
    )
    edit.made(change)
    return folder


def _tuned_for(folder: IndexFolder) -> tuple[tuple[int, int], ...]:
    # An unreadable file must not fail an edit that has been made.
    with contextlib.suppress(AdacurError):
        tunings = read_tunings(folder.home, anchor_queries=folder.anchor_queries, warn=False)
        return tuple((one.k, one.budget) for one in tunings)
    return ()


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
