"""Figures: what is drawn, in whose colours, and that the same runs give the same files."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_runs import contest, run

from adacur.errors import EmptyInput
from adacur_lab.report import ScatterPanel, curves, error_bars, index_cost, latency, save, scatter
from adacur_lab.report.styles import styles


def drawn(axis) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}


def test_curves_show_the_means_at_their_budgets_and_a_band_per_line() -> None:
    figure = curves(contest())

    [axis] = figure.axes
    assert set(drawn(axis)) == {"gaussian", "adacur", "rerank"}
    places, means = drawn(axis)["gaussian"]
    assert places == [50, 100]
    assert means == pytest.approx([0.7, 0.8])
    assert len(axis.collections) == 3
    assert axis.get_ylim()[0] == 0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gaussian", "adacur", "rerank"]


def test_there_is_a_panel_per_collection_anchors_and_k_and_one_legend() -> None:
    runs = [*contest("town"), *contest("town", anchors=200), *contest("village")]
    runs = [replace(one, measures=dict(one.measures) | {"recall@1": one.measures["recall@10"]}) for one in runs]

    figure = curves(runs)

    assert len(figure.axes) == 6
    assert len(figure.legends) == 1
    assert figure.axes[0].get_title() == "town, 50 anchors: top-1 recall"
    assert figure.axes[5].get_title() == "village: top-10 recall"


def test_a_measure_that_no_run_has_gets_no_column() -> None:
    runs = [run(budget=budget, ndcg=None) for budget in (50, 100)]

    assert [axis.get_ylabel() for axis in curves(runs, measures=["recall@10", "nDCG@10"]).axes] == ["top-10 recall"]


def test_a_sweep_is_drawn_along_its_own_setting() -> None:
    [axis] = curves(contest(), along="rounds").axes

    assert drawn(axis)["adacur"][0] == [1, 2, 5, 20]


def test_a_method_looks_the_same_whatever_else_is_drawn() -> None:
    alone = styles({"gaussian": "gaussian"})["gaussian"]
    crowded = styles({name: name for name in ("rerank", "zeta", "gaussian", "adacur", "alpha")})

    assert crowded["gaussian"] == alone
    looks = {(style.colour, style.marker) for style in crowded.values()}
    assert len(looks) == 5


def test_variants_of_a_method_share_its_colour_and_differ_in_dashes() -> None:
    found = styles({f"adacur, {rounds} rounds": "adacur" for rounds in (20, 5, 100)})

    assert list(found) == ["adacur, 5 rounds", "adacur, 20 rounds", "adacur, 100 rounds"]
    assert len({style.colour for style in found.values()}) == 1
    assert len({style.dashes for style in found.values()}) == 3


def test_latency_is_stacked_by_step_and_adds_up() -> None:
    [axis] = latency(contest(), along="rounds").axes

    tops = {}
    for bar in axis.patches:
        tops[bar.get_x()] = max(tops.get(bar.get_x(), 0), bar.get_y() + bar.get_height())
    assert list(tops.values()) == pytest.approx([6.0] * 4)


def test_error_bars_have_a_group_per_band() -> None:
    one = error_bars(contest()).axes[0]

    assert [tick.get_text() for tick in one.get_xticklabels()] == ["ranks\n1–10", "ranks\n11 on", "all\nitems"]


def test_a_method_without_an_index_is_level_in_the_cost_chart() -> None:
    free = {"index_calls": np.zeros(30)}
    runs = [one for one in [*contest(), *contest(anchors=200)] if one.method == "gaussian"]
    runs += [run("rerank", recall=0.5, budget=budget, measures=free) for budget in (50, 100)]

    axis = index_cost(runs).axes[0]

    assert drawn(axis)["gaussian"][0] == [15000, 60000]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["15k", "60k"]
    assert drawn(axis)["rerank"][1] == pytest.approx([0.5, 0.5])


def test_the_scatter_rings_the_top_k_marks_the_scored_and_counts_what_is_off_the_chart() -> None:
    exact = np.linspace(-5, 5, 50)
    approximate = exact.copy()
    approximate[7] = 1000.0
    figure = scatter([ScatterPanel("one query", exact, approximate, np.array([3, 4]))], k=5)

    items, scored, top = figure.axes[0].collections
    assert len(items.get_offsets()) == 50
    assert scored.get_offsets()[:, 0].tolist() == exact[[3, 4]].tolist()
    assert sorted(top.get_offsets()[:, 0].tolist()) == exact[-5:].tolist()
    assert [text.get_text() for text in figure.axes[0].texts] == ["1 beyond the edge"]
    assert figure.axes[0].get_ylim()[1] < 20


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(curves(contest()), tmp_path / name)

    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "one.svg").read_bytes()


def test_drawing_needs_no_screen_and_leaves_no_window_behind() -> None:
    curves(contest())

    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


@pytest.mark.parametrize("draw", [curves, latency, error_bars, index_cost])
def test_runs_that_cannot_fill_a_figure_are_refused_in_words(draw) -> None:
    with pytest.raises(EmptyInput, match="run"):
        draw([run("dense", measures={"recall@10": np.full(30, np.nan)})])
