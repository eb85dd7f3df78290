"""The tables: means with intervals, recall beside judged quality, as Markdown, HTML and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from adacur.errors import EmptyInput
from adacur.replay import Mean, Run
from adacur_lab.report.differences import difference, is_ahead, is_behind, is_bound, rival_of
from adacur_lab.report.lines import Estimate, Panel, estimate, labels, measured, pooled, setting, setting_words
from adacur_lab.report.measures import JUDGED, measure_words, number, recall_measures

__all__ = [
    "Cell",
    "Table",
    "all_measures",
    "collection_table",
    "cost_table",
    "difference_table",
    "measure_table",
    "table_of",
]

# Facts about the first stage and the judgements, not about who found more.
_NO_CONTEST = ("ceiling@", "phantom@")
# A cell of more characters may break its line.
_LONG, _LONG_CLASS = 40, ' class="long"'
_COLUMN_NAMES = {"rounds": "rounds", "first": "first stage"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A number with its interval. `best` of its block; `close` to the best: the queries do not tell them apart.

    A difference is `best` where it is above 0, and `behind` where it is below.
    """

    measure: str
    value: Estimate
    best: bool = False
    close: bool = False
    behind: bool = False
    signed: bool = False
    with_interval: bool = True

    @property
    def mean(self) -> str:
        """The mean, and a sign that it is close to the best, or behind."""
        sign = " ≈" if self.close else " ▼" if self.behind else ""
        return number(self.value.mean, self.measure, signed=self.signed) + sign

    @property
    def interval(self) -> str:
        """The interval in brackets, if there is one."""
        if math.isnan(self.value.low) or not self.with_interval:
            return ""
        low, high = (number(edge, self.measure, signed=self.signed) for edge in (self.value.low, self.value.high))
        return f"[{low}, {high}]"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows, with a caption that names the settings and notes that say how to read it.

    A row holds cells, plain numbers, words, or None.
    """

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """A GitHub table; the best of a block is bold."""
        lines = [f"**{self.title}.** {self.caption}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        right = [any(isinstance(row[place], Cell) for row in self.rows) for place in range(len(self.columns))]
        lines.append("|" + "|".join("---:" if one else "---" for one in right) + "|")
        lines += ["| " + " | ".join(_markdown(cell) for cell in row) + " |" for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A table in a box that scrolls, so that a page stays as wide as its screen."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = []
        before = None
        for row in self.rows:
            first = _shown(row[0])
            block = ' class="block"' if before not in (None, first) else ""
            body.append(f"<tr{block}>{''.join(_html(cell) for cell in row)}</tr>")
            before = first
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in self.notes)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.title)}"><table>'
            f"<caption><b>{escape(self.title)}.</b> {escape(self.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{notes}"
        )

    def to_csv(self) -> str:
        """Plain numbers: a column of estimates becomes mean, low, high and number of queries."""
        wide = [any(isinstance(row[place], Cell) for row in self.rows) for place in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header: list[str] = []
        for name, is_wide in zip(self.columns, wide, strict=True):
            header += [name, f"{name} low", f"{name} high", f"{name} queries"] if is_wide else [name]
        writer.writerow(header)
        for row in self.rows:
            cells: list[Any] = []
            for cell, is_wide in zip(row, wide, strict=True):
                if isinstance(cell, Cell):
                    cells += [*(_digits(one) for one in (cell.value.mean, cell.value.low, cell.value.high))]
                    cells.append(cell.value.n)
                else:
                    cells += ["", "", "", ""] if is_wide else ["" if cell is None else cell]
            writer.writerow(cells)
        return text.getvalue()


def measure_table(panel: Panel, *, measures: Sequence[str] = (), title: str | None = None) -> Table:
    """Every method and budget of a panel against measures; without any named, each recall and nDCG@10 beside it.

    Runs without any of the measures have no row; a measure without any run keeps its column, and a note says so.
    """
    measures = list(measures) or [*recall_measures(panel.runs), JUDGED]
    runs = _sorted(measured(panel.runs, measures))
    if not runs:
        raise EmptyInput(f"None of the {len(panel.runs)} runs of {panel.title!r} has one of {', '.join(measures)}.")
    shown, columns, settings = _named(panel, runs)
    cells = {
        (run, name): Cell(name, one) for run in runs for name in measures if (one := estimate(run, name)) is not None
    }
    for budget in {setting(run, "budget") for run in runs}:
        for measure in measures:
            _mark(cells, [run for run in runs if setting(run, "budget") == budget], measure)
    rows = tuple((*shown[run], *(cells.get((run, measure)) for measure in measures)) for run in runs)
    return Table(
        title or panel.title,
        settings,
        (*columns, *(measure_words(measure) for measure in measures)),
        rows,
        _notes(cells.values(), runs, measures),
    )


def difference_table(panel: Panel, *, rival: str = "rerank", measures: Sequence[str] = ()) -> Table | None:
    """Paired differences to a rival at the same budget, query by query; None where there are none."""
    runs = _sorted(panel.runs)
    measures = list(measures) or [*recall_measures(runs), JUDGED]
    found = {
        run: (other, [difference(run, other, measure) for measure in measures])
        for run in runs
        if (other := rival_of(run, runs, rival)) is not None
    }
    compared = {run: pair for run, pair in found.items() if any(pair[1])}
    if not compared:
        return None
    shown, columns, settings = _named(panel, list(compared))
    names = labels(runs)
    rivals = {names[other] for other, _ in compared.values()}
    rows = []
    for run, (other, differences) in compared.items():
        cells = [_difference_cell(one, measure) for one, measure in zip(differences, measures, strict=True)]
        against = () if len(rivals) == 1 else (names[other].removeprefix(f"{rival}, "),)
        rows.append((*shown[run], *against, *cells))
    return Table(
        f"{panel.title}, difference to {next(iter(rivals)) if len(rivals) == 1 else rival}",
        settings,
        (*columns, *(() if len(rivals) == 1 else ("against",)), *(measure_words(measure) for measure in measures)),
        tuple(rows),
        (
            "Mean over the queries of the difference to the rival on the same query, with its 95 % interval. Bold: the "
            "interval lies above 0; ▼: it lies below 0; ≈: it holds 0, so these queries do not tell the two apart.",
        ),
    )


def cost_table(panel: Panel) -> Table | None:
    """What a query and the index cost; None where nothing of it was measured."""
    steps = {name for run in panel.runs for name in run.measures if name.startswith("seconds.")}
    measures = [name for name in ("calls", "index_calls") if any(name in run.measures for run in panel.runs)]
    measures += sorted(steps)
    if not measures:
        return None
    runs = _sorted(panel.runs)
    shown, columns, settings = _named(panel, runs)
    rows = tuple((*shown[run], *(_cost_cell(run, measure) for measure in measures)) for run in runs)
    words = {"calls": "calls made", "index_calls": "calls for the index"}
    names = [words.get(name) or f"{name.removeprefix('seconds.')}, ms" for name in measures]
    return Table(
        f"{panel.title}, cost",
        settings,
        (*columns, *names),
        rows,
        ("Means per query; the index is paid once, for all queries.",),
    )


def collection_table(rows: Sequence[Mapping[str, Any]], *, title: str = "Collections") -> Table:
    """The dataset table: a row per collection, columns as the rows name them."""
    return table_of(rows, title=title, caption="")


def table_of(rows: Sequence[Mapping[str, Any]], *, title: str, caption: str) -> Table:
    """Any rows as a table; whole numbers get their thousands apart."""
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(title, caption, columns, tuple(tuple(row.get(name) for name in columns) for row in rows))


def all_measures(runs: Iterable[Run]) -> Table:
    """Every mean of every run, a row each: for other programs."""
    runs = pooled(runs)
    names = sorted({name for run in runs for name in run.settings} - {"method"})
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        about = [run.collection, run.method, *(setting(run, name) for name in names)]
        rows += [(*about, name, Cell(name, one)) for name in run.measures if (one := estimate(run, name))]
    return Table("All measures", "", ("collection", "method", *names, "measure", "mean"), tuple(rows))


def _named(panel: Panel, runs: Sequence[Run]) -> tuple[dict[Run, tuple[Any, ...]], list[str], str]:
    """Per run the cells that name it, their columns, and in words what all runs share."""
    seen = {name: {setting(run, name) for run in runs} for name in _COLUMN_NAMES}
    # A method that knows no rounds does not make a column of one number.
    varied = [name for name, values in seen.items() if len(values - ({None} if name == "rounds" else set())) > 1]
    names = labels(runs, given=varied)
    shown = {run: (setting(run, "budget"), names[run], *(setting(run, name) for name in varied)) for run in runs}
    shared = [setting_words("anchors", panel.anchors).replace("anchors", "anchor queries")] if panel.anchors else []
    shared += [
        setting_words(name, value) for name in _COLUMN_NAMES if name not in varied for value in seen[name] - {None}
    ]
    counts = sorted({len(run.query_ids) for run in runs})
    shared.append(f"{' to '.join(f'{count:,}' for count in dict.fromkeys((counts[0], counts[-1])))} queries")
    return shown, ["calls", "method", *(_COLUMN_NAMES[name] for name in varied)], ", ".join(shared) + "."


def _sorted(runs: Sequence[Run]) -> list[Run]:
    # In blocks of one budget; what has none, such as exact search, comes last.
    def place(run: Run) -> tuple[bool, float, str, float, float, str]:
        budget = setting(run, "budget")
        swept = (setting(run, "rounds") or 0, setting(run, "epsilon") or 0)
        return budget is None, budget or 0, run.method, *swept, str(setting(run, "first"))

    return sorted(runs, key=place)


def _mark(cells: dict[tuple[Run, str], Cell], runs: Sequence[Run], measure: str) -> None:
    """Mark the best of a block, and those that the queries do not tell apart from it."""
    rivals = [run for run in runs if (run, measure) in cells and not is_bound(run.method)]
    if len(rivals) < 2 or measure.startswith(_NO_CONTEST):
        return
    lowest = measure.startswith("error.")
    best = (min if lowest else max)(rivals, key=lambda run: cells[run, measure].value.mean)
    for run in rivals:
        equal = math.isclose(cells[run, measure].value.mean, cells[best, measure].value.mean, abs_tol=1e-9)
        apart = None if equal else difference(best, run, measure)
        close = apart is not None and apart.low <= 0 <= apart.high
        cells[run, measure] = replace(cells[run, measure], best=equal, close=close)


def _difference_cell(found: Mean | None, measure: str) -> Cell | None:
    if found is None:
        return None
    value = Estimate(found.value, found.low, found.high, found.n)
    ahead, behind = is_ahead(found), is_behind(found)
    return Cell(measure, value, best=ahead, close=not ahead and not behind, behind=behind, signed=True)


def _cost_cell(run: Run, measure: str) -> Cell | None:
    found = estimate(run, measure)
    if found is None:
        return None
    scale = 1000 if measure.startswith("seconds.") else 1
    value = Estimate(scale * found.mean, scale * found.low, scale * found.high, found.n)
    return Cell("milliseconds" if scale > 1 else measure, value, with_interval=False)


def _notes(cells: Iterable[Cell], runs: Sequence[Run], measures: Sequence[str]) -> tuple[str, ...]:
    notes = [
        "Mean over the queries and its 95 % bootstrap interval. Bold: the best at this number of calls; ≈: not told "
        "apart from it by these queries (the interval of the paired difference holds 0)."
    ]
    if bounds := sorted({run.method for run in runs if is_bound(run.method)}):
        notes.append(
            f"For reference only, since no search within the budget can know what they use: {', '.join(bounds)}."
        )
    most = max((len(run.query_ids) for run in runs), default=0)
    for measure in measures:
        counts = [cell.value.n for cell in cells if cell.measure == measure]
        if not counts:
            needs = "; it needs judgements" if measure == JUDGED else ""
            notes.append(f"{measure_words(measure)} was not measured in these runs{needs}.")
        elif max(counts) < most:
            notes.append(f"{measure_words(measure)} is over the {max(counts):,} queries that have it.")
    return tuple(notes)


def _markdown(cell: Any) -> str:
    if not isinstance(cell, Cell):
        return _shown(cell).replace("|", "\\|").replace("\n", " ")
    mean = f"**{cell.mean}**" if cell.best else cell.mean
    return f"{mean} {cell.interval}".strip()


def _html(cell: Any) -> str:
    if not isinstance(cell, Cell):
        shown = _shown(cell)
        return f"<td{_LONG_CLASS if len(shown) > _LONG else ''}>{escape(shown)}</td>"
    mean = f"<b>{escape(cell.mean)}</b>" if cell.best else escape(cell.mean)
    interval = f" <small>{escape(cell.interval)}</small>" if cell.interval else ""
    return f"<td>{mean}{interval}</td>"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
