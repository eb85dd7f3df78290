from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers

from adacur.data import fetch
from adacur.errors import InputError, TextTooLong
from adacur.records import Item, Query
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_tokenizer


def whole(tokenizer: tokenizers.Tokenizer, query: str, item: str) -> tuple[list[int], list[int]]:
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    encoding = copy.encode(query, item)
    return encoding.ids, encoding.type_ids


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request) -> tokenizers.Tokenizer:
    return tiny_tokenizer(request.param)


def test_joined_pairs_are_what_the_tokenizer_makes_of_the_whole_pair(tokenizer) -> None:
    tokens = PairTokenizer(tokenizer, max_tokens=64)
    made = tokens.pairs(PAIRS)
    for at, (query, item) in enumerate(PAIRS):
        ids, types = whole(tokenizer, query.text, item.text)
        inputs = {name: array.tolist() for name, array in made.inputs(at).items()}
        assert inputs == {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "token_type_ids": [types]}
        assert made.lengths[at] == len(ids)


def test_a_grid_is_the_pairs_query_by_query(tokenizer) -> None:
    tokens = PairTokenizer(tokenizer, max_tokens=64)
    grid, pairs = tokens.texts(QUERIES, ITEMS).grid(), tokens.pairs(PAIRS)
    assert len(grid) == len(pairs)
    for at in range(len(PAIRS)):
        np.testing.assert_array_equal(grid.inputs(at)["input_ids"], pairs.inputs(at)["input_ids"])


def test_real_text_is_joined_as_the_tokenizer_joins_it() -> None:
    file = fetch("ms-marco-MiniLM-L-12-v2") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    query, item = "Où est «Zürich»? 東京", "It's there – naïve, isn't it?\n\n[SEP] 🙂 "
    inputs = PairTokenizer(tokenizer, max_tokens=512).pairs([(Query("q", query), Item("i", item))])
    ids, types = whole(tokenizer, query, item)
    made = inputs.inputs(0)
    assert (made["input_ids"][0].tolist(), made["token_type_ids"][0].tolist()) == (ids, types)


def test_only_the_item_is_cut(tokenizer) -> None:
    query, item = Query("q", "w1 w2 w3 w4 w5"), Item("i", "w7 w8 " * 100)
    tokens = PairTokenizer(tokenizer, max_tokens=30)
    made = tokens.pairs([(query, item)]).inputs(0)["input_ids"][0].tolist()
    room = 30 - tokens.template.n_special - 5
    assert made == whole(tokenizer, query.text, "w7 w8 " * (room // 2) + "w7" * (room % 2))[0]
    assert len(made) == 30


def test_max_item_tokens_cuts_items_only() -> None:
    tokens = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64, max_item_tokens=3)
    pair = (Query("q", "w1 w2 w3 w4 w5"), Item("i", "w7 w8 w9 w10"))
    assert tokens.pairs([pair]).lengths.tolist() == [3 + 5 + 3]


def test_a_query_that_leaves_no_room_is_named() -> None:
    tokens = PairTokenizer(tiny_tokenizer("bert"), max_tokens=40)
    assert len(tokens.pairs([(Query("fits", "w1 " * 21), Item("i", "w2"))])) == 1
    with pytest.raises(TextTooLong, match=r"40\b.*\b21\b.*'long one'.*22"):
        tokens.pairs([(Query("long one", "w1 " * 22), Item("i", "w2"))])


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    pairs = PairTokenizer(tiny_tokenizer("bert"), max_tokens=40).pairs([(Query("q", "w1"), Item("i", "w2 \ud83d"))])
    assert len(pairs.inputs(0)["input_ids"]) == 1


def test_a_text_that_occurs_often_is_tokenised_once() -> None:
    pairs = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64).pairs(PAIRS * 3)
    assert len(pairs.texts.heads) == len(QUERIES)
    assert len(pairs.texts.items) == len({item.text for item in ITEMS})


def test_texts_seen_before_are_remembered_up_to_a_limit_and_make_the_same_pairs() -> None:
    tokens = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64, most_bytes=3000)
    for pairs in (PAIRS[:6], PAIRS[3:9], PAIRS, PAIRS[:6]):
        fresh = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64).pairs(pairs)
        known = tokens.pairs(pairs)
        assert 0 < tokens._known.n_bytes <= 3000
        for at in range(len(pairs)):
            np.testing.assert_array_equal(known.inputs(at)["input_ids"], fresh.inputs(at)["input_ids"])


def test_the_tokenizer_given_is_left_as_it_was() -> None:
    tokenizer = tiny_tokenizer("bert")
    before = tokenizer.to_str()
    PairTokenizer(tokenizer, max_tokens=64).pairs(PAIRS)
    assert tokenizer.to_str() == before


def test_threads_may_share_it_while_others_change_the_original() -> None:
    tokenizer = tiny_tokenizer("bert")
    tokens = PairTokenizer(tokenizer, max_tokens=64)
    expected = tokens.pairs(PAIRS).lengths

    def ask(turn: int) -> bool:
        tokenizer.enable_truncation(8 + turn)
        return bool((tokens.pairs(PAIRS).lengths == expected).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))


def test_a_tokenizer_that_puts_the_item_first_is_refused() -> None:
    tokenizer = tiny_tokenizer("bert")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$B:1 [SEP] $A", special_tokens=[("[SEP]", 3)]
    )
    with pytest.raises(InputError):
        PairTokenizer(tokenizer, max_tokens=64)


@pytest.mark.parametrize("options", [{"max_tokens": 19}, {"max_tokens": 64, "max_item_tokens": 0}])
def test_limits_that_hold_no_pair_are_refused(options) -> None:
    with pytest.raises(InputError):
        PairTokenizer(tiny_tokenizer("bert"), **options)
