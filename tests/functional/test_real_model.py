"""A real cross-encoder on real text, from items to hits and back from the disk."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import adacur
from adacur.data import wikivital
from adacur.errors import WrongScorer
from adacur.store import DriftWarning
from tests.real_models import torch_cross_encoder


@pytest.fixture(scope="module")
def scorer():
    with adacur.scorer("ms-marco-MiniLM-L-12-v2", max_item_tokens=64) as opened:
        yield opened


@pytest.fixture(scope="module")
def articles():
    wanted = ["Penicillin", "Alexander Fleming", "Louis Pasteur", "Jupiter", "Honey", "Mona Lisa", "Leonardo da Vinci"]
    every = {item.metadata["title"]: item for item in wikivital()}
    return [every[title] for title in wanted] + wikivital()[:33]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, scorer, articles):
    path = tmp_path_factory.mktemp("real") / "articles.adacur"
    adacur.build(
        articles, 6, scorer=scorer, path=path, first=("bm25", "dense"), encoder="bge-small-en-v1.5", progress=False
    )
    return path


def test_the_right_articles_are_found_within_the_budget_after_a_reload(folder, scorer) -> None:
    index = adacur.load(folder, scorer=scorer)
    assert set(index.first_stages) == {"bm25", "dense", "bm25+dense", "random"}
    for question, title in (
        ("who discovered penicillin?", "Alexander Fleming"),
        ("who painted the portrait of Lisa Gherardini?", "Leonardo da Vinci"),
        ("largest planet in the solar system", "Jupiter"),
    ):
        for first in ("bm25", "dense", "bm25+dense"):
            hits = index.search(question, k=3, budget=20, first=first)
            assert hits.trace.calls == 20
            assert title in [hit.item.metadata["title"] for hit in hits]


def test_a_budget_for_everything_agrees_with_exact_search(folder, scorer) -> None:
    index = adacur.load(folder, scorer=scorer)
    exact = index.search("a sweet food made by insects", k=5, method="exact")
    assert exact[0].item.metadata["title"] == "Honey"
    full = index.search("a sweet food made by insects", k=5, budget=40, fuse=0)
    assert full.ids == exact.ids
    assert full.scores.tolist() == exact.scores.tolist()


def test_the_scorer_named_in_the_manifest_opens_by_itself_without_drift(folder) -> None:
    index = adacur.load(folder)
    assert index.search("who discovered penicillin?", k=1, budget=10, first="bm25").trace.calls == 10
    assert index.drift is None
    index.close()


def test_another_backend_of_the_same_weights_is_accepted_with_its_drift(folder) -> None:
    with pytest.warns(DriftWarning):
        index = adacur.load(folder, scorer=adacur.scorer(torch_cross_encoder(), max_item_tokens=64))
    assert 0.99 <= index.drift.correlation < 1
    assert index.drift.max_difference > 0


def test_another_model_is_refused(folder, scorer) -> None:
    with pytest.raises(WrongScorer):
        adacur.load(folder, scorer=lambda pairs: [float(len(item)) for _, item in pairs])
    with pytest.raises(WrongScorer):
        adacur.load(
            folder, scorer=lambda pairs: -scorer.score([(adacur.Query("q", q), adacur.Item("i", i)) for q, i in pairs])
        )


def test_the_shipped_index_answers_with_the_int8_model_and_reports_its_drift() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        index = adacur.load("wikivital")
        hits = index.search("who discovered penicillin?", k=2, budget=20)
    assert len(index) == 10_033
    assert len(index.anchor_queries) >= 200
    assert [hit.item.metadata["title"] for hit in hits] == ["Alexander Fleming", "Penicillin"]
    assert any(isinstance(warning.message, DriftWarning) for warning in caught)
    assert index.drift.correlation >= 0.99
    assert index.matrix.dtype == np.float32
