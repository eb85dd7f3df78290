"""What a match would cost, before anything is paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Query
from adacur.scorers.metered import count_tokens, counts_exactly, units_per_pair
from adacur.search import AnchorIndex
from adacur.store.estimate import time_scorer
from adacur.units import duration

# Calls of a row, as measured on tables of products at a recall of .9 (docs/match.md).
_USUAL_CALLS = 4
_TIMED = 64
# Models in this process, which cost time alone: only they are timed.
_TIMED_BACKENDS = ("onnx", "torch", "sentence-transformers")


@dataclass(frozen=True, slots=True)
class MatchEstimate:
    """The calls of a match: `expected`, between one a row and `most`. Tokens, money and seconds are for `expected`.

    Tokens are an upper bound where the scorer can't count them (`tokens_are_bound`). `cost` is None without a price;
    `seconds` None where the scorer was not timed, since its calls may be charged.
    """

    rows: int
    right_rows: int
    expected: int
    most: int
    tokens: int
    tokens_are_bound: bool
    cost: Money | None = None
    most_cost: Money | None = None
    seconds: float | None = None

    def summary(self) -> str:
        """One sentence."""
        money = f"{self.cost}, {self.most_cost} at most" if self.cost else "cost unknown: give a price"
        time = f"about {duration(self.seconds)}" if self.seconds is not None else "time unknown: nothing was called"
        bound = "at most" if self.tokens_are_bound else "about"
        return (
            f"{self.rows:,} × {self.right_rows:,} rows: about {self.expected:,} calls ({_USUAL_CALLS} a row, as tables "
            f"of products take), {self.most:,} at most; {bound} {self.tokens:,} tokens; {money}; {time}."
        )


def forecast(
    index: AnchorIndex, some: Sequence[Query], scorer: Scorer, *, rows: int, most: int, price: Price | None
) -> MatchEstimate:
    """The estimate, given a few rows of the left table; `most` are the calls that the limits allow."""
    stage = index.snapshot.stage(None)
    answers = [] if stage is None else stage.search(some, 1)
    best = [positions[:1].tolist() or [0] for positions, _ in answers] or [[0]] * len(some)
    pairs = [(query, index.items.at(at)[0]) for query, at in zip(some, best, strict=False)]
    counts, expected = count_tokens(scorer, pairs), min(most, rows * _USUAL_CALLS)
    charged: dict[str, Any] = {}
    if price is not None:
        each = units_per_pair(price, scorer, counts)
        charged = {"cost": price.cost(round(each * expected)), "most_cost": price.cost(round(each * most))}
    if scorer.card.backend in _TIMED_BACKENDS:
        items, queries = [item for _, item in pairs], [query for query, _ in pairs]
        charged["seconds"] = expected / time_scorer(items, queries, scorer=scorer, most_calls=_TIMED).mean
    tokens = round(float(counts.mean()) * expected)
    return MatchEstimate(rows, len(index), expected, most, tokens, not counts_exactly(scorer), **charged)
