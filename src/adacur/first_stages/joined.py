"""Several first stages of an index as one, composed when it is opened. Not kept with an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.budget import check_k
from adacur.errors import InputError
from adacur.first_stages.placing import Placed
from adacur.protocols import FirstStage, Ranking
from adacur.records import Query, as_queries

SEPARATOR = "+"
# The first few ranks are much alike: being the best of one stage counts as much as being the twelfth of two.
_ALIKE = 10
# Each stage is asked for as many, so that the best of a few are the best of many.
_DEPTH = 1000


class Joined(FirstStage):
    """The answers of several first stages of the same items as one: by reciprocal ranks, whatever their scores.

    An item scores the sum, over the stages that have it among their best 1,000, of 1 / (10 + its rank there). So what
    only one of them found is interleaved, and what several found rises. Equal scores come in the order of the items'
    random keys: ids would have to be read.

    Where a `leader` is given, one of the stages or some of them joined, its answers alone are those of all: the others
    only say how they rank the items.
    """

    def __init__(self, stages: Sequence[Placed], *, leader: Placed | None = None) -> None:
        if len(stages) < 2 or any(stage.items is not stages[0].items for stage in stages):
            raise InputError(f"Two or more first stages of the same items can be joined; got {len(stages)}.")
        self.stages = tuple(stages)
        self.leader = leader
        self.items = stages[0].items
        self.name = SEPARATOR.join(stage.name for stage in stages) if leader is None else leader.name
        leading = stages if leader is None else parts_of(leader)
        self.n_stages = len(stages)
        self.can_be_asked = all(stage.can_be_asked for stage in stages)
        self.knows_words = any(stage.knows_words for stage in stages)
        self._leading = [number for number, stage in enumerate(stages) if any(stage is one for one in leading)]

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the items, by position."""
        return self.items.ids

    def settings(self) -> dict[str, Any]:
        """What is joined."""
        return {"stages": [stage.name for stage in self.stages]}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query."""
        return self.search_parts(queries, k)[0]

    def search_parts(self, queries: Sequence[Query | str], k: int) -> tuple[list[Ranking], list[list[IntArray]]]:
        """At most k items per query, and per query the positions that each stage answered with."""
        check_k(k)
        # Made once: a plain text would get an id of its own from each stage.
        asked, depth = as_queries(queries), min(max(k, _DEPTH), len(self.items))
        answers = list(zip(*(stage.search(asked, depth) for stage in self.stages), strict=True))
        lists = [[positions for positions, _ in of_query] for of_query in answers]
        return [self._answer(of_query, k) for of_query in answers], lists

    def _answer(self, of_stages: Sequence[Ranking], k: int) -> Ranking:
        leading = [of_stages[number] for number in self._leading]
        if len(leading) == 1:
            return Ranking(leading[0].positions[:k], leading[0].scores[:k])
        return reciprocal_ranks([positions for positions, _ in leading], k, keys=self.items.keys)

    def terms(self, queries: Sequence[Query], k: int) -> list[list[Ranking]]:
        """Per query, what each of its words adds to at most k items, for those stages that know words."""
        of_stages = [stage.terms(queries, k) for stage in self.stages]
        return [[term for terms in of_query for term in terms] for of_query in zip(*of_stages, strict=True)]

    @staticmethod
    def _refused(*given: Any, **options: Any) -> NoReturn:
        raise InputError("Joined first stages cannot be built, updated or saved; build, update or save each of them.")

    build = load = updated = save = check_can_grow = _refused


def parts_of(first: Placed) -> tuple[Placed, ...]:
    """The stages that a first stage is made of, whose lists `search_parts` gives."""
    joined = first.source
    return joined.stages if isinstance(joined, Joined) and joined.items is first.items else (first,)


def reciprocal_ranks(lists: Sequence[IntArray], k: int, *, keys: KeyArray | None = None) -> Ranking:
    """The best k positions of several lists by the sum of 1 / (10 + rank); ties by `keys`, or by position."""
    positions, which = np.unique(np.concatenate(lists), return_inverse=True)
    shares = np.concatenate([1 / (_ALIKE + 1.0 + np.arange(len(some))) for some in lists])
    scores: FloatArray = np.bincount(which, weights=shares, minlength=len(positions)).astype(np.float64)
    best = np.lexsort((positions if keys is None else keys[positions], -scores))[:k]
    return Ranking(positions[best], scores[best])
