"""The harness against a check written by hand: 50 queries × 2000 items, many of them tied."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import Item, Query
from adacur.replay import Run
from adacur_lab.experiments import Asked, Testbed, measured_run
from adacur_lab.experiments.runner import run_settings
from adacur_lab.experiments.spec import MethodSpec, Spec

KS = (1, 10, 100)


def by_hand(found: list[list[str]], exact: np.ndarray, k: int) -> tuple[list[float], list[float]]:
    """Tie-aware and strict Top-k-Recall per query, from the ids found and the scores alone."""
    tie_aware, strict = [], []
    for ids, scores in zip(found, exact.tolist(), strict=True):
        ranking = sorted(range(len(scores)), key=lambda item: (-scores[item], item))
        worst_of_the_best = scores[ranking[k - 1]]
        right_by_score = right_by_id = 0
        for id_ in ids[:k]:
            item = int(id_[1:])
            if scores[item] >= worst_of_the_best:
                right_by_score += 1
            if item in ranking[:k]:
                right_by_id += 1
        tie_aware.append(right_by_score / k)
        strict.append(right_by_id / k)
    return tie_aware, strict


@pytest.fixture(scope="module")
def testbed() -> Testbed:
    rng = np.random.default_rng(7)
    items = rng.normal(size=(6, 2000))
    scores = rng.normal(size=(90, 6)) @ items + rng.normal(size=(90, 2000))
    # Rounded to halves: some hundred items share the score of the tenth.
    scores = np.round(scores * 2) / 2
    return Testbed(
        name="tied",
        items=[Item(f"i{n}", f"item {n}") for n in range(2000)],
        anchor_queries=[Query(f"a{n}", f"anchor {n}") for n in range(40)],
        test_queries=[Query(f"t{n}", f"test {n}") for n in range(50)],
        anchor_scores=scores[:40],
        exact_scores=scores[40:],
        item_embeddings=items.T,
        query_embeddings=rng.normal(size=(50, 6)),
    )


@pytest.mark.parametrize("name", ["adacur", "gaussian", "anncur", "rerank", "exact", "axn", "topk_oracle"])
def test_recall_of_the_harness_is_the_recall_counted_by_hand_to_the_last_digit(name, testbed, tmp_path) -> None:
    spec = Spec(collections=(), output=tmp_path, methods=(MethodSpec(name),), budgets=(150,), ks=KS)
    (settings,) = run_settings(spec, testbed)
    run, answers = measured_run(testbed, settings, asked=Asked(KS))
    run.save(tmp_path / "run.json")
    stored = Run.load(tmp_path / "run.json")
    for k in KS:
        tie_aware, strict = by_hand([list(hits.ids) for hits in answers.by_k[k]], testbed.exact_scores, k)
        for measure, expected in ((f"recall@{k}", tie_aware), (f"strict_recall@{k}", strict)):
            for kept in (run, stored):
                assert kept.measures[measure].tolist() == expected
                assert kept.values(measure).mean() == np.mean(expected)
        if name == "exact":
            assert set(tie_aware) == {1.0}
    # The check would be idle if no tie ever mattered.
    assert any((run.measures[f"recall@{k}"] != run.measures[f"strict_recall@{k}"]).any() for k in KS)
