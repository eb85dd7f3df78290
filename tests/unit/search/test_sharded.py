"""An index in shards answers what the index in one piece answers."""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pytest

import adacur
from adacur import Budget, Dense, Gaussian, Item, PseudoInverse, Query, Softmax, Uniform
from adacur.core.errors import IndexMismatch, InputError, NotAnIndex
from adacur.core.spans import span_length
from adacur.data import cache_folder
from adacur.engines.standing import StandingHere
from adacur.index import IndexFolder
from adacur.search import opening
from adacur.search.shard import sortable
from adacur.search.sharded import cuts, open_shards
from tests.living_world import METHODS, Encoder, vector

N_ITEMS = 1501
QUERIES = [Query(f"q{number}", f"a question of number {number}") for number in range(6)]


known_vector = functools.cache(vector)


def score(pairs):
    return [float(known_vector(query) @ known_vector(item)) for query, item in pairs]


def build(path, *, n_items: int = N_ITEMS, rank: int | None = None, dtype: str = "float32"):
    items = [Item(f"i{number}", f"item {number}", {"even": number % 2 == 0}) for number in range(n_items)]
    anchors = [Query(f"a{number}", f"anchor {number}") for number in range(40)]
    adacur.build(
        items,
        anchors,
        scorer=score,
        path=path,
        first=["bm25", "dense"],
        encoder=Encoder(),
        dtype=dtype,
        block_items=400,
        progress=False,
        tune=False,
    ).close()
    if rank is not None:
        adacur.compress(path, rank=rank, encoder=Encoder())
    return path


def in_shards(path, n_shards: int, **options):
    folder = IndexFolder.open(path)
    shards = open_shards(folder, shards=n_shards, engine=StandingHere, **options)
    return opening._opened(folder, scorer=adacur.scorer(score), encoder=Encoder(), check=False, shards=shards)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return build(tmp_path_factory.mktemp("plain") / "index")


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    # Of more than 4,096 items only those in front get all their features.
    return build(tmp_path_factory.mktemp("compressed") / "index", n_items=5003, rank=12)


def assert_same(ours, theirs) -> None:
    for own, other in zip(ours, theirs, strict=True):
        assert own.ids == other.ids
        assert own.scores.tolist() == other.scores.tolist()
        assert own.rounds == other.rounds
        assert own.trace.stopped == other.trace.stopped
        if own.fused is not None:
            assert own.fused.tolist() == other.fused.tolist()
        for mine, its in zip(own.trace.rounds, other.trace.rounds, strict=True):
            assert mine.positions.tolist() == its.positions.tolist()
            assert mine.expected_recall == its.expected_recall
            for name in ("predicted", "all_predicted"):
                left, right = getattr(mine, name), getattr(its, name)
                assert (left is None) == (right is None)
                if left is not None:
                    assert np.array_equal(left, right, equal_nan=True)
        if own.approximate_scores is not None:
            assert np.array_equal(own.approximate_scores, other.approximate_scores)


class Middling:
    """Chooses what is nearest to the median of all, which no part of them knows."""

    def choose(self, predicted, *, unscored, n, keys, stream):
        at = np.flatnonzero(unscored)
        return at[np.lexsort((keys[at], abs(predicted[at] - np.median(predicted[at]))))][:n]


OPTIONS = {
    "first at random": {"first": "random"},
    "bm25": {"first": "bm25"},
    "first_share": {"first_share": 0.3},
    "no first_weight": {"first_weight": 0.0},
    "first_weight": {"first_weight": 2.0},
    "pool": {"pool": 90},
    "pool of few": {"pool": 90, "first": "bm25"},
    "filter by ids": {"filter": [f"i{number}" for number in range(0, 1000, 7)]},
    "filter that leaves one shard's": {"filter": [f"i{number}" for number in range(1400, 1501)]},
    "filter that leaves fewer than the budget": {"filter": ["i3", "i700", "i1500"], "k": 2},
    "filter by function": {"filter": lambda item: item.metadata["even"]},
    "pool and filter": {"pool": 70, "filter": lambda item: item.metadata["even"]},
    "stop_when": {"stop_when": 0.9, "budget": 200, "rounds": 8},
    "deadline": {"deadline": 100.0},
    "softmax": {"acquisition": Softmax(temperature=0.3)},
    "uniform": {"acquisition": Uniform()},
    "an acquisition of the user's": {"acquisition": Middling()},
    "approximate_scores": {"approximate_scores": True},
    "keep_predictions": {"keep_predictions": True},
    "fuse": {"fuse": 0.5},
    "budget of all": {"budget": Budget(calls=1501, rounds=2), "k": 20},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_same_in_shards(plain, method) -> None:
    options = {} if method == "exact" else {"budget": 60}
    with adacur.load(plain, scorer=score, encoder=Encoder(), check=False) as local, in_shards(plain, 4) as spread:
        ours = spread.search_batch(QUERIES, 10, method=method, **options)
        assert_same(ours, local.search_batch(QUERIES, 10, method=method, **options))
        assert_same([spread.search(QUERIES[2], 10, method=method, **options)], ours[2:3])


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_means_the_same_in_shards(plain, name) -> None:
    options = {"budget": 60, "k": 10} | OPTIONS[name]
    with adacur.load(plain, scorer=score, encoder=Encoder(), check=False) as local, in_shards(plain, 3) as spread:
        assert_same(spread.search_batch(QUERIES, **options), local.search_batch(QUERIES, **options))


@pytest.mark.parametrize("options", [{}, {"first": "random"}, {"stop_when": 0.9}, {"approximate_scores": True}])
def test_compressed_features_predict_the_same_in_shards(compressed, options) -> None:
    with adacur.load(compressed, scorer=score, encoder=Encoder(), check=False) as local:
        theirs = local.search_batch(QUERIES, 10, **options)
    with in_shards(compressed, 4) as spread:
        assert_same(spread.search_batch(QUERIES, 10, **options), theirs)


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_wider_compressed_features_predict_the_same_in_shards(tmp_path, storage) -> None:
    path = build(tmp_path / "index", n_items=5003)
    adacur.compress(path, rank=12, storage=storage, encoder=Encoder())
    options = {"first": "random", "keep_predictions": True}
    with adacur.load(path, scorer=score, encoder=Encoder(), check=False) as local, in_shards(path, 4) as spread:
        assert_same(spread.search_batch(QUERIES, 10, **options), local.search_batch(QUERIES, 10, **options))


def test_scores_of_half_the_precision_predict_the_same_in_shards(tmp_path) -> None:
    path = build(tmp_path / "index", n_items=700, dtype="float16")
    with adacur.load(path, scorer=score, encoder=Encoder(), check=False) as local, in_shards(path, 3) as spread:
        for method in ("gaussian", "adacur", "axn"):
            ours = spread.search_batch(QUERIES, 5, budget=40, method=method)
            assert_same(ours, local.search_batch(QUERIES, 5, budget=40, method=method))


def test_an_index_that_was_changed_is_searched_the_same_in_shards(tmp_path) -> None:
    path = build(tmp_path / "index", n_items=500)
    with adacur.load(path, scorer=score, encoder=Encoder(), check=False) as changed:
        changed.add([Item(f"new{number}", f"new {number}") for number in range(90)], progress=False)
        changed.remove([f"i{number}" for number in range(100, 200)])
        theirs = {method: changed.search_batch(QUERIES, 5, budget=40, method=method) for method in METHODS[:5]}
    with in_shards(path, 4) as spread:
        for method, found in theirs.items():
            assert_same(spread.search_batch(QUERIES, 5, budget=40, method=method), found)


def test_vectors_in_another_order_find_their_items(tmp_path) -> None:
    path = build(tmp_path / "index", n_items=400)
    folder = path / "first" / "dense"
    dense = Dense.load(folder, encoder=Encoder())
    order = np.random.default_rng(0).permutation(400)
    ids, vectors = [dense.ids[at] for at in order], dense.embeddings[order]
    Dense.from_embeddings(ids, vectors, encoder=Encoder()).save(folder)
    with adacur.load(path, scorer=score, encoder=Encoder(), check=False) as local, in_shards(path, 3) as spread:
        for method in ("gaussian", "axn"):
            ours = spread.search_batch(QUERIES, 5, budget=40, method=method)
            assert_same(ours, local.search_batch(QUERIES, 5, budget=40, method=method))


def test_predictions_beyond_numbers_are_passed_over_alike(plain) -> None:
    def enormous(pairs):
        return [1e300 * number for number in score(pairs)]

    options = {"budget": 60, "method": "adacur", "first": "random"}
    with (
        adacur.load(plain, scorer=enormous, encoder=Encoder(), check=False) as local,
        in_shards(plain, 3) as spread,
        np.errstate(all="ignore"),
    ):
        spread._scorer = adacur.scorer(enormous)
        assert_same(spread.search_batch(QUERIES, 10, **options), local.search_batch(QUERIES, 10, **options))


def test_rounds_and_awaited_searches_are_the_same_in_shards(plain) -> None:
    with adacur.load(plain, scorer=score, encoder=Encoder(), check=False) as local, in_shards(plain, 3) as spread:
        theirs = list(local.search_iter(QUERIES[0], 5, budget=60))
        assert_same(list(spread.search_iter(QUERIES[0], 5, budget=60)), theirs)

        async def together():
            return await asyncio.gather(*(spread.asearch(query, 5, budget=60) for query in QUERIES))

        assert_same(asyncio.run(together()), local.search_batch(QUERIES, 5, budget=60))


def test_shards_of_another_version_are_refused(tmp_path) -> None:
    path = build(tmp_path / "index", n_items=400)
    with in_shards(path, 2) as spread:
        spread.search(QUERIES[0], 5, budget=40)
        with adacur.load(path, scorer=score, encoder=Encoder(), check=False) as changed:
            changed.remove(["i3"])
        # What a worker does that is started again.
        shards = spread._shards
        shards._workers._held[1] = type(shards._workers._held[1])(path, start=192, stop=400)
        with pytest.raises(IndexMismatch, match=r"Shard 1 of 2 has version 2 .* began on version 1 .* Open it again"):
            spread.search(QUERIES[1], 5, budget=40)


def test_a_shard_that_was_started_again_makes_its_features_again(plain) -> None:
    with in_shards(plain, 3) as spread:
        before = spread.search_batch(QUERIES, 5, budget=40)
        held = spread._shards._workers._held
        held[1] = type(held[1])(plain, start=held[1]._start, stop=held[1]._stop)
        assert_same(spread.search_batch(QUERIES, 5, budget=40), before)


def test_an_index_in_shards_only_searches(plain) -> None:
    with in_shards(plain, 2) as spread:
        for forbidden in (
            lambda: spread.matrix,
            lambda: spread.tune(),
            lambda: spread.compress(),
            lambda: spread.remove(["i1"]),
            lambda: spread.replay(spread.anchor_queries[:1]),
        ):
            with pytest.raises(InputError, match="in shards"):
                forbidden()
        with pytest.raises(InputError, match="approximator"):
            spread.search("x", approximator=Gaussian(), method="adacur")
        assert len(spread.search("x", 3, approximator=PseudoInverse(), method="adacur")) == 3
    with pytest.raises(InputError, match="shards counts"):
        in_shards(plain, 0)
    with pytest.raises(InputError, match="give shards"):
        adacur.load(plain, address="auto")


def test_an_index_that_workers_do_not_find_is_told_as_such(plain, tmp_path) -> None:
    folder = IndexFolder.open(plain)
    folder.path = tmp_path / "elsewhere"
    with pytest.raises(NotAnIndex, match=r"The worker on .* does not find the index: .* the same place on every node"):
        open_shards(folder, shards=2, engine=StandingHere)


def test_old_predictions_make_room_for_new_ones(plain, monkeypatch) -> None:
    with in_shards(plain, 2) as spread:
        kept = spread._shards._workers._held[0]._kept
        before = spread.search_batch(QUERIES, 5, budget=60)
        assert len(kept) > 1
        monkeypatch.setattr("adacur.search.shard._BYTES_KEPT", 1)
        assert_same(spread.search_batch(QUERIES, 5, budget=60), before)
        assert len(kept) == 1


def test_shards_begin_and_end_with_spans() -> None:
    for n_items in (1, 63, 64, 129, 1501, 70_001, 10**8):
        for n_shards in (1, 2, 3, 7, 300):
            starts = cuts(n_items, n_shards)
            assert starts[0] == 0
            assert starts[-1] == n_items
            assert all(start % span_length(n_items) == 0 for start in starts[:-1])
            assert all(np.diff(starts) >= min(n_items, span_length(n_items)))
    assert len(cuts(10**8, 16)) == 17


def test_floats_are_in_the_order_of_their_sortable_numbers() -> None:
    values = np.array([-np.inf, -3e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, np.inf, np.nan], dtype=np.float32)
    assert (np.diff(sortable(values).astype(np.int64)) > 0).all()


def test_shards_on_other_machines_open_an_index_in_a_store_by_its_url(s3_url, tmp_path, monkeypatch):
    build(s3_url, n_items=200)
    folder = IndexFolder.open(s3_url)
    first_cache = cache_folder()

    def on_another_machine(openers):
        monkeypatch.setenv("ADACUR_CACHE", str(tmp_path / "another cache"))
        # What the first machine keeps of the index is not there.
        folder.path.rename(folder.path.with_name("away"))
        try:
            return StandingHere(openers)
        finally:
            folder.path.with_name("away").rename(folder.path)

    shards = open_shards(folder, shards=2, engine=on_another_machine)
    sharded = opening._opened(folder, scorer=adacur.scorer(score), encoder=Encoder(), check=False, shards=shards)
    found = sharded.search_batch(QUERIES, 5, budget=30)
    # A folder that stands for a store is believed in the cache of its own machine.
    monkeypatch.setenv("ADACUR_CACHE", str(first_cache))
    whole = adacur.load(folder.path, scorer=score, encoder=Encoder(), check=False)

    assert_same(found, whole.search_batch(QUERIES, 5, budget=30))
