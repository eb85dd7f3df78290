"""What a search and a build touch: functions, files and rooms of adacur that are entered.

    python lab/benchmarks/trace_search.py [--list]

A warm search (BM25, budget 50, 5 rounds) and a build of the same index, traced with sys.setprofile. Counted are Python
functions with a name (no lambdas, comprehensions or generator expressions) under src/adacur; a room is a package, and a
call crosses rooms where its caller lies in another one. The scorer is this script's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import adacur
from adacur import AnchorIndex, Gaussian, Item, Query
from adacur.protocols import ScorerCard

_HOME = Path(adacur.__file__).parent
_N_ITEMS, _N_ANCHORS = 1000, 30


class Scorer:
    """Counts the words that a query and an item share."""

    card = ScorerCard(name="words", backend="python")

    def score(self, pairs: Any) -> list[float]:
        return [len(set(query.text.split()) & set(item.text.split())) + len(item.id) / 10 for query, item in pairs]


class Trace:
    """The functions that were entered while it was on, and how often; calls from one room to another."""

    def __init__(self) -> None:
        self.entered: Counter[tuple[Path, str]] = Counter()
        self.crossings = 0

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (file := _of_adacur(frame)) is None or "<" in frame.f_code.co_name:
            return
        self.entered[file, frame.f_code.co_qualname] += 1
        caller = frame.f_back and _of_adacur(frame.f_back)
        self.crossings += caller is not None and _room(caller) != _room(file)

    def summary(self) -> str:
        """The counts in one line."""
        files = {file for file, _ in self.entered}
        rooms = sorted({_room(file) for file in files})
        return (
            f"{len(self.entered)} functions, {len(files)} files, {len(rooms)} rooms ({', '.join(rooms)}); "
            f"{sum(self.entered.values()):,} calls, {self.crossings} across rooms"
        )


def _of_adacur(frame: FrameType) -> Path | None:
    file = Path(frame.f_code.co_filename)
    return file.relative_to(_HOME) if file.is_relative_to(_HOME) else None


def _room(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def traced(do: Callable[[], Any]) -> tuple[Trace, Any]:
    """What a call touches, and its result."""
    with Trace() as trace:
        result = do()
    return trace, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name every function of the warm search")
    arguments = parser.parse_args()
    items = [Item(f"i{at}", f"word{at % 97} word{at % 31} thing{at % 7}") for at in range(_N_ITEMS)]
    anchors = [Query(f"a{at}", f"word{at} thing{at % 7}") for at in range(_N_ANCHORS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traced.adacur"
        options: dict[str, Any] = {"scorer": Scorer(), "path": path, "progress": False}
        trace, index = traced(lambda: adacur.build(items, anchors, **options))
        print(f"build:        {trace.summary()}")
        assert isinstance(index, AnchorIndex)

        def search() -> Any:
            return index.search("word5 thing3", 10, budget=50, method=Gaussian(rounds=5), first="bm25")

        print(f"first search: {traced(search)[0].summary()}")
        trace, _ = traced(search)
        print(f"warm search:  {trace.summary()}")
        if arguments.list:
            for (file, name), times in sorted(trace.entered.items()):
                print(f"  {file}:{name} ×{times}")


if __name__ == "__main__":
    main()
