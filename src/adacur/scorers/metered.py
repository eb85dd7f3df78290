"""What scorers cost: calls and seconds; tokens of pairs, counted before they are scored; units of a price."""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import ScoreCountError
from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Item, Pair, Query
from adacur.scorers.calling import ascore, score_grid
from adacur.scorers.wrapping import Wrapping

# Begin, separators, end, and what a service may put around a pair.
_SPECIAL_TOKENS = 16
# Cohere's search: a request with one query and up to 100 documents.
_PAIRS_PER_SEARCH = 100


class Metered(Wrapping):
    """A scorer that counts: `calls` are pairs answered, `seconds` the time they took, summed over threads.

    With a `price`, such as "0.05 USD / 1M tokens", or `tokens_of`, a function from pairs to their numbers of tokens,
    `tokens` and `cost` are counted too; budgets and estimates then go by these.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        price: Price | str | None = None,
        tokens_of: Callable[[Sequence[Pair]], IntArray | Sequence[int]] | None = None,
    ) -> None:
        self.scorer = scorer
        self.calls = self.tokens = self.units = 0
        self.seconds = 0.0
        self.price = price_of(scorer) if price is None else Price.of(price)
        self._counts_tokens = price is not None or tokens_of is not None
        if tokens_of is not None:
            self.tokens_of = tokens_of
        self._lock = threading.Lock()

    @property
    def cost(self) -> Money | None:
        """What the calls so far cost; None without a price."""
        return self.price.cost(self.units) if self.price is not None and self._counts_tokens else None

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs), pairs):
            return self.scorer.score(pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        with self._counting(len(queries) * len(items), list(product(queries, items)) if self._counts_tokens else ()):
            return score_grid(self.scorer, queries, items)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs), pairs):
            return await ascore(self.scorer, pairs)

    @contextmanager
    def _counting(self, calls: int, pairs: Sequence[Pair]) -> Iterator[None]:
        tokens, units = tokens_and_units(self, pairs) if self._counts_tokens else (0, 0)
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        with self._lock:
            self.calls += calls
            self.tokens += tokens
            self.units += units
            self.seconds += seconds


def tokens_and_units(scorer: Scorer, pairs: Sequence[Pair]) -> tuple[int, int]:
    """The tokens of the pairs of a call, and the units of its price that it is charged; none without a price."""
    # Pairs by position are read together; one by one, each is a look-up of its own.
    pairs = list(pairs)
    counts, price = count_tokens(scorer, pairs), price_of(scorer)
    if price is None:
        return int(counts.sum()), 0
    of_query: dict[str, list[int]] = {}
    for at, (query, _) in enumerate(pairs):
        of_query.setdefault(query.text, []).append(at)
    units = (units_of(price, scorer, counts[some]) for some in of_query.values())
    return int(counts.sum()), sum(units)


def _said(scorer: Any, name: str) -> Any:
    """The attribute of this name of a scorer, or of the nearest that it is wrapped around; None without one."""
    while scorer is not None:
        if (value := getattr(scorer, name, None)) is not None:
            return value
        scorer = getattr(scorer, "scorer", None)
    return None


def count_tokens(scorer: Scorer, pairs: Sequence[Pair]) -> IntArray:
    """The tokens that each pair takes, counted without scoring it: what budgets of tokens and of money go by.

    A scorer with `tokens_of(pairs)` counts itself, as models in this process do, exactly. For any other, such as a
    service, it is an upper bound: the bytes of query, item and instruction as UTF-8, or of the prompt that a judge is
    sent, plus 16. A token of a byte-level or character-level tokenizer stands for at least one byte; English has four
    or five bytes a token.
    """
    if (count := _said(scorer, "tokens_of")) is not None:
        tokens = np.asarray(count(pairs))
        if tokens.shape != (len(pairs),) or tokens.dtype.kind not in "iu" or (tokens < 1).any():
            raise ScoreCountError(
                f"tokens_of must return one whole number of at least 1 per pair; for {len(pairs)} pairs "
                f"{scorer.card.name!r} returned shape {tokens.shape}, {tokens.dtype}."
            )
        return tokens.astype(np.intp)
    # A judge reads its whole prompt, another service the texts and perhaps an instruction.
    render, instruction = _said(scorer, "render"), str(_said(scorer, "instruction") or "")
    sent = [[render(*pair)] if render else [instruction, pair[0].text, pair[1].text] for pair in pairs]
    return np.array([sum(map(_bytes, texts)) + _SPECIAL_TOKENS for texts in sent], np.intp)


def counts_exactly(scorer: Scorer) -> bool:
    """Whether `count_tokens` counts what the scorer takes, and not an upper bound."""
    return _said(scorer, "tokens_of") is not None


def _bytes(text: str) -> int:
    """The most bytes that a text can have before it is cut into tokens: some tokenizers compose or expand it first."""
    if text.isascii():
        return len(text)
    return max(
        len(one.encode(errors="replace"))
        for one in (text, *(unicodedata.normalize(form, text) for form in ("NFKC", "NFKD")))
    )


def price_of(scorer: Scorer) -> Price | None:
    """What a scorer costs, as it says itself: `Metered(scorer, price=…)`."""
    price = _said(scorer, "price")
    return price if isinstance(price, Price) else None


def units_of(price: Price, scorer: Scorer, tokens: IntArray) -> int:
    """How many units a price counts for pairs of one query, of so many tokens each, in one call of the scorer."""
    if price.unit == "tokens":
        return int(tokens.sum())
    return -(-len(tokens) // pairs_per_unit(price, scorer))


def pairs_per_unit(price: Price, scorer: Scorer) -> int:
    """How many pairs of a call one unit pays for, where the price is not by the token."""
    if price.unit == "calls":
        return 1
    size = _said(scorer, "batch_size")
    return min(_PAIRS_PER_SEARCH, size) if isinstance(size, int) else _PAIRS_PER_SEARCH


def units_per_pair(price: Price, scorer: Scorer, tokens: IntArray) -> float:
    """The same for a pair like these where calls are large."""
    return float(tokens.mean()) if price.unit == "tokens" else 1 / pairs_per_unit(price, scorer)
