"""Runs as they are stored, rows of a table and the verdict, from runs with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur.errors import FileFormatError, InputError
from adacur.replay import Run, compare, mean_of, paired_difference
from adacur.replay.comparison import OWN_ORDER, depth, worth


def run(
    method: str, recall: float, *, ndcg: float | None = 0.5, n: int = 30, first: str = "bm25", budget: int = 50
) -> Run:
    """A run whose recalls vary by the same pattern from query to query, around a mean."""
    wave = 0.1 * np.sin(np.arange(n))
    measures: dict[str, Any] = {"recall@10": recall + wave - wave.mean()}
    if ndcg is not None:
        # Every third query is not judged.
        measures["nDCG@10"] = np.where(np.arange(n) % 3 == 0, np.nan, ndcg + wave)
    settings = {"budget": budget, "first": first, "rounds": 5} | ({"anchors": 20} if method != "rerank" else {})
    return Run("town", method, settings, tuple(f"q{place}" for place in range(n)), measures, {"items": 300})


def contest(gain: float, *, ndcg: float = 0.5, n: int = 30) -> list[Run]:
    return [
        one
        for budget in (100, 50)
        for one in (run("gaussian", 0.5 + gain, ndcg=ndcg, n=n, budget=budget), run("rerank", 0.5, n=n, budget=budget))
    ]


def test_rows_go_by_budget_and_name_their_price() -> None:
    rows = compare(contest(0.2))
    assert [(row.run.settings["budget"], row.name, row.paid) for row in rows] == [
        (50, "gaussian · bm25", 6000),
        (50, "rerank · bm25", 0),
        (100, "gaussian · bm25", 6000),
        (100, "rerank · bm25", 0),
    ]


def test_a_cell_is_the_mean_its_interval_and_the_queries_that_have_a_value() -> None:
    runs = contest(0.2)
    row = compare(runs)[2]
    values = runs[0].values("nDCG@10")
    assert row.means["nDCG@10"].n == len(values) == 20
    assert row.means["nDCG@10"] == mean_of(values)


def test_differences_are_paired_with_the_rival_of_the_same_budget_and_first_stage() -> None:
    runs = [*contest(0.2), run("rerank", 0.69, first="dense"), run("gaussian", 0.7, first="dense", budget=25)]
    rows = {(row.name, row.run.settings["budget"]): row for row in compare(runs)}
    assert rows["gaussian · bm25", 50].differences["recall@10"] == paired_difference(runs[2], runs[3], "recall@10")
    assert rows["gaussian · dense", 25].differences == {}
    assert rows["rerank · bm25", 50].differences == {}


def test_a_scorer_that_only_mends_a_worse_start_is_not_worth_its_calls() -> None:
    """Calls are measured against the best first stage, joined with others or not."""
    joined, dense = (
        run("first", 0.3, ndcg=ndcg, n=90, first=first, budget=0)
        for ndcg, first in ((0.45, "bm25+dense"), (0.7, "dense"))
    )
    spent = run("rerank", 0.5, ndcg=0.55, n=90, first="dense")
    assert "worth its calls? Yes" in worth([joined, spent])
    assert "use none here. dense alone" in worth([joined, dense, spent])


@pytest.mark.parametrize(("change", "n", "says"), [
    (-0.2, 60, "mend it first"), (0.2, 60, "Yes, deeper is better"), (0.0, 60, "neither better nor worse"),
    (-0.2, 6, "cannot tell"),
])  # fmt: skip
def test_depth_compares_all_items_with_the_deepest_re_ranking_in_the_scorers_own_order(change, n, says) -> None:
    runs = [run("rerank", 0.5, n=n, budget=50, first="bm25"), run("rerank", 0.5, n=n, budget=50, first="bm25+dense")]
    runs.append(Run("town", "exact", {}, runs[0].query_ids, dict(runs[0].measures), {"items": 300}))
    for one in runs:
        one.measures[OWN_ORDER] = one.measures["nDCG@10"] + (change if one.method == "exact" else 0.0)
    said = depth(runs)
    assert says in said
    assert "From bm25+dense's best 50 to all 300 items" in said
    assert f"{change:+.3f}" in said
    assert depth(runs[:2]) == ""
    assert depth([run("rerank", 0.5, n=n, budget=300), runs[-1]]) == ""


def test_a_stored_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = Run("c", "m", {"budget": 100}, ("a", "ü"), {"recall@10": np.array([0.1, np.nan])}, {"version": "1"})
    run.save(tmp_path / "new" / "run.json")
    back = Run.load(tmp_path / "new" / "run.json")
    assert (back.collection, back.method, back.settings, back.query_ids, back.made) == (
        "c",
        "m",
        {"budget": 100},
        ("a", "ü"),
        {"version": "1"},
    )
    assert back.measures["recall@10"] == pytest.approx([0.1, np.nan], nan_ok=True)
    assert back.values("recall@10").tolist() == [0.1]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


def test_a_measure_has_one_value_per_query() -> None:
    with pytest.raises(InputError):
        Run("c", "m", {}, ("a", "b"), {"recall@10": np.array([0.1])})


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_file_that_is_no_run_is_refused(content, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FileFormatError):
        Run.load(tmp_path / "run.json")
