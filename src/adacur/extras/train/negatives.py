"""Negatives: where they are looked for, in which shares, and which of them a query is shown in an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.errors import InputError
from adacur.extras.train.judged_queries import JudgedQueries
from adacur.first_stages import AnyStage, placed
from adacur.protocols import FirstStage, Items
from adacur.records import Query
from adacur.seeds import stream_key, uniform

_NONE: IntArray = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How many of the negatives are of which kind, relative to each other.

    - `near`: the first stage's best items that are not relevant
    - `random`: any items that are not relevant
    - `found`: what a search with the model as it is likes best; none in the first turn, before the model has learnt
    """

    near: float = 1.0
    random: float = 1.0
    found: float = 1.0

    def __post_init__(self) -> None:
        shares = [getattr(self, one.name) for one in fields(self)]
        if not all(0 <= share < math.inf for share in shares) or not self.near + self.random:
            raise InputError(
                "Shares of negatives must be numbers from 0 up, near or random above 0, since the first turn has no "
                f"others; got near={self.near:g}, random={self.random:g}, found={self.found:g}."
            )

    @classmethod
    def parsed(cls, text: str) -> Mixture:
        """Shares from a text such as "near=1,random=1,found=2"; what is not named has none."""
        known = [one.name for one in fields(cls)]
        pairs = [[word.strip() for word in part.split("=")] for part in text.split(",")]
        try:
            shares = {name: float(share) for name, share in pairs}
        except ValueError:
            shares = {}
        if not shares or not shares.keys() <= set(known):
            raise InputError(
                f"A mixture is NAME=SHARE, several separated by commas, of {', '.join(known)}; got {text!r}."
            )
        return cls(**(dict.fromkeys(known, 0.0) | shares))

    def counts(self, n: int, *, has_found: bool) -> tuple[int, int]:
        """How many of n negatives are near and how many found; the others are random."""
        found = self.found if has_found else 0.0
        total = self.near + self.random + found
        n_found = round(n * found / total)
        # Without random items, rounding must not make one.
        return (n - n_found if not self.random else round(n * self.near / total)), n_found


NEAR_ALONE = Mixture(near=1, random=0, found=0)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What the negatives of one query are drawn from, beside random items."""

    near: IntArray
    found: IntArray = field(default_factory=_NONE.copy)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What each query is shown: a relevant item at random, first, and `negatives` of a pool, by the mixture's shares.

    Random items fill up what a pool lacks, and every query gets the same number, which is less than `negatives` in a
    small collection. A draw depends on seed, epoch and query alone, so that a run that was killed draws the same again.
    """

    judged: JudgedQueries
    items: Items
    negatives: int
    seed: int
    mixture: Mixture = NEAR_ALONE
    _n: int = field(init=False)

    def __post_init__(self) -> None:
        n = min(self.negatives, len(self.items) - max(map(len, self.judged.relevant)))
        object.__setattr__(self, "_n", n)

    def __call__(self, place: int, epoch: int, pool: Pool | None) -> IntArray:
        """The positions to show for the query at this place; without a pool the relevant item alone."""
        relevant = self._drawn("relevant", self.judged.relevant[place], 1, place, epoch)
        if pool is None:
            return relevant
        n, left_out = self._n, self.judged.relevant[place]
        n_near, n_found = self.mixture.counts(n, has_found=len(pool.found) > 0)
        chosen = self._drawn("found", _but(pool.found, left_out), n_found, place, epoch)
        near = _but(_but(pool.near, left_out), chosen)
        chosen = np.concatenate((chosen, self._drawn("negatives", near, n_near, place, epoch)))
        others = _but(_but(self._random(place, epoch), left_out), chosen)
        return np.concatenate((relevant, chosen, others[: n - len(chosen)]))

    def _random(self, place: int, epoch: int) -> IntArray:
        """Items in random order, enough of them for all negatives though some are relevant or drawn already."""
        n = min(len(self.items), 2 * self.negatives + len(self.judged.relevant[place]))
        key = stream_key(self.seed, "random", str(epoch), self.judged.queries[place].id)
        return np.random.default_rng(key).choice(len(self.items), n, replace=False)

    def _drawn(self, what: str, of: IntArray, n: int, place: int, epoch: int) -> IntArray:
        stream = stream_key(self.seed, what, str(epoch), self.judged.queries[place].id)
        return of[np.argsort(uniform(stream, self.items.keys[of]), kind="stable")[:n]]


def facts_of_first(first: AnyStage | None) -> dict[str, Any]:
    """The identity of the first stage that a run is made from: its name and settings, with an encoder's weights."""
    return {
        "first": None if first is None else getattr(first, "name", type(first).__name__),
        "first_settings": first.settings() if isinstance(first, FirstStage) else None,
    }


def first_stage_positions(first: AnyStage, queries: Sequence[Query], items: Items, *, depth: int) -> list[IntArray]:
    """Per query, the positions of the first stage's best items, best first: at most `depth`."""
    return [positions for positions, _ in placed(first, items).search(queries, min(depth, len(items)))]


def near_misses(first: AnyStage, judged: JudgedQueries, items: Items, *, depth: int) -> list[IntArray]:
    """Per query, the first stage's best items that are not relevant: at most `depth`."""
    most_relevant = max(map(len, judged.relevant))
    best = first_stage_positions(first, judged.queries, items, depth=depth + most_relevant)
    return without(judged.relevant, best, depth=depth)


def without(left_out: Sequence[IntArray], best: Sequence[IntArray], *, depth: int) -> list[IntArray]:
    """Per query, the first `depth` of the best positions that are not left out."""
    return [_but(row, out)[:depth] for row, out in zip(best, left_out, strict=True)]


def _but(positions: IntArray, left_out: IntArray) -> IntArray:
    return positions[~np.isin(positions, left_out)]
