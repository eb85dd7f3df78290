"""An index without anchor queries gets them from its searches."""

from __future__ import annotations

import gc
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import adacur
from adacur.cli.app import app
from adacur.extras.server import SearchLog, refresh
from adacur.store import IndexFolder, verify
from tests.embedding_world import ITEMS, TRUTH, Encoder, Scorer, number

SECRET = "query 41"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "index"
    options = {"first": ["bm25", "dense"], "encoder": Encoder(), "progress": False, "tune": False}
    adacur.build(ITEMS, 0, scorer=Scorer(), path=path, **options).close()
    return path


@pytest.fixture
def path(empty, tmp_path):
    return shutil.copytree(empty, tmp_path / "index")


def load(path, log=None, **options):
    return adacur.load(path, scorer=Scorer(**options), encoder=Encoder(), log=log, check=False)


def searched(path, numbers, **options):
    with load(path, path.parent / "log", **options) as index:
        index.search([f"query {at}" for at in numbers], 5, budget=40)


def refreshed(path):
    return refresh(path, path.parent / "log", encoder=Encoder())


def test_what_was_paid_for_is_kept_and_the_rest_predicted_below_it(path):
    searched(path, range(20))
    assert refreshed(path).added == 20
    index, cells = load(path), IndexFolder.open(path).exact_cells()
    assert (cells.sum(axis=0) == 40).all()
    rows = [number(query.text) for query in index.anchor_queries]
    assert np.array_equal(index.matrix[cells], TRUTH[rows].T.astype(np.float32)[cells])
    exact = np.array([column[own].mean() for column, own in zip(index.matrix.T, cells.T, strict=True)])
    predicted = np.array([column[~own].mean() for column, own in zip(index.matrix.T, cells.T, strict=True)])
    assert (predicted < exact).all()
    assert verify(path).ok
    assert index.search("query 44", 5, budget=40).trace.settings["anchors"] == 20


def test_an_index_of_words_alone_gets_them_too(tmp_path):
    path = tmp_path / "words"
    adacur.build(ITEMS, 0, scorer=Scorer(), path=path, progress=False, tune=False).close()
    assert load(path).snapshot.default_method == "rerank"
    searched(path, range(10))
    refresh(path, tmp_path / "log")
    index = load(path)
    assert index.snapshot.default_method == "gaussian"
    assert index.search("query 41", 5, budget=40).trace.calls == 40


def test_an_index_that_holds_no_scores_becomes_that_of_the_scorer_it_is_searched_with(path):
    searched(path, range(10), weights="others")
    refreshed(path)
    assert IndexFolder.open(path).manifest.scorer.weights == "others"


def test_a_query_that_is_forgotten_leaves_the_index_at_the_next_refresh(path, tmp_path):
    searched(path, [41, *range(9)])
    refreshed(path)
    assert SECRET in {query.text for query in load(path).anchor_queries}
    SearchLog(tmp_path / "log").forget([SECRET])
    gc.collect()
    for first in (9, 19):
        searched(path, range(first, first + 10))
        refreshed(path)
        gc.collect()
    assert SECRET not in {query.text for query in load(path).anchor_queries}
    SearchLog(tmp_path / "log").forget([f"query {at}" for at in range(40)])
    assert refreshed(path).anchors == 0
    assert load(path).search("query 41", 5, budget=40).trace.calls == 40


def test_the_command_refreshes_a_folder(tmp_path):
    path = tmp_path / "words"
    adacur.build(ITEMS, 0, scorer=Scorer(), path=path, progress=False, tune=False).close()
    searched(path, range(10))
    done = CliRunner().invoke(app, ["index", "refresh", str(path), str(tmp_path / "log"), "--limit", "7"])
    assert done.exit_code == 0, done.output
    assert len(load(path).anchor_queries) == 7
