"""An index of which only some scores are the scorer's."""

from __future__ import annotations

import numpy as np
import pytest

import adacur
from adacur import Query
from adacur.errors import InputError, WrongScorer
from adacur.replay import compress, replay, tune
from adacur.store import IndexFolder
from tests.editing import Edited
from tests.embedding_world import ANCHORS, ITEMS, N_ANCHORS, TRUTH, Encoder, Scorer, number

EXACT = np.random.default_rng(0).random((N_ANCHORS, len(ITEMS))) < 0.2


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Not to be changed."""
    path = tmp_path_factory.mktemp("predicted") / "index"
    options = {"first": ["dense"], "encoder": Encoder(), "progress": False, "tune": False}
    with adacur.build(ITEMS, 0, scorer=Scorer(weights=None), path=path, **options) as index:
        guessed = np.where(EXACT, TRUTH[:N_ANCHORS], TRUTH[:N_ANCHORS] + 0.3)
        Edited(index).add_anchor_scores(ANCHORS, guessed.astype(np.float32), exact=EXACT)
    return path


def load(path, **options):
    return adacur.load(path, scorer=Scorer(weights=None, **options), encoder=Encoder())


def test_the_scorer_is_recognised_by_scores_that_it_gave(built):
    probes = IndexFolder.open(built).manifest.probes
    assert len(probes) == 32
    assert all(EXACT[probe.anchor, probe.item] for probe in probes)
    assert load(built).drift.same
    with pytest.raises(WrongScorer):
        load(built, sign=-1.0)


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "rerank"])
def test_every_method_searches_it(built, method):
    query = Query("new", f"query {N_ANCHORS + 1}")
    hits = load(built).search(query, 5, budget=50, method=method)
    assert hits.trace.calls == 50
    assert int(np.argmax(TRUTH[N_ANCHORS + 1])) in [number(item.text) for item in hits.items]


def test_predicted_scores_are_never_taken_for_the_truth(built):
    index = load(built)
    for refused in (
        lambda: tune(index, k=5, budget=50),
        lambda: replay(index, ANCHORS[:2], 5, budget=50),
        lambda: compress(index, rank=10),
    ):
        with pytest.raises(InputError):
            refused()
