"""Random searches with budgets of calls, tokens and money over small worlds: none may exceed any of its limits.

python -m lab.benchmarks.spending --searches 100000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur import AnchorIndex, Budget, Item, Query
from adacur.arrays import FloatArray, IntArray
from adacur.errors import BudgetError
from adacur.first_stages.matrix import Matrix
from adacur.money import Price
from adacur.protocols import ScorerCard
from adacur.records import Pair

_METHODS = ("gaussian", "adacur", "anncur", "rerank")
_PRICES = ("0.05 USD / 1M tokens", "0.003 EUR / call", "2 USD / 1000 searches", "0.7 USD / 3 tokens")


class Till:
    """A scorer that keeps its own books: by query, the calls made, and tokens and requests of each call."""

    card = ScorerCard("till", "matrix")

    def __init__(self, scores: FloatArray, tokens: IntArray, *, per_request: int) -> None:
        self._scores, self._tokens, self.batch_size = scores, tokens, per_request
        self.books: dict[str, list[list[int]]] = {}

    def tokens_of(self, pairs: Sequence[Pair]) -> IntArray:
        # A plan asks about a usual question before it knows the queries.
        rows = [int(query.id) if query.id.isdecimal() else 0 for query, _ in pairs]
        return self._tokens[rows, [int(item.id) for _, item in pairs]]

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        groups: dict[str, list[Pair]] = {}
        for query, item in pairs:
            groups.setdefault(query.id, []).append((query, item))
        for id_, group in groups.items():
            requests = (group[at : at + self.batch_size] for at in range(0, len(group), self.batch_size))
            self.books.setdefault(id_, []).extend(self.tokens_of(some).tolist() for some in requests)
        return np.array([self._scores[int(query.id), int(item.id)] for query, item in pairs])

    def spent(self, id_: str, price: Price) -> tuple[int, int, Any]:
        """Calls, tokens and money of a query, counted anew from the books."""
        requests = self.books.get(id_, [])
        tokens = [n for request in requests for n in request]
        searches = sum(-(-len(request) // 100) for request in requests)
        units = {"tokens": sum(tokens), "calls": len(tokens), "searches": searches}
        return len(tokens), sum(tokens), price.amount * units[price.unit] / price.per


def run(n_searches: int, *, seed: int = 0, together: int = 40) -> dict[str, int]:
    """Make the searches and check each against the scorer's own books; what happened, counted."""
    draw = np.random.default_rng(seed)
    seen = {"searches": 0, "refused": 0, "calls": 0, "exceeded": 0, "misreported": 0}
    while seen["searches"] + seen["refused"] < n_searches:
        n_items = int(draw.integers(2, 60))
        n_queries, n_anchors = min(together, n_searches), int(draw.integers(3, 8))
        latent = draw.normal(size=(n_items, 3))
        items = [Item(str(at), f"item {at}") for at in range(n_items)]
        queries = [Query(str(at), chr(97 + at % 26)) for at in range(n_queries)]
        tokens = draw.integers(1, int(draw.choice([5, 60, 2000])), size=(n_queries, n_items))
        till = Till(draw.normal(size=(n_queries, 3)) @ latent.T, tokens, per_request=int(draw.choice([1, 7, 100])))
        anchors = [Query(f"a{at}", "a") for at in range(n_anchors)]
        ranked = draw.normal(size=(n_queries + n_anchors, n_items))
        first = Matrix(queries=[*queries, *anchors], items=items, scores=ranked)
        index = AnchorIndex.from_arrays(
            items=items, anchor_queries=anchors, scores=draw.normal(size=(n_anchors, 3)) @ latent.T,
            scorer=till, first={"first": first},
        )  # fmt: skip
        price = Price.of(str(draw.choice(_PRICES)))
        limits: dict[str, Any] = {"price": price}
        if draw.random() < 0.7:
            limits["tokens"] = int(draw.integers(1, 1 + tokens.max() * 12))
        if draw.random() < 0.7 or "tokens" not in limits:
            limits["cost"] = str(price.cost(int(draw.integers(1, 3000 if price.unit == "tokens" else 12))))
        if draw.random() < 0.7:
            limits["calls"] = int(draw.integers(1, n_items + 5))
        if draw.random() < 0.1:
            limits["deadline"] = 0.05
        method, k = str(draw.choice(_METHODS)), int(draw.integers(1, 4))
        try:
            budget = Budget(**limits)
            found = index.search(queries, k, budget=budget, method=method, first="first")
        except BudgetError:
            seen["refused"] += n_queries
            assert not till.books
            continue
        for hits in found:
            calls, n_tokens, cost = till.spent(hits.query.id, price)
            most = budget.cost_in(price)
            seen["exceeded"] += (
                calls > (budget.calls or n_items)
                or n_tokens > (budget.tokens or n_tokens)
                or (most is not None and cost > most.amount)
            )
            seen["misreported"] += (
                hits.trace.tokens != n_tokens or hits.trace.cost is None or hits.trace.cost.amount != cost
            )
            seen["calls"] += calls
        seen["searches"] += n_queries
    return seen


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given, started = parser.parse_args(), time.monotonic()
    seen = run(given.searches, seed=given.seed)
    print(seen, f"{time.monotonic() - started:.0f} s")
    assert seen["exceeded"] == seen["misreported"] == 0


if __name__ == "__main__":
    main()
