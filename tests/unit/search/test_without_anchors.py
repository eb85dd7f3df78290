"""An index without anchor queries: led by a first stage, kept in a folder, changed, and given anchor queries later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.errors import EmptyInput, InputError, UnknownName, WrongScorer
from adacur.first_stages import BM25, Dense
from adacur.replay import compress, tune
from tests.editing import Edited
from tests.living_world import Encoder

KINDS = ("river", "castle", "lamp", "violin", "glacier", "market", "bridge", "orchard", "harbour", "engine")
ITEMS = [Item(f"i{n}", f"{KINDS[n % 10]} {n} beside the {KINDS[n // 10 % 10]}") for n in range(200)]
ANCHORS = [Query(f"q{n}", f"{one} near the {KINDS[n - 3]}") for n, one in enumerate(KINDS)]
QUESTION = "lamp beside the violin"


class Overlap:
    """Words in common, counted call by call; a little less for a larger number, so that none are equal."""

    __name__ = "overlap"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.calls += len(pairs)
        return [len({*query.split()} & {*text.split()}) - int(text.split()[1]) / 1000 for query, text in pairs]


def true_best(index: AnchorIndex, k: int = 5) -> tuple[str, ...]:
    return index.search(QUESTION, k, method="exact").ids


@pytest.fixture(name="path")
def path_fixture(tmp_path) -> Path:
    adacur.build(ITEMS, 0, scorer=Overlap(), path=tmp_path / "bare.adacur", progress=False).close()
    return tmp_path / "bare.adacur"


@pytest.mark.parametrize(
    "first",
    [None, "bm25", ["bm25"], ["bm25", "random"], {"bm25": BM25.build(ITEMS)}, BM25.build(ITEMS), [BM25.build(ITEMS)]],
)
def test_an_index_of_items_alone_is_led_by_a_first_stage(first) -> None:
    given = {} if first is None else {"first": first}
    index = AnchorIndex.from_items(ITEMS, scorer=Overlap(), **given)
    assert index.snapshot.default_first == "bm25"
    hits = index.search(QUESTION, 2, budget=50)
    assert hits.ids == true_best(index, 2)
    assert (hits.trace.settings["method"], len(hits.trace.rounds)) == ("rerank", 1)


def test_named_dense_stages_are_built_with_the_encoder_and_predict() -> None:
    index = AnchorIndex.from_items(ITEMS, scorer=Overlap(), first=["bm25", "dense"], encoder=Encoder(), progress=False)
    assert index.snapshot.default_first == "bm25+dense"
    assert index.search(QUESTION, 2, budget=50).trace.settings["method"] == "gaussian"


@pytest.mark.parametrize(
    ("first", "error", "said"),
    [
        ("bm52", UnknownName, "bm25"),
        (["dense"], InputError, "encoder"),
        ([], InputError, "random"),
        ({}, InputError, "random"),
        (7, InputError, "7"),
        ([7], InputError, "int"),
        ({"bm25": 7}, InputError, "int"),
    ],
)
def test_first_stages_that_cannot_lead_are_refused_with_the_choices(first, error, said) -> None:
    with pytest.raises(error, match=said):
        AnchorIndex.from_items(ITEMS, scorer=Overlap(), first=first)


def test_searching_at_random_takes_saying_so(tmp_path) -> None:
    index = AnchorIndex.from_items(ITEMS, scorer=Overlap(), first="random")
    assert index.first_stages == ("random",)
    assert len(index.search(QUESTION, 2, budget=5)) == 2
    with pytest.raises(InputError, match="random"):
        adacur.build(ITEMS, 0, scorer=Overlap(), path=tmp_path / "x", first=[])


def test_a_build_without_anchor_queries_calls_no_scorer_and_opens_again(tmp_path) -> None:
    scorer = Overlap()
    built = adacur.build(
        ITEMS, 0, scorer=scorer, path=tmp_path / "x", first=["bm25", "dense"], encoder=Encoder(), progress=False
    )
    assert scorer.calls == 0
    assert (len(built), len(built.anchor_queries), built.matrix.shape) == (200, 0, (200, 0))
    again = adacur.build(ITEMS, 0, scorer=scorer, path=tmp_path / "x", progress=False)
    assert again.first_stages == ("bm25", "dense", "bm25+dense", "random")
    assert again.search(QUESTION, 2, budget=50, first="bm25", method="rerank").ids == true_best(again, 2)
    report = adacur.store.verify(tmp_path / "x")
    assert (report.problems, report.complete) == ((), True)


def test_no_anchor_queries_by_accident_are_still_refused(tmp_path) -> None:
    with pytest.raises(EmptyInput, match="0"):
        adacur.build(ITEMS, [], scorer=Overlap(), path=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_is_saved_is_what_is_loaded(tmp_path) -> None:
    index = AnchorIndex.from_items(ITEMS, scorer=Overlap(), first=["bm25", "dense"], encoder=Encoder(), progress=False)
    index.save(tmp_path / "saved")
    loaded = adacur.load(tmp_path / "saved", scorer=Overlap(), encoder=Encoder())
    assert loaded.first_stages == ("bm25", "dense", "bm25+dense", "random")
    assert loaded.search(QUESTION, 5, budget=40).ids == index.search(QUESTION, 5, budget=40).ids
    assert adacur.store.verify(tmp_path / "saved").ok


def test_it_belongs_to_no_scorer_until_one_has_scored(path) -> None:
    def longest(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in pairs]

    other = adacur.load(path, scorer=longest)
    assert other.search(QUESTION, 1, budget=5).trace.calls == 5
    Edited(other).add_anchors(ANCHORS)
    assert other.card is not None
    assert adacur.load(path, scorer=longest).search(QUESTION, 1, budget=5).trace.calls == 5
    with pytest.raises(WrongScorer):
        adacur.load(path, scorer=Overlap())


def test_items_come_and_go_without_a_scorer(path) -> None:
    scorer = Overlap()
    index = adacur.load(path, scorer=scorer)
    new = [Item("new", "lamp 0 beside the violin lamp"), Item("newer", "engine 3 in the harbour")]
    assert Edited(index).add(new).calls == 0
    Edited(index).remove(["i3", "newer"])
    Edited(index).replace([Item("i5", "lamp 5 beside the violin")])
    Edited(index).compact()
    assert scorer.calls == 0
    assert adacur.store.verify(path).problems == ()
    again = adacur.load(path, scorer=scorer)
    assert (len(again), again.version) == (200, 5)
    assert set(again.search(QUESTION, 2, budget=60).ids) == {"new", "i5"}


def test_anchor_queries_can_come_later(path, tmp_path) -> None:
    index = adacur.load(path, scorer=Overlap())
    Edited(index).add([Item("new", "lamp 0 beside the violin lamp")])
    Edited(index).remove(["i3"])
    change = Edited(index).add_anchors(ANCHORS)
    assert (change.items, change.anchors, change.calls) == (200, 10, 2000)
    kept = [*(one for one in ITEMS if one.id != "i3"), Item("new", "lamp 0 beside the violin lamp")]
    whole = adacur.build(kept, ANCHORS, scorer=Overlap(), path=tmp_path / "whole", progress=False)
    assert np.array_equal(index.matrix, whole.matrix)
    assert index.search(QUESTION, 5, budget=40).ids == whole.search(QUESTION, 5, budget=40).ids
    Edited(index).remove(["i7"])
    Edited(index).add([Item("i7", "castle 7 beside the river")])
    Edited(index).compact()
    assert adacur.store.verify(path).problems == ()
    assert (len(index), len(index.anchor_queries)) == (200, 10)


@pytest.mark.parametrize("work", [tune, compress])
def test_what_needs_anchor_queries_says_how_to_get_them(path, work) -> None:
    index = adacur.load(path, scorer=Overlap())
    with pytest.raises(InputError, match="--anchors"):
        work(index, k=5, budget=20)


def test_tuning_items_in_memory_is_refused_too() -> None:
    with pytest.raises(InputError, match="anchor queries"):
        tune(AnchorIndex.from_items(ITEMS, scorer=Overlap()), k=5, budget=20)


def test_a_build_that_stopped_goes_on(tmp_path) -> None:
    class Asleep(Encoder):
        def encode_items(self, texts):
            raise TimeoutError

    options = {"scorer": Overlap(), "path": tmp_path / "x", "first": ["bm25", "dense"], "progress": False}
    with pytest.raises(TimeoutError):
        adacur.build(ITEMS, 0, encoder=Asleep(), **options)
    assert adacur.build(ITEMS, 0, encoder=Encoder(), **options).first_stages == (
        "bm25",
        "dense",
        "bm25+dense",
        "random",
    )


def test_a_folder_that_lost_its_items_is_damaged(path) -> None:
    (path / "parts/built/items.sqlite").unlink()
    assert not adacur.store.verify(path).ok


def test_words_and_vectors_start_together_and_vectors_alone_where_there_are_no_words() -> None:
    dense = Dense.build(ITEMS, encoder=Encoder())
    index = AnchorIndex.from_items(ITEMS, scorer=Overlap(), first={"bm25": BM25.build(ITEMS), "dense": dense})
    assert (index.snapshot.default_first, index.snapshot.default_method) == ("bm25+dense", "gaussian")
    assert index.search(QUESTION, 2, budget=50).trace.settings["first"] == "bm25+dense"
    alone = AnchorIndex.from_items(ITEMS, scorer=Overlap(), first={"dense": dense})
    assert (alone.snapshot.default_first, alone.snapshot.default_method) == ("dense", "gaussian")


def test_a_scorer_of_probabilities_is_searched_like_one_of_logits() -> None:
    def scored(change):
        def score(pairs: list[tuple[str, str]]) -> list[float]:
            return [float(change(value)) for value in Overlap()(pairs)]

        index = AnchorIndex.from_items(ITEMS, scorer=score, first=["bm25", "dense"], encoder=Encoder(), progress=False)
        return [hits.trace for hits in index.search([QUESTION, "orchard"], 5, budget=60)]

    plain, odds = scored(lambda value: value), scored(lambda value: 1 / (1 + np.exp(-value)))
    for one, other in zip(plain, odds, strict=True):
        assert [some.positions.tolist() for some in one.rounds] == [some.positions.tolist() for some in other.rounds]


@pytest.mark.parametrize(
    "score",
    [lambda pair: 1.0, lambda pair: 1e200 * len(pair[1]), lambda pair: float("lamp" in pair[1]), lambda pair: -1e-300],
    ids=["constant", "huge", "yes or no", "tiny"],
)
@pytest.mark.parametrize("question", [QUESTION, "zebra", "?", "the lamp lamp lamp"])
def test_whatever_a_scorer_answers_the_whole_budget_is_spent_on_different_items(score, question) -> None:
    index = AnchorIndex.from_items(
        ITEMS,
        scorer=lambda pairs: [score(pair) for pair in pairs],
        first=["bm25", "dense"],
        encoder=Encoder(),
        progress=False,
    )
    for budget in (3, 50, 300):
        trace = index.search(Query("q", question), 3, budget=budget).trace
        asked = np.concatenate([one.positions for one in trace.rounds])
        assert len(set(asked.tolist())) == len(asked) == min(budget, len(ITEMS))
