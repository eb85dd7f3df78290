"""`adacur evaluate`: search methods compared on a collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Context, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, explained, failed, note, rows_table, show
from adacur.units import duration_range, pace

if TYPE_CHECKING:
    from adacur.replay import Evaluation, Row, Start

# From here on cheaper ways are named.
_LONG_SECONDS = 600


def evaluate(
    ctx: Context,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A BEIR folder: corpus, queries, qrels.")],
    scorer: opt.ScorerName = opt.DEFAULT_SCORER,
    scorer_set: opt.ScorerSettings = None,
    max_item_tokens: opt.MaxItemTokens = None,
    methods: Annotated[str, Option(help="Search methods, with commas.")] = "gaussian,adacur,anncur,rerank,exact",
    budgets: Annotated[str, Option(help="Scorer calls per query, with commas.")] = "25,50,100",
    k: Annotated[str | None, Option("-k", "--k", help="Recall at these k; default: 1,10.")] = None,
    first: Annotated[str, Option(help="First stages, with commas; several are also joined.")] = "bm25",
    fuse: Annotated[float | None, Option(help="The first stage's weight in the order that is judged.")] = None,
    encoder: Annotated[str | None, Option(help="Encoder of the dense first stage.")] = None,
    anchors: Annotated[int, Option(min=1, help="The number of anchor queries.")] = 100,
    queries: Annotated[int, Option(min=1, help="The number of test queries.")] = 30,
    items: Annotated[int | None, Option(min=1, help="A sample of N items; default: all.")] = None,
    seed: opt.Seed = 0,
    cache: opt.CacheFile = None,
    output: Annotated[Path | None, Option("-o", "--output", help="Folder for scores; default: FOLDER-results.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Compare search methods on judged data.

    By recall of the scorer's best items and judged quality, for each budget. It ends with a verdict: whether the scorer
    is worth any call, and more depth its calls. An interrupted evaluation continues with the same command. In minutes,
    `try` says whether it is worth it; of an index, `tune` chooses the settings: see docs/try.md, Three ways to measure.

    Example: adacur evaluate my-beir-folder --scorer ms-marco-MiniLM-L-12-v2
    """
    from adacur import replay as evaluation

    # "." and ".." have no name to add to.
    named = folder if folder.name not in ("", "..") else folder.resolve()
    options = opt.taken_by(evaluation.evaluate, ctx) | {
        "scorer": opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set, reads=[folder]),
        "output": output or named.with_name(f"{named.name}-results"),
        "methods": opt.comma_separated(methods),
        "budgets": opt.whole_numbers("--budgets", budgets),
        "ks": None if k is None else opt.whole_numbers("-k", k),
        "first": opt.comma_separated(first),
    }
    done = evaluation.evaluate(**options, on_start=_print_start)
    if done.runs or as_json:
        stored = f"{counted(len(done.runs), 'run', 'runs')} stored in {options['output'] / 'runs'}."
        show(_as_json(done), _table(done), hints=[*_notes(done, firsts=first), stored], as_json=as_json)
    for settings, error in done.failed:
        failed(f"{', '.join(f'{name} {value}' for name, value in settings.items())}: {explained(error)}")
    if done.failed:
        raise typer.Exit(1)


def _print_start(start: Start) -> None:
    anchors = counted(start.n_anchors, "anchor query", "anchor queries")
    note(f"{start.collection}: {start.n_items:,} items, {start.n_test:,} test queries, {anchors}.")
    for line in start.notes:
        note(line)
    if (cost := start.cost) is None:
        return
    note(
        f"{start.n_items:,} items × {start.n_test + start.n_anchors} queries = {cost.pairs:,} pairs to score; "
        f"estimated time {duration_range(cost.low, cost.high)} at {pace(cost.pairs_per_second)}. All runs replay these."
    )
    if cost.seconds > _LONG_SECONDS:
        note(
            "Ctrl-C stops it, and the scores so far are stored. Faster: `adacur try`, which takes minutes; a sample "
            "(--items 200), --max-item-tokens 64, fewer --queries and --anchors, a faster --scorer."
        )


def _table(done: Evaluation) -> Table:
    from adacur.replay import compare

    rows = compare(done.runs)
    measures = list(dict.fromkeys(name for row in rows for name in row.means))
    anchors = max(row.run.settings.get("anchors", 0) for row in rows)

    def numbers(row: Row) -> Iterator[str]:
        for value in (row.run.settings.get("budget"), row.run.settings.get("rounds"), row.paid):
            yield "" if value is None else f"{value:,}"

    return rows_table(
        ("method", "budget", "rounds", "paid", *measures),
        [[row.name, *numbers(row), *(_cell(row, name) for name in measures)] for row in rows],
        title=f"{done.runs[0].collection}: {done.runs[0].made['items']:,} items, {anchors} anchor queries",
    )


def _notes(done: Evaluation, *, firsts: str) -> Iterator[str]:
    """What the table means, and what follows."""
    from adacur.replay import compare
    from adacur.replay.comparison import verdict

    fuses = " and ".join(f"{fuse:g}" for fuse in sorted({run.settings["fuse"] for run in done.runs} - {0.0}))
    ordered = f" The order that is judged is blended with the first stage's: fuse {fuses}." if fuses else ""
    yield (
        f"Means over {len(done.runs[0].query_ids)} test queries with 95 % intervals. recall@k: share of the scorer's "
        f"k best. paid: scorer calls before the first search.{ordered} ▲ ▼: certainly more or less than re-ranking "
        "with as many calls, query by query."
    )
    if said := verdict(done.runs):
        yield said
        if opt.comma_separated(firsts) == ["bm25"]:
            yield (
                "That is against re-ranking BM25's best. --first bm25,dense compares with a dual encoder's; scores are "
                "kept."
            )
    ks = [int(name.removeprefix("recall@")) for name in compare(done.runs)[0].means if name.startswith("recall@")]
    if any(0 < run.settings.get("budget", 0) < max(ks, default=0) for run in done.runs):
        yield "Where the budget is smaller than k, recall@k cannot exceed budget / k."


def _cell(row: Row, measure: str) -> str:
    """Without leading zeros a row fits a terminal of 88 columns."""
    from adacur.replay.measures import FEWEST_QUERIES

    if measure not in row.means:
        return ""
    change = row.differences.get(measure)
    is_told = change is not None and change.n >= FEWEST_QUERIES
    mark = " " if change is None or not is_told else "▲" if change.low > 0 else "▼" if change.high < 0 else " "
    return str(row.means[measure]).replace("0.", ".").replace("1.00", "1.0") + mark


def _as_json(done: Evaluation) -> dict[str, Any]:
    from adacur.replay import compare
    from adacur.replay.comparison import ALONE, RERANK, verdict

    # Rows are by budget, as runs are made.
    rows = zip(done.runs, done.files, *(compare(done.runs, rival=rival) for rival in (RERANK, ALONE)), strict=True)
    return {
        "runs": [
            {"collection": run.collection, "method": run.method, "settings": run.settings, "paid": row.paid}
            | {"measures": row.means, "file": str(file)}
            | {"differences": {RERANK: row.differences, ALONE: other.differences}}
            for run, file, row, other in rows
        ],
        "verdict": verdict(done.runs),
        "failed": [{"settings": settings, "error": explained(error)} for settings, error in done.failed],
    }
