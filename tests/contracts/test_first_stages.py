"""What every first stage promises. A new one is one more line in MAKERS."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from adacur.errors import EmptyInput, InputError
from adacur.first_stages import BM25, FIRST_STAGES, Dense, EncoderCard, Joined, Matrix, load_first_stage, placed
from adacur.protocols import FirstStage
from adacur.records import Item, ItemList, Query

ITEMS = [
    Item("penicillin", "Penicillin is an antibiotic discovered by Alexander Fleming in 1928."),
    Item("fleming", "Alexander Fleming was a Scottish physician who discovered penicillin."),
    Item("london", "London is the capital of the United Kingdom, on the river Thames."),
    Item("thames", "The Thames is a river that flows through London."),
    Item("twin-b", "A river is a natural watercourse."),
    Item("twin-a", "A river is a natural watercourse."),
    Item("paris", "Paris is the capital of France, on the river Seine."),
    Item("moss", "Moss grows on stones."),
]
NEW = [Item("seine", "The Seine is a river in France."), Item("rome", "Rome is the capital of Italy.")]
QUERIES = [
    Query("q1", "Who discovered penicillin?"),
    Query("q2", "a river through the capital"),
    Query("q3", "natural watercourse"),
]


class LetterPairEncoder:
    """Counts of letter pairs, hashed: a real encoder that needs no model."""

    dimension = 64
    card = EncoderCard(kind="letter-pairs", dimension=64, weights="v1")

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for pair in zip(text.lower(), text.lower()[1:], strict=False):
                vectors[row, hashlib.blake2b("".join(pair).encode(), digest_size=1).digest()[0] % 64] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_queries = encode_items


def known_scores(queries: Sequence[Query], items: Sequence[Item]) -> np.ndarray:
    def words(text: str) -> set[str]:
        return set(text.lower().split())

    return np.array([[len(words(q.text) & words(i.text)) for i in items] for q in queries], dtype=float)


def joined(items: Sequence[Item]) -> Joined:
    held = ItemList(items)
    return Joined([placed(BM25.build(items), held), placed(Dense.build(items, encoder=LetterPairEncoder()), held)])


MAKERS: dict[str, Callable[[Sequence[Item]], FirstStage]] = {
    "matrix": lambda items: Matrix(queries=QUERIES, items=items, scores=known_scores(QUERIES, items)),
    "bm25": BM25.build,
    "dense": lambda items: Dense.build(items, encoder=LetterPairEncoder()),
    "dense-float32": lambda items: Dense.build(items, encoder=LetterPairEncoder(), storage="float32"),
    "dense-int8": lambda items: Dense.build(items, encoder=LetterPairEncoder(), storage="int8"),
    "joined": lambda items: joined(items),
}
# These are made when they are needed, and not kept with an index.
NOT_KEPT = ("matrix", "joined")
# These return only what shares a term with the query.
LEXICAL = ("bm25",)


@pytest.fixture(params=MAKERS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def stage(kind) -> FirstStage:
    return MAKERS[kind](ITEMS)


def columns(stage: FirstStage, queries: Sequence[Query], k: int) -> list[tuple[list[str], list[float]]]:
    return [
        ([stage.ids[position] for position in positions], scores.tolist())
        for positions, scores in stage.search(queries, k)
    ]


def test_every_first_stage_of_the_table_is_here() -> None:
    assert {kind.split("-")[0] for kind in MAKERS} == {*FIRST_STAGES, "matrix", "joined"}


def test_it_speaks_the_protocol_under_its_name(stage, kind) -> None:
    assert isinstance(stage, FirstStage)
    assert isinstance(stage, FIRST_STAGES.get(stage.name, Matrix | Joined))
    assert kind.startswith(stage.name) or stage.name == "bm25+dense"
    assert list(stage.ids) == [item.id for item in ITEMS]


def test_answers_come_in_the_order_of_the_queries_best_first_without_repeats(stage) -> None:
    answers = stage.search(QUERIES, 4)
    assert len(answers) == len(QUERIES)
    for positions, scores in answers:
        assert len(positions) == len(scores) == len(set(positions.tolist())) <= 4
        assert set(positions.tolist()) <= set(range(len(ITEMS)))
        assert np.all(np.diff(scores) <= 0)
        assert np.isfinite(scores).all()


def test_a_k_larger_than_the_collection_returns_all_it_has(stage, kind) -> None:
    for positions, _ in stage.search(QUERIES, 1000):
        assert len(positions) == len(ITEMS) or (kind.startswith(LEXICAL) and 0 < len(positions) < len(ITEMS))


def test_the_best_k_are_the_first_of_the_best_more(stage) -> None:
    everything = columns(stage, QUERIES, 1000)
    for k in (1, 2, 3, 5):
        assert columns(stage, QUERIES, k) == [(ids[:k], scores[:k]) for ids, scores in everything]


def test_a_query_alone_is_answered_as_in_a_batch(stage) -> None:
    queries = [*QUERIES, *reversed(QUERIES)]
    assert columns(stage, queries, 5) == [columns(stage, [query], 5)[0] for query in queries]


def test_the_order_of_the_items_does_not_matter(kind) -> None:
    one, other = MAKERS[kind](ITEMS), MAKERS[kind](ITEMS[::-1])
    for k in (1, 3, 5, 8):
        assert columns(one, QUERIES, k) == columns(other, QUERIES, k)


def test_equal_items_come_in_the_order_of_their_ids(stage, kind) -> None:
    ids, _ = columns(stage, QUERIES, 8)[2]
    assert ids[:2] == ["twin-a", "twin-b"]


def test_in_an_index_of_another_order_it_speaks_of_the_index_s_positions(kind, stage) -> None:
    items = ItemList([*NEW, *ITEMS[::-1]])
    there = placed(stage, items)
    answers = [([items.ids[at] for at in positions], scores.tolist()) for positions, scores in there.search(QUERIES, 5)]
    assert answers == columns(stage, QUERIES, 5)
    # It has no vectors of the new items.
    assert there.vectors() is None


def test_vectors_of_an_index_come_in_the_index_s_order(stage) -> None:
    if stage.vectors() is None:
        return
    there = placed(stage, ItemList(ITEMS[::-1])).vectors()
    np.testing.assert_array_equal(there.all_rows(), stage.vectors().all_rows()[::-1])
    np.testing.assert_array_equal(there.rows(np.array([2, 0])), stage.vectors().rows(np.array([5, 7])))


def test_no_queries_have_no_answers(stage) -> None:
    assert stage.search([], 3) == []


def test_queries_and_k_that_mean_nothing_are_refused(stage) -> None:
    with pytest.raises(InputError):
        stage.search(QUERIES, 0)
    with pytest.raises(InputError):
        stage.search("river", 3)
    with pytest.raises(EmptyInput):
        stage.search([Query("q1", " ")], 3)


def test_no_items_and_repeated_ids_are_refused(kind) -> None:
    with pytest.raises(EmptyInput):
        MAKERS[kind]([])
    with pytest.raises(InputError):
        MAKERS[kind]([*ITEMS, ITEMS[2]])


def test_a_saved_one_answers_as_before_and_saves_the_same_files(kind, stage, tmp_path) -> None:
    if kind in NOT_KEPT:
        with pytest.raises(InputError):
            stage.save(tmp_path)
        return
    stage.save(tmp_path / "first")
    again = load_first_stage(tmp_path / "first", encoder=LetterPairEncoder())
    assert columns(again, QUERIES, 5) == columns(stage, QUERIES, 5)
    assert again.settings() == stage.settings()
    again.save(tmp_path / "second")
    assert sorted(path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()) == sorted(
        path.read_bytes() for path in (tmp_path / "second").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("in_folder", [True, False])
def test_an_updated_one_answers_like_one_built_anew(kind, stage, tmp_path, in_folder) -> None:
    if kind in NOT_KEPT:
        with pytest.raises(InputError):
            stage.updated(ITEMS, unchanged=np.arange(8), new=[])
        return
    unchanged = [0, 2, 3, 5, 7]
    items = [*(ITEMS[position] for position in unchanged), *NEW]
    folder = tmp_path if in_folder else None
    updated = stage.updated(items, unchanged=np.array(unchanged), new=NEW, folder=folder)
    assert list(updated.ids) == [item.id for item in items]
    assert columns(updated, QUERIES, 5) == columns(MAKERS[kind](items), QUERIES, 5)
    updated.save(tmp_path)
    assert columns(load_first_stage(tmp_path, encoder=LetterPairEncoder()), QUERIES, 5) == columns(updated, QUERIES, 5)


def test_an_edit_can_ask_beforehand_whether_new_items_can_be_taken_in(kind, stage) -> None:
    if kind in NOT_KEPT:
        with pytest.raises(InputError):
            stage.check_can_grow()
    else:
        stage.check_can_grow()
