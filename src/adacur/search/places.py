"""Items in memory: what the first stage finds among them, and the searches that begin there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, IntArray
from adacur.first_stages import Placed
from adacur.model.rank_slopes import ITEMS_OF_A_TERM, RANKS_THAT_COUNT, SCORES_FOR_TERMS
from adacur.protocols import Ranking
from adacur.records import Query
from adacur.search.asktell import QueryBatch
from adacur.search.candidates import NONE, CandidatesInMemory
from adacur.search.device_search import BatchOnDevice, CandidatesOnDevice, chooses_on_device
from adacur.search.filters import Filter, allowed_by
from adacur.search.finish import Documents, listed_by
from adacur.search.plan import Place, Plan

# Predictions of queries that move together.
_PREDICTIONS_AT_ONCE = 50_000_000


class InMemory(Place):
    """The items of an index: those that pass the `filter`, which is asked once."""

    by_position = True

    def __init__(self, filter_: Filter | None = None) -> None:
        self.filter = filter_
        self._allowed: BoolArray | None = None

    def settings(self) -> Mapping[str, Any]:
        return {"filtered": self.filter is not None, "engine": None}

    def together(self, plan: Plan) -> int:
        return min(plan.together, _PREDICTIONS_AT_ONCE // len(plan.items))

    def begin(self, plan: Plan, k: int, queries: Sequence[Query]) -> QueryBatch:
        n_allowed = len(plan.items)
        if self._allowed is None:
            # A broadcast value takes no memory.
            every = np.broadcast_to(np.True_, n_allowed)
            self._allowed = every if self.filter is None else allowed_by(self.filter, plan.items)
        allowed = self._allowed
        if self.filter is not None:
            n_allowed = int(np.count_nonzero(allowed))
        found, answers, lists = _found(plan, min(k, n_allowed), queries, allowed, n_allowed)
        terms: Sequence[Sequence[Ranking]] = ()
        if plan.uses_ranks and isinstance(plan.first, Placed) and plan.purse.calls >= SCORES_FOR_TERMS:
            terms = plan.first.terms(queries, ITEMS_OF_A_TERM)
        approximation = None if plan.model is None else plan.model.begin(queries, lists, terms)
        needs_scores = plan.listed or not plan.purse.calls
        listed = [listed_by(answer, allowed=allowed)[1] for answer in answers if needs_scores]
        on_device = chooses_on_device(plan, approximation)
        candidates_of, batch_of = (CandidatesOnDevice, BatchOnDevice) if on_device else (CandidatesInMemory, QueryBatch)
        candidates = [candidates_of(some, allowed, n_allowed, plan.items.keys) for some in found]
        return batch_of(plan, queries, k, candidates=candidates, listed=listed, approximation=approximation)


def _found(
    plan: Plan, k: int, queries: Sequence[Query], allowed: BoolArray, n_allowed: int
) -> tuple[list[IntArray], list[Ranking], list[list[IntArray]]]:
    """The first stage's best allowed positions per query, best first, as many as a search needs.

    Also its answers, and the answers of each of the stages that it joins, as positions.
    """
    if not isinstance(plan.first, Placed):
        return [NONE for _ in queries], [], []
    calls = plan.purse.calls
    n = plan.sizes(min(calls, n_allowed))[0] if calls else k
    n = max(n, min(plan.listed, n_allowed))
    # Ranks are among all items, filtered or not.
    depth = max(n, min(RANKS_THAT_COUNT, len(allowed))) if plan.uses_ranks else n
    # Where nothing is scored, these are the hits, of which the best passage of a document counts.
    steps = plan.finish if not calls else ()
    documents = next((step.numbers for step in steps if isinstance(step, Documents)), None)

    def is_short(answer: Ranking, positions: IntArray) -> bool:
        n_found = len(positions) if documents is None else len(np.unique(documents[positions]))
        return n_found < n and len(answer.positions) >= depth

    found: dict[int, tuple[Ranking, list[IntArray], IntArray]] = {}
    left: Sequence[int] = range(len(queries))
    while left:
        some = zip(left, *plan.first.search_parts([queries[at] for at in left], depth), strict=True)
        once = ((at, _distinct(answer), lists) for at, answer, lists in some)
        found |= {at: (answer, lists, answer.positions[allowed[answer.positions]]) for at, answer, lists in once}
        if depth >= len(allowed):
            break
        # The filter leaves these too few, or they are passages of too few documents: only they ask for more, or an
        # answer would depend on its neighbours.
        left = [at for at in left if is_short(found[at][0], found[at][2])]
        depth = min(4 * depth, len(allowed))
    answers, lists, positions = zip(*(found[at] for at in range(len(queries))), strict=True)
    return list(positions), list(answers), list(lists)


def _distinct(answer: Ranking) -> Ranking:
    """Of an item that a first stage names twice, the better rank: no pair is paid for twice."""
    _, firsts = np.unique(answer.positions, return_index=True)
    if len(firsts) == len(answer.positions):
        return answer
    places = np.sort(firsts)
    return Ranking(answer.positions[places], answer.scores[places])
