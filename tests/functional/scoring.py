"""Functions that a command can name as its scorer."""

from __future__ import annotations

import time

from adacur.scorers import FunctionScorer

__all__ = ["lengths", "lengths_or_never", "named_lengths", "slow_lengths"]


def lengths(pairs: list[tuple[str, str]]) -> list[float]:
    """Scores that follow from the texts alone."""
    return [sum(map(ord, query)) % 13 + len(item) * 0.1 + sum(map(ord, item)) % 7 for query, item in pairs]


def slow_lengths(pairs: list[tuple[str, str]]) -> list[float]:
    """The same, in their own time."""
    time.sleep(0.1)
    return lengths(pairs)


def lengths_or_never(pairs: list[tuple[str, str]]) -> list[float]:
    """The same, but whoever asks for nothing waits for ever."""
    if any(query == "nothing" for query, _ in pairs):
        time.sleep(1000)
    return lengths(pairs)


# What a cache can know.
named_lengths = FunctionScorer(lengths, name="lengths-1", source="tests.functional.scoring:named_lengths")
