from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers

from adacur.data import fetch
from adacur.errors import InputError, TextTooLong
from adacur.records import Item, Query
from adacur.scorers import EmbHead
from adacur.scorers.cross_encoders import pair_tokens
from adacur.scorers.cross_encoders.pair_tokens import LEAST_ITEM_TOKENS, PairTokenizer
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


def test_an_item_without_tokens_is_just_the_special_ones(tokenizer) -> None:
    made = PairTokenizer(tokenizer, max_tokens=64).pairs([(Query("q", "w1"), Item("i", ""))]).inputs(0)
    assert made["input_ids"][0].tolist() == whole(tokenizer, "w1", "")[0]


def test_a_query_that_leaves_no_room_is_named() -> None:
    tokens = PairTokenizer(tiny_tokenizer("bert"), max_tokens=40)
    assert len(tokens.pairs([(Query("fits", "w1 " * 21), Item("i", "w2"))])) == 1
    with pytest.raises(TextTooLong, match=r"40 tokens.*have 21.*'long one'.*has 22"):
        tokens.pairs([(Query("long one", "w1 " * 22), Item("i", "w2"))])


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    pairs = PairTokenizer(tiny_tokenizer("bert"), max_tokens=40).pairs([(Query("q", "w1"), Item("i", "w2 \ud83d"))])
    assert len(pairs.inputs(0)["input_ids"]) == 1


def test_a_text_that_occurs_often_is_tokenised_once() -> None:
    pairs = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64).pairs(PAIRS * 3)
    assert len(pairs.texts.heads) == len(QUERIES)
    assert len(pairs.texts.items) == len({item.text for item in ITEMS})


def test_texts_seen_before_are_remembered_up_to_a_limit_and_make_the_same_pairs(monkeypatch) -> None:
    monkeypatch.setattr(pair_tokens, "_BYTES_KNOWN", 3000)
    tokens = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64)
    for pairs in (PAIRS[:6], PAIRS[3:9], PAIRS, PAIRS[:6]):
        fresh = PairTokenizer(tiny_tokenizer("bert"), max_tokens=64).pairs(pairs)
        known = tokens.pairs(pairs)
        assert 0 < tokens._known.n_bytes <= 3000
        for at in range(len(pairs)):
            np.testing.assert_array_equal(known.inputs(at)["input_ids"], fresh.inputs(at)["input_ids"])
        own = known.with_own_texts()
        np.testing.assert_array_equal(own.lengths, known.lengths)


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
    with pytest.raises(InputError, match="query, then item"):
        PairTokenizer(tokenizer, max_tokens=64)


@pytest.mark.parametrize("options", [{"max_tokens": 19}, {"max_tokens": 64, "max_item_tokens": 0}])
def test_limits_that_hold_no_pair_are_refused(options) -> None:
    with pytest.raises(InputError, match="must be at least"):
        PairTokenizer(tiny_tokenizer("bert"), **options)


HEAD = EmbHead("[S]", "[E]", "[I]")


@pytest.fixture(params=["bert", "roberta"])
def tagged(request) -> tokenizers.Tokenizer:
    return tiny_tokenizer(request.param, unused=HEAD.tags)


def words_of(tokens: PairTokenizer, query: str, item: str) -> list[str]:
    """The tokens of a pair without those of the template."""
    texts = tokens.pairs([(Query("q", query), Item("i", item))]).texts
    ids, template = texts.pair(0, 0)[0].tolist(), tokens.template
    around = template.prefix.shape[1], len(ids) - template.suffix.shape[1]
    return [tokens._tokenizer.id_to_token(id_) for id_ in ids[around[0] : around[1]] if id_ not in template.middle[0]]


@pytest.mark.parametrize(
    ("query", "item", "expected"),
    [
        ("w1 w2", "w3", "[S] w1 w2 [E] [I] w3"),
        ("w0 [S] w1 [E] w2", "w3 [I] w4", "w0 [S] w1 [E] w2 w3 [I] w4"),
        ("w1[S]w2[E]", "w3[I]w4", "w1 [S] w2 [E] w3 [I] w4"),
        ("", "", "[S] [E] [I]"),
        ("[S] w1 [E] [E] [S]", "[S] w1 [I] [I]", "[S] w1 [E] [E] [S] [S] w1 [I] [I]"),
    ],
)
def test_texts_get_the_tags_that_they_lack(tagged, query, item, expected) -> None:
    assert words_of(PairTokenizer(tagged, max_tokens=64, head=HEAD), query, item) == expected.split()


@pytest.mark.parametrize("text", ["w1 [S] w2", "w1 w2 [E]", "[E] w1 [S]", "w1 [I]", "[S] w1 [E] [I]"])
def test_a_query_with_tags_in_disorder_is_refused_by_name(tagged, text) -> None:
    with pytest.raises(InputError, match="query 'wrong' is"):
        PairTokenizer(tagged, max_tokens=64, head=HEAD).pairs([(Query("wrong", text), ITEMS[1])])


def test_limits_count_the_tags(tagged) -> None:
    tokens = PairTokenizer(tagged, max_tokens=40, max_item_tokens=5, head=HEAD)
    pairs = tokens.pairs([(Query("q", "w1 w2"), Item("i", "w3 " * 9))])
    assert pairs.texts.item_lengths.tolist() == [5]
    assert pairs.texts.space.tolist() == [40 - tokens.template.n_special - 4]
    assert pairs.lengths.tolist() == [len(pairs.texts.pair(0, 0)[0])]
    longest = 40 - tokens.template.n_special - LEAST_ITEM_TOKENS - 2
    tokens.texts([Query("fits", "w1 " * longest)], [])
    with pytest.raises(TextTooLong, match=f"may have {longest + 2}; query 'long' has {longest + 3}"):
        tokens.texts([Query("long", "w1 " * (longest + 1))], [])
    with pytest.raises(InputError, match=r"max_item_tokens.*least 2"):
        PairTokenizer(tagged, max_tokens=64, max_item_tokens=1, head=HEAD)


@pytest.mark.parametrize("limit", [{"max_item_tokens": 4}, {"max_tokens": 30}])
def test_a_title_longer_than_its_room_keeps_the_tag_in_the_last_place(tagged, limit) -> None:
    tokens = PairTokenizer(tagged, **({"max_tokens": 64} | limit), head=HEAD)
    words = words_of(tokens, "w1", f"{'w2 w3 ' * 20}[I] w4")
    room = limit.get("max_item_tokens", 30 - tokens.template.n_special - 3)
    assert words == [*["[S]", "w1", "[E]"], *(["w2", "w3"] * 20)[: room - 1], "[I]"]
    assert words_of(tokens, "w1", f"w2 w3 [I] {'w4 ' * 40}")[3:6] == ["w2", "w3", "[I]"]


def test_tags_that_the_vocabulary_lacks_are_told(tokenizer) -> None:
    with pytest.raises(InputError, match=r"it lacks \[S\], \[E\], \[I\]"):
        PairTokenizer(tokenizer, max_tokens=64, head=HEAD)


def test_the_callers_tokenizer_does_not_learn_the_tags(tagged) -> None:
    PairTokenizer(tagged, max_tokens=64, head=HEAD)
    assert len(tagged.encode("[S]", add_special_tokens=False).ids) > 1
