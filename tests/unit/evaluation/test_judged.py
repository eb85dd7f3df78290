from __future__ import annotations

import numpy as np
import pytest

from adacur import Hits, Query
from adacur.core.errors import InputError
from adacur.evaluation import judged_quality


def hits(query: str, *ids: str) -> Hits:
    return Hits(query=Query(query, query), ids=ids, scores=np.arange(len(ids), 0, -1.0))


def test_quality_is_told_per_judged_query_in_order() -> None:
    found = [hits("second", "x", "a"), hits("unjudged", "a"), hits("first", "a", "x")]
    values = judged_quality(found, {"first": {"a": 1}, "second": {"a": 1}, "other": {"a": 1}})
    assert values == pytest.approx([1 / np.log2(3), 1.0])


def test_a_query_whose_hits_are_all_wrong_counts_as_nothing() -> None:
    assert judged_quality(
        [hits("q", "x"), Hits(Query("e", "e"), (), np.empty(0))], {"q": {"a": 1}, "e": {"a": 1}}
    ).tolist() == [0, 0]


def test_other_measures_can_be_asked_for() -> None:
    assert judged_quality([hits("q", "x", "a")], {"q": {"a": 1}}, measure="RR").tolist() == [0.5]


def test_judgements_of_other_queries_are_refused() -> None:
    with pytest.raises(InputError, match="same query ids"):
        judged_quality([hits("q", "a")], {"p": {"a": 1}})
