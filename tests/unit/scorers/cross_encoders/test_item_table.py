"""Items by position: read and tokenised once, and scored as the same items given as records."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import ScorerFailed, TextTooLong
from adacur.protocols import PositionScorer
from adacur.records import Item, ItemList, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, QUERIES, tiny_emb, tiny_tokenizer, tiny_transformer

pytest.importorskip("torch")


class Counted(ItemList):
    """Items that remember what was read."""

    def __init__(self, items) -> None:
        super().__init__(items)
        self.read: list[int] = []

    def at(self, positions):
        places = list(positions)
        self.read += places
        return super().at(places)


def tokenizer(**options) -> PairTokenizer:
    return PairTokenizer(tiny_tokenizer("bert"), max_tokens=64, **options)


def everything(found) -> list:
    return [row.tolist() for row in found]


def plainly(items, positions, **options) -> list:
    return everything(tokenizer(**options).items(ItemList.at(items, positions)))


def test_an_item_of_a_collection_is_read_once() -> None:
    known, items, others = tokenizer(), Counted(ITEMS), Counted(ITEMS[::-1])
    asked = np.array([3, 1, 3, 8])
    assert everything(known.items_at(items, asked)) == plainly(items, asked)
    asked = np.array([8, 2, 1])
    assert everything(known.items_at(items, asked)) == plainly(items, asked)
    assert sorted(items.read) == [1, 2, 3, 8]
    assert everything(known.items_at(others, asked)) == plainly(others, asked)


def test_a_full_memory_forgets_the_oldest_and_answers_all_the_same() -> None:
    items = Counted([Item(str(n), "w1 " * 10) for n in range(20)])
    known = tokenizer(most_bytes=2000)
    for asked in (np.arange(start, start + 5) for start in (0, 5, 10, 2)):
        assert everything(known.items_at(items, asked)) == plainly(items, asked)
    everyone = np.arange(20)
    assert everything(known.items_at(items, everyone)) == plainly(items, everyone)
    assert known._known.n_bytes <= 2000


def test_another_collection_in_the_place_of_a_dead_one_has_its_own_items() -> None:
    known, asked = tokenizer(), np.arange(3)
    for texts in (ITEMS, ITEMS[::-1], ITEMS[3:]):
        items = ItemList(texts)
        assert everything(known.items_at(items, asked)) == plainly(items, asked)
        del items
        gc.collect()


def test_a_collection_that_allows_no_weak_reference_is_served_too() -> None:
    class Slotted:
        __slots__ = ("n",)

        def __len__(self) -> int:
            return len(ITEMS)

        def at(self, positions):
            return [ITEMS[position] for position in positions]

    known, asked = tokenizer(), np.array([2, 5])
    assert everything(known.items_at(Slotted(), asked)) == plainly(ItemList(ITEMS), asked)


def test_threads_share_a_memory_that_forgets() -> None:
    items = Counted([Item(str(n), f"w{n % 40} " * (n % 9 + 1)) for n in range(60)])
    known = tokenizer(most_bytes=3000)

    def asked(seed: int) -> bool:
        places = np.random.default_rng(seed).integers(0, 60, 7)
        return everything(known.items_at(items, places)) == plainly(items, places)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(asked, range(40)))


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "emb"])
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    return tiny_emb(path) if request.param == "emb" else tiny_transformer(path, request.param)


QUERY_OF = np.repeat(np.arange(len(QUERIES)), len(ITEMS))
POSITIONS = np.tile(np.arange(len(ITEMS)), len(QUERIES))[::-1].copy()


@pytest.mark.parametrize("options", [{}, {"max_tokens": 32}, {"max_item_tokens": 4, "batch_tokens": 150}])
def test_scores_by_position_are_those_of_pairs_to_the_bit(folder, options) -> None:
    items = Counted(ITEMS)
    with TorchCrossEncoder(folder, device="cpu", **options) as scorer:
        assert isinstance(scorer, PositionScorer)
        pairs = [(QUERIES[query], ITEMS[at]) for query, at in zip(QUERY_OF, POSITIONS, strict=True)]
        expected = scorer.score(pairs)
        for _ in range(2):
            np.testing.assert_array_equal(scorer.score_at(items, QUERIES, QUERY_OF, POSITIONS), expected)
        assert sorted(items.read) == list(range(len(ITEMS)))
        singly = [scorer.score_at(items, [QUERIES[1]], np.array([0]), np.array([at]))[0] for at in range(len(ITEMS))]
        np.testing.assert_allclose(singly, scorer.score_grid([QUERIES[1]], ITEMS)[0], atol=1e-5, rtol=1e-5)
        assert scorer.score_at(items, [], np.empty(0, np.intp), np.empty(0, np.intp)).shape == (0,)


def test_a_query_that_is_too_long_and_a_closed_scorer_keep_no_tokens(tmp_path) -> None:
    items, one = ItemList(ITEMS), np.array([0])
    with TorchCrossEncoder(tiny_transformer(tmp_path), device="cpu", name="mine") as scorer:
        with pytest.raises(TextTooLong):
            scorer.score_at(items, [Query("long", "w1 " * 60)], one, one)
        held = scorer._tokens
    assert not any(isinstance(key, tuple) for key in held._known._kept)
    with pytest.raises(ScorerFailed):
        scorer.score_at(items, QUERIES, one, one)
    assert not len(held._known)
