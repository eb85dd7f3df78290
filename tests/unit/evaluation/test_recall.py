from __future__ import annotations

import numpy as np
import pytest

from adacur import Hits, Query
from adacur.core.errors import InputError
from adacur.evaluation import bootstrap_interval, top_k_recall


def found(*pairs: tuple[str, float]) -> Hits:
    return Hits(
        query=Query("q", "q"), ids=tuple(id_ for id_, _ in pairs), scores=np.array([score for _, score in pairs])
    )


EXACT = np.array([[5.0, 4.0, 4.0, 1.0]])
IDS = ["a", "b", "c", "d"]


def test_among_equal_scores_any_will_do() -> None:
    assert top_k_recall([found(("a", 5.0), ("c", 4.0))], EXACT, k=2).tolist() == [1.0]


def test_the_strict_form_counts_the_first_in_a_stable_sort_only() -> None:
    assert top_k_recall([found(("a", 5.0), ("c", 4.0))], EXACT, k=2, strict_ids=IDS).tolist() == [0.5]


def test_at_most_k_are_counted() -> None:
    assert top_k_recall([found(("a", 5.0), ("b", 4.0), ("c", 4.0))], EXACT, k=2).tolist() == [1.0]


def test_what_was_not_found_is_missing() -> None:
    assert top_k_recall([found(("d", 1.0))], EXACT, k=2).tolist() == [0.0]
    assert top_k_recall([found(("b", 4.0))], EXACT, k=3).tolist() == [pytest.approx(1 / 3)]


def test_hits_and_rows_must_match() -> None:
    with pytest.raises(InputError):
        top_k_recall([], EXACT, k=1)


def test_the_interval_holds_the_mean_and_narrows_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.random(20), rng.random(2000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < high - low
