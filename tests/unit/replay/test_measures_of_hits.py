"""What is measured of answers: recall, judged quality, and how certain means and differences are."""

from __future__ import annotations

import ast
import warnings

import ir_measures
import numpy as np
import pytest

from adacur import Hits, Query
from adacur.errors import BudgetError, DuplicateId, EmptyInput, InputError, NonFiniteScore, UnknownName
from adacur.replay import Run, bootstrap_interval, judged_quality, measures, paired_difference, top_k_recall

NAN = float("nan")
EXACT = np.array([[5.0, 4.0, 4.0, 1.0]])


def found(*pairs: tuple[str, float], query: str = "q") -> Hits:
    return Hits(Query(query, query), tuple(id_ for id_, _ in pairs), np.array([score for _, score in pairs]))


def hits(query: str, *ids: str) -> Hits:
    return found(*((id_, -float(rank)) for rank, id_ in enumerate(ids)), query=query)


@pytest.mark.parametrize(
    ("answer", "k", "recall"),
    [
        ([("a", 5.0), ("c", 4.0)], 2, 1.0),
        ([("a", 5.0), ("b", 4.0), ("c", 4.0)], 2, 1.0),
        ([("d", 1.0)], 2, 0.0),
        ([("b", 4.0)], 3, 1 / 3),
        ([("a", 5.0), ("b", 4.0), ("c", 4.0)], 100, 0.75),
    ],
    ids=["equal scores", "at most k", "none", "some", "more than there are"],
)
def test_recall_is_the_share_of_the_k_best_scores_that_were_found(answer, k, recall) -> None:
    assert top_k_recall([found(*answer)], EXACT, k=k).tolist() == [pytest.approx(recall)]


@pytest.mark.parametrize(
    ("answers", "exact", "k", "error"),
    [([], EXACT, 1, InputError), ([found()], EXACT, 0, BudgetError), ([found()], [[1.0, NAN]], 1, NonFiniteScore)],
)
def test_recall_of_what_does_not_fit_is_refused(answers, exact, k, error) -> None:
    with pytest.raises(error):
        top_k_recall(answers, np.array(exact), k=k)


def test_quality_is_given_per_query_in_order_and_unjudged_queries_have_none() -> None:
    answers = [hits("second", "x", "a"), hits("unjudged", "a"), hits("first", "a", "x"), hits("empty", "a")]
    qrels = {"first": {"a": 1}, "second": {"a": 1}, "other": {"a": 1}, "empty": {}}
    (values,) = judged_quality(answers, qrels).values()
    assert values == pytest.approx([1 / np.log2(3), np.nan, 1.0, np.nan], nan_ok=True)


def test_a_query_whose_hits_are_all_wrong_counts_as_nothing() -> None:
    names = ("nDCG@10", "R@10", "RR", "RR@10", "AP")
    values = judged_quality([hits("q", "x"), hits("e")], {"q": {"a": 1}, "e": {"a": 1}}, measures=names)
    assert {name: own.tolist() for name, own in values.items()} == {name: [0, 0] for name in names}


def test_several_measures_keep_the_names_they_were_asked_by() -> None:
    answer = [hits("q", "x", "a", "y", "b")]
    values = judged_quality(answer, {"q": {"a": 1, "b": 2, "c": 1}}, measures=["RR@10", "MRR", "R@2", "AP"])
    assert {name: own.tolist() for name, own in values.items()} == {
        "RR@10": [0.5],
        "MRR": [0.5],
        "R@2": [pytest.approx(1 / 3)],
        "AP": [pytest.approx((1 / 2 + 2 / 4) / 3)],
    }


@pytest.mark.parametrize("ids", [("a", "b"), ("b", "a")])
def test_hits_with_equal_scores_are_judged_in_the_order_in_which_they_come(ids) -> None:
    tied = found(*((id_, 1.0) for id_ in ids))
    values = judged_quality([tied], {"q": {"a": 1}}, measures=["RR", "RR@10", "nDCG@10"])
    rank = ids.index("a") + 1
    assert [own.tolist() for own in values.values()] == [[1 / rank], [1 / rank], [pytest.approx(1 / np.log2(rank + 1))]]


@pytest.mark.parametrize(
    ("answers", "options", "error"),
    [
        ([hits("q", "a")], {"qrels": {"p": {"a": 1}}}, InputError),
        ([hits("q", "a"), hits("q", "b")], {}, DuplicateId),
        *(([hits("q", "a")], {"measures": [name]}, (UnknownName, InputError)) for name in ("recall@10", "nDCG@", "P")),
    ],
)
def test_what_cannot_be_judged_is_refused(answers, options, error) -> None:
    with pytest.raises(error):
        judged_quality(answers, **{"qrels": {"q": {"a": 1}}, **options})


@pytest.mark.parametrize("name", ["nDCG@10", "AP@5", "RR", "ERR@20"])
def test_measures_are_read_as_ir_measures_reads_them_and_on_python_3_14_too(name, monkeypatch) -> None:
    with warnings.catch_warnings(action="ignore"):
        known = ir_measures.parse_measure(name) if hasattr(ast, "Num") else None
        for gone in ("Num", "Str", "NameConstant"):
            monkeypatch.delattr(ast, gone, raising=False)
    read = measures._parse(ir_measures, name)
    assert str(read) == name
    assert known is None or read == known


def run(ids: str, *values: float, collection: str = "c") -> Run:
    return Run(collection, "m", {}, tuple(ids), {"recall@1": np.array(values)})


def test_the_interval_holds_the_mean_and_narrows_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.random(20), rng.random(2000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < high - low
    assert bootstrap_interval(np.array([0.1, NAN, 0.9, 0.5])) == bootstrap_interval(np.array([0.1, 0.9, 0.5]))
    for nothing in ([], [NAN, NAN]):
        with pytest.raises(EmptyInput):
            bootstrap_interval(np.array(nothing))


def test_about_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    held = [
        low <= 0.5 <= high
        for low, high in (bootstrap_interval(rng.random(60), samples=500, seed=seed) for seed in range(300))
    ]
    assert 0.9 < np.mean(held) < 0.99


def test_runs_are_matched_by_query_id() -> None:
    compared = paired_difference(run("abcd", 1, 0.5, 0, NAN), run("edcba", 1, 0, 0, 0.25, 0.5), "recall@1")
    assert (compared.n, compared.value) == (3, 0.25)
    assert (compared.low, compared.high) == bootstrap_interval(np.array([0.5, 0.25, 0]))


@pytest.mark.parametrize(
    ("left", "right", "measure", "error"),
    [
        (run("a", 1), run("b", 1), "recall@1", EmptyInput),
        (run("a", NAN), run("a", 1), "recall@1", EmptyInput),
        (run("a", 1), run("a", 1, collection="other"), "recall@1", InputError),
        (run("a", 1), run("a", 1), "nDCG@10", InputError),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(left, right, measure, error) -> None:
    with pytest.raises(error):
        paired_difference(left, right, measure)
