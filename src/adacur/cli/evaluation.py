"""`adacur evaluate`: what is printed before and after."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from adacur.cli.messages import counted, duration_range, explained, failed, pace, print_json, print_table, tell
from adacur.evaluation import Evaluation, Row, Start, compare, evaluate, verdict, write_report

__all__ = ["evaluate_command"]

# Estimates are not more certain than this.
_TOO_LONG = 1.5


def evaluate_command(
    folder: Path, *, output: Path | None, report: Path | None, minutes: float, as_json: bool, **options: Any
) -> bool:
    """Evaluate a BEIR folder; False if a run failed."""
    # "." and ".." have no name to add to.
    beside = folder if folder.name not in ("", "..") else folder.resolve()
    output = output or beside.with_name(f"{beside.name}-results")
    done = evaluate(folder, output=output, minutes=minutes, on_start=partial(_print_start, minutes=minutes), **options)
    if as_json:
        print_json(_as_json(done))
    elif done.runs:
        _show(done)
        tell(f"{counted(len(done.runs), 'run', 'runs')} stored in {output / 'runs'}, {done.reused:,} of them reused.")
    for settings, error in done.failed:
        failed(f"{', '.join(f'{name} {value}' for name, value in settings.items())}: {explained(error)}")
    if report is not None and done.runs:
        tell(f"The report is {write_report(done.runs, report)}.")
    return not done.failed


def _print_start(start: Start, *, minutes: float) -> None:
    anchors = counted(start.n_anchors, "anchor query", "anchor queries") if start.n_anchors else "no anchor queries"
    pseudo = ": pseudo-queries, cut from the items. Real queries usually give higher recall" * start.pseudo_anchors
    tell(f"{start.collection}: {start.n_items:,} items, {start.n_test:,} test queries, {anchors}{pseudo}.")
    for note in start.notes:
        tell(note)
    if (cost := start.cost) is None:
        return
    tell(
        f"{start.n_items:,} items × {start.n_test + start.n_anchors} queries = {cost.pairs:,} pairs to score; "
        f"estimated time {duration_range(cost.low, cost.high)} at {pace(cost.pairs_per_second)}. All runs replay these."
    )
    if cost.seconds > 60 * _TOO_LONG * minutes:
        tell(
            f"That is longer than --minutes {minutes:g}. Ctrl-C stops it, and the scores so far are stored. Faster: a "
            "sample (--items 200), --max-item-tokens 64, fewer --queries and --anchors, a faster --scorer."
        )


def _show(done: Evaluation) -> None:
    rows = compare(done.runs)
    print_table(_table(rows, title=f"{done.runs[0].collection}, {done.runs[0].made['items']:,} items"))
    tell(
        f"Means over {rows[0].n_queries} test queries, with 95 % intervals. recall@k: share of the scorer's k best. "
        "paid: scorer calls before the first search."
    )
    if said := verdict(done.runs):
        tell(said)
    ks = [int(name.removeprefix("recall@")) for row in rows for name in row.means if name.startswith("recall@")]
    if any(row.budget is not None and row.budget < max(ks) for row in rows):
        tell("Where the budget is smaller than k, recall@k cannot exceed budget / k.")


def _table(rows: Sequence[Row], *, title: str) -> Table:
    measures = list(dict.fromkeys(name for row in rows for name in row.means))
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in ("budget", "rounds", "anchors", "paid", *measures):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        prices = ("" if value is None else f"{value:,}" for value in (row.budget, row.rounds, row.anchors, row.paid))
        table.add_row(row.name, *prices, *(str(row.means.get(name, "")) for name in measures))
    return table


def _as_json(done: Evaluation) -> dict[str, Any]:
    return {
        "runs": [
            {
                "collection": run.collection,
                "method": run.method,
                "settings": dict(run.settings),
                "paid": row.paid,
                "measures": {
                    name: {"mean": mean.mean, "low": mean.low, "high": mean.high, "queries": mean.n}
                    for name, mean in row.means.items()
                },
                "file": str(file),
            }
            for run, file, row in zip(done.runs, done.files, compare(done.runs), strict=True)
        ],
        "failed": [{"settings": dict(settings), "error": explained(error)} for settings, error in done.failed],
        "reused": done.reused,
    }
