from __future__ import annotations

import inspect

import numpy as np
import pytest

from adacur import errors
from adacur.budget import Budget, check_k
from adacur.errors import BudgetError, DuplicateId, EmptyInput, InputError, MissingExtra, NonFiniteScore
from adacur.model.acquire import best_positions
from adacur.records import Item, ItemList, Query, as_queries, as_query, check_item
from adacur.requirements import require
from adacur.results import Hits
from adacur.scores import check_grid, check_scores
from adacur.seeds import item_keys, stream_key, uniform

QUERIES = [Query("q0", "zero"), Query("q1", "one")]
ITEMS = [Item("i0", "null"), Item("i1", "eins"), Item("i2", "zwei")]


@pytest.mark.parametrize(
    "wrong",
    [{"calls": 0}, {"calls": -1}, {"calls": 2.5}, {"calls": 9, "deadline": 0}, {"calls": 9, "deadline": float("inf")}],
)
def test_a_budget_that_contradicts_itself_is_refused(wrong) -> None:
    with pytest.raises(BudgetError):
        Budget(**wrong)


@pytest.mark.parametrize("k", [0, -1, 11])
def test_k_must_fit_the_budget(k) -> None:
    with pytest.raises(BudgetError, match="k"):
        check_k(k, 10)


def test_every_error_is_drawn_in_the_tree_and_is_a_builtin_too() -> None:
    for name in [
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    ]:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.AdacurError)
        assert name in (errors.__doc__ or "")
        if kind is not errors.AdacurError:
            builtins = [base for base in inspect.getmro(kind) if base.__module__ == "builtins"]
            assert builtins[0] not in (Exception, BaseException, object)


def test_plain_text_gets_an_id_that_follows_from_it() -> None:
    assert as_query("zero").id == as_query("zero").id != as_query("one").id
    assert as_query(QUERIES[0]) is QUERIES[0]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_query_without_a_word_is_refused(text) -> None:
    with pytest.raises(EmptyInput):
        as_query(text)


def test_a_lone_text_is_not_a_list_of_queries() -> None:
    with pytest.raises(InputError, match="list of queries"):
        as_queries("zero")


def test_items_are_found_by_position_and_id() -> None:
    items = ItemList(ITEMS)
    assert items.positions(["i2", "i0"]).tolist() == [2, 0]
    assert [item.id for item in items.at([1, 1, 0])] == ["i1", "i1", "i0"]


def test_item_ids_are_unique() -> None:
    with pytest.raises(DuplicateId, match="'i1'"):
        ItemList([*ITEMS, ITEMS[1]])


def test_a_score_that_is_not_finite_names_its_pair() -> None:
    pairs = [(QUERIES[0], ITEMS[0]), (QUERIES[1], ITEMS[2])]
    with pytest.raises(NonFiniteScore, match=r"nan.*'q1'.*'i2'"):
        check_scores([1.0, float("nan")], pairs)
    grid = np.zeros((2, 3))
    grid[1, 0] = np.inf
    with pytest.raises(NonFiniteScore, match=r"inf.*'q1'.*'i0'"):
        check_grid(grid, QUERIES, ITEMS)


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], 1.0, ["a", "b"], [[1.0], [2.0, 3.0]]])
def test_a_wrong_number_of_scores_is_refused(scores) -> None:
    with pytest.raises(errors.ScoreCountError):
        check_scores(scores, [(QUERIES[0], ITEMS[0]), (QUERIES[0], ITEMS[1])])


@pytest.mark.parametrize(
    "scores",
    [
        [1 + 2j, 1j],
        np.array([1 + 0j, 2]),
        np.array([1j, "1"], dtype=object),
        np.array(["1", 2.0], dtype=object),
        np.array([b"1", 2.0], dtype=object),
        np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
        np.array([1, 2], dtype="timedelta64[s]"),
        None,
    ],
    ids=str,
)
def test_what_is_no_real_number_is_no_score(scores) -> None:
    with pytest.raises(errors.ScoreCountError):
        check_scores(scores, [(QUERIES[0], ITEMS[0]), (QUERIES[0], ITEMS[1])])


def test_a_score_too_small_for_float32_is_nought() -> None:
    pairs = [(QUERIES[0], item) for item in ITEMS[:3]]
    assert check_scores([1e-310, -5e-324, 2.0], pairs).tolist() == [0.0, 0.0, 2.0]
    assert check_scores([1e-44, -1e-44, 1e300], pairs).tolist() == [1e-44, -1e-44, 1e300]
    assert check_grid([[1e-310] * 3, [1e-40] * 3], QUERIES, ITEMS).tolist() == [[0.0] * 3, [1e-40] * 3]


def test_draws_belong_to_the_item_not_to_its_place() -> None:
    ids = [f"i{position}" for position in range(1000)]
    stream = stream_key(0, "first", "q")
    straight = dict(zip(ids, uniform(stream, item_keys(ids)), strict=True))
    backwards = dict(zip(ids[::-1], uniform(stream, item_keys(ids[::-1])), strict=True))
    assert straight == backwards


def test_draws_are_uniform_and_streams_are_unrelated() -> None:
    keys = item_keys(str(position) for position in range(20_000))
    one, two = uniform(stream_key(0, "a"), keys), uniform(stream_key(0, "b"), keys)
    assert 0 < one.min() < one.max() < 1
    assert np.histogram(one, bins=20, range=(0, 1))[0].std() < 100
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert stream_key(0, "a", "b") != stream_key(0, "ab") != stream_key(0, "a", "", "b")


def test_best_positions_break_ties_by_key_and_never_choose_minus_infinity() -> None:
    values = np.array([1.0, 5.0, 5.0, 5.0, -np.inf, 0.0])
    keys = np.array([0, 9, 3, 6, 1, 2], dtype=np.uint64)
    assert best_positions(values, 2, keys=keys).tolist() == [2, 3]
    assert best_positions(values, 10, keys=keys).tolist() == [2, 3, 1, 0, 5]
    assert best_positions(values, 0, keys=keys).tolist() == []
    many = np.zeros(1000)
    assert best_positions(many, 3, keys=np.arange(1000, dtype=np.uint64)[::-1]).tolist() == [999, 998, 997]


def test_best_positions_agree_with_a_full_sort() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = np.round(rng.normal(size=40), 1)
        keys = rng.permutation(40).astype(np.uint64)
        assert best_positions(values, 7, keys=keys).tolist() == np.lexsort((keys, -values))[:7].tolist()


def test_hits_read_like_a_sequence() -> None:
    hits = Hits(
        query=QUERIES[0], ids=("i1", "i0"), scores=np.array([2.0, 1.0]), rounds=(2, 1), items=(ITEMS[1], ITEMS[0])
    )
    assert [hit.id for hit in hits] == ["i1", "i0"]
    assert (hits[0].rank, hits[0].round, hits[-1].score) == (1, 2, 1.0)
    assert [hit.id for hit in hits[:1]] == ["i1"]
    with pytest.raises(IndexError):
        hits[2]


def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r" install .*\[onnx\]'"):
        require("a_module_nobody_wrote", extra="onnx")


def test_what_is_not_a_query_or_an_item_is_refused_with_what_works() -> None:
    with pytest.raises(InputError, match="list"):
        as_query(["who", "where"])  # type: ignore[arg-type]
    for item in (("a", "A city."), {"id": "a", "text": "A city."}):
        with pytest.raises(InputError, match="plain"):
            check_item(item)
