from __future__ import annotations

import ast
import warnings

import ir_measures
import numpy as np
import pytest

from adacur import Hits, Query
from adacur.errors import DuplicateId, InputError, UnknownName
from adacur.replay import judged_quality, measures


def hits(query: str, *ids: str) -> Hits:
    return Hits(query=Query(query, query), ids=ids, scores=np.arange(len(ids), 0, -1.0))


def test_quality_is_told_per_query_in_order_and_unjudged_queries_have_none() -> None:
    found = [hits("second", "x", "a"), hits("unjudged", "a"), hits("first", "a", "x"), hits("empty", "a")]
    qrels = {"first": {"a": 1}, "second": {"a": 1}, "other": {"a": 1}, "empty": {}}
    (values,) = judged_quality(found, qrels).values()
    assert values == pytest.approx([1 / np.log2(3), np.nan, 1.0, np.nan], nan_ok=True)


def test_a_query_whose_hits_are_all_wrong_counts_as_nothing() -> None:
    found = [hits("q", "x"), Hits(Query("e", "e"), (), np.empty(0))]
    measures = ("nDCG@10", "R@10", "RR", "RR@10", "AP")
    values = judged_quality(found, {"q": {"a": 1}, "e": {"a": 1}}, measures=measures)
    assert {name: own.tolist() for name, own in values.items()} == {name: [0, 0] for name in measures}


def test_several_measures_are_computed_at_once_and_keep_the_names_they_were_asked_by() -> None:
    found = [hits("q", "x", "a", "y", "b")]
    values = judged_quality(found, {"q": {"a": 1, "b": 2, "c": 1}}, measures=["RR@10", "MRR", "R@2", "AP"])
    assert {name: own.tolist() for name, own in values.items()} == {
        "RR@10": [0.5],
        "MRR": [0.5],
        "R@2": [pytest.approx(1 / 3)],
        "AP": [pytest.approx((1 / 2 + 2 / 4) / 3)],
    }


@pytest.mark.parametrize("ids", [("a", "b"), ("b", "a")])
def test_hits_with_equal_scores_are_judged_in_the_order_in_which_they_come(ids) -> None:
    tied = Hits(Query("q", "q"), ids, np.array([1.0, 1.0]))
    values = judged_quality([tied], {"q": {"a": 1}}, measures=["RR", "RR@10", "nDCG@10"])
    rank = ids.index("a") + 1
    assert [own.tolist() for own in values.values()] == [[1 / rank], [1 / rank], [pytest.approx(1 / np.log2(rank + 1))]]


def test_judgements_of_other_queries_are_refused() -> None:
    with pytest.raises(InputError):
        judged_quality([hits("q", "a")], {"p": {"a": 1}})


def test_a_query_that_is_answered_twice_is_refused() -> None:
    with pytest.raises(DuplicateId):
        judged_quality([hits("q", "a"), hits("q", "b")], {"q": {"a": 1}})


@pytest.mark.parametrize("measure", ["recall@10", "nDCG@", "P"])
def test_a_measure_that_nobody_knows_is_refused(measure) -> None:
    with pytest.raises((UnknownName, InputError)):
        judged_quality([hits("q", "a")], {"q": {"a": 1}}, measures=[measure])


@pytest.mark.parametrize("name", ["nDCG@10", "AP@5", "RR", "ERR@20"])
def test_measures_are_read_as_ir_measures_reads_them_and_on_python_3_14_too(name, monkeypatch) -> None:
    with warnings.catch_warnings(action="ignore"):
        known = ir_measures.parse_measure(name) if hasattr(ast, "Num") else None
        for gone in ("Num", "Str", "NameConstant"):
            monkeypatch.delattr(ast, gone, raising=False)
    read = measures._parse(ir_measures, name)
    assert str(read) == name
    assert known is None or read == known
