"""What was computed from texts and will be asked for again."""

from __future__ import annotations

import tracemalloc

import numpy as np

from adacur.remembered import Remembered


def test_the_newest_are_remembered_while_they_fit_with_their_texts() -> None:
    known = Remembered(most_bytes=4 * 1400)
    for number in range(10):
        known.keep({f"{number}" * 1000: np.full(10, number)})
    assert len(known) == 4
    found = known.find([f"{number}" * 1000 for number in range(10)])
    assert [(text[0], array.tolist()) for text, array in found.items()] == [
        (f"{number}", [number] * 10) for number in range(6, 10)
    ]
    # Again, it takes no more room.
    before = known.n_bytes
    known.keep(found)
    assert known.n_bytes == before


def test_what_does_not_fit_is_not_kept() -> None:
    known = Remembered(most_bytes=1000)
    known.keep({"a": np.zeros(3), "b": np.zeros(1000)})
    assert len(known) == known.n_bytes == 0


def test_the_memory_that_distinct_texts_take_is_bounded() -> None:
    most = 1 << 20
    known = Remembered(most_bytes=most)
    tracemalloc.start()
    for number in range(20_000):
        # A row of a batch, and texts as short as they come: what an entry takes besides counts most.
        known.keep({f"{number}": np.zeros((2, 4))[0]})
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(known) > 1000
    assert known.n_bytes <= most
    assert taken <= 1.2 * most
