"""The report: one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from adacur.errors import EmptyInput
from adacur.replay.comparison import ALONE, JUDGED, Row, compare, measures_of, verdict
from adacur.replay.runs import Run
from adacur.replay.searchability import Searchability
from adacur.requirements import require

# The palette of Okabe & Ito, for colour-blind readers; a colour and marker per method, dashes per first stage.
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#333333", "#aa4499", "#8c8c8c")
_MARKERS, _DASHES = "osD^X8", ("-", "--", ":", "-.")
_LETTERS = 300


def write_report(
    runs: Sequence[Run], page: str | Path, *, rival: str = "rerank", searchability: Searchability | None = None
) -> Path:
    """Write the runs of one evaluation as a page: in words, as figures and as tables.

    - page: the file to write; its folder is made if need be.
    - rival: the method that the others are compared with, at the same budget and first stage.
    - searchability: also shown, where there is one.
    """
    if not runs:
        raise EmptyInput("There is no run to report.")
    page = Path(page)
    page.parent.mkdir(parents=True, exist_ok=True)
    rows, measures = compare(runs, rival=rival), measures_of(runs)
    made = runs[0].made
    anchors = max((row.anchors or 0 for row in rows), default=0)
    kind = " pseudo-queries as" if any(run.made.get("pseudo_anchors") for run in runs) else ""
    title = f"adacur: {runs[0].collection}"
    head = (
        f"{made['items']:,} items, {len(runs[0].query_ids)} test queries, {anchors}{kind} anchor queries. "
        f"Scorer: {made.get('scorer') or 'unknown'}."
    )
    content = [
        f"<h1>{escape(title)}</h1><p class=lead>{escape(head)}</p>",
        f"<h2>In words</h2><p>{escape(verdict(runs, rival=rival)) or 'There is no rival to compare with.'}</p>",
        "<h2>Recall and judged quality by budget</h2>",
        _figure(rows, measures),
        "<h2>Every run</h2>",
        _run_table(rows, measures, _mean, ", 95 % interval, queries"),
        f"<h2>Difference to {escape(rival)} at the same budget and first stage</h2>",
        _run_table([row for row in rows if row.differences], measures, _difference),
        "<h2>Difference to the first stage alone, 0 calls</h2>",
        _run_table([row for row in compare(runs, rival=ALONE) if row.differences], measures, _difference),
        "<p class=soft>▲ and ▼: the whole interval is above or below zero.</p>",
        *([] if searchability is None else _searchability(searchability)),
        f"<h2>How it was measured</h2><p>{escape(_method_of_measuring(made))}</p>",
    ]
    page.write_text(_PAGE.format(title=escape(title), style=_STYLE, content="\n".join(content)), encoding="utf-8")
    return page


def _figure(rows: Sequence[Row], measures: Sequence[str]) -> str:
    """A panel per measure, a line with its interval per method and first stage; exact search is a level line."""
    matplotlib = require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(measures), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(measures), squeeze=False)[0])
    for panel, measure in zip(panels, measures, strict=True):
        _draw(panel, rows, measure)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, max(1, len(labels))), frameon=False)
    drawn = io.BytesIO()
    # Without a salt the ids in the file differ from one writing to the next.
    with matplotlib.rc_context({"svg.hashsalt": "adacur"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    data = base64.b64encode(drawn.getvalue()).decode()
    says = "Means over the test queries against scorer calls per query; bands are 95 % intervals."
    return (
        f'<figure class=scroll><img alt="{says} The numbers are in the tables below." '
        f'src="data:image/svg+xml;base64,{data}"></figure><p class=soft>{says}</p>'
    )


def _draw(panel: Any, rows: Sequence[Row], measure: str) -> None:
    stages, methods = (list(dict.fromkeys(getattr(row, of) for row in rows)) for of in ("first", "method"))
    for name in dict.fromkeys(row.name for row in rows):
        line = [(row, row.means[measure]) for row in rows if row.name == name and measure in row.means]
        if not line:
            continue
        row = line[0][0]
        place = methods.index(row.method) % len(_COLOURS)
        colour, marker = _COLOURS[place], _MARKERS[place]
        dashes = ":" if row.first is None else _DASHES[stages.index(row.first) % len(_DASHES)]
        if not row.budget:
            panel.axhline(line[0][1].mean, color=colour, linestyle=dashes, label=name)
            continue
        budgets = [one.budget for one, _ in line]
        panel.plot(budgets, [mean.mean for _, mean in line], dashes, color=colour, marker=marker, label=name)
        panel.fill_between(
            budgets, [mean.low for _, mean in line], [mean.high for _, mean in line], color=colour, alpha=0.12, lw=0
        )
    panel.set(title=_words(measure), xlabel="scorer calls per query")
    panel.spines[["top", "right"]].set_visible(False)


def _words(measure: str) -> str:
    k = measure.removeprefix("recall@")
    return measure if k == measure else f"recall of the scorer's top {k}"


_PRICE = ["method", "first stage", "budget", "rounds", "anchor queries", "calls paid beforehand"]


def _run_table(rows: Sequence[Row], measures: Sequence[str], cell: Callable[[Row, str], str], more: str = "") -> str:
    """A line per run: its price, and a cell per measure."""
    body = []
    for row in rows:
        numbers = (row.budget, row.rounds, row.anchors, row.paid)
        price = [row.method, row.first or "", *("" if value is None else f"{value:,}" for value in numbers)]
        body.append([*price, *(cell(row, name) for name in measures)])
    return _table([*_PRICE, *(_words(name) + more for name in measures)], body)


def _mean(row: Row, measure: str) -> str:
    mean = row.means.get(measure)
    return "" if mean is None else f"{mean} on {mean.n}"


def _difference(row: Row, measure: str) -> str:
    found = row.differences.get(measure)
    if found is None:
        return ""
    mark = " ▲" if found.low > 0 else " ▼" if found.high < 0 else ""
    return f"{found} on {found.n_queries}{mark}"


def _searchability(found: Searchability) -> Iterator[str]:
    """Quality by depth with its verdict per first stage, and phantom hits beside what should have been there."""
    yield "<h2>Can the scorer be searched?</h2>"
    for curve in found.curves:
        yield f"<p><b>{escape(curve.first)}: {escape(str(curve.verdict))}</b></p>"
        yield "".join(f"<pre class=scroll>{escape(line)}</pre>" for line in curve.commands)
        yield _table(
            [f"the scorer's order of {curve.first}'s best", JUDGED, "MRR@10", f"{JUDGED} against {curve.kept}"],
            [
                [depth.name, str(depth.ndcg), str(depth.mrr), "" if depth.change is None else str(depth.change)]
                for depth in curve.depths
            ],
        )
    yield f"<h2>Phantom hits</h2><p>{escape(found.summary())}</p><dl>"
    for phantom in found.phantoms:
        shown = ((phantom.score, phantom.item, phantom.where()), (phantom.expected_score, phantom.expected, "relevant"))
        yield f"<dt><b>{escape(phantom.query.text)}</b></dt>"
        for score, item, what in shown:
            text = item.text if len(item.text) <= _LETTERS else f"{item.text[:_LETTERS]} …"
            yield f"<dd>{score:.2f} · {escape(what)} · {escape(text)}</dd>"
    yield "</dl>"


def _table(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in headers)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in body)
    return f'<div class=scroll tabindex=0 role=region aria-label="table"><table><tr>{head}</tr>{lines}</table></div>'


def _method_of_measuring(made: Any) -> str:
    return (
        "Recall of the scorer's top k is the share of its own k best items, by its exact scores of all items, that a "
        f"search found within its calls; among equal scores any counts. {JUDGED} is computed from the judgements "
        "(qrels) of the same hits. The two stand together because a search that finds more of what the scorer likes "
        "need not please people. Intervals are percentile bootstraps over the queries (2,000 resamples), differences "
        "are paired by query. Calls paid beforehand are anchor queries × items, once for all searches. Pseudo-queries "
        f"are cut from the items; real anchor queries usually give higher recall. Made with adacur {made['adacur']}."
    )


_STYLE = """
:root{--ink:#1d1d1f;--soft:#5c5c66;--line:#d9d9e0;--tint:#f5f5f8;--page:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#ececf0;--soft:#a9a9b5;--line:#3a3a44;--tint:#26262c;--page:#18181b}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:72rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}.lead,.soft{color:var(--soft)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.75rem 0}figure.scroll{background:#fff}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .55rem;text-align:left;vertical-align:baseline}
td{white-space:nowrap;border-top:1px solid var(--line)}
th{background:var(--tint)}figure img{display:block;margin:0 auto;max-width:100%;min-width:32rem}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{content}
</body>
</html>
"""
