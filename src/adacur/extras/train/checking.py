"""Checks of a cross-encoder: held-out queries ranked over a shortlist, and over a sample of everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.extras.train.judged_queries import JudgedQueries
from adacur.protocols import Items
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs
from adacur.seeds import stream_key, uniform

if TYPE_CHECKING:
    from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """Held-out queries, what the first stage finds for each, and a sample of the items, the same for all.

    A model may rank a shortlist well and still like thousands of other items better; a search with it would find them.
    """

    held_out: JudgedQueries
    shortlists: Sequence[IntArray]
    sample: IntArray
    n_items: int

    def pairs(self, tokens: PairTokenizer, items: Items) -> TokenPairs:
        """What a check scores: per query the shortlist, the sample and the relevant items, in this order."""
        rows = self._rows()
        places, item_of = np.unique(np.concatenate(rows), return_inverse=True)
        query_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        return TokenPairs(tokens.texts(self.held_out.queries, items.at(places.tolist())), query_of, item_of)

    def quality(self, scores: FloatArray) -> dict[str, float]:
        """Means over queries, where a query's rank is that of its best relevant item.

        - "mrr": 1 / rank in the shortlist, 0 where that holds no relevant item
        - "mrr_all": 1 / rank among all items; each sampled item that outscores the relevant one stands for as many as
          the sample leaves out, so the figure is exact where the sample is everything
        - "outscored": the share of the sample that outscores it; .5 is chance
        """
        ranks, shares = [], []
        for row, shortlist, right in zip(self._split(scores), self.shortlists, self.held_out.relevant, strict=True):
            liked = row[len(shortlist) + len(self.sample) :].max()
            # Not ">=": comparisons with NaN are false.
            wins = ~(row[: len(shortlist) + len(self.sample)] < liked)
            listed, others = np.split(wins, [len(shortlist)])
            n_listed = np.count_nonzero(listed & ~np.isin(shortlist, right))
            fresh = ~np.isin(self.sample, np.concatenate((shortlist, right)))
            share = others[fresh].mean() if fresh.any() else 0.0
            n_others = self.n_items - len(np.union1d(shortlist, right))
            ranks.append(1 + n_listed + share * n_others)
            is_wrong = ~np.isin(self.sample, right)
            shares.append(others[is_wrong].mean() if is_wrong.any() else 0.0)
        listed_scores = [row[: len(one)] for row, one in zip(self._split(scores), self.shortlists, strict=True)]
        return ranking_quality(listed_scores, self.shortlists, self.held_out.relevant) | {
            "mrr_all": float(np.mean(1 / np.array(ranks))),
            "outscored": float(np.mean(shares)),
        }

    def _rows(self) -> list[IntArray]:
        parts = zip(self.shortlists, self.held_out.relevant, strict=True)
        return [np.concatenate((shortlist, self.sample, right)) for shortlist, right in parts]

    def _split(self, scores: FloatArray) -> list[FloatArray]:
        return np.split(scores, np.cumsum([len(row) for row in self._rows()])[:-1])


def sampled(items: Items, n: int, seed: int) -> IntArray:
    """Positions of n items at random; of all where there are no more."""
    order = np.argsort(uniform(stream_key(seed, "check"), items.keys), kind="stable")
    return np.sort(order[:n])


def ranking_quality(
    scores: Sequence[FloatArray], shortlists: Sequence[IntArray], relevant: Sequence[IntArray]
) -> dict[str, float]:
    """The mean over queries of one over the rank of the first relevant item; 0 where the shortlist holds none.

    Among equal scores the relevant item comes last, so that a model that cannot tell does not gain.
    """
    ranks = []
    for of_query, shortlist, right in zip(scores, shortlists, relevant, strict=True):
        is_right = np.isin(shortlist, right)
        best = of_query[is_right].max(initial=-np.inf)
        # Not ">=": comparisons with NaN are false.
        ranks.append(1 + int(np.count_nonzero(~(of_query[~is_right] < best))) if is_right.any() else 0)
    return {"mrr": float(np.mean([1 / rank if rank else 0.0 for rank in ranks]))}
