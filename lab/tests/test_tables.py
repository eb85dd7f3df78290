"""Tables: the numbers, the marks beside them, and the three formats."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from stored_runs import contest, run

from adacur.core.errors import EmptyInput
from adacur.evaluation import Run, bootstrap_interval
from adacur_lab.report import collection_table, cost_table, difference_table, measure_table, panels, summary
from adacur_lab.report.measures import band_words, error_measures, number
from adacur_lab.report.summary import FEWEST_TO_TELL, worth
from adacur_lab.report.tables import Cell


def cells(table, column: str) -> dict[tuple[int, str], Cell]:
    place = table.columns.index(column)
    return {(row[0], row[1]): row[place] for row in table.rows}


def test_a_cell_is_the_mean_and_the_interval_of_evaluation() -> None:
    one = run(budget=50)
    [panel] = panels([one, run("rerank", recall=0.2, budget=50)])

    cell = cells(measure_table(panel), "top-10 recall")[50, "gaussian"]

    assert cell.value.mean == pytest.approx(0.8)
    assert (cell.value.low, cell.value.high) == bootstrap_interval(one.values("recall@10"))
    assert cell.value.n == 30


def test_judged_quality_stands_beside_recall_even_where_nobody_judged() -> None:
    [panel] = panels([run(budget=50, ndcg=None)])

    table = measure_table(panel)

    assert table.columns[-2:] == ("top-10 recall", "nDCG@10")
    assert table.rows[0][-1] is None
    assert "nDCG@10 was not measured in these runs; it needs judgements." in table.notes
    assert table.to_markdown().splitlines()[4].endswith("| – |")


def test_a_table_that_would_be_empty_is_refused_in_words() -> None:
    [panel] = panels([run(budget=50), run(budget=100)])

    with pytest.raises(EmptyInput, match="None of the 2 runs of 'town' has one of RR, AP"):
        measure_table(panel, measures=["RR", "AP"])
    assert measure_table(panel, measures=["RR", "recall@10"]).rows[0][-2] is None


def test_the_best_of_each_budget_is_marked_and_what_noise_hides_is_close_to_it() -> None:
    wave = np.where(np.arange(30) % 2 == 0, 0.3, -0.29)
    even = {"recall@10": np.full(30, 0.6) + wave}
    [panel] = panels(
        [
            run("gaussian", recall=0.6, budget=50),
            run("adacur", budget=50, measures=even),
            run("rerank", recall=0.3, budget=50),
            run("topk_oracle", recall=0.9, budget=50),
        ]
    )

    found = cells(measure_table(panel), "top-10 recall")

    assert {name: (cell.best, cell.close) for (_, name), cell in found.items()} == {
        "adacur": (True, False),
        "gaussian": (False, True),
        "rerank": (False, False),
        "topk_oracle": (False, False),
    }


def test_equal_means_are_best_together() -> None:
    [panel] = panels([run("adacur", budget=50), run("gaussian", budget=50)])

    assert all(cell.best for cell in cells(measure_table(panel), "top-10 recall").values())


def test_the_smallest_error_is_the_best() -> None:
    runs = [run(name, budget=50, measures={"error.all": np.full(30, at)}) for name, at in (("a", 2.0), ("b", 1.0))]
    [panel] = panels(runs)

    found = cells(measure_table(panel, measures=["error.all"]), "error.all")

    assert {name: cell.best for (_, name), cell in found.items()} == {"a": False, "b": True}


def test_differences_are_paired_and_the_rival_has_the_same_first_stage() -> None:
    [panel] = panels(
        [
            run("gaussian", recall=0.7, budget=50, first="bm25"),
            run("rerank", recall=0.6, budget=50, first="bm25"),
            run("rerank", recall=0.9, budget=50, first="dense"),
        ]
    )

    table = difference_table(panel)

    assert table is not None
    cell = cells(table, "top-10 recall")[50, "gaussian"]
    # The pattern over the queries is the same in both runs, so that nothing of it is left in the difference.
    assert (cell.value.mean, cell.value.low, cell.value.high) == pytest.approx((0.1, 0.1, 0.1))
    assert cell.best
    assert difference_table(replace(panel, runs=panel.runs[:1])) is None


def test_constant_settings_are_in_the_caption_and_varied_ones_in_columns() -> None:
    [panel] = panels([run(budget=50, rounds=5, first="bm25", anchors=100), run("adacur", budget=50, rounds=5)])

    table = measure_table(panel)

    assert table.caption == "100 anchor queries, 5 rounds, 30 queries."
    assert "first stage" in table.columns
    assert "rounds" not in table.columns


def test_a_method_without_rounds_makes_no_column_of_them() -> None:
    runs = [run(budget=50, rounds=5), run("rerank", budget=50)]

    table = measure_table(panels(runs)[0])
    assert table.caption.startswith("5 rounds")
    assert "rounds" not in table.columns
    assert "rounds" in measure_table(panels([*runs, run("adacur", budget=50, rounds=9)])[0]).columns


def test_a_rival_without_a_query_in_common_has_no_differences() -> None:
    other = replace(run("rerank", budget=50), query_ids=tuple(f"other {place}" for place in range(30)))

    assert difference_table(panels([run(budget=50), other])[0]) is None


def test_csv_holds_plain_numbers() -> None:
    [panel] = panels([run(budget=1000), run("rerank", recall=0.4, budget=1000)])

    rows = list(csv.DictReader(io.StringIO(measure_table(panel).to_csv())))

    assert rows[0]["method"] == "gaussian"
    assert float(rows[0]["top-10 recall"]) == pytest.approx(0.8, abs=1e-5)
    assert float(rows[0]["top-10 recall low"]) < 0.8 < float(rows[0]["top-10 recall high"])
    assert rows[0]["nDCG@10 queries"] == "20"
    assert int(rows[0]["calls"]) == 1000


def test_names_from_outside_cannot_break_a_table() -> None:
    [panel] = panels([run("a|b<script>", budget=50, collection="<i>town</i>")])
    table = measure_table(panel)

    assert "a\\|b" in table.to_markdown()
    assert "<script>" not in table.to_html()
    assert "<i>" not in table.to_html()


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_tag_of_a_table_is_closed() -> None:
    [panel] = panels(contest())
    parser = _Balance()
    parser.feed(measure_table(panel).to_html())

    assert parser.open == []


def test_the_cost_of_a_query_and_of_the_index_are_told_apart() -> None:
    [panel] = panels(contest())
    table = cost_table(panel)

    assert table is not None
    assert table.columns[-5:] == ("calls made", "calls for the index", "predict, ms", "score, ms", "solve, ms")
    line = next(line for line in table.to_markdown().splitlines() if line.startswith("| 50 | gaussian"))
    assert line.endswith("| 50 | 15,000 | 2.00 | 2.00 | 2.00 |")


def test_any_rows_are_a_collection_table() -> None:
    table = collection_table([{"collection": "town", "items": 10031}, {"collection": "village", "queries": 5}])

    assert table.to_markdown().splitlines()[-2:] == ["| town | 10,031 | – |", "| village | – | 5 |"]


@pytest.mark.parametrize(
    ("value", "measure", "shown"),
    [
        (0.8914, "recall@10", ".891"),
        (1.0, "recall@1", "1.000"),
        (-0.0001, "nDCG@10", ".000"),
        (-0.25, "nDCG@10", "−.250"),
        (2591500.0, "index_calls", "2,591,500"),
        (3.2, "milliseconds", "3.20"),
        (float("nan"), "recall@10", "–"),
    ],
)
def test_numbers_have_the_digits_of_their_measure(value: float, measure: str, shown: str) -> None:
    assert number(value, measure) == shown


def test_rank_bands_are_drawn_from_the_top_down() -> None:
    names = ["error.all", "error.ranks@1001-", "error.ranks@11-100", "error.top@10", "error.ranks@1-10"]
    found = error_measures([run(measures={name: np.zeros(30) for name in names})])

    assert [band_words(name) for name in found] == ["ranks 1–10", "ranks 11–100", "ranks 1001 on", "all items"]


def said(runs: list[Run]) -> str:
    [panel] = panels(runs)
    return summary(panel)


def test_the_summary_says_who_finds_how_much_more_and_how_sure_that_is() -> None:
    text = said(contest())

    assert text.startswith(
        "At 100 calls gaussian finds .800 of the scorer's top 10, rerank .600 (difference .200, 95 % .200 to .200)."
    )
    assert "nDCG@10 on 20 judged queries: gaussian .504, rerank .504 (no difference)." in text
    assert "noise" not in text
    assert "gaussian is ahead of rerank in 2, behind in 0 and not told apart in 2" in text


def test_words_and_tables_go_by_the_same_intervals_and_name_every_loss() -> None:
    draws = np.random.default_rng(0)

    def close(method: str, budget: int, recall: float) -> Run:
        values = np.clip(recall + draws.normal(scale=0.1, size=30), 0, 1)
        return run(method, budget=budget, measures={"recall@10": values})

    # A loss at the smallest budget that a correction for six comparisons might hide.
    runs = [close("gaussian", budget, recall) for budget, recall in ((15, 0.55), (30, 0.82), (60, 0.9))]
    runs += [close("rerank", budget, recall) for budget, recall in ((15, 0.61), (30, 0.7), (60, 0.9))]
    text, table = said(runs), difference_table(*panels(runs))
    cells = [cell for row in table.rows for cell in row if isinstance(cell, Cell)]
    ahead, behind, level = ([getattr(cell, name) for cell in cells].count(True) for name in ("best", "behind", "close"))
    # nDCG is the same for both.
    assert (ahead, behind, level) == (1, 1, 1 + 3)
    assert f"ahead of rerank in {ahead}, behind in {behind} and not told apart in {level}" in text
    assert "Behind: recall@10 at 15 calls (−" in text
    assert "30 calls are the middle of the budgets" in text
    assert "▼" in table.to_markdown()


def test_whether_an_index_is_worth_it_follows_from_the_same_comparisons() -> None:
    def said_of(*recalls: float) -> str:
        runs = [run("gaussian", recall=at, budget=b) for at, b in zip(recalls, (50, 100), strict=True)]
        (panel,) = panels([*runs, *(run("rerank", recall=0.6, budget=b) for b in (50, 100))])
        return worth(panel)

    assert "Yes" in said_of(0.7, 0.8)
    assert "No: " in said_of(0.4, 0.6)
    assert "depends" in said_of(0.4, 0.9)
    assert "No: " in said_of(0.6, 0.6)
    (alone,) = panels([run("gaussian", budget=50)])
    assert worth(alone) == ""


def test_an_index_is_not_worth_it_where_re_ranking_another_first_stage_finds_as_much() -> None:
    own = [run("gaussian", recall=0.8, budget=b, first="bm25") for b in (50, 100)]
    weak = [run("rerank", recall=0.5, budget=b, first="bm25") for b in (50, 100)]
    strong = [run("rerank", recall=0.8, budget=b, first="dense") for b in (50, 100)]
    (panel,) = panels([*own, *weak])
    assert "Yes" in worth(panel)
    (panel,) = panels([*own, *weak, *strong])
    assert "Yes" not in worth(panel)
    assert "rerank (dense first)" in worth(panel)


def test_one_comparison_of_many_does_not_make_an_index_worth_it() -> None:
    recalls = {25: 0.7, 50: 0.6, 100: 0.6, 200: 0.6}
    own = [run("gaussian", recall=recall, budget=b) for b, recall in recalls.items()]
    (panel,) = panels([*own, *(run("rerank", recall=0.6, budget=b) for b in recalls)])
    assert "Yes" not in worth(panel)
    assert "ahead in 1, behind in 0 of 4" in worth(panel)


def test_too_few_queries_cannot_tell_whether_an_index_is_worth_it() -> None:
    (panel,) = panels([run("gaussian", recall=0.9, budget=50, n=5), run("rerank", recall=0.2, budget=50, n=5)])
    assert "5 queries cannot tell" in worth(panel)
    assert str(FEWEST_TO_TELL) in worth(panel)


@pytest.mark.parametrize(("ndcg", "moves"), [(0.7, "rises"), (0.5, "does not rise"), (0.3, "falls")])
def test_the_verdict_says_what_judged_quality_does(ndcg: float, moves: str) -> None:
    (panel,) = panels([run("gaussian", budget=50, ndcg=ndcg), run("rerank", recall=0.2, budget=50)])
    assert "Yes, by recall" in worth(panel)
    assert f"nDCG@10 {moves}" in worth(panel)


def test_the_default_is_told_of_where_another_method_came_out_best() -> None:
    runs = [run(name, recall=at, budget=b) for b in (50, 100) for name, at in (("adacur", 0.9), ("gaussian", 0.4))]
    text = said([*runs, *(run("rerank", recall=0.6, budget=b) for b in (50, 100))])
    assert "adacur is ahead of rerank in 2" in text
    assert "gaussian is ahead of rerank in 0, behind in 2" in text


def test_the_summary_names_a_stronger_rival_than_the_one_with_the_same_first_stage() -> None:
    own = run("gaussian", recall=0.7, budget=100, first="dense")
    rivals = [run("rerank", recall=at, budget=100, first=first) for at, first in ((0.6, "dense"), (0.8, "bm25"))]

    text = said([own, *rivals])

    assert "finds .700 of the scorer's top 10, rerank (dense first) .600 (difference .100" in text
    assert "Of its rivals rerank (bm25 first) is the strongest: .800 (difference −.100" in text
    assert "gaussian is the worse of the two" in text
    assert "strongest" not in said([own, rivals[0]])


def test_a_bound_that_is_only_just_not_zero_says_on_which_side_it_lies() -> None:
    ahead = {"recall@10": run("rerank", recall=0.6).measures["recall@10"] + 1e-4}

    text = said([run(budget=100, measures=ahead), run("rerank", recall=0.6, budget=100)])

    assert "(difference .000, 95 % just above 0 to just above 0). nDCG@10" in text


def test_of_equal_methods_the_summary_tells_of_the_default() -> None:
    rivals = [run(name, recall=0.8, budget=100) for name in ("adacur", "gaussian", "anncur")]
    assert said([*rivals, run("rerank", recall=0.6, budget=100)]).startswith("At 100 calls gaussian finds")
    better = run("adacur", recall=0.81, budget=100)
    assert said([better, *rivals[1:], run("rerank", recall=0.6, budget=100)]).startswith("At 100 calls adacur finds")


@pytest.mark.parametrize(
    ("budgets", "n_items", "told"),
    [
        ((25, 50, 100), 1000, 50),
        ((50, 100, 200, 500), 10_000, 100),
        ((25, 50, 100), 110, 50),
        ((25, 50, 100), 60, 25),
        ((25, 50, 100), 30, 25),
        ((25, 50, 100), None, 50),
    ],
)
def test_the_summary_tells_of_a_middle_budget_that_leaves_most_items_unscored(budgets, n_items, told) -> None:
    made = {} if n_items is None else {"items": n_items}
    runs = [replace(run(name, budget=budget), made=made) for name in ("gaussian", "rerank") for budget in budgets]
    assert said(runs).startswith(f"At {told} calls ")


def test_the_summary_admits_noise_defeat_and_what_is_missing() -> None:
    wave = np.where(np.arange(30) % 2 == 0, 0.3, -0.3)
    noisy = run("gaussian", budget=100, measures={"recall@10": 0.605 + wave})
    assert "within noise" in said([noisy, run("rerank", recall=0.6, budget=100)])
    assert "the worse of the two" in said([run(recall=0.4, budget=100), run("rerank", recall=0.6, budget=100)])
    assert "no rerank run to compare it with" in said([run(budget=100)])
    assert "not measured" in said([run(budget=100, ndcg=None), run("rerank", budget=100, ndcg=None)])
    assert "nothing to compare" in said([run("dense")])
    # An oracle is a bound: it is never called the best.
    assert "oracle" not in said([run("topk_oracle", recall=0.95, budget=100), *contest()])
