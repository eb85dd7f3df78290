"""Tables: the numbers, the marks beside them, and the three formats."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from stored_runs import contest, run

from adacur.errors import EmptyInput
from adacur.replay import bootstrap_interval
from adacur_lab.report import collection_table, cost_table, difference_table, measure_table, panels
from adacur_lab.report.measures import band_words, error_measures, number
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

    with pytest.raises(EmptyInput, match=r"the 2 runs.*'town'"):
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
