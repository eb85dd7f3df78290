"""An index that learns from its own searches: a refresh from the log after every N of them, in the background."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.budget import is_whole
from adacur.errors import IndexLocked, InputError
from adacur.extras.server.refresh import LIMIT, refresh
from adacur.extras.server.search_log import Lesson, SearchLog
from adacur.search.editing import writable_home
from adacur.search.snapshot import Snapshot
from adacur.store import IndexFolder, prune

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

_log = logging.getLogger("adacur.refresh")

_TOP = 10
# Half of fewer calls would be hardly more than the top itself.
_FEWEST_CALLS = 4 * _TOP
_FEWEST_SEARCHES = 10


class Learning:
    """Refreshes an index from its log after every `every` searches, one refresh at a time, in a thread of its own.

    At most `limit` anchor queries come from the log. Indexes that `follow` move on to the new version together when it
    is ready; searches under way stay on theirs. A failure is logged and noted as a `Lesson`, and affects no search.
    `heard` is called with each lesson.
    """

    def __init__(self, log: SearchLog, *, every: int, limit: int = LIMIT) -> None:
        if not (is_whole(every) and every >= 1):
            raise InputError(f"learn_every counts the searches between two refreshes, from 1; got {every!r}.")
        self.log = log
        self.every = every
        self.limit = limit
        self.heard: Callable[[Lesson], None] | None = None
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
            n_new, self._since = self._since, 0
            # A daemon: a refresh that the end of the process interrupts leaves the old version or the new one.
            self._thread = threading.Thread(target=self._refresh, args=(n_new,), name="adacur-refresh", daemon=True)
            self._thread.start()

    def as_dict(self) -> dict[str, Any]:
        """How often it refreshes, and the lessons so far: a curve over the searches served."""
        return {"every": self.every, "lessons": [asdict(lesson) for lesson in self.log.lessons()]}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a refresh under way; whether it has ended."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _open(self) -> list[AnchorIndex]:
        return [index for index in self._followers if index._snapshot is not None]

    def _refresh(self, n_new: int) -> None:
        try:
            lesson = self._lesson(n_new)
            with contextlib.suppress(Exception):
                self.log.teach(lesson)
            if self.heard is not None:
                with contextlib.suppress(Exception):
                    self.heard(lesson)
        finally:
            with self._lock:
                self._thread = None

    def _lesson(self, n_new: int) -> Lesson:
        early: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            early = _early(self.log, n_new)
        n_anchors, error = 0, None
        with self._lock:
            indexes = self._open()
        try:
            n_anchors = self._refreshed(indexes) if indexes else 0
        except Exception as failure:
            # Searches go on with the version they have, and the next refresh tries again.
            # The message stays out of logs: it may hold the text of a query.
            error = type(failure).__name__
            frame = traceback.extract_tb(failure.__traceback__)[-1]
            _log.warning("%s is not refreshed: %s, %s:%s.", indexes[0].path, error, frame.filename, frame.lineno)
        before = 0
        with contextlib.suppress(Exception):
            before = next((one.searches for one in reversed(self.log.lessons())), 0)
        return Lesson(time.time(), before + n_new, n_anchors, **early, error=error)

    def _refreshed(self, indexes: Sequence[AnchorIndex]) -> int:
        """Refresh the folder and move all indexes on; returns the number of anchor queries."""
        index = indexes[0]
        path, snapshot = index.path, index.snapshot
        assert path is not None
        first = _stages(index, snapshot)
        done = refresh(path, self.log, limit=self.limit, card=index.scorer.card, mirror=True, first=first)
        if done.added or done.updated or done.dropped:
            move(indexes, IndexFolder.open(path), first=first)
            # The old version could not be deleted while these had it open, and a search may still have it.
            with contextlib.suppress(IndexLocked):
                prune(path)
        return done.anchors


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
            "one. Leave learn_every out, and run `adacur index refresh` and then make them again by hand; "
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


def _early(log: SearchLog, n_new: int) -> dict[str, float]:
    """The share of the newest searches' best ten that half of their calls had found, with its interval."""
    shares = []
    for search in log.newest(n_new):
        if len(search.scores) >= _FEWEST_CALLS:
            best = np.argsort(-search.scores, kind="stable")[:_TOP]
            shares.append(float((best < len(search.scores) // 2).mean()))
    if len(shares) < _FEWEST_SEARCHES:
        return {}
    mean, half = float(np.mean(shares)), 1.96 * float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    return {"early": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half)}
