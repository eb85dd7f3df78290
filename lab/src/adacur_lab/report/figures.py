"""The figures: each function takes stored runs or plain arrays and returns a matplotlib Figure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from adacur.arrays import FloatArray, IntArray
from adacur.errors import EmptyInput
from adacur.replay import Run
from adacur_lab.report.lines import Line, Panel, estimate, labels, lines, measured, panels, setting, setting_words
from adacur_lab.report.measures import JUDGED, band_words, error_measures, measure_words, recall_k, recall_measures
from adacur_lab.report.styles import STEP_COLOURS, Style, styles

__all__ = [
    "ScatterPanel",
    "curves",
    "error_bars",
    "index_cost",
    "latency",
    "looks",
    "panel_grid",
    "save",
    "scatter",
]

# At this width 9 pt text is still 11 px high where a README shows the figure 830 px wide.
_WIDTH = 9.6
_LOOK = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9.5,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.hashsalt": "adacur",
}
_AXES = {
    "budget": "scorer calls per query",
    "rounds": "rounds",
    "anchors": "anchor queries",
    "epsilon": "ε, share drawn at random",
    "temperature": "temperature",
    "split": "share of the calls spent on anchor items",
    "blend": "λ, weight of the dual encoder",
}
_TICKS = 8
_LONGEST_TITLE = 46
_NOTHING_TO_DATE_IT = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


@dataclass(frozen=True, slots=True, eq=False)
class ScatterPanel:
    """Exact and approximate scores of all items for one query; `anchors` are the positions that were scored."""

    title: str
    exact: FloatArray
    approximate: FloatArray
    anchors: IntArray


def curves(runs: Iterable[Run], *, along: str = "budget", measures: Sequence[str] = ()) -> Any:
    """Measures against a setting: a row per collection and number of anchors, a column per measure, intervals as bands.

    Without `measures`: the recall at each k that was measured. `along` is the name of any number among the settings.
    A measure that no run has gets no column.
    """
    runs = list(runs)
    asked = list(measures) or recall_measures(runs)
    measures = [measure for measure in asked if measured(runs, [measure])]
    shown = panels(runs, by_anchors=along != "anchors")
    drawn = [one for one in zip(shown, lines(shown, along=along, measures=measures), strict=True) if one[1]]
    if not drawn:
        wanted = f"one of {', '.join(asked)}" if asked else "a recall"
        raise EmptyInput(f"None of the {len(runs)} runs has a number {along!r} and {wanted}.")
    look = styles({line.label: line.method for _, own in drawn for line in own})
    places = [(panel, own, measure) for panel, own in drawn for measure in measures]
    columns = len(measures) if len(measures) > 1 else _columns(len(places))
    with looks():
        figure, axes = panel_grid(-(-len(places) // columns), columns)
        for axis, (panel, own, measure) in zip(axes.flat, places, strict=False):
            _draw_lines(axis, own, measure, look)
            _finish(axis, {x for line in own for x in line.along})
            _name(axis, panel.title if len(measures) == 1 else f"{panel.title}: {measure_words(measure)}")
        _name_axes(axes, len(places), x=_AXES.get(along, along.replace("_", " ")))
        is_recall = all(map(recall_k, measures))
        for row in axes:
            # Titles name the measures of a row that holds several.
            row[0].set_ylabel(
                measure_words(measures[0]) if len(measures) == 1 else "recall" if is_recall else "mean over the queries"
            )
        _share_scale(axes, measures if len(measures) > 1 else measures * columns)
        _legend(figure, axes, list(look))
    return figure


def latency(runs: Iterable[Run], *, along: str = "rounds") -> Any:
    """Milliseconds per query against a setting, as stacked bars: solve, predict, score and what else was timed."""
    runs = list(runs)
    steps = [step for step in STEP_COLOURS if any(f"seconds.{step}" in run.measures for run in runs)]
    timed = [f"seconds.{step}" for step in steps]
    shown = panels(runs)
    found = lines(shown, along=along, measures=timed) if timed else []
    own = [(panel, line) for panel, there in zip(shown, found, strict=False) for line in there]
    if not own:
        raise EmptyInput(f"None of the {len(runs)} runs has seconds per step and a number {along!r}.")
    columns = _columns(len(own))
    with looks():
        figure, axes = panel_grid(-(-len(own) // columns), columns)
        for axis, (panel, line) in zip(axes.flat, own, strict=False):
            places = np.arange(len(line.runs))
            bottom = np.zeros(len(line.runs))
            for step in steps:
                means = [estimate(run, f"seconds.{step}") for run in line.runs]
                heights = np.array([1000 * one.mean if one else 0.0 for one in means])
                axis.bar(places, heights, bottom=bottom, color=STEP_COLOURS[step], label=step, width=0.75)
                bottom += heights
            axis.set_xticks(places, [f"{x:g}" for x in line.along])
            _name(axis, panel.title, line.label)
            axis.grid(axis="y", alpha=0.25)
        # One scale for all, so that bars of one height mean the same.
        highest = max(axis.get_ylim()[1] for axis in axes.flat[: len(own)])
        for axis in axes.flat[: len(own)]:
            axis.set_ylim(0, highest)
        for row in axes:
            row[0].set_ylabel("ms per query, without the scorer")
        _name_axes(axes, len(own), x=_AXES.get(along, along))
        _legend(figure, axes, steps)
    return figure


def error_bars(runs: Iterable[Run], *, measures: Sequence[str] = ()) -> Any:
    """Mean approximation error by rank band, a group of bars per band: a row per panel, a column per budget."""
    runs = list(runs)
    measures = list(measures) or error_measures(runs)
    places = [
        (panel, budget, [run for run in panel.runs if setting(run, "budget") == budget])
        for panel in panels(measured(runs, measures))
        for budget in sorted({setting(run, "budget") for run in panel.runs} - {None})
    ]
    if not places:
        raise EmptyInput(f"None of the {len(runs)} runs has an approximation error and a budget.")
    named = labels(list(dict.fromkeys(run for _, _, own in places for run in own)), given=["anchors"])
    look = styles({label: run.method for run, label in named.items()})
    columns = min(2, len(places))
    with looks():
        figure, axes = panel_grid(-(-len(places) // columns), columns)
        for axis, (panel, budget, own) in zip(axes.flat, places, strict=False):
            order = [run for label in look for run in own if named[run] == label]
            width = 0.8 / len(order)
            for place, run in enumerate(order):
                style = look[named[run]]
                found = [(group, estimate(run, measure)) for group, measure in enumerate(measures)]
                bars = [(group - 0.4 + (place + 0.5) * width, value) for group, value in found if value]
                means = np.array([value.mean for _, value in bars])
                spread = [[v.mean - v.low for _, v in bars], [v.high - v.mean for _, v in bars]]
                axis.bar(
                    [x for x, _ in bars],
                    means,
                    width=0.9 * width,
                    yerr=np.nan_to_num(spread),
                    facecolor="white" if style.hollow else style.colour,
                    edgecolor=style.colour,
                    hatch="////" if style.hollow else None,
                    error_kw={"elinewidth": 1, "ecolor": "#222222"},
                    label=named[run],
                )
            axis.set_xticks(range(len(measures)), [band_words(measure).replace(" ", "\n", 1) for measure in measures])
            _name(axis, f"{panel.title}, {setting_words('budget', budget)}")
            axis.grid(axis="y", alpha=0.25)
        for row in axes:
            row[0].set_ylabel("mean |exact − approximate|")
        # Bars of a lost approximation would hide all others; panels of one figure keep one kind of scale.
        heights = [[bar.get_height() for bar in axis.patches if bar.get_height() > 0] for axis in axes.flat]
        if any(own and max(own) > 30 * min(own) for own in heights):
            for axis in axes.flat:
                axis.set_yscale("log", subs=())
                axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
                axis.yaxis.set_major_formatter("{x:g}")
        _name_axes(axes, len(places))
        _legend(figure, axes, list(look))
    return figure


def scatter(shown: Sequence[ScatterPanel], *, k: int = 10, columns: int | None = None) -> Any:
    """Exact against approximate scores, a panel each; the scorer's top k are ringed, scored items are marked.

    All panels share their axes, so that they can be compared. Approximations far beyond any exact score are drawn on
    the edge and counted: one wild value must not shrink all others to a dot.
    """
    if not shown:
        raise EmptyInput("A scatter needs at least one panel of exact and approximate scores.")
    columns = min(columns or _columns(len(shown)), len(shown))
    exact = np.concatenate([one.exact for one in shown])
    approximate = np.concatenate([one.approximate for one in shown])
    left, right = float(exact.min()), float(exact.max())
    margin = 0.5 * (right - left or 1.0)
    low, high = max(float(approximate.min()), left - margin), min(float(approximate.max()), right + margin)
    low, high = min(low, left), max(high, right)
    pad = 0.05 * (right - left or 1.0)
    kinds = ("items", "scored (anchor items)", f"the scorer's top {k}")
    with looks():
        figure, axes = panel_grid(-(-len(shown) // columns), columns, square=True)
        for axis, one in zip(axes.flat, shown, strict=False):
            near = np.clip(one.approximate, low, high)
            top = np.argsort(-one.exact, kind="stable")[:k]
            axis.plot([left, right], [left, right], color="#888888", lw=0.8, zorder=1)
            # Tens of thousands of points as an image inside the SVG, or no browser would open it.
            light = {"color": "#56b4e9", "alpha": 0.5, "lw": 0, "rasterized": True}
            axis.scatter(one.exact, near, s=7, **light, label=kinds[0], zorder=2)
            scored = one.anchors
            axis.scatter(
                one.exact[scored], near[scored], s=18, marker="x", color="#d55e00", lw=1, label=kinds[1], zorder=3
            )
            ring = {"facecolors": "none", "edgecolors": "#222222", "lw": 1}
            axis.scatter(one.exact[top], near[top], s=46, **ring, label=kinds[2], zorder=4)
            axis.set(title=one.title, xlim=(left - pad, right + pad), ylim=(low - pad, high + pad))
            if outside := int(np.count_nonzero(near != one.approximate)):
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
                words = f"{outside:,} beyond the edge"
                axis.text(0.03, 0.93, words, transform=axis.transAxes, va="top", size=8.5, bbox=box, zorder=5)
        for row in axes:
            row[0].set_ylabel("approximate score")
        _name_axes(axes, len(shown), x="exact score")
        _legend(figure, axes, kinds)
    return figure


def index_cost(runs: Iterable[Run], *, measure: str = "recall@10") -> Any:
    """A measure against the scorer calls that went into the index: a row per collection, a column per budget.

    There is room for the four smallest budgets. Methods that need no index are level, dashed lines.
    """
    runs = [run for run in runs if estimate(run, measure) and _index_calls(run) is not None]
    budgets = sorted({budget for run in runs if (budget := setting(run, "budget")) is not None})[:4]
    shown = [
        Panel(panel.collection, None, f"{panel.title}, {setting_words('budget', budget)}", there)
        for panel in panels(runs, by_anchors=False)
        for budget in budgets
        if (there := tuple(run for run in panel.runs if setting(run, "budget") == budget))
    ]
    indexed = [replace(panel, runs=tuple(run for run in panel.runs if _index_calls(run))) for panel in shown]
    if not any(panel.runs for panel in indexed):
        raise EmptyInput(f"No run has 'index_calls', a budget and {measure!r}.")
    found = lines(indexed, along="anchors", known=["budget"])
    free = [run for panel in shown for run in panel.runs if not _index_calls(run)]
    names = labels(free, given=["budget"])
    look = styles({line.label: line.method for own in found for line in own} | {names[run]: run.method for run in free})
    columns = len(budgets)
    with looks():
        figure, axes = panel_grid(-(-len(shown) // columns), columns)
        for axis, panel, own in zip(axes.flat, shown, found, strict=False):
            own = [replace(line, along=tuple(_index_calls(run) or 0.0 for run in line.runs)) for line in own]
            _draw_lines(axis, own, measure, look)
            for run in panel.runs:
                level = estimate(run, measure)
                if run in names and level:
                    style = look[names[run]]
                    axis.axhline(level.mean, color=style.colour, ls="--", lw=1.3, label=names[run])
            _finish(axis, {calls for line in own for calls in line.along}, words=_compact)
            _name(axis, panel.title)
        _name_axes(axes, len(shown), x="scorer calls for the index")
        for row in axes:
            row[0].set_ylabel(measure_words(measure))
        _share_scale(axes, [measure] * columns)
        _legend(figure, axes, list(look))
    return figure


def save(figure: Any, path: str | Path, *, kinds: Sequence[Literal["png", "svg"]] = ("png", "svg")) -> list[Path]:
    """Write the figure as `path`.KIND of each kind, the same bytes each time; returns the paths."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [target.with_name(f"{target.name}.{kind}") for kind in kinds]
    with looks():
        # The layout is the slow part: once serves all files.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for kind, file in zip(kinds, files, strict=True):
            figure.savefig(file, dpi=150, metadata=_NOTHING_TO_DATE_IT[kind])
    return files


def _index_calls(run: Run) -> float | None:
    found = estimate(run, "index_calls")
    return found.mean if found else None


def looks() -> AbstractContextManager[None]:
    """Every figure is drawn in here, so that all look alike."""
    return matplotlib.rc_context(_LOOK)


def panel_grid(rows: int, columns: int, *, square: bool = False) -> tuple[Any, Any]:
    """A figure and its panels, an array of (rows, columns)."""
    # A Figure of its own, not pyplot's: nothing to close, no window, safe in a server's thread.
    width = max(_WIDTH, 2.4 * columns) if columns > 1 else 5.6
    each = width / columns
    height = rows * (each if square else min(max(0.8 * each, 2.5), 3.4)) + 0.5
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _columns(panels: int) -> int:
    return 2 if panels == 4 else min(3, panels)


def _draw_lines(axis: Any, own: Sequence[Line], measure: str, look: Mapping[str, Style]) -> None:
    order = sorted(own, key=lambda line: list(look).index(line.label))
    for below, line in enumerate(order):
        found = [(x, estimate(run, measure)) for x, run in zip(line.along, line.runs, strict=True)]
        points = [(x, value) for x, value in found if value]
        style = look[line.label]
        # Lines that coincide stay visible: what is drawn first is a little larger.
        extra = 3 * 0.6**below if len(order) > 1 else 0
        x = [place for place, _ in points]
        axis.plot(
            x,
            [value.mean for _, value in points],
            color=style.colour,
            marker=style.marker,
            markerfacecolor="white" if style.hollow else style.colour,
            ms=4.8 + 0.7 * extra,
            lw=1.4 + 0.4 * extra,
            dashes=style.dashes or (None, None),
            label=line.label,
        )
        low, high = [value.low for _, value in points], [value.high for _, value in points]
        # Ten bands one upon the other must not become a wall before the lines.
        axis.fill_between(x, low, high, color=style.colour, alpha=min(0.1, 0.5 / len(order)), lw=0)


def _finish(axis: Any, xs: set[float], *, words: Callable[[float], str] = "{:g}".format) -> None:
    ticks = sorted(xs)
    if len(ticks) > 1 and ticks[0] > 0 and ticks[-1] / ticks[0] >= 4:
        axis.set_xscale("log")
    while len(ticks) > _TICKS:
        ticks = ticks[::2]
    axis.set_xticks(ticks, [words(tick) for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.25)


def _compact(value: float) -> str:
    """2,591,500 as 2.6M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2g}{letter}" if value < 100 * size else f"{value / size:.0f}{letter}"
    return f"{value:g}"


def _share_scale(axes: Any, measures: Sequence[str]) -> None:
    """Recalls share 0 to 1; any other measure has one range in all panels, wide enough not to blow up noise."""
    for measure in dict.fromkeys(measures):
        own = [axis for row in axes for axis, name in zip(row, measures, strict=True) if name == measure and axis.lines]
        if recall_k(measure):
            low, high = 0.0, 1.04
        else:
            low, high = min(axis.get_ylim()[0] for axis in own), max(axis.get_ylim()[1] for axis in own)
            spare = max(0.0, 0.2 - (high - low)) / 2 if measure == JUDGED else 0.0
            low, high = low - spare, high + spare
        for axis in own:
            axis.set_ylim(low, high)


def _name(axis: Any, *lines: str) -> None:
    # A title with a scorer's name in it must not run into the next panel's.
    axis.set_title("\n".join(textwrap.fill(line, _LONGEST_TITLE) for line in lines))


def _name_axes(axes: Any, shown: int, *, x: str = "") -> None:
    """Name the x axis under the lowest panel of each column, and hide the places that no panel took."""
    flat = list(axes.flat)
    for place, axis in enumerate(flat):
        if place >= shown:
            axis.set_visible(False)
        elif place + axes.shape[1] >= shown:
            axis.set_xlabel(x)


def _legend(figure: Any, axes: Any, order: Sequence[str]) -> None:
    found: Mapping[str, Any] = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    shown = [label for label in order if label in found]
    longest = max(map(len, shown), default=0)
    columns = max(1, min(len(shown), int(figure.get_figwidth() * 11 / (longest + 8)), 5))
    rows = -(-len(shown) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    legend = figure.legend(
        [found[label] for label in shown],
        shown,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
    )
    for handle in legend.legend_handles:
        if hasattr(handle, "set_markersize"):
            handle.set(markersize=6, linewidth=1.6)
        elif hasattr(handle, "set_sizes"):
            handle.set(sizes=[36], alpha=1)
