"""What was learned of an index, kept for its searches: in memory, and in its folder where that can be written to."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from adacur.records import Query
from adacur.search import AnchorIndex
from adacur.search.relevance import RELEVANCE, Relevance
from adacur.search.relevance import as_stored as relevance_text
from adacur.search.tuned import TUNED, Tuning, read_tunings
from adacur.search.tuned import as_stored as tunings_text
from adacur.store import locked
from adacur.store.writing import full_disk_reported, write_atomically

# Seconds: another tuning is written in far less, and what was tuned for minutes is not to be lost to it.
_PATIENCE = 10.0


def store_tuning(folder: Path, tuning: Tuning, *, anchor_queries: Sequence[Query]) -> tuple[Tuning, ...]:
    """Add a tuning to a folder's, in the place of one for the same k and budget; all of them.

    Of tunings by judgements there is one for each k: it says how much to spend.
    """
    with locked(folder, wait=_PATIENCE):
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        tunings = _with(read_tunings(folder, anchor_queries=anchor_queries, warn=False), tuning)
        write_atomically(folder / TUNED, tunings_text(tunings, anchor_queries=anchor_queries))
    return tunings


def _with(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    others = (
        one
        for one in tunings
        if (one.k, one.budget) != (tuning.k, tuning.budget) and not (one.k == tuning.k and one.judged and tuning.judged)
    )
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def store(index: AnchorIndex, tuning: Tuning) -> None:
    """Let searches of an index use a tuning, and keep it in its folder, where that can be written to."""
    snapshot = index.snapshot
    snapshot.tunings = _with(snapshot.tunings, tuning)
    if snapshot.home is None:
        return
    with where_writable(snapshot.home):
        snapshot.tunings = store_tuning(snapshot.home, tuning, anchor_queries=snapshot.anchors.anchor_queries)


@contextlib.contextmanager
def where_writable(home: Path) -> Iterator[None]:
    """Write to an index, or leave it: it may be served from a folder that cannot be written to."""
    try:
        with full_disk_reported(home, lambda: "the index is as it was", what="tuning"):
            yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def store_relevance(index: AnchorIndex, relevance: Relevance | None) -> None:
    """Let searches of an index read scores by this, and keep it in its folder, where that can be written to."""
    snapshot = index.snapshot
    if relevance is None:
        known = snapshot.relevance()
        # What judgements told is not given up for anchor scores.
        relevance = known if known is not None else Relevance.of_anchors(snapshot.anchors)
    if relevance is None:
        return
    snapshot.set_relevance(relevance)
    if snapshot.home is None:
        return
    with where_writable(snapshot.home), locked(snapshot.home, wait=_PATIENCE):
        text = relevance_text(relevance, anchor_queries=snapshot.anchors.anchor_queries)
        write_atomically(snapshot.home / RELEVANCE, text)
