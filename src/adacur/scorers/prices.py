"""What scorers charge for: tokens of pairs, counted before they are scored, and a small dated table of prices."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.errors import ScoreCountError
from adacur.core.money import Price
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Pair, Query

# Begin, separators, end, and what a service may put around a pair.
_SPECIAL_TOKENS = 16
# Cohere's search: one query with up to 100 documents; a document of more than 500 tokens counts once per piece of 500.
_DOCUMENTS_PER_SEARCH, _TOKENS_PER_PIECE = 100, 500


def _usd(amount: str, per: int, unit: str, seen: str, source: str) -> Price:
    return Price(Decimal(amount), "USD", per, unit, seen, source)


# By the host of a service and the name of a model. Read second-hand, from the pages named; the services' own pages
# were not consulted. Give price= where yours differs.
PRICES: dict[str, dict[str, Price]] = {
    "cohere.com": {
        "rerank-v4.0-fast": _usd(
            "2.00", 1000, "searches", "2026-06", "developer.puter.com/tutorials/cohere-api-pricing"
        ),
        "rerank-v4.0-pro": _usd(
            "2.50", 1000, "searches", "2026-06", "developer.puter.com/tutorials/cohere-api-pricing"
        ),
    },
    "voyageai.com": {
        "rerank-2.5": _usd("0.05", 1_000_000, "tokens", "2026-11", "getmaxim.ai/bifrost/model-library/provider/voyage"),
        "rerank-2.5-lite": _usd("0.02", 1_000_000, "tokens", "2026-07-27", "openrouter.ai/voyageai"),
    },
    "zeroentropy.dev": {
        "zerank-2": _usd("0.025", 1_000_000, "tokens", "2026-10-07", "zeroentropy.dev/pricing, by api-evangelist"),
    },
}


def _layers(scorer: Any) -> Iterator[Any]:
    """A scorer, and what it is wrapped around."""
    while scorer is not None:
        yield scorer
        scorer = getattr(scorer, "scorer", None)


def count_tokens(scorer: Scorer, pairs: Sequence[Pair]) -> IntArray:
    """The tokens that each pair takes, counted without scoring it: what budgets of tokens and of money go by.

    A scorer with `tokens_of(pairs)` counts itself, as models in this process do, exactly. For any other, such as a
    service, it is an upper bound: the bytes of query, item and instruction as UTF-8, or of the prompt that a judge is
    sent, plus 16. A token of a byte-level or character-level tokenizer stands for at least one byte; English has four
    or five bytes a token.
    """
    for layer in _layers(scorer):
        if callable(count := getattr(layer, "tokens_of", None)):
            tokens = np.asarray(count(pairs))
            if tokens.shape != (len(pairs),) or tokens.dtype.kind not in "iu" or (tokens < 1).any():
                raise ScoreCountError(
                    f"tokens_of must return one whole number of at least 1 per pair; for {len(pairs)} pairs "
                    f"{scorer.card.name!r} returned shape {tokens.shape}, {tokens.dtype}."
                )
            return tokens.astype(np.intp)
    sent = _sent(scorer)
    return np.array([sum(map(_bytes, sent(*pair))) + _SPECIAL_TOKENS for pair in pairs], np.intp)


def _sent(scorer: Scorer) -> Callable[[Query, Item], tuple[str, ...]]:
    """What a service reads of a pair: a judge its whole prompt, another the texts and perhaps an instruction."""
    for layer in _layers(scorer):
        if callable(render := getattr(layer, "render", None)):
            return lambda query, item: (render(query, item),)
        if isinstance(instruction := getattr(layer, "instruction", None), str):
            return lambda query, item: (instruction, query.text, item.text)
    return lambda query, item: (query.text, item.text)


def counts_exactly(scorer: Scorer) -> bool:
    """Whether `count_tokens` counts what the scorer takes, and not an upper bound."""
    return any(callable(getattr(layer, "tokens_of", None)) for layer in _layers(scorer))


def _bytes(text: str) -> int:
    """The most bytes that a text can have before it is cut into tokens: some tokenizers compose or expand it first."""
    if text.isascii():
        return len(text)
    return max(
        len(one.encode(errors="replace"))
        for one in (text, *(unicodedata.normalize(form, text) for form in ("NFKC", "NFKD")))
    )


def price_of(scorer: Scorer) -> Price | None:
    """What a scorer costs: as it says itself (`Metered(scorer, price=…)`), else by the table; None where unknown.

    The table knows services by the host that is called, so a server of your own that speaks like one has no price.
    """
    for layer in _layers(scorer):
        if isinstance(price := getattr(layer, "price", None), Price):
            return price
        url, model = getattr(layer, "url", None), getattr(layer, "model", None)
        if isinstance(url, str) and isinstance(model, str) and (host := urlsplit(url).hostname):
            domain = next((one for one in PRICES if host == one or host.endswith(f".{one}")), "")
            return PRICES.get(domain, {}).get(model)
    return None


def units_of(price: Price, scorer: Scorer, pairs: Sequence[Pair], tokens: IntArray) -> int:
    """How many units a price counts for these pairs of one query when they are scored by one call of the scorer."""
    if price.unit != "searches":
        return len(pairs) if price.unit == "calls" else int(tokens.sum())
    of_text: dict[str, int] = {}
    for (_, item), n in zip(pairs, _pieces(pairs, tokens).tolist(), strict=True):
        of_text[item.text] = max(n, of_text.get(item.text, 0))
    sizes = (sum(of_text[item.text] for _, item in request) for request in _requests(scorer, pairs))
    return sum(-(-size // _DOCUMENTS_PER_SEARCH) for size in sizes)


def units_per_pair(price: Price, scorer: Scorer, pairs: Sequence[Pair], tokens: IntArray) -> float:
    """The same for a pair like these where calls are large: a search is shared by as many as a request takes."""
    if price.unit != "searches":
        return units_of(price, scorer, pairs, tokens) / len(pairs)
    n_requests = len(_requests(scorer, pairs))
    in_full = float(_pieces(pairs, tokens).mean()) / _DOCUMENTS_PER_SEARCH
    return max(in_full, n_requests / len(pairs)) if n_requests > 1 else in_full


def _pieces(pairs: Sequence[Pair], tokens: IntArray) -> IntArray:
    """How many documents each counts for. The query stands in every piece, of which it may take half."""
    in_query = min(_bytes(pairs[0][0].text), _TOKENS_PER_PIECE // 2) if pairs else 0
    return np.where(tokens <= _TOKENS_PER_PIECE, 1, -(-tokens // (_TOKENS_PER_PIECE - in_query)))


def _requests(scorer: Scorer, pairs: Sequence[Pair]) -> Sequence[Sequence[Pair]]:
    """The pairs of each request of a call: as the scorer says, else in hundreds."""
    for layer in _layers(scorer):
        if callable(send := getattr(layer, "requests", None)):
            requests: Sequence[Sequence[Pair]] = send(pairs)
            return requests
    step = _DOCUMENTS_PER_SEARCH
    return [pairs[at : at + step] for at in range(0, len(pairs), step)]
