"""The turns of a training: train, search with the model as it is, and train on with what that found."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adacur.arrays import IntArray
from adacur.budget import is_whole
from adacur.errors import InputError
from adacur.extras.train.judged_queries import JudgedQueries
from adacur.extras.train.mining import MiningBudget, load_mined, mine, plan_mining, save_mined
from adacur.extras.train.negatives import Mixture, Pool
from adacur.extras.train.run_folder import RunFolder
from adacur.first_stages import AnyStage
from adacur.protocols import Items, Scorer
from adacur.scorers.cross_encoders.torch import TorchCrossEncoder

_log = logging.getLogger(__name__)
# One pair in training costs three forward passes; on a GPU, inference is also the faster for its half precision and
# its packed batches.
_MINED_PER_TRAINED_PAIR = {"cpu": 4, "cuda": 32}


@dataclass(slots=True, eq=False)
class Turns:
    """What negatives are drawn from, turn by turn; every turn but the first begins with a mining.

    A mining is stored in the run's folder, so that a run that was killed goes on with the same. `opened` opens the
    model as it is at that moment.
    """

    n: int
    epochs: int
    near: Sequence[IntArray]
    judged: JudgedQueries
    items: Items
    first: AnyStage
    plan: MiningBudget | None
    run: RunFolder
    opened: Callable[[], AbstractContextManager[Scorer]]
    seed: int
    progress: bool = False

    def pools(self, epoch: int) -> list[Pool]:
        """What each query's negatives of this epoch are drawn from; mines where a turn begins."""
        turn = epoch * self.n // self.epochs
        if turn == 0 or self.plan is None:
            return [Pool(row) for row in self.near]
        file = self.run.mined(turn)
        if not file.exists():
            started = time.monotonic()
            with self.opened() as scorer:
                options: dict[str, Any] = {"seed": self.seed + turn, "progress": self.progress}
                found = mine(scorer, self.judged, self.items, first=self.first, plan=self.plan, **options)
            save_mined(found, file)
            _log.info("Mining before turn %d took %.0f s.", turn + 1, time.monotonic() - started)
        return [Pool(near, found) for near, found in zip(self.near, load_mined(file), strict=True)]


@contextmanager
def opened_for_scoring(save: Callable[[Path], None], folder: Path, **options: Any) -> Iterator[TorchCrossEncoder]:
    """A model in training as a scorer, which is many times faster than its steps."""
    # That of a run which was killed meanwhile.
    shutil.rmtree(folder, ignore_errors=True)
    save(folder)
    try:
        with TorchCrossEncoder(folder, **options) as scorer:
            yield scorer
    finally:
        shutil.rmtree(folder)


def planned(
    mixture: Mixture,
    turns: int | None,
    *,
    epochs: int,
    calls: int | None,
    pairs: int,
    n_queries: int,
    n_items: int,
    device: str,
) -> tuple[int, MiningBudget | None]:
    """The number of turns, and what each mining scores; None without one.

    `pairs` are those that one turn trains on: without a number of calls, mining takes about as long as training.
    """
    if turns is not None and not (is_whole(turns) and 1 <= turns <= epochs):
        raise InputError(f"A turn is at least one epoch, so turns must be from 1 to {epochs}; got {turns}.")
    n = turns if turns is not None else min(2, epochs) if mixture.found else 1
    if n == 1 or not mixture.found:
        return n, None
    return n, plan_mining(n_queries, n_items, calls=calls, usual=_MINED_PER_TRAINED_PAIR[device] * pairs)
