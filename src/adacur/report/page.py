"""The report: one page that needs nothing but itself, with its figures and tables as files beside it."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError
from adacur.core.spelling import did_you_mean
from adacur.evaluation import Run
from adacur.report.figures import curves, error_bars, index_cost, latency, save
from adacur.report.lines import (
    Panel,
    estimate,
    lines,
    measured,
    panels,
    pooled,
    read_runs,
    replaced,
    setting,
    without_sweeps,
)
from adacur.report.measures import JUDGED, error_measures, in_order, recall_k, recall_measures
from adacur.report.summary import summary, worth
from adacur.report.tables import (
    Table,
    all_measures,
    collection_table,
    cost_table,
    difference_table,
    measure_table,
    table_of,
)

__all__ = ["Report", "write_report"]

_SWEEPS = {
    "budget": "Recall against the number of calls",
    "rounds": "Recall against the number of rounds",
    "epsilon": "Recall against ε, the share drawn at random",
    "temperature": "Recall against the temperature",
    "split": "Recall against the share of calls spent on anchor items",
    "blend": "Recall against λ, the weight of the dual encoder",
    "first_share": "Recall against the share of calls given to the first stage",
    "pool": "Recall against the size of the pool",
}
# By these names a new report knows the files of a former one.
_FIGURE_NAMES = (*(f"recall-by-{along}" for along in _SWEEPS), "ndcg-by-budget", "error", "latency", "index-cost")
_TABLE_KINDS = ("recall", "difference", "sweeps", "cost", "other")
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page, every file, how many runs it rests on and which files were no runs."""

    page: Path
    files: tuple[Path, ...]
    n_runs: int
    skipped: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Chart:
    name: str
    title: str
    says: str
    draw: Callable[[], Any]


def write_report(folder: str | Path, output: str | Path | None = None, *, rival: str = "rerank") -> Report:
    """Read every stored run under a folder and write report.html, figures/ and tables/ into `output`.

    The output is FOLDER/report unless it is named. Differences are taken to `rival`, a method's name. Figures and
    tables of a former report in the same place are removed.
    """
    runs, skipped = read_runs(folder)
    methods = sorted({run.method for run in runs})
    if rival not in methods and rival != "rerank":
        raise InputError(f"There is no run of the rival {rival!r}.{did_you_mean(rival, methods)}")
    target = Path(output) if output is not None else Path(folder) / "report"
    n_stored, n_replaced = len(runs), len(replaced(runs))
    runs = pooled(runs)
    own = panels(runs)
    files: list[Path] = []
    figures = []
    for chart in _charts(runs):
        paths = save(chart.draw(), target / "figures" / chart.name)
        files += paths
        figures.append((chart, paths[1]))
    tables = [_tables(panel, rival) for panel in own]
    for name, made in zip(_file_names([panel.title for panel in own]), tables, strict=True):
        for kind, table in made.items():
            files += _write_table(table, target / "tables" / f"{name}-{kind}")
    files += _write_table(all_measures(runs), target / "tables" / "all-measures", kinds=("csv",))
    page = target / "report.html"
    # Without a page no report was here, and whatever has such a name is someone else's.
    if page.exists():
        for file in _former_files(target) - set(files):
            file.unlink()
    page.write_text(
        _page(runs, own, figures, tables, rival=rival, n_stored=n_stored, n_replaced=n_replaced, skipped=skipped),
        encoding="utf-8",
    )
    return Report(page, (page, *files), n_stored, tuple(skipped))


def _former_files(target: Path) -> set[Path]:
    """The files in the folders of a report that have the names it gives."""
    named = [f"figures/{name}.{kind}" for name in _FIGURE_NAMES for kind in ("png", "svg")]
    named += [f"tables/*-{table}.{kind}" for table in _TABLE_KINDS for kind in ("md", "csv")]
    return {file for name in named for file in target.glob(name) if file.is_file()}


def _charts(runs: Sequence[Run]) -> list[_Chart]:
    """The figures that these runs can fill."""
    recalls = recall_measures(runs)
    charts = []
    for along, title in _SWEEPS.items():
        says = "Bands are 95 % intervals over the queries."
        if recalls and _is_swept(runs, along, recalls):
            charts.append(_Chart(f"recall-by-{along}", title, says, partial(curves, runs, along=along)))
        if along == "budget" and _is_swept(runs, along, [JUDGED]):
            says = f"{JUDGED}: what the judgements call relevant, beside the recall above. {says}"
            draw = partial(curves, runs, along=along, measures=[JUDGED])
            charts.append(_Chart("ndcg-by-budget", "Judged quality against the number of calls", says, draw))
    if measured(runs, error_measures(runs)):
        says = "How far approximate scores are from exact ones, by place in the scorer's own ranking."
        charts.append(_Chart("error", "Approximation error", says, partial(error_bars, without_sweeps(runs))))
    steps = sorted({name for run in runs for name in run.measures if name.startswith("seconds.")})
    timed = next((along for along in ("rounds", "budget") if steps and _is_swept(runs, along, steps)), None)
    if timed:
        says = (
            "Mean time per query of everything but the scorer, by step: scores are looked up ('score'), not computed. "
            "Add calls × seconds per call of your scorer."
        )
        title = f"Search time without the scorer, by {timed}"
        charts.append(_Chart("latency", title, says, partial(latency, runs, along=timed)))
    sizes = {setting(run, "anchors") for run in runs if estimate(run, "index_calls")} - {None, 0}
    if recalls and len(sizes) > 1:
        measure = min(recalls, key=lambda name: abs((recall_k(name) or 0) - 10))
        says = "What a larger index buys: recall against the scorer calls spent on building it."
        charts.append(
            _Chart(
                "index-cost",
                "Recall against the cost of the index",
                says,
                partial(index_cost, without_sweeps(runs), measure=measure),
            )
        )
    return charts


def _is_swept(runs: Sequence[Run], along: str, measures: Sequence[str]) -> bool:
    return any(len(line.runs) > 1 for own in lines(panels(runs), along=along, measures=measures) for line in own)


def _tables(panel: Panel, rival: str) -> dict[str, Table]:
    main = set(without_sweeps(panel.runs))
    usual = replace(panel, runs=tuple(run for run in panel.runs if run in main))
    swept = replace(panel, runs=tuple(run for run in panel.runs if run not in main))
    usually = [*recall_measures(panel.runs), JUDGED]
    every = {name for run in panel.runs for name in run.measures if not name.startswith("seconds.")}
    others = [name for name in in_order(every - {*usually, "calls", "index_calls"}) if measured(panel.runs, [name])]

    def table(of: Panel, measures: Sequence[str], more: str = "") -> Table | None:
        return measure_table(of, measures=measures, title=of.title + more) if measured(of.runs, measures) else None

    made = {
        "recall": table(usual, usually),
        "difference": difference_table(usual, rival=rival),
        "sweeps": table(swept, usually, ", sweeps"),
        "cost": cost_table(panel),
        "other": table(panel, others, ", other measures"),
    }
    return {kind: table for kind, table in made.items() if table is not None}


def _write_table(table: Table, path: Path, *, kinds: Sequence[str] = ("md", "csv")) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {"md": table.to_markdown, "csv": table.to_csv}
    written = [path.with_name(f"{path.name}.{kind}") for kind in kinds]
    for file, kind in zip(written, kinds, strict=True):
        file.write_text(texts[kind](), encoding="utf-8")
    return written


def _file_names(titles: Sequence[str]) -> list[str]:
    names: list[str] = []
    for title in titles:
        name = re.sub(r"[^\w.-]+", "-", title).strip("-.").lower()[:_LONGEST_NAME] or "collection"
        # Titles that differ only in signs or case must not write over each other's files.
        again = (f"{name}-{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(other for other in again if other not in names))
    return names


def _page(
    runs: Sequence[Run],
    own: Sequence[Panel],
    figures: Sequence[tuple[_Chart, Path]],
    tables: Sequence[dict[str, Table]],
    *,
    rival: str,
    n_stored: int,
    n_replaced: int,
    skipped: Sequence[Path],
) -> str:
    said = "".join(
        f"<p><b>{escape(p.title)}.</b> {_prose(f'{worth(p, rival=rival)} {summary(p, rival=rival)}')}</p>" for p in own
    )
    drawn = "".join(_figure(chart, svg) for chart, svg in figures)
    shown = ""
    for panel, parts in zip(own, tables, strict=True):
        open_ones = "".join(parts[kind].to_html() for kind in ("recall", "difference") if kind in parts)
        unfolded = "" if open_ones else " open"
        folded = "".join(
            f"<details{unfolded}><summary>{escape(name)}</summary>{parts[kind].to_html()}</details>"
            for kind, name in (("sweeps", "Sweeps of one setting"), ("cost", "Cost"), ("other", "Other measures"))
            if kind in parts
        )
        shown += f"<section><h3>{escape(panel.title)}</h3>{open_ones}{folded}</section>"
    collections = list(dict.fromkeys(run.collection for run in runs))
    queries = [max(len(run.query_ids) for run in runs if run.collection == name) for name in collections]
    asked = ", ".join(f"{name} ({count:,} queries)" for name, count in zip(collections, queries, strict=True))
    n_methods = len({run.method for run in runs})
    left_out = (
        f" {_count(n_replaced, 'stored run')} {'is' if n_replaced == 1 else 'are'} not shown: newer runs of the same "
        "settings, scorer and seed take their place."
        if n_replaced
        else ""
    )
    left_out += f" {len(skipped)} other JSON files were left out: they are no stored runs." if skipped else ""
    return _TEMPLATE.format(
        style=_STYLE,
        title=escape(f"adacur: {', '.join(collections)}"),
        head=escape(f"{_count(n_stored, 'run')} of {_count(n_methods, 'method')} on {asked}.{left_out}"),
        summary=said,
        figures=drawn,
        tables=shown,
        measured=_measured(runs),
        collections=_collections(runs).to_html(),
        settings=_settings(runs).to_html(),
    )


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _prose(text: str) -> str:
    # No line ends between a number and its per cent sign.
    return escape(text).replace(" %", "&nbsp;%")


def _figure(chart: _Chart, svg: Path) -> str:
    # As an image, not as inlined markup: matplotlib repeats ids from figure to figure.
    data = base64.b64encode(svg.read_bytes()).decode()
    return (
        f'<figure><h3>{escape(chart.title)}</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(chart.title)}"><img '
        f'alt="{escape(chart.title)}. {escape(chart.says)} The numbers are in the tables below." '
        f'src="data:image/svg+xml;base64,{data}"></div><figcaption>{escape(chart.says)}</figcaption></figure>'
    )


def _measured(runs: Sequence[Run]) -> str:
    seeds = sorted({len(chosen) for run in runs if (chosen := setting(run, "seeds"))})
    several = f" A query counts once, with its mean over up to {seeds[-1]} seeds." if seeds else ""
    kinds = {setting(run, "anchor_kind") for run in runs if setting(run, "anchors")}
    where = ", where the run's name or settings say so" if len(kinds) > 1 else ""
    if pseudo := [name for name in dict.fromkeys(run.collection for run in runs) if _pseudo(_of(runs, name))]:
        several += (
            f" The anchor queries of {', '.join(pseudo)} are pseudo-queries, cut from the items{where}; real queries "
            "as anchors usually give higher recall."
        )
    versions = sorted({str(version) for run in runs if (version := run.made.get("adacur"))})
    by = f" Made with adacur {', '.join(versions)}." if versions else ""
    return _prose(
        "Top-k recall is the share of the scorer's own k best items, by its exact scores of all items, that a search "
        "found within its calls; among equal scores any counts. nDCG@10 is computed from the judgements (qrels) of the "
        "same hits. They stand together because a better search of the scorer need not please the judges. Intervals "
        "are percentile bootstraps over the queries (2,000 resamples), differences are paired by query." + several + by
    )


def _of(runs: Sequence[Run], collection: str) -> list[Run]:
    return [run for run in runs if run.collection == collection]


def _pseudo(runs: Sequence[Run]) -> str:
    kinds = {setting(run, "anchor_kind") for run in runs if setting(run, "anchors")}
    if "pseudo" not in kinds:
        return ""
    return " (pseudo-queries)" if len(kinds) == 1 else " (in part pseudo-queries)"


def _collections(runs: Sequence[Run]) -> Table:
    rows = []
    for collection in dict.fromkeys(run.collection for run in runs):
        own = _of(runs, collection)
        judged = max((one.n for run in own if (one := estimate(run, JUDGED))), default=0)
        sizes = sorted({size for run in own if (size := setting(run, "anchors"))})
        rows.append(
            {
                "collection": collection,
                "items": next((run.made["items"] for run in own if "items" in run.made), None),
                "anchor queries": (", ".join(f"{size:,}" for size in sizes) + _pseudo(own)) or None,
                "test queries": max(len(run.query_ids) for run in own),
                "judged": judged,
                "scorer": next((run.made["scorer"] for run in own if run.made.get("scorer")), None),
            }
        )
    return collection_table(rows)


def _settings(runs: Sequence[Run]) -> Table:
    """Per method and collection, every value that a setting took."""
    rows = []
    for collection, method in sorted({(run.collection, run.method) for run in runs}):
        own = [run for run in runs if (run.collection, run.method) == (collection, method)]
        names = dict.fromkeys(name for run in own for name in run.settings if name != "method")
        values = {name: {_value(setting(run, name)): setting(run, name) for run in own} for name in names}
        rows.append(
            {"collection": collection, "method": method, "runs": len(own)}
            | {name.replace("_", " "): ", ".join(_in_order(seen)) for name, seen in values.items()}
        )
    return table_of(rows, title="Settings", caption="Every value that was run, by method.")


def _value(value: Any) -> str:
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _in_order(seen: dict[str, Any]) -> list[str]:
    return sorted(
        seen,
        key=lambda text: (isinstance(seen[text], str), seen[text] if isinstance(seen[text], int | float) else 0, text),
    )


_STYLE = """
:root{color-scheme:light dark;--ink:#1d1d1f;--soft:#5f6368;--paper:#fff;--line:#dadce0;--tint:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8ea;--soft:#a5a8ad;--paper:#17181a;--line:#3a3c40;--tint:#212326}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:70rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.25rem;margin:2.5rem 0 .75rem}
h3{font-size:1.05rem;margin:1.75rem 0 .5rem}p{margin:.6rem 0;max-width:60rem}
.lead,.note,figcaption,small{color:var(--soft)}.note,figcaption{font-size:.875rem}small{font-size:.8em}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.75rem 0}
.scroll:focus-visible{outline:2px solid #0072b2}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.6rem .55rem;color:var(--soft)}
th,td{padding:.35rem .55rem;text-align:left;white-space:nowrap;vertical-align:baseline}
td.long{white-space:normal;min-width:16rem}
th{border-bottom:1px solid var(--line);background:var(--tint);font-weight:600}
tr.block td{border-top:1px solid var(--line)}
figure{margin:0}figure .scroll{background:#fff}figure img{display:block;max-width:max(100%,38rem);box-sizing:border-box;
margin:0 auto;padding:.5rem;height:auto}
details{margin:.75rem 0}summary{cursor:pointer;padding:.25rem 0}
@media print{body{max-width:none}.scroll{overflow:visible}}
"""

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p class="lead">{head}</p></header>
<main>
<h2>In words</h2>
{summary}
<h2>Figures</h2>
{figures}
<h2>Tables</h2>
{tables}
<h2>How it was measured</h2>
<p>{measured}</p>
{collections}
{settings}
</main>
</body>
</html>
"""
