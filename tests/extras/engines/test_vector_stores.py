"""What every vector store promises. A new one is one more line in ENGINES of tests/engine_tables.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from adacur.errors import AdacurError, InputError, UnknownName
from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.engine_index import StoreItems
from adacur.extras.engines.store_urls import open_store
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item
from tests.engine_tables import ENGINES, Tables

N, WIDTH = 300, 16
RNG = np.random.default_rng(7)
ROWS = RNG.normal(size=(N, WIDTH)).astype(np.float32) * RNG.uniform(0.2, 3, size=(N, 1)).astype(np.float32)
OTHERS = RNG.normal(size=(N, 4)).astype(np.float32)
ITEMS = [
    Item(str(at), f"text of number{at} {'odd' if at % 2 else 'even'}", {"parity": at % 2, "lang": "en", "at": at})
    for at in range(N)
]
WEIGHTS = RNG.normal(size=(5, WIDTH)).astype(np.float32)


@pytest.fixture(params=ENGINES, scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return ENGINES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def store(engine: Tables) -> Iterator[CheckedStore]:
    """A store of all items."""
    store = engine.filled("things", ITEMS, {"features": ROWS, "dense": OTHERS})
    yield store
    store.close()


def truth(weights: np.ndarray, allowed: np.ndarray, n: int) -> list[int]:
    values = np.where(allowed, ROWS @ weights, -np.inf)
    return np.argsort(-values)[:n].tolist()


def test_it_knows_its_vectors_and_counts_its_items(store: CheckedStore) -> None:
    assert store.dimensions() == {"features": WIDTH, "dense": 4}
    assert store.count() == N
    assert store.count({"parity": 1}) == N // 2
    assert store.count({"parity": 1, "lang": "de"}) == 0


def test_the_best_are_those_of_the_largest_inner_product(store: CheckedStore) -> None:
    answers = store.best("features", [Nearest(weights, 10) for weights in WEIGHTS])
    for weights, (keys, values) in zip(WEIGHTS, answers, strict=True):
        assert list(keys) == truth(weights, np.ones(N, bool), 10)
        np.testing.assert_allclose(values, (ROWS @ weights)[list(keys)], rtol=1e-4, atol=1e-4)


def test_each_question_leaves_out_what_it_names(store: CheckedStore) -> None:
    questions, wanted = [], []
    for at, weights in enumerate(WEIGHTS):
        allowed = np.ones(N, bool)
        without = truth(weights, allowed, 5 * at)
        allowed[without] = False
        questions.append(Nearest(weights, 7, without=without))
        wanted.append(truth(weights, allowed, 7))
    assert [list(found.keys) for found in store.best("features", questions)] == wanted


def test_a_question_can_be_confined_to_some_items(store: CheckedStore) -> None:
    within = list(range(3, N, 11))
    found = store.best("features", [Nearest(WEIGHTS[0], len(within), within=within, without=within[:2])])[0]
    assert set(found.keys) == set(within[2:])
    assert (np.diff(found.values) <= 0).all()


def test_a_question_within_nothing_finds_nothing(store: CheckedStore) -> None:
    assert store.best("features", [Nearest(WEIGHTS[0], 5, within=[])])[0].keys == ()
    assert store.best("features", [Nearest(WEIGHTS[0], 0)])[0].keys == ()
    assert store.best("features", []) == []


def test_metadata_confines_all_questions(store: CheckedStore) -> None:
    found = store.best("features", [Nearest(WEIGHTS[1], 12)], where={"parity": 1})[0]
    assert list(found.keys) == truth(WEIGHTS[1], np.arange(N) % 2 == 1, 12)
    found = store.best("features", [Nearest(WEIGHTS[1], 12)], where={"at": [1, 5, 9]})[0]
    assert set(found.keys) == {1, 5, 9}


def test_rows_and_items_are_those_written_and_missing_ones_are_left_out(store: CheckedStore) -> None:
    rows = store.rows("features", [5, 17, N + 3])
    assert set(rows) == {5, 17}
    np.testing.assert_allclose(rows[17], ROWS[17], rtol=1e-6)
    items = store.items([5, N + 3, 17])
    assert items == {5: ITEMS[5], 17: ITEMS[17]}
    assert store.rows("features", []) == {} == store.items([])


def test_small_vectors_are_told_apart(engine: Tables) -> None:
    store = engine.filled("small", ITEMS, {"features": ROWS * np.float32(1e-4)})
    answers = store.best("features", [Nearest(weights * np.float32(1e-4), 20) for weights in WEIGHTS])
    for weights, (keys, values) in zip(WEIGHTS, answers, strict=True):
        assert list(keys) == truth(weights, np.ones(N, bool), 20)
        np.testing.assert_allclose(values, (ROWS @ weights)[list(keys)] * 1e-8, rtol=1e-3)


def test_a_sample_is_spread_and_the_same_each_time(store: CheckedStore) -> None:
    sample = store.sample(40)
    assert len(set(sample)) == 40 == len(sample)
    assert sample == store.sample(40)
    assert max(sample) - min(sample) > N / 2
    assert set(store.sample(10 * N)) == set(range(N))


def test_iterating_over_a_collection_meets_every_item_once(store: CheckedStore) -> None:
    assert sorted(item.id for item in StoreItems(store)) == sorted(item.id for item in ITEMS)


def test_words_are_found(store: CheckedStore) -> None:
    try:
        found = store.words("number42", 3)
    except InputError as error:
        pytest.skip(f"no search for words: {error}")
    assert found.keys[0] == 42
    assert store.words("number42", 3, where={"parity": 1}).keys != found.keys


def test_a_list_has_each_of_its_values(engine: Tables) -> None:
    """As in memory, and as in the filters of an index."""
    metadata: list[dict[str, Any]] = [
        {"tags": ["x", "y"], "flag": True, "n": [1, 2]},
        {"tags": ["x"], "flag": False, "n": [2]},
        {"tags": ["z", "x y"], "flag": True, "n": []},
        {"tags": [], "flag": False, "n": [3]},
    ]
    items = [Item(str(at), "text", one) for at, one in enumerate(metadata)]
    store = engine.filled("lists", items, {"features": np.ones((len(items), 2), np.float32)})
    expected: list[tuple[dict[str, Any], set[int]]] = [
        ({"tags": "x"}, {0, 1}),
        ({"tags": ["y", "z"]}, {0, 2}),
        ({"tags": "x", "n": 2}, {0, 1}),
        ({"tags": ["x"], "flag": True}, {0}),
        ({"flag": True}, {0, 2}),
        ({"flag": [True, False]}, {0, 1, 2, 3}),
        ({"n": 1}, {0}),
        ({"n": [1, 3]}, {0, 3}),
        ({"tags": "nosuch"}, set()),
        ({"tags": []}, set()),
    ]
    for where, keys in expected:
        assert store.count(where) == len(keys), where
        found = store.best("features", [Nearest(np.ones(2, np.float32), 9)], where=where)[0]
        assert set(found.keys) == keys, where
    assert store.items(range(len(items))) == dict(enumerate(items))


def test_items_that_a_question_names_are_found_where_an_index_is_allowed(store: CheckedStore) -> None:
    within = list(range(3, N, 11))
    questions = [Nearest(WEIGHTS[0], 5), Nearest(WEIGHTS[0], len(within), within=within)]
    found = store.best("features", questions, exact=False)[1]
    assert set(found.keys) == set(within)
    np.testing.assert_allclose(found.values, (ROWS @ WEIGHTS[0])[list(found.keys)], rtol=1e-4, atol=1e-4)


def test_threads_share_a_store(store: CheckedStore) -> None:
    def ask(weights: np.ndarray) -> bool:
        found = store.best("features", [Nearest(weights, 5)])[0]
        return list(found.keys) == truth(weights, np.ones(N, bool), 5) and len(store.items(found.keys)) == 5

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, np.tile(WEIGHTS, (6, 1))))


@pytest.mark.parametrize("weights", [np.ones(WIDTH - 1), np.full(WIDTH, np.nan)], ids=["size", "nan"])
def test_weights_of_another_size_or_that_are_no_numbers_are_refused(store: CheckedStore, weights: np.ndarray) -> None:
    with pytest.raises(InputError):
        store.best("features", [Nearest(weights, 1)])


def test_its_name_opens_the_same_collection(store: CheckedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.name.startswith("memory://") or ":memory:" in store.name:
        pytest.skip("memory is not shared")
    # A name has no credentials.
    monkeypatch.setenv("PGUSER", "postgres")
    separator = "&" if "?" in store.name else "?"
    again = open_store(f"{store.name}{separator}vector=features")
    assert again.name == store.name
    assert (again.vector, store.vector) == ("features", None)
    assert again.count() == N
    again.close()


def test_a_collection_or_vector_that_is_missing_is_named(store: CheckedStore, engine: Tables) -> None:
    with pytest.raises(AdacurError):
        store.best("nosuch", [Nearest(WEIGHTS[0], 3)])
    with pytest.raises(AdacurError):
        engine.opened("absent").count()


def test_a_filter_that_cannot_be_expressed_is_refused(store: CheckedStore) -> None:
    with pytest.raises(InputError):
        store.best("features", [Nearest(WEIGHTS[0], 3)], where=lambda item: True)


@pytest.mark.parametrize("odd", ["a\ud800b" * 100, "a\0b" * 100], ids=["half", "nul"])
def test_text_that_no_engine_takes_is_refused_in_few_words(store: CheckedStore, odd: str) -> None:
    asked: list[Callable[[], object]] = [
        lambda: store.count({odd: 1}),
        lambda: store.count({"lang": odd}),
        lambda: store.count({"lang": [odd, "de"]}),
        lambda: len(store.rows(odd, [0])),
        lambda: len(store.words(odd, 3).keys),
        lambda: open_store(f"{store.name}{odd}"),
        lambda: open_store(f"{store.name}{odd}".replace("\0", "%00")),
    ]
    for ask in asked:
        try:
            assert not ask()
        except (InputError, UnknownName) as error:
            assert repr(odd)[1:75] not in str(error)  # noqa: PT017
            assert odd[:75] not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "where",
    [{"x": {"y": 1}}, {"": 1}, {"x": 2**70}, {"x": float("nan")}, {"x": [object()]}],
    ids=["nested", "no name", "too large", "nan", "an object"],
)
def test_a_filter_by_what_is_not_a_plain_value_is_refused(store: CheckedStore, where: Any) -> None:
    with pytest.raises(InputError):
        store.count(where)


def test_the_name_is_a_url(store: CheckedStore) -> None:
    assert "://" in store.name
