"""How far a build is, and a bar that shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adacur.store.probes import Drift


@dataclass(slots=True)
class Progress:
    """What a build has scored; `shown` as a bar over its pairs.

    `scored` are the pairs of this run. `drift` was measured where the scorer had to be recognised by earlier scores.
    """

    shown: bool = False
    title: str = "scoring"
    blocks_done: int = 0
    blocks: int = 0
    scored: int = 0
    drift: Drift | None = None
    _bar: Any = field(default=None, init=False)

    def begin(self, *, blocks: int, pairs: int, blocks_done: int, pairs_done: int) -> None:
        """Start at what was done before."""
        self.blocks_done, self.blocks = blocks_done, blocks
        if self.shown and pairs:
            from tqdm import tqdm

            self._bar = tqdm(total=pairs, initial=pairs_done, unit=" pairs", unit_scale=True, desc=self.title)

    def add_block(self, pairs: int, *, workers: int) -> None:
        """Count a finished block."""
        self.blocks_done += 1
        self.scored += pairs
        if self._bar is not None:
            if workers > 1:
                self._bar.set_postfix_str(f"{workers} workers", refresh=False)
            self._bar.update(pairs)

    def summary(self) -> str:
        """What is safe."""
        return f"{self.blocks_done} of {self.blocks} blocks are safely stored" if self.blocks else "nothing is stored"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
