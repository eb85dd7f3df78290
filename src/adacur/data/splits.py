"""Which queries are anchors and which are measured with: seeded, and without a text in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from adacur.errors import InputError
from adacur.records import Query, as_queries
from adacur.seeds import stream_key


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """Three parts that share no text."""

    anchors: Sequence[Query] = field(repr=False)
    held_out: Sequence[Query] = field(repr=False)
    test: Sequence[Query] = field(repr=False)


def split_queries(
    queries: Iterable[Query], *, anchors: int, held_out: int = 0, test: int | None = None, seed: int = 0
) -> QuerySplit:
    """Anchor, held-out and test queries, drawn at random; test is the rest unless a number is given.

    A query's place in line follows from the seed and its text alone, upper case and spacing aside. Anchors come from
    the front, held-out queries are next, a number of test queries comes from the far end. So neither the order of the
    queries nor other queries matter to a place; 500 anchors include the 100 of the same seed, with the same tests;
    and a query added moves at most one over each border.
    Queries of equal text are never in two parts, and anchors hold each text once: a second row of the same scores
    tells nothing.
    """
    if min(anchors, held_out, test or 0) < 0:
        raise InputError(f"Parts must have zero queries or more; got {anchors}, {held_out} and {test}.")
    line = _line(as_queries(queries), seed)
    rest = deque(line[anchors:])
    parts = [[alike[0] for alike in line[:anchors]], _take(rest, held_out)]
    rest.reverse()
    parts.append(_take(rest, test))
    if any(len(part) < (size or 0) for part, size in zip(parts, (anchors, held_out, test), strict=True)):
        raise InputError(
            f"{sum(map(len, line))} queries with {len(line)} different texts do not give {anchors} anchor, {held_out} "
            f"held-out and {test or 0} test queries. Ask for fewer."
        )
    return QuerySplit(*map(tuple, parts))


def _line(queries: list[Query], seed: int) -> list[list[Query]]:
    """Queries of equal text together, in the order of their texts' hashes."""
    alike: dict[str, list[Query]] = {}
    for query in sorted(queries, key=lambda query: query.id):
        alike.setdefault(" ".join(query.text.casefold().split()), []).append(query)
    return [alike[text] for text in sorted(alike, key=lambda text: stream_key(seed, "split", text))]


def _take(line: deque[list[Query]], n: int | None) -> list[Query]:
    """The next n queries, or all; a text that is begun is used up."""
    taken: list[Query] = []
    while line and (n is None or len(taken) < n):
        taken += line.popleft()
    return taken[:n]
