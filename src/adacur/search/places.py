"""Items in memory: what the first stage finds among them, and the searches that begin there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from adacur.search.plan import Plan

# Predictions of queries that move together.
_PREDICTIONS_AT_ONCE = 50_000_000


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """The items of an index: those that pass the `filter`."""

    filter: Filter | None = None

    def open(self, plan: Plan, k: int) -> OpenMemory:
        """Ready for searches of this plan."""
        return OpenMemory(self, plan, k)

    def settings(self) -> Mapping[str, Any]:
        return {"filtered": self.filter is not None, "engine": None}


class OpenMemory:
    """Begins searches among the items of an index."""

    by_position = True

    def __init__(self, place: InMemory, plan: Plan, k: int) -> None:
        self._plan, self._k = plan, k
        n_items = len(plan.items)
        # A broadcast value takes no memory.
        self._allowed: BoolArray = np.broadcast_to(np.True_, n_items)
        if place.filter is not None:
            self._allowed = allowed_by(place.filter, plan.items)
        self._n_allowed = n_items if place.filter is None else int(np.count_nonzero(self._allowed))

    @property
    def together(self) -> int:
        return min(self._plan.together, _PREDICTIONS_AT_ONCE // len(self._plan.items))

    def begin(self, queries: Sequence[Query]) -> QueryBatch:
        """Ask the first stage, and begin a search of each query."""
        plan = self._plan
        found, answers, lists = self._found(queries)
        terms: Sequence[Sequence[Ranking]] = ()
        if plan.uses_ranks and isinstance(plan.first, Placed) and plan.purse.calls >= SCORES_FOR_TERMS:
            terms = plan.first.terms(queries, ITEMS_OF_A_TERM)
        approximation = None if plan.model is None else plan.model.begin(queries, lists, terms)
        needs_scores = plan.listed or not plan.purse.calls
        listed = [listed_by(answer, allowed=self._allowed)[1] for answer in answers if needs_scores]
        on_device = chooses_on_device(plan, approximation)
        candidates_of, batch_of = (CandidatesOnDevice, BatchOnDevice) if on_device else (CandidatesInMemory, QueryBatch)
        keys = plan.items.keys
        candidates = [candidates_of(some, self._allowed, self._n_allowed, keys) for some in found]
        return batch_of(plan, queries, self._k, candidates=candidates, listed=listed, approximation=approximation)

    def gave_up(self, error: Exception) -> str | None:
        """Nothing here fails for later queries alone."""
        return None

    def _found(self, queries: Sequence[Query]) -> tuple[list[IntArray], list[Ranking], list[list[IntArray]]]:
        """The first stage's best allowed positions per query, best first, as many as a search needs.

        Also its answers, and the answers of each of the stages that it joins, as positions.
        """
        plan, allowed = self._plan, self._allowed
        if not isinstance(plan.first, Placed):
            return [NONE for _ in queries], [], []
        calls = plan.purse.calls
        n = plan.sizes(min(calls, self._n_allowed))[0] if calls else min(self._k, self._n_allowed)
        n = max(n, min(plan.listed, self._n_allowed))
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
            found |= {at: (answer, lists, answer.positions[allowed[answer.positions]]) for at, answer, lists in some}
            if depth >= len(allowed):
                break
            # The filter leaves these too few, or they are passages of too few documents: only they ask for more, or an
            # answer would depend on its neighbours.
            left = [at for at in left if is_short(found[at][0], found[at][2])]
            depth = min(4 * depth, len(allowed))
        answers, lists, positions = zip(*(found[at] for at in range(len(queries))), strict=True)
        return list(positions), list(answers), list(lists)
