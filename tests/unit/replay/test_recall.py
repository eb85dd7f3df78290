from __future__ import annotations

import numpy as np
import pytest

from adacur import Hits, Query
from adacur.errors import BudgetError, InputError, NonFiniteScore
from adacur.replay import top_k_recall


def found(*pairs: tuple[str, float]) -> Hits:
    return Hits(
        query=Query("q", "q"), ids=tuple(id_ for id_, _ in pairs), scores=np.array([score for _, score in pairs])
    )


EXACT = np.array([[5.0, 4.0, 4.0, 1.0]])


def test_among_equal_scores_any_will_do() -> None:
    assert top_k_recall([found(("a", 5.0), ("c", 4.0))], EXACT, k=2).tolist() == [1.0]


def test_at_most_k_are_counted() -> None:
    assert top_k_recall([found(("a", 5.0), ("b", 4.0), ("c", 4.0))], EXACT, k=2).tolist() == [1.0]


def test_what_was_not_found_is_missing() -> None:
    assert top_k_recall([found(("d", 1.0))], EXACT, k=2).tolist() == [0.0]
    assert top_k_recall([found(("b", 4.0))], EXACT, k=3).tolist() == [pytest.approx(1 / 3)]


def test_a_k_larger_than_the_collection_means_all_of_it() -> None:
    hits = [found(("a", 5.0), ("b", 4.0), ("c", 4.0))]
    assert top_k_recall(hits, EXACT, k=100).tolist() == [0.75]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError):
        top_k_recall([], EXACT, k=1)
    with pytest.raises(BudgetError):
        top_k_recall([found()], EXACT, k=0)


def test_a_pair_without_a_score_is_refused_by_position() -> None:
    with pytest.raises(NonFiniteScore):
        top_k_recall([found()], np.array([[1.0, np.nan]]), k=1)
