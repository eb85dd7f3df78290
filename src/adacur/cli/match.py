"""`adacur match`: two tables, or the duplicates of one, with a bill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Context, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import notes, show
from adacur.matching import MatchEstimate
from adacur.matching import match as match_tables

_SHOWN = 10


def match(
    ctx: Context,
    left: Annotated[str, Argument(metavar="LEFT", help="The left table: .csv, .tsv, .jsonl, .json or .parquet.")],
    right: Annotated[str, Argument(metavar="RIGHT", help="The right one, or an index; LEFT again for duplicates.")],
    output: Annotated[Path | None, Option("-o", "--output", help="The pairs, as CSV; NAME.partial until then.")] = None,
    above: Annotated[float, Option(help="The least score of a pair.")] = ...,  # type: ignore[assignment]
    recall: Annotated[float, Option(help="The share of these pairs to find, as far as can be told.")] = 0.9,
    calls_per_row: Annotated[int, Option(min=1, help="The most scorer calls of one row.")] = 100,
    total_calls: Annotated[int | None, Option(min=1, help="The most scorer calls of all rows.")] = None,
    cost: Annotated[str | None, Option(help="The most money for all, such as '5 USD'.")] = None,
    price: opt.PriceOfScorer = None,
    one_to_one: Annotated[bool, Option("--one-to-one", help="At most one pair of each row, the best first.")] = False,
    scorer: Annotated[
        str | None, Option(help=f"As for build; default: {opt.DEFAULT_SCORER}, or the scorer of an index.")
    ] = None,
    scorer_set: opt.ScorerSettings = None,
    max_item_tokens: opt.MaxItemTokens = None,
    first: Annotated[str, Option(help="First stages of the right table: bm25, dense, or both: bm25,dense.")] = "bm25",
    encoder: Annotated[str, Option(help="Encoder of the dense first stage.")] = opt.DEFAULT_ENCODER,
    left_text: Annotated[str | None, Option(help="Template, such as '{title} {brand}'; default: all columns.")] = None,
    right_text: Annotated[str | None, Option(help="The same of the right table.")] = None,
    left_id: Annotated[str | None, Option(help="Column of the id; default: id, else row numbers.")] = None,
    right_id: Annotated[str | None, Option(help="The same of the right table.")] = None,
    scores: Annotated[Path | None, Option(help="The file of all paid scores; default: OUTPUT.scores.")] = None,
    learning: Annotated[bool, Option(help="Let earlier rows inform later ones.")] = True,
    audit: Annotated[int, Option(min=0, help="Re-rank N random rows to --calls-per-row: a certificate.")] = 0,
    seed: opt.Seed = 0,
    force: Annotated[bool, Option("--force", help="Replace an output that exists.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print calls, tokens, money and time; pay nothing.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Find the pairs of two tables that a scorer accepts.

    An interrupted match continues with the same command.

    Example: adacur match left.csv right.csv -o pairs.csv --above 0 --left-text '{title} {brand}'
    """
    if output is None and not dry_run:
        raise typer.BadParameter("Give the file to write as --output, or --dry-run.")
    stages = opt.comma_separated(first)
    if scorer is None and not (Path(right) / "manifest.json").exists():
        scorer = opt.DEFAULT_SCORER
    options = opt.taken_by(match_tables, ctx) | {
        "scorer": scorer and opt.opened_scorer(scorer, max_item_tokens, settings=scorer_set, reads=(left, right)),
        "first": stages,
        "encoder": encoder if "dense" in stages else None,
        "path": scores or (output.with_name(f"{output.name}.scores") if output else None),
    }
    with notes.status("reading …") as status:
        done = match_tables(**options, progress=lambda bill: status.update(str(bill)))
    if isinstance(done, MatchEstimate):
        show(done, done.summary(), as_json=as_json)
        return
    facts = ("bill", "certificate", "unmatched", "to_look_at", "failed", "without_text", "order", "learned")
    result = {name: getattr(done, name) for name in facts}
    hints = [done.summary()]
    if done.to_look_at:
        more = f" and {len(done.to_look_at) - _SHOWN:,} more (--json)" if len(done.to_look_at) > _SHOWN else ""
        hints.append(
            "Look at these rows, whose best pair lies near the line, or two pairs near each other: "
            f"{', '.join(done.to_look_at[:_SHOWN])}{more}."
        )
    show(result, f"{output}: {len(done):,} pairs.", hints=hints, as_json=as_json)
