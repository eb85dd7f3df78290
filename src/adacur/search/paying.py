"""Searches that step together and pay for tokens or money: which of their pairs are paid, before each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from adacur.core.arrays import IntArray
from adacur.core.records import Item
from adacur.search.adaptive import AdaptiveSearch
from adacur.search.methods import Plan
from adacur.search.spending import MOST_REFUSED, PRICED_BEFOREHAND

# A query's place among those that move together, and the rank of an item in its batch.
Waiting = tuple[int, int]


class Payments:
    """The purses of queries that move together; `items_at` reads items by position.

    `refuses` says that a query which can pay for nothing is an error: else it ends without hits.
    """

    def __init__(
        self,
        plan: Plan,
        searches: Sequence[AdaptiveSearch],
        *,
        candidates: Sequence[IntArray],
        items_at: Callable[[Iterable[int]], list[Item]],
        refuses: bool,
    ) -> None:
        self._plan = plan
        self._searches = searches
        self._items_at = items_at
        self._refuses = refuses
        # Of each query's batch: the items, and the tokens of the pairs.
        self._priced: dict[int, tuple[list[Item], IntArray]] = {}
        for search, some in zip(searches, candidates, strict=True):
            few = some[:PRICED_BEFOREHAND]
            # The texts of an engine's items are not here yet.
            if search.purse is not None and len(few) and plan.engine is None:
                search.expect_calls(
                    max(1, search.purse.expected_calls(search.query, items_at(few.tolist()), plan.calls))
                )

    def affordable(self, at: int, batch: IntArray) -> IntArray:
        """What a query can pay of its next batch, as one call; it ends where that is nothing."""
        search = self._searches[at]
        purse = search.purse
        if purse is None or not len(batch):
            return batch
        while True:
            items = self._items_at(batch.tolist())
            pays, tokens = purse.affordable(search.query, items)
            self._priced[at] = [item for item, paid in zip(items, pays, strict=True) if paid], tokens[pays]
            batch = batch if pays.all() else search.drop(batch[~pays])
            # Cheaper ones may be behind. Before the first call, what cannot be paid at all is refused while nothing is.
            others = self._plan.engine is None and purse.n_refused < MOST_REFUSED and search.prospects.n_left
            if len(batch) or not others:
                break
            batch = search.ask(search.predicted, seconds=search.seconds)
        if not len(batch):
            if self._refuses and not search.rounds:
                raise purse.too_small(search.query)
            search.stop(purse.ending)
        return batch

    def unpaid(self, waiting: Sequence[Waiting]) -> set[int]:
        """The queries that cannot pay their share of a call with these pairs alone; they end here."""
        spending = self._plan.spending
        if spending is None or not spending.counts_requests:
            return set()
        ended = set()
        for at, (items, tokens) in self._of_queries(waiting).items():
            search = self._searches[at]
            if search.purse is not None and not search.purse.can_pay(search.query, items, tokens):
                search.stop("cost")
                ended.add(at)
        return ended

    def pay(self, waiting: Sequence[Waiting]) -> None:
        """A call was made with these pairs."""
        for at, (items, tokens) in self._of_queries(waiting).items():
            search = self._searches[at]
            if search.purse is not None:
                search.purse.pay(search.query, items, tokens)

    def _of_queries(self, waiting: Sequence[Waiting]) -> dict[int, tuple[list[Item], IntArray]]:
        """These pairs by query: their items and tokens."""
        ranks: dict[int, list[int]] = {}
        for query, rank in waiting:
            ranks.setdefault(query, []).append(rank)
        priced = self._priced
        return {at: ([priced[at][0][rank] for rank in some], priced[at][1][some]) for at, some in ranks.items()}
