"""Random searches over small worlds, each alone and in a batch: both must give the same hits.

Worlds vary in size, documents, first stages and texts; searches in method, filter, fusion, and budgets of calls,
tokens and money. Some queries of a batch are equal: they must pay once.

python -m lab.benchmarks.batches --comparisons 100000
"""

from __future__ import annotations

import argparse
import collections
import time
from typing import Any

import numpy as np
from lab.benchmarks.spending import _PRICES, Till

from adacur import ANNCUR, AdaCUR, AnchorIndex, Budget, Gaussian, Item, Query, Rerank
from adacur.errors import BudgetError, EmptyInput
from adacur.first_stages.matrix import Matrix
from adacur.money import Price
from adacur.results import Hits

KINDS = ("ids", "scores", "order", "rounds", "spent", "refused", "paid twice")


def run(n_comparisons: int, *, seed: int = 0, together: int = 12) -> collections.Counter[str]:
    """Make the searches; what differed, counted."""
    draw = np.random.default_rng(seed)
    seen: collections.Counter[str] = collections.Counter(dict.fromkeys(KINDS, 0))
    told = 0
    while seen["comparisons"] < n_comparisons:
        if seen["comparisons"] >= told:
            print(dict(seen), flush=True)
            told += 5000
        index, till, queries = _world(draw, together)
        for _ in range(4):
            options, k = _options(draw, index, till), int(draw.integers(1, 6))
            alone = [_found(index, [query], k, options) for query in queries]
            till.books.clear()
            till.seen.clear()
            # Equal queries stand apart, in an order of their own.
            batch = [queries[at] for at in draw.permutation([*range(together), *draw.integers(0, together, 3)])]
            found = _found(index, batch, k, options)
            seen["paid twice"] += sum(len(set(call)) < len(call) for call in till.seen.values())
            if found is None:
                # One query that can pay for nothing refuses all.
                seen["refused"] += all(one is not None for one in alone)
                seen["refused batches"] += 1
                continue
            one_of = {query.id: one for query, one in zip(queries, alone, strict=True)}
            for hits in found:
                own = one_of[hits.query.id]
                if own is None:
                    seen["refused"] += 1
                    continue
                seen["comparisons"] += 1
                seen.update(_differences(own[0], hits))
                for name in ("filter", "tokens", "cost"):
                    given = options["filter"] if name == "filter" else getattr(options["budget"], name)
                    seen[f"with {name}"] += given is not None
    return seen


class _Books(Till):
    """Also remembers which items each query was scored with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: dict[str, list[str]] = {}

    def score(self, pairs: Any) -> Any:
        for query, item in pairs:
            self.seen.setdefault(query.id, []).append(item.id)
        return super().score(pairs)


def _world(draw: np.random.Generator, n_queries: int) -> tuple[AnchorIndex, _Books, list[Query]]:
    n_items, n_anchors = int(draw.integers(3, 400 if draw.random() < 0.3 else 80)), int(draw.integers(3, 12))
    latent = draw.normal(size=(n_items, 3))
    documents = int(draw.integers(1, n_items)) if draw.random() < 0.3 else None
    items = [
        Item(str(at), f"item {at}", {"lang": str(draw.choice(["de", "en", "fr"])), "number": at}
             | ({} if documents is None else {"document": f"d{at % documents}"}))
        for at in range(n_items)
    ]  # fmt: skip
    queries = [Query(str(at), chr(97 + at % 26)) for at in range(n_queries)]
    anchors = [Query(f"a{at}", "a") for at in range(n_anchors)]
    tokens = draw.integers(1, int(draw.choice([5, 60, 2000])), size=(n_queries, n_items))
    exact = draw.normal(size=(n_queries, 3)) @ latent.T
    if draw.random() < 0.3:
        exact = np.round(exact)
    till = _Books(exact, tokens, per_request=int(draw.choice([1, 7, 100])))
    everyone = [*queries, *anchors]
    first = {
        name: Matrix(queries=everyone, items=items, scores=np.round(draw.normal(size=(len(everyone), n_items)), 1))
        for name in ("one", "two")
    }
    index = AnchorIndex.from_arrays(
        items=items, anchor_queries=anchors, scores=draw.normal(size=(n_anchors, 3)) @ latent.T, scorer=till,
        first=first,
    )  # fmt: skip
    return index, till, queries


def _options(draw: np.random.Generator, index: AnchorIndex, till: _Books) -> dict[str, Any]:
    n_items = len(index)
    rounds, first_batch = int(draw.integers(1, 6)), float(draw.choice([0.1, 0.5]))
    methods = [
        Gaussian(rounds=rounds, first_batch=first_batch),
        AdaCUR(rounds=rounds, first_batch=first_batch),
        ANNCUR(),
        Rerank(),
    ]
    first = str(draw.choice(["one", "two", "one+two"]))
    filters: list[Any] = [{"lang": "de"}, {"lang": ["en", "fr"]}, [item.id for item in index.items if _hash(item) < 2]]
    price = Price.of(str(draw.choice(_PRICES)))
    limits: dict[str, Any] = {}
    if draw.random() < 0.6:
        limits["tokens"] = int(draw.integers(1, 1 + till._tokens.max() * 30))
    if draw.random() < 0.4:
        limits |= {
            "price": price,
            "cost": str(price.cost(int(draw.integers(1, 9000 if price.unit == "tokens" else 40)))),
        }
    if draw.random() < 0.7 or not limits:
        limits["calls"] = int(draw.integers(6, max(7, n_items // 2)))
    return {
        "method": methods[int(draw.integers(len(methods)))],
        "first": first,
        "fuse": 0.5 if draw.random() < 0.3 else 0.0,
        "filter": filters[int(draw.integers(len(filters)))] if draw.random() < 0.6 else None,
        "budget": Budget(**limits),
    }


def _hash(item: Item) -> int:
    return int(item.id) * 7919 % 5


def _found(index: AnchorIndex, queries: list[Query], k: int, options: dict[str, Any]) -> list[Hits] | None:
    """The hits; None for a search that is refused."""
    try:
        return index.search(queries, k, **options)
    except (BudgetError, EmptyInput):
        return None


def _differences(one: Hits, other: Hits) -> list[str]:
    kinds = []
    if set(one.ids) != set(other.ids):
        kinds.append("ids")
    if sorted(one.scores.tolist()) != sorted(other.scores.tolist()):
        kinds.append("scores")
    if one.ids != other.ids:
        kinds.append("order")
    steps = [[round_.positions.tolist() for round_ in hits.trace.rounds] for hits in (one, other)]
    if steps[0] != steps[1]:
        kinds.append("rounds")
    traces = [(hits.trace.tokens, hits.trace.cost, hits.trace.stopped) for hits in (one, other)]
    if traces[0] != traces[1]:
        kinds.append("spent")
    return kinds


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given, started = parser.parse_args(), time.monotonic()
    seen = run(given.comparisons, seed=given.seed)
    print(dict(seen), f"{time.monotonic() - started:.0f} s")
    assert not any(seen[kind] for kind in KINDS)


if __name__ == "__main__":
    main()
