"""Every measure against a check in plain lists, on 50 queries × 2,000 items with ties: equal to the last digit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from adacur import ANNCUR, AdaCUR, AnchorIndex, Hits, Rerank
from adacur.replay import judged_quality, top_k_recall
from adacur.scorers import MatrixScorer
from adacur_lab.measures import approximation_error, first_stage_ceiling, phantom_share, predictions, strict_recall
from tests.conftest import World, make_world

KS = (1, 10, 100)
REACH = 60
METHODS = ("adacur", "anncur", "rerank", "exact")


@pytest.fixture(scope="module")
def tied() -> World:
    """Scores rounded to halves: of 2,000 items dozens share each value."""
    world = make_world(n_items=2000, n_anchors=40, n_test=50, rank=6, noise=0.5)
    return World(
        items=world.items,
        anchors=world.anchors,
        test=world.test,
        anchor_scores=world.anchor_scores,
        test_scores=np.round(world.test_scores * 2) / 2,
        item_embeddings=world.item_embeddings,
    )


@pytest.fixture(scope="module")
def answers(tied) -> dict[str, list[Hits]]:
    scorer = MatrixScorer(queries=tied.test, items=tied.items, scores=tied.test_scores)
    index = AnchorIndex(tied.index, scorer=scorer)
    methods = (AdaCUR(rounds=3, keep_predictions="last"), ANNCUR(), Rerank())
    first = tied.noisy_first(noise=4.0)
    found = {one.name: index.search(tied.test, 50, budget=REACH, method=one, first=first) for one in methods}
    return found | {"exact": index.search(tied.test, 50, method="exact")}


@pytest.fixture(scope="module")
def judgements(tied) -> dict[str, dict[str, int]]:
    """Three in four queries are judged: a few good items, a few others, a few judged worthless."""
    rng = np.random.default_rng(5)
    qrels = {}
    for query, scores in zip(tied.test, tied.test_scores, strict=True):
        good = np.argsort(-scores)[rng.integers(0, 80, size=5)]
        judged = [*good.tolist(), *rng.integers(0, 2000, size=5).tolist()]
        qrels[query.id] = {f"i{position}": int(rng.integers(0, 4)) for position in judged}
    return {id_: own for number, (id_, own) in enumerate(qrels.items()) if number % 4}


def best_first(scores: list[float]) -> list[int]:
    """Positions in a stable sort, highest score first."""
    return sorted(range(len(scores)), key=lambda position: -scores[position])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", KS)
def test_recall_is_the_literal_recall(tied, answers, method, k) -> None:
    found = answers[method]
    ids = [item.id for item in tied.items]
    lenient, strict = [], []
    for hits, scores in zip(found, tied.test_scores.tolist(), strict=True):
        best = best_first(scores)[:k]
        reached = [id_ for id_ in hits.ids[:k] if scores[ids.index(id_)] >= scores[best[-1]]]
        lenient.append(min(len(reached), k) / k)
        strict.append(len({ids[position] for position in best} & set(hits.ids[:k])) / k)
    assert top_k_recall(found, tied.test_scores, k=k).tolist() == lenient
    assert strict_recall(found, tied.test_scores, k=k, ids=ids).tolist() == strict
    # The world must have ties that matter, or the two forms are not told apart.
    assert strict != lenient


@pytest.mark.parametrize("k", KS)
def test_the_ceiling_is_the_literal_ceiling(tied, k) -> None:
    first = tied.noisy_hits(200, 4.0)
    ids = [item.id for item in tied.items]
    literal = []
    for hits, scores in zip(first, tied.test_scores.tolist(), strict=True):
        kth = sorted(scores, reverse=True)[k - 1]
        literal.append(min(sum(scores[ids.index(id_)] >= kth for id_ in hits.ids[:REACH]), k) / k)
    assert first_stage_ceiling(first, tied.test_scores, item_ids=ids, k=k, n=REACH).tolist() == literal


@pytest.mark.parametrize("method", METHODS)
def test_judged_quality_is_the_literal_quality(answers, judgements, method) -> None:
    values = judged_quality(answers[method], judgements, measures=["nDCG@10", "R@20", "RR@10", "RR", "AP"])
    for row, hits in enumerate(answers[method]):
        own = {name: float(column[row]) for name, column in values.items()}
        grades = judgements.get(hits.query.id)
        if grades is None:
            assert all(math.isnan(value) for value in own.values())
            continue
        gains = [grades.get(id_, 0) for id_ in hits.ids]
        ideal = sorted(grades.values(), reverse=True)
        relevant = sum(grade > 0 for grade in ideal)
        ranks = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
        precisions = [sum(other <= rank for other in ranks) / rank for rank in ranks]
        assert own == pytest.approx(
            {
                "nDCG@10": discounted(gains[:10]) / discounted(ideal[:10]) if relevant else 0,
                "R@20": sum(rank <= 20 for rank in ranks) / relevant if relevant else 0,
                "RR@10": 1 / ranks[0] if ranks and ranks[0] <= 10 else 0,
                "RR": 1 / ranks[0] if ranks else 0,
                "AP": sum(precisions) / relevant if relevant else 0,
            },
            rel=1e-12,
        )


def discounted(gains: list[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


@pytest.mark.parametrize("method", METHODS)
def test_phantoms_are_the_literal_phantoms(tied, answers, judgements, method) -> None:
    first = tied.noisy_hits(200, 4.0)
    shares = phantom_share(answers[method], first, judgements, k=10, n=REACH).tolist()
    for share, hits, reach in zip(shares, answers[method], first, strict=True):
        if hits.query.id not in judgements:
            assert math.isnan(share)
            continue
        phantoms = 0
        for id_ in hits.ids[:10]:
            relevant = judgements[hits.query.id].get(id_, 0) > 0
            within_reach = id_ in reach.ids[:REACH]
            phantoms += not relevant and not within_reach
        assert share == phantoms / 10
    if method == "rerank":
        assert not np.nansum(shares)


def test_approximation_error_is_the_literal_error_averaged_over_the_ways_to_break_ties(tied, answers) -> None:
    approximate = predictions(answers["adacur"])
    values = approximation_error(approximate, tied.test_scores, top=KS)
    ranges = {f"error.top@{k}": (0, k) for k in KS} | {
        "error.all": (0, 2000),
        "error.ranks@1-10": (0, 10),
        "error.ranks@11-100": (10, 100),
        "error.ranks@101-1000": (100, 1000),
        "error.ranks@1001-": (1000, 2000),
    }
    assert set(values) == set(ranges)
    for row in range(0, 50, 7):
        exact = [Fraction(score) for score in tied.test_scores[row].tolist()]
        errors = [abs(Fraction(guess) - score) for guess, score in zip(approximate[row].tolist(), exact, strict=True)]
        order = sorted(range(2000), key=lambda position, exact=exact: -exact[position])
        for name, (start, stop) in ranges.items():
            total = Fraction(0)
            for score in {exact[position] for position in order[start:stop]}:
                equals = [errors[position] for position in order if exact[position] == score]
                places = sum(exact[position] == score for position in order[start:stop])
                total += places * sum(equals) / len(equals)
            assert values[name][row] == pytest.approx(float(total / (stop - start)), rel=1e-12)
