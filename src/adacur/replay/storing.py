"""What was learned of an index, kept for its searches: in memory, and in its folder where that can be written to."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from adacur.search import AnchorIndex
from adacur.search.relevance import RELEVANCE, Relevance
from adacur.search.relevance import as_stored as relevance_text
from adacur.search.tuned import TUNED, Tuning, read_tunings
from adacur.search.tuned import as_stored as tunings_text
from adacur.store import locked
from adacur.store.writing import full_disk_reported, write_atomically

# Seconds: another tuning is written in far less, and what was tuned for minutes is not to be lost to it.
_PATIENCE = 10.0


def store(index: AnchorIndex, tuning: Tuning) -> None:
    """Let searches of an index use a tuning, in the place of one for the same k and budget.

    Of tunings by judgements there is one for each k: it says how much to spend.
    """
    snapshot = index.snapshot
    snapshot.tunings = _with(snapshot.tunings, tuning)
    queries = snapshot.anchors.anchor_queries

    def write(home: Path) -> None:
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        snapshot.tunings = _with(read_tunings(home, anchor_queries=queries, warn=False), tuning)
        write_atomically(home / TUNED, tunings_text(snapshot.tunings, anchor_queries=queries))

    _where_writable(snapshot.home, write)


def store_relevance(index: AnchorIndex, relevance: Relevance | None) -> None:
    """Let searches of an index read scores by this; without, by what is known, or by the anchor queries."""
    snapshot = index.snapshot
    # What judgements told is not given up for anchor scores.
    relevance = relevance or snapshot.relevance() or Relevance.of_anchors(snapshot.anchors)
    if relevance is None:
        return
    snapshot.set_relevance(relevance)
    text = relevance_text(relevance, anchor_queries=snapshot.anchors.anchor_queries)
    _where_writable(snapshot.home, lambda home: write_atomically(home / RELEVANCE, text))


def _with(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    others = (
        one
        for one in tunings
        if (one.k, one.budget) != (tuning.k, tuning.budget) and not (one.k == tuning.k and one.judged and tuning.judged)
    )
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def _where_writable(home: Path | None, write: Callable[[Path], None]) -> None:
    """Write to an index folder, locked; what is served from where nobody can write is left as it is."""
    if home is None:
        return
    try:
        with full_disk_reported(home, lambda: "the index is as it was", what="tuning"), locked(home, wait=_PATIENCE):
            write(home)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
