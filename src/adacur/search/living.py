"""Changing an index that is searched: what is asked for, the first stages that follow, and what came of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adacur.core.errors import AdacurError
from adacur.core.protocols import Items, Retriever, Scorer
from adacur.core.records import Item, Query
from adacur.index import IndexFolder, Progress, Update, WriteFirstStages, updating
from adacur.index.updates import repeatable
from adacur.search.compression import is_compressed
from adacur.search.first_stages import check_first_stages_follow, follow_first_stages
from adacur.search.tuned import TUNED, TuningWarning, read_tunings

__all__ = ["Change", "ScoringBar", "add_anchor_queries", "add_items", "change_index", "replace_items"]

_log = logging.getLogger("adacur.change")

OpenStages = Callable[[IndexFolder], Mapping[str, Retriever]]
OpenScorer = Callable[[IndexFolder], tuple[Scorer, int]]
"""To the scorer of a version, once it is recognised, and the calls that took."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change made of an index: its `version` now, what it holds, and the scorer `calls` paid for new scores.

    Beside these, `recognising` calls went into recognising the scorer and `timing` into choosing the size of a block.
    `lost` names what belonged to the version before and is to be made again: "compressed features", "tunings"; those
    were for the pairs of k and budget in `tuned_for`.
    """

    version: int
    items: int
    anchors: int
    calls: int
    recognising: int = 0
    timing: int = 0
    lost: tuple[str, ...] = ()
    tuned_for: tuple[tuple[int, int], ...] = ()


def change_index(
    path: Path, ask: Callable[[Update], None], *, stages: OpenStages, progress: bool = False
) -> tuple[IndexFolder, Change]:
    """Make a new version by what `ask` asks of the update; `stages` opens the first stages of the one before it."""
    with updating(path) as update:
        old = update.current
        ask(update)

        def write(home: Path, items: Items, new: Collection[str]) -> Sequence[str]:
            return follow_first_stages(stages(old), home=home, items=items, new=new, progress=progress)

        folder = update.switch(WriteFirstStages(write))
        lost = [
            what
            for what, was, remains in (
                ("compressed features", is_compressed(old.home), is_compressed(folder.home)),
                ("tunings", (old.home / TUNED).exists(), (folder.home / TUNED).exists()),
            )
            if was and not remains
        ]
        tuned_for = _tuned_for(old) if "tunings" in lost else ()
        counts = (len(folder.items), len(folder.anchor_queries))
        beside = {"recognising": update.recognising, "timing": update.timing}
        return folder, Change(
            folder.version, *counts, calls=update.calls, **beside, lost=tuple(lost), tuned_for=tuned_for
        )


def _tuned_for(folder: IndexFolder) -> tuple[tuple[int, int], ...]:
    # A file that cannot be read is no reason to fail: the change is made by now.
    with suppress(AdacurError), warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        return tuple((one.k, one.budget) for one in read_tunings(folder.home, anchor_queries=folder.anchor_queries))
    return ()


def add_items(
    update: Update,
    items: Iterable[Item],
    *,
    scorer: OpenScorer,
    stages: OpenStages,
    **options: Any,
) -> None:
    """Ask for new items; whatever cannot be is refused before the scorer is opened."""
    items = repeatable(items)
    n_new = update.check_new_items(items)
    check_first_stages_follow(stages(update.current).values())
    if not update.n_anchors:
        update.add(items, scorer=None)
        return
    opened, calls = scorer(update.current)
    update.recognising += calls
    new = "1 item" if n_new == 1 else f"{n_new:,} items"
    _log_calls(f"{new} × {update.n_anchors:,} anchor queries", n_new * update.n_anchors)
    update.add(items, scorer=opened, **options)


def replace_items(update: Update, items: Iterable[Item], **options: Any) -> None:
    """Ask for other texts of items that are there."""
    items = repeatable(items)
    update.make_room_for(items)
    add_items(update, items, **options)


def add_anchor_queries(
    update: Update,
    queries: Iterable[Query],
    *,
    scorer: OpenScorer,
    stages: OpenStages,
    **options: Any,
) -> None:
    """Ask for new anchor queries; first stages know none of them."""
    n_new = len(update.check_new_anchors(queries))
    opened, calls = scorer(update.current)
    update.recognising += calls
    new = "1 anchor query" if n_new == 1 else f"{n_new:,} anchor queries"
    _log_calls(f"{new} × {update.n_items:,} items", n_new * update.n_items)
    update.add_anchors(queries, scorer=opened, **options)


def _log_calls(grid: str, calls: int) -> None:
    _log.info("%s = %s scorer calls.", grid, f"{calls:,}")


class ScoringBar:
    """A progress bar over pairs, with pairs per second and time left."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, progress: Progress) -> None:
        """Move to where a build is."""
        from tqdm import tqdm

        if not progress.pairs:
            return
        if self._bar is None:
            done = progress.pairs_done
            self._bar = tqdm(total=progress.pairs, initial=done, unit=" pairs", unit_scale=True, desc="scoring")
        if progress.workers > 1:
            self._bar.set_postfix_str(f"{progress.workers} workers", refresh=False)
        self._bar.update(progress.pairs_done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
