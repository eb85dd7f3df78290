"""Anchor items chosen by someone who knows every exact score: how good could they be?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import check_k, is_whole
from adacur.errors import InputError, UnknownName
from adacur.model.acquire import TopK, Uniform, best_positions
from adacur.protocols import Acquisition
from adacur.records import Item, ItemList, Query, as_queries, repeats
from adacur.results import Hits
from adacur.scores import check_grid
from adacur.seeds import stream_key

__all__ = ["Oracle"]


class Oracle:
    """A first stage that chooses by exact scores: TopK^O(k_m, ε) and, with `choice=Softmax()`, SoftMax^O(k_m, ε).

    The best `masked` items (k_m) of a query are never among its anchor items; a `random_share` (ε) of these is drawn
    uniformly from the rest, and `choice` takes the others by their exact scores. The paper then predicts all items
    once and scores the best predicted, masked ones included: that is ANNCUR with this as `first`. Exact scores cost
    every call there is, so this is an experiment and no method.
    """

    def __init__(
        self,
        *,
        queries: Sequence[Query],
        items: Sequence[Item],
        exact_scores: FloatArray,
        choice: Acquisition | None = None,
        masked: int = 0,
        random_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._exact = check_grid(exact_scores, queries, items)
        self._items = ItemList(items)
        self._rows = {query.id: row for row, query in enumerate(queries)}
        if len(self._rows) < len(queries):
            raise InputError(f"Query ids must be unique; {repeats(q.id for q in queries)} more than once.")
        if not is_whole(masked) or not 0 <= masked < len(items):
            raise InputError(f"masked counts the best items left out, fewer than all {len(items)}; got {masked!r}.")
        if not 0 <= random_share <= 1:
            raise InputError(f"random_share is a share of the anchor items, between 0 and 1; got {random_share!r}.")
        self._choice = choice or TopK()
        self._masked = masked
        self._random_share = random_share
        self._seed = seed

    @property
    def name(self) -> str:
        """What a trace calls it."""
        return f"oracle({self._choice!r}, masked={self._masked}, random_share={self._random_share})"

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """k anchor items per query, the highest exact score first; fewer only where the mask leaves fewer.

        Of k items a share is random, so the answer for a smaller k is not the beginning of this one.
        """
        check_k(k)
        return [self._search(query, k) for query in as_queries(queries)]

    def _search(self, query: Query, k: int) -> Hits:
        if query.id not in self._rows:
            raise UnknownName(
                f"No exact scores are known for query {query.id!r}; the oracle knows {len(self._rows)} queries. "
                "Search with the Query records it was made with: a plain text gets an id of its own."
            )
        exact, keys = self._exact[self._rows[query.id]], self._items.keys
        free = np.ones(len(exact), dtype=np.bool_)
        free[best_positions(exact, self._masked, keys=keys)] = False
        n_random = round(self._random_share * k)
        stream = stream_key(self._seed, "oracle", query.id)
        chosen = self._choice.choose(exact, unscored=free, n=k - n_random, keys=keys, stream=stream)
        free[chosen] = False
        # A stream of its own: with the softmax's draws, the items that it just missed would be the likeliest ones.
        stream = stream_key(self._seed, "oracle at random", query.id)
        drawn = Uniform().choose(exact, unscored=free, n=n_random, keys=keys, stream=stream)
        anchors = np.concatenate([chosen, drawn])
        anchors = anchors[best_positions(exact[anchors], len(anchors), keys=keys[anchors])]
        ids = tuple(self._items.ids[position] for position in anchors.tolist())
        return Hits(query=query, ids=ids, scores=exact[anchors])
