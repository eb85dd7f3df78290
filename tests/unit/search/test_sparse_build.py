"""An index of which only a share was paid for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import adacur
from adacur import Dense, Item, Query
from adacur.core.errors import (
    IncompleteIndex,
    IndexMismatch,
    InputError,
    NonFiniteScore,
    ScorerFailed,
    StorageFull,
    WrongScorer,
)
from adacur.core.protocols import ScorerCard
from adacur.first_stages.encoders import EncoderCard
from adacur.index import IndexFolder, Sparse, verify
from adacur.index.manifest import read_manifest, work_folder
from adacur.index.sparse import read_sparsity
from adacur.tuning import compress, replay, tune
from tests.editing import Edited

N_ITEMS, N_ANCHORS, DIMENSION = 300, 40, 8
_DRAWS = np.random.default_rng(3)
ITEM_VECTORS = _DRAWS.normal(size=(N_ITEMS, DIMENSION)).astype(np.float32)
QUERY_VECTORS = _DRAWS.normal(size=(N_ANCHORS + 5, DIMENSION)).astype(np.float32)
TRUTH = np.exp(QUERY_VECTORS @ ITEM_VECTORS.T / 2) + 0.05 * _DRAWS.normal(size=(N_ANCHORS + 5, N_ITEMS))
ITEMS = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]
ANCHORS = [Query(f"q{at}", f"query {at}") for at in range(N_ANCHORS)]


def number(text):
    return int(text.split()[-1])


class Encoder:
    """Vectors by the number in a text."""

    dimension = DIMENSION
    card = EncoderCard(kind="numbers", dimension=DIMENSION)

    def encode_queries(self, texts):
        return QUERY_VECTORS[[number(text) for text in texts]]

    def encode_items(self, texts):
        return ITEM_VECTORS[[number(text) for text in texts]]


class Scorer:
    """The truth, counted; it fails once it was asked for `fails_after` pairs."""

    def __init__(self, *, fails_after=10**9, weights="w", sign=1.0, wrong_pair=None):
        self.card = ScorerCard(name="truth", backend="function", weights=weights)
        self.asked = []
        self._fails_after = fails_after
        self._sign = sign
        self._wrong_pair = wrong_pair

    def score(self, pairs):
        if len(self.asked) + len(pairs) > self._fails_after:
            raise RuntimeError("the machine is gone")
        self.asked += [(query.id, item.id) for query, item in pairs]
        return np.array(
            [
                np.nan
                if (query.id, item.id) == self._wrong_pair
                else self._sign * TRUTH[number(query.text), number(item.text)]
                for query, item in pairs
            ]
        )


def build(path, *, scorer=None, anchors=ANCHORS, items=ITEMS, **options):
    given = {"sparse": 60, "first": ["dense"], "encoder": Encoder(), "progress": False} | options
    return adacur.build(items, anchors, scorer=scorer or Scorer(), path=path, **given)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A finished sparse index, not to be changed, and the scorer that was asked."""
    path, scorer = tmp_path_factory.mktemp("sparse") / "index", Scorer()
    build(path, scorer=scorer)
    return path, scorer


def load(path, **options):
    return adacur.load(path, scorer=Scorer(**options), encoder=Encoder())


def test_each_anchor_query_costs_exactly_the_calls_asked_for_and_no_pair_is_paid_twice(built):
    path, scorer = built
    index = load(path)
    assert len(scorer.asked) == len(set(scorer.asked)) == 60 * N_ANCHORS
    cells = IndexFolder.open(path).exact_cells()
    assert {(f"q{q}", f"i{i}") for i, q in zip(*np.nonzero(cells), strict=True)} == set(scorer.asked)
    assert np.array_equal(index.matrix[cells], TRUTH[:N_ANCHORS].T.astype(np.float32)[cells])
    about = read_sparsity(path)
    assert (about.per_query, about.random_share, about.calls) == (60, 0.1, 60 * N_ANCHORS)


def test_scores_that_were_not_paid_for_are_predicted_well_where_embeddings_tell_them(built):
    index = load(built[0])
    cells = IndexFolder.open(built[0]).exact_cells()
    missing = ~cells
    told = [np.corrcoef(index.matrix[missing[:, at], at], TRUTH[at, missing[:, at]])[0, 1] for at in range(N_ANCHORS)]
    assert np.mean(told) > 0.8


def test_the_best_of_the_first_stage_and_a_seeded_draw_are_scored(built, tmp_path):
    scorer, other = built[1], Scorer()
    build(tmp_path / "index", scorer=other, seed=1)
    assert set(scorer.asked) != set(other.asked)
    best = np.argsort(-(QUERY_VECTORS[0] @ ITEM_VECTORS.T))[:54]
    asked = {item for query, item in scorer.asked if query == "q0"}
    assert {f"i{at}" for at in best} <= asked


def test_a_build_that_was_stopped_goes_on_without_paying_for_finished_queries_again(built, tmp_path, monkeypatch):
    monkeypatch.setattr("adacur.index.sparse._PAIRS_PER_BLOCK", 120)
    path = tmp_path / "index"
    first, rest = Scorer(fails_after=1000), Scorer()
    with pytest.raises(ScorerFailed, match="Finished"):
        build(path, scorer=first)
    assert not path.exists()
    for opens in (load, IndexFolder.open, read_manifest):
        with pytest.raises(IncompleteIndex, match="sparse"):
            opens(path)
    index = build(path, scorer=rest)
    assert not set(first.asked) & set(rest.asked)
    assert len(first.asked) + len(rest.asked) == 60 * N_ANCHORS
    assert np.array_equal(index.matrix, load(built[0]).matrix)
    assert [folder.name for folder in tmp_path.iterdir() if folder.name.startswith(".")] == []


def test_a_stopped_build_refuses_to_go_on_as_something_else(tmp_path):
    path = tmp_path / "index"
    with pytest.raises(ScorerFailed):
        build(path, scorer=Scorer(fails_after=0))
    with pytest.raises(IndexMismatch, match=r"60 before.*61 now"):
        build(path, sparse=61)
    with pytest.raises(IndexMismatch, match="anchor queries"):
        build(path, anchors=ANCHORS[1:])
    with pytest.raises(IndexMismatch, match=r"300 items.*299 now"):
        build(path, items=ITEMS[1:])
    with pytest.raises(IndexMismatch, match=r"'w'.*'v'"):
        build(path, scorer=Scorer(weights="v"))


def test_a_slow_scorer_loses_little_when_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("adacur.index.sparse._BLOCK_SECONDS", 0.0)
    first, rest = Scorer(fails_after=60 * N_ANCHORS - 1), Scorer()
    with pytest.raises(ScorerFailed):
        build(tmp_path / "index", scorer=first)
    build(tmp_path / "index", scorer=rest)
    assert len(rest.asked) == 60


def test_a_disk_that_is_full_at_the_end_is_told_and_nothing_is_paid_for_again(tmp_path, monkeypatch):
    def full(*paths):
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")])

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", full)
        with pytest.raises(StorageFull, match="same build again"):
            build(tmp_path / "index")
    scorer = Scorer()
    build(tmp_path / "index", scorer=scorer)
    assert not scorer.asked


def test_what_a_killed_build_left_beside_its_finished_index_is_removed(built, tmp_path):
    path = shutil.copytree(built[0], tmp_path / "index")
    work_folder(path).mkdir()
    build(path)
    assert not work_folder(path).exists()


def test_a_function_that_changed_between_two_runs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("adacur.index.sparse._PAIRS_PER_BLOCK", 120)
    with pytest.raises(ScorerFailed):
        build(tmp_path / "index", scorer=Scorer(fails_after=500, weights=None))
    with pytest.raises(WrongScorer):
        build(tmp_path / "index", scorer=Scorer(weights=None, sign=-1.0))


def test_a_finished_sparse_index_is_opened_and_never_taken_for_a_complete_one(built, tmp_path):
    path, scorer = built[0], Scorer()
    build(path, scorer=scorer)
    assert not scorer.asked
    with pytest.raises(IndexMismatch, match=r"60 items.*not 50"):
        build(path, sparse=50)
    with pytest.raises(IndexMismatch, match="is a sparse index"):
        build(path, sparse=None)
    build(tmp_path / "complete", sparse=None, tune=False)
    with pytest.raises(IndexMismatch, match="every pair was scored"):
        build(tmp_path / "complete")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"first": ["bm25"]}, "dense first stage"),
        ({"sparse": 0}, "share of all below 1"),
        ({"sparse": 1.5}, "share of all below 1"),
        ({"sparse": float("nan")}, "share of all below 1"),
        ({"sparse": float("inf")}, "share of all below 1"),
        ({"sparse": 300}, "nothing is left to predict"),
        ({"on": adacur.Ray()}, "in one process"),
    ],
)
def test_what_cannot_be_built_is_refused_before_a_call(tmp_path, options, reason):
    scorer = Scorer()
    with pytest.raises(InputError, match=reason):
        build(tmp_path / "index", scorer=scorer, **options)
    assert not scorer.asked


def test_a_share_drawn_at_random_beyond_all_is_refused():
    with pytest.raises(InputError, match=r"2\.0"):
        Sparse(0.1, random_share=2.0)


def test_a_score_that_is_no_number_is_named_by_its_pair(built, tmp_path):
    pair = built[1].asked[100]
    with pytest.raises(NonFiniteScore, match=f"query '{pair[0]}' and item '{pair[1]}'"):
        build(tmp_path / "index", scorer=Scorer(wrong_pair=pair))


def test_a_share_of_the_items_may_be_given(tmp_path):
    scorer = Scorer()
    build(tmp_path / "index", scorer=scorer, sparse=0.1)
    assert len(scorer.asked) == 30 * N_ANCHORS


def test_verify_reads_what_is_exact_and_finds_damage_to_it(built, tmp_path):
    shutil.copytree(built[0], tmp_path / "index")
    assert verify(tmp_path / "index").ok
    cells = tmp_path / "index" / "exact" / "cells.npy"
    content = bytearray(cells.read_bytes())
    content[-1] ^= 1
    cells.write_bytes(content)
    assert [problem.file for problem in verify(tmp_path / "index").problems] == ["exact/cells.npy"]


def test_the_scorer_is_recognised_by_scores_that_it_gave(built):
    folder = IndexFolder.open(built[0])
    cells = folder.exact_cells()
    assert len(folder.manifest.probes) == 32
    assert all(cells[probe.item, probe.anchor] for probe in folder.manifest.probes)
    assert load(built[0], weights=None).drift.same
    with pytest.raises(WrongScorer):
        load(built[0], weights=None, sign=-1.0)


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "axn", "rerank"])
def test_every_method_searches_a_sparse_index(built, method):
    query = Query("new", f"query {N_ANCHORS + 1}")
    hits = load(built[0]).search(query, 5, budget=50, method=method)
    assert hits.trace.calls == 50
    assert int(np.argmax(TRUTH[N_ANCHORS + 1])) in [number(item.text) for item in hits.items]


def test_predicted_scores_are_never_taken_for_the_truth(built):
    index = load(built[0])
    assert not index.tunings
    for refused in (
        lambda: tune(index, k=5, budget=50),
        lambda: replay(index, ANCHORS[:2], 5, budget=50),
        lambda: compress(index, rank=10),
    ):
        with pytest.raises(InputError, match="predicted"):
            refused()


def test_a_sparse_index_may_be_changed_and_still_knows_what_it_paid_for(built, tmp_path):
    path = shutil.copytree(built[0], tmp_path / "index")
    cells = IndexFolder.open(path).exact_cells()
    index = load(path)
    Edited(index).remove(["i0"])
    assert np.array_equal(IndexFolder.open(path).exact_cells(), cells[1:])
    assert IndexFolder.open(path).n_exact == int(cells[1:].sum())
    Edited(index).compact()
    assert np.array_equal(IndexFolder.open(path).exact_cells(), cells[1:])
    assert verify(path).ok


def test_a_dense_object_serves_as_the_first_stage(tmp_path):
    dense = Dense.build(ITEMS, encoder=Encoder())
    assert len(build(tmp_path / "index", first=[dense]).first_stages) == 2
