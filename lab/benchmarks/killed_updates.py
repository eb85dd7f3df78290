"""Kills processes that change an index, at random moments, and opens the index after each kill.

A child process adds, removes or replaces items, adds or drops anchor queries, or compacts; SIGKILL comes at a random
moment of the time such a change takes. What is opened then must be, to the last score, the index as it was before the
change or as it was to be after it, with first stages to match; and the next change must work.

    python lab/benchmarks/killed_updates.py [KILLS] [SEED]
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

import adacur
from adacur import Item, Query
from adacur.first_stages.saved import read_ids
from adacur.search import Edit
from adacur.store import IndexFolder

OPERATIONS = ("add", "remove", "replace", "add_anchors", "drop_anchors", "compact")
WORDS = ("red", "green", "blue", "round", "square", "heavy", "light", "old", "new", "odd")


def score(pairs: list[tuple[str, str]]) -> list[float]:
    """A scorer that needs no model."""
    return [int.from_bytes(hashlib.blake2b(f"{q}|{i}".encode(), digest_size=3).digest()) / 1e6 for q, i in pairs]


@dataclass(frozen=True)
class State:
    """What an index is to hold, in order."""

    items: tuple[Item, ...]
    anchors: tuple[Query, ...]

    def scores(self) -> np.ndarray:
        """R_anc, item-major."""
        pairs = [(query.text, item.text) for item in self.items for query in self.anchors]
        return np.array(score(pairs), dtype=np.float32).reshape(len(self.items), -1)


@dataclass(frozen=True)
class Step:
    """A change, and what it makes of the index."""

    name: str
    after: State
    run: Callable[[Edit], object]


class Draw:
    """Draws one change after the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def item(self, id_: str | None = None) -> Item:
        """A new item, or a new text for one."""
        self._count += 1
        text = " ".join([*self._random.sample(WORDS, 3), f"thing{self._count}"])
        return Item(id_ or f"i{self._count}", text, {"made": self._count})

    def step(self, state: State) -> Step:
        """A change that is possible."""
        name = self._random.choice(OPERATIONS)
        if (name == "drop_anchors" and len(state.anchors) < 4) or (name == "remove" and len(state.items) < 15):
            name = "add"
        elif (name == "add" and len(state.items) > 40) or (name == "add_anchors" and len(state.anchors) > 7):
            name = "remove" if name == "add" else "drop_anchors"
        if name == "add":
            new = tuple(self.item() for _ in range(self._random.randint(1, 4)))
            return Step(name, replace(state, items=state.items + new), lambda edit: edit.add(new))
        if name == "replace":
            ids = {item.id for item in self._random.sample(state.items, 2)}
            new = tuple(self.item(id_) for id_ in sorted(ids))
            rest = tuple(item for item in state.items if item.id not in ids)
            return Step(name, replace(state, items=rest + new), lambda edit: edit.replace(new))
        if name == "remove":
            ids = {item.id for item in self._random.sample(state.items, self._random.randint(1, 5))}
            rest = tuple(item for item in state.items if item.id not in ids)
            return Step(name, replace(state, items=rest), lambda edit: edit.remove(sorted(ids)))
        if name == "add_anchors":
            self._count += 1
            asked = (Query(f"q{self._count}", f"which is {self._random.choice(WORDS)} {self._count}?"),)
            after = replace(state, anchors=state.anchors + asked)
            return Step(name, after, lambda edit: edit.add_anchors(asked))
        if name == "drop_anchors":
            gone = self._random.choice(state.anchors)
            rest_asked = tuple(query for query in state.anchors if query != gone)
            return Step(name, replace(state, anchors=rest_asked), lambda edit: edit.drop_anchors([gone.id]))
        return Step(name, state, lambda edit: edit.compact())


def differs(path: Path, state: State) -> str | None:
    """What of an index, opened, is not as it is to be; None where all is."""
    try:
        return _difference(path, state)
    except adacur.AdacurError as error:
        return f"{type(error).__name__}: {error}"


def _difference(path: Path, state: State) -> str | None:
    folder = IndexFolder.open(path)
    if tuple(folder.items.at(range(len(folder.items)))) != state.items:
        return f"items: {list(folder.items.ids)} instead of {[item.id for item in state.items]}"
    if folder.anchor_queries != state.anchors:
        return "anchor queries"
    if not np.array_equal(folder.matrix, state.scores()):
        return "scores"
    index = adacur.load(path, scorer=score, check=False)
    if set(read_ids(folder.home / "first" / "bm25")) != {item.id for item in state.items}:
        return "the ids of the first stage"
    hits = index.search(state.items[-1].text, 3, budget=8)
    if any(hit.item not in state.items for hit in hits):
        return "hits"
    report = adacur.store.verify(path)
    return None if report.ok else f"verify: {report.problems}"


def killed(path: Path, step: Step, after_seconds: float) -> bool:
    """Run a change in a process of its own and kill it; whether it came to its end before."""
    with warnings.catch_warnings():
        # Python warns of threads at a fork; the child uses none that it has not started.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            with adacur.load(path, scorer=score, check=False).edit(progress=False) as edit:
                step.run(edit)
            code = 0
        finally:
            os._exit(code)
    time.sleep(after_seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{step.name} failed by itself; its message is above.")
    return os.WIFEXITED(status)


def run(path: Path, *, kills: int, seed: int, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """Kill changes of a new index at `path`; what was found inconsistent."""
    # tqdm, which bm25s uses, shares a lock between a process and its forks: a killed fork would keep it for ever.
    tqdm.set_lock(threading.RLock())
    draw = Draw(seed)
    moments = random.Random(seed + 1)
    state = State(
        tuple(draw.item() for _ in range(20)), tuple(Query(f"q-{n}", f"the {WORDS[n]} one") for n in range(4))
    )
    adacur.build(state.items, state.anchors, scorer=score, path=path, progress=False, tune=False).close()
    # How long a change takes is measured along the way, so that kills fall on all of it.
    takes = dict.fromkeys(OPERATIONS, 0.5)
    number = 1
    done: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    began = time.perf_counter()
    while sum(done.values()) - sum(n for (_, what), n in done.items() if what == "finished first") < kills:
        step = draw.step(state)
        started = time.perf_counter()
        finished = killed(path, step, moments.uniform(0, 1.1 * takes[step.name]))
        number, before = IndexFolder.open(path).version, number
        became = "new version" if number > before else "old version"
        state = step.after if became == "new version" else state
        if (what := differs(path, state)) is not None:
            wrong.append(f"{step.name}, killed after {time.perf_counter() - started:.3f} s: {became}, but {what}")
        # So that some kills come after the switch.
        takes[step.name] *= 0.95 if finished else 1.03
        done[step.name, "finished first" if finished else became] += 1
        total = sum(done.values())
        if total % 100 == 0:
            say(f"  {total} changes, {time.perf_counter() - began:.0f} s, {len(wrong)} inconsistent")
    columns = ("old version", "new version", "finished first")
    say(f"{'':14}" + "".join(f"{column:>16}" for column in columns))
    for name in OPERATIONS:
        say(f"{name:14}" + "".join(f"{done[name, column]:16}" for column in columns))
    say(f"{'all':14}" + "".join(f"{sum(done[name, column] for name in OPERATIONS):16}" for column in columns))
    return wrong


def main() -> None:
    """Run, print a table, and fail if anything was inconsistent."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    folder = Path(tempfile.mkdtemp(prefix="killed-updates-"))
    began = time.perf_counter()
    try:
        wrong = run(folder / "index.adacur", kills=kills, seed=seed, say=lambda line: print(line, flush=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{kills} kills, seed {seed}: {len(wrong)} inconsistent opens, {time.perf_counter() - began:.0f} s.")
    for line in wrong:
        print(f"  {line}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
