"""An index that learns from its own searches: a refresh from the log after every N of them, in the background."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adacur.budget import is_whole
from adacur.errors import IndexLocked, InputError
from adacur.extras.server.refresh import LIMIT, refresh
from adacur.extras.server.search_log import SearchLog
from adacur.search.editing import writable_home
from adacur.search.snapshot import Snapshot
from adacur.store import IndexFolder, prune

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

_log = logging.getLogger("adacur.refresh")


class Learning:
    """Refreshes an index from its log after every `every` searches, one refresh at a time, in a thread of its own.

    Indexes that `follow` move on to the new version together when it is ready; searches under way stay on theirs. A
    failure is logged, counted in `failed` and affects no search: the next refresh tries again. `heard` is called after
    each, with the name of an error or None.
    """

    def __init__(self, log: SearchLog, *, every: int, limit: int = LIMIT) -> None:
        if not (is_whole(every) and every >= 1):
            raise InputError(f"learn_every counts the searches between two refreshes, from 1; got {every!r}.")
        self.log = log
        self.every = every
        self.limit = limit
        self.refreshes, self.failed = 0, 0
        self.heard: Callable[[str | None], None] | None = None
        self._followers: weakref.WeakSet[AnchorIndex] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._since = 0
        self._thread: threading.Thread | None = None

    def follow(self, index: AnchorIndex) -> None:
        """Let an index move on to each new version."""
        with self._lock:
            self._followers.add(index)

    def note(self, n_searches: int) -> None:
        """Count logged searches; every `every` of them begin a refresh."""
        with self._lock:
            self._since += n_searches
            if self._since < self.every or self._thread is not None or not self._open():
                return
            self._since = 0
            # A daemon: a refresh that the end of the process interrupts leaves the old version or the new one.
            self._thread = threading.Thread(target=self._refresh, name="adacur-refresh", daemon=True)
            self._thread.start()

    def as_dict(self) -> dict[str, Any]:
        """How often it refreshes, and how often it has."""
        return {"every": self.every, "refreshes": self.refreshes, "failed": self.failed}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a refresh under way; whether it has ended."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _open(self) -> list[AnchorIndex]:
        return [index for index in self._followers if index._snapshot is not None]

    def _refresh(self) -> None:
        error = None
        with self._lock:
            indexes = self._open()
        try:
            if indexes:
                self._refreshed(indexes)
            self.refreshes += 1
        except Exception as failure:
            # The message stays out of logs: it may hold the text of a query.
            self.failed, error = self.failed + 1, type(failure).__name__
            frame = traceback.extract_tb(failure.__traceback__)[-1]
            _log.warning("%s is not refreshed: %s, %s:%s.", indexes[0].path, error, frame.filename, frame.lineno)
        finally:
            if self.heard is not None:
                with contextlib.suppress(Exception):
                    self.heard(error)
            with self._lock:
                self._thread = None

    def _refreshed(self, indexes: Sequence[AnchorIndex]) -> None:
        """Refresh the folder and move all indexes on."""
        index = indexes[0]
        path, snapshot = index.path, index.snapshot
        assert path is not None
        first = _stages(index, snapshot)
        done = refresh(path, self.log, limit=self.limit, card=index.scorer.card, first=first)
        if done.changed:
            move(indexes, IndexFolder.open(path), first=first)
            # The old version could not be deleted while these had it open, and a search may still have it.
            with contextlib.suppress(IndexLocked):
                prune(path)


def start_learning(index: AnchorIndex, log: SearchLog, *, every: int, limit: int = LIMIT) -> Learning:
    """Let an index follow its log from now on."""
    check_can_learn(index)
    learning = Learning(log, every=every, limit=limit)
    learning.follow(index)
    return learning


def move(
    indexes: Iterable[AnchorIndex], folder: IndexFolder, *, first: Callable[[IndexFolder], Mapping[str, Any]]
) -> None:
    """Let new searches of these indexes use another version, once its models are ready."""
    indexes = list(indexes)
    snapshot = Snapshot(folder, first=first(folder), device=indexes[0]._device)
    if snapshot.default_method == "gaussian":
        snapshot.gaussian_model().features_of(folder)
        snapshot.rank_slopes(snapshot.stage(None))
    for index in indexes:
        with index._opening:
            # An index that was closed meanwhile stays closed.
            if index._snapshot is not None:
                index.anchors, index._snapshot, index.card = folder, snapshot, folder.manifest.scorer


def check_can_learn(index: AnchorIndex) -> None:
    """Refuse an index that a refresh would take something from, or that has no writable folder."""
    writable_home(index)
    snapshot = index.snapshot
    lost = {"tunings": bool(snapshot.tunings), "compressed features": snapshot.is_compressed}
    if names := [what for what, there in lost.items() if there]:
        raise InputError(
            f"A refresh makes a new version without the {' and '.join(names)} of {index.path}, which belong to this "
            "one. Leave learn_every out, and call `adacur.extras.server.refresh` and then make them again; "
            "or do without them: a build with `--no-tune` makes no tunings, and removing tuned.json removes them."
        )


def _stages(index: AnchorIndex, snapshot: Snapshot) -> Callable[[IndexFolder], Mapping[str, Any]]:
    """A function that opens the first stages of a version; those already open serve if the items are the same."""
    reopen, before = index.reopen, snapshot.anchors
    assert reopen is not None
    assert isinstance(before, IndexFolder)
    digest, opened = before.manifest.items_digest, snapshot.opened_stages()

    def stages(folder: IndexFolder) -> Mapping[str, Any]:
        same = folder.manifest.items_digest == digest
        return {**reopen.first(folder), **(opened if same else {})}

    return stages
