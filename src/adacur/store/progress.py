"""How far a build is, and a bar that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from adacur.store.probes import Drift


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is. `seconds` and `pairs_per_second` are of this run; `resumed_blocks` and
    `resumed_pairs` were done before it.

    `workers` are those at work now. Not counted in these pairs: `drift` was measured where the scorer had to be
    recognised by earlier scores, and `timed` pairs were scored to choose the size of a block.
    """

    blocks_done: int = 0
    blocks: int = 0
    pairs_done: int = 0
    pairs: int = 0
    seconds: float = 0.0
    pairs_per_second: float = 0.0
    resumed_blocks: int = 0
    resumed_pairs: int = 0
    workers: int = 1
    drift: Drift | None = None
    timed: int = 0

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this run; None before its first block."""
        return (self.pairs - self.pairs_done) / self.pairs_per_second if self.pairs_per_second else None


class ProgressReports:
    """Counts what a build has scored, and passes it on."""

    def __init__(self, progress: Callable[[Progress], None] | None = None) -> None:
        self._progress = progress
        self.drift: Drift | None = None
        self.timed = 0
        self.now = Progress()

    def begin(self, *, blocks: int, pairs: int, blocks_done: int, pairs_done: int) -> None:
        """Start the clock of a run, at what was done before it."""
        self.now = Progress(
            blocks_done, blocks, pairs_done, pairs, resumed_blocks=blocks_done, resumed_pairs=pairs_done
        )
        self._began = time.perf_counter()
        self.add(blocks=0, pairs=0)

    def add(self, *, blocks: int, pairs: int, workers: int = 1) -> None:
        """Count finished blocks."""
        seconds, done = time.perf_counter() - self._began, self.now.pairs_done + pairs
        self.now = replace(
            self.now,
            blocks_done=self.now.blocks_done + blocks,
            pairs_done=done,
            seconds=seconds,
            pairs_per_second=(done - self.now.resumed_pairs) / max(seconds, 1e-9),
            workers=workers,
            drift=self.drift,
            timed=self.timed,
        )
        if self._progress is not None:
            self._progress(self.now)

    def summary(self) -> str:
        """What is safe."""
        now = self.now
        return f"{now.blocks_done} of {now.blocks} blocks are safely stored" if now.blocks else "nothing is stored"


class ScoringBar:
    """Remembers the `last` report of a build and shows it as a progress bar over pairs, where it should."""

    def __init__(self, shown: bool) -> None:
        self.last = Progress()
        self._shown = shown
        self._bar: Any = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        if not self._shown or not progress.pairs:
            return
        if self._bar is None:
            from tqdm import tqdm

            done = progress.pairs_done
            self._bar = tqdm(total=progress.pairs, initial=done, unit=" pairs", unit_scale=True, desc="scoring")
        if progress.workers > 1:
            self._bar.set_postfix_str(f"{progress.workers} workers", refresh=False)
        self._bar.update(progress.pairs_done - self._bar.n)

    def __enter__(self) -> ScoringBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
