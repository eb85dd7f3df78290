"""What pairs are charged for, before they are scored."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import Item, Query
from adacur.data import fetch
from adacur.errors import ScoreCountError
from adacur.money import Price
from adacur.protocols import ScorerCard
from adacur.scorers import Cached, FunctionScorer, Metered, OnnxCrossEncoder, count_tokens, price_of
from adacur.scorers.metered import units_of

QUERY = Query("q", "how long is this?")
TEXTS = [
    "short",
    "a longer text, with punctuation.",
    "naïve café ﷺ ½ ǖ",
    "日本語のテキスト",
    "🙂" * 9,
    "word " * 400,
    "!" * 300,
]


def function(pairs):
    return [0.0] * len(pairs)


class Service:
    """As much of a service as a price looks at."""

    card = ScorerCard("service", "http")

    def __init__(self, *, batch_size: int = 100) -> None:
        self.batch_size = batch_size

    def score(self, pairs):
        return np.zeros(len(pairs))


def pairs_of(n: int) -> list:
    return [(QUERY, Item(str(at), f"text {at}")) for at in range(n)]


def test_the_bound_is_never_below_what_a_real_tokenizer_makes() -> None:
    model = OnnxCrossEncoder(fetch("ms-marco-MiniLM-L-12-v2"))
    pairs = [(QUERY, Item(str(at), text)) for at, text in enumerate(TEXTS)]

    exact, bound = count_tokens(model, pairs), count_tokens(FunctionScorer(function), pairs)

    assert (exact <= bound).all()
    assert exact.tolist() == [len(model._tokens.pairs([pair]).texts.pair(0, 0)[0]) for pair in pairs]


def test_the_bound_covers_all_that_is_sent_around_a_pair() -> None:
    class Instructed(Service):
        instruction = "Prefer what is recent."

    class Judging(Service):
        def render(self, query, item):
            return f"Is this relevant? {query.text} {item.text} Answer Yes or No."

    (pair,) = pairs_of(1)
    alone, instructed, judging = (int(count_tokens(kind(), [pair])[0]) for kind in (Service, Instructed, Judging))

    assert instructed == alone + len(Instructed.instruction)
    assert judging >= len(Judging().render(*pair)) > alone


def test_an_attribute_of_that_name_that_is_no_text_is_counted_as_one() -> None:
    scorer, (pair,) = Service(), pairs_of(1)
    alone = count_tokens(scorer, [pair])
    scorer.instruction = ("recent",)
    assert count_tokens(scorer, [pair]) >= alone


def test_wrappers_count_as_what_they_wrap(tmp_path) -> None:
    counted = Metered(
        FunctionScorer(function, name="f"), price="1 USD / 100 tokens", tokens_of=lambda pairs: [7] * len(pairs)
    )
    wrapped = Cached(counted, tmp_path / "scores.sqlite")

    assert count_tokens(wrapped, pairs_of(3)).tolist() == [7, 7, 7]
    assert str(price_of(wrapped)) == "1 USD / 100 tokens"
    wrapped.score(pairs_of(3))
    assert (counted.tokens, str(counted.cost)) == (21, "0.21 USD")


@pytest.mark.parametrize("wrong", [[1, 2], [0, 1, 1], [1.5, 1, 1]])
def test_a_count_that_is_none_is_refused(wrong: list) -> None:
    with pytest.raises(ScoreCountError):
        count_tokens(Metered(FunctionScorer(function), tokens_of=lambda pairs: wrong), pairs_of(3))


def test_a_price_is_what_the_scorer_says() -> None:
    assert price_of(Service()) is None
    assert price_of(Cached(Metered(Service(), price="1 EUR / call"))) == Price.of("1 EUR / call")


@pytest.mark.parametrize(
    ("n", "tokens", "batch_size", "units"),
    [(1, 50, 100, 1), (100, 50, 100, 1), (101, 50, 100, 2), (150, 50, 500, 2), (10, 50, 5, 2), (0, 50, 100, 0)],
)
def test_a_search_is_a_request_of_up_to_a_hundred_pairs(n, tokens, batch_size, units) -> None:
    price = Price.of("2 USD / 1000 searches")
    service = Service(batch_size=batch_size)

    assert units_of(price, service, np.full(n, tokens)) == units
