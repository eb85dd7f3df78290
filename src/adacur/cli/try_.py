"""`adacur try`: whether it is worth it on your data, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import note, rows_table, show
from adacur.units import duration

if TYPE_CHECKING:
    from adacur.replay import TrialSizes


def try_(
    ctx: Context,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Items, and queries and judgements if there are any.")],
    scorer: opt.ScorerName = opt.DEFAULT_SCORER,
    scorer_set: opt.ScorerSettings = None,
    max_item_tokens: opt.MaxItemTokens = None,
    encoder: Annotated[str, Option(help="Of the dense first stage; 'none' leaves it out.")] = opt.DEFAULT_ENCODER,
    minutes: Annotated[float, Option(help="The time that encoding and scoring may take.")] = 5.0,
    calls: Annotated[int | None, Option(min=1, help="Also make at most N scorer calls.")] = None,
    above: Annotated[
        float | None, Option(help="Also say what it takes to find all items that score this or higher.")
    ] = None,
    seed: opt.Seed = 0,
    id_field: opt.IdField = None,
    text_field: opt.TextFields = None,
    cache: opt.CacheFile = None,
    save_queries: Annotated[Path | None, Option(help="Write the queries that were used to this file.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Say whether a scorer is worth its calls on your data.

    A sample is scored, and the advice printed. What was scored is kept: after Ctrl-C, or with more --minutes, the same
    command goes on. Of an index, `tune` chooses the settings; on judged data, `evaluate` compares: see docs/try.md,
    Three ways to measure.

    Example: adacur try my-folder --minutes 5
    """
    from adacur.replay import try_collection

    options = opt.taken_by(try_collection, ctx) | {
        "scorer": opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set, reads=[folder]),
        "encoder": None if encoder == "none" else encoder,
        "text_fields": text_field,
    }
    trial = try_collection(**options, on_plan=_print_plan)
    plan = trial.plan
    earlier = f" {trial.known:,} more were known." if trial.known else ""
    planned = plan.n_queries + plan.n_more
    fewer = f" The time was over after {trial.n_queries} of {planned} queries." * (trial.n_queries < planned)
    show(
        trial,
        rows_table(("", ""), [(answer.question, answer.words) for answer in trial.answers], texts=2),
        "Next:",
        *(f"  {line}" for line in trial.commands),
        hints=(
            f"{trial.calls:,} pairs scored in {duration(trial.seconds)}.{earlier}{fewer} Intervals are of 95 %.",
            f"The queries: {trial.queries_file}",
        ),
        as_json=as_json,
    )


def _print_plan(plan: TrialSizes) -> None:
    note(f"{plan.collection}: {plan.summary()}")
    for line in plan.notes:
        note(line)
    if plan.share < 1:
        note(
            f"The best {plan.k} within {plan.budget} calls of the sample stand for the best {plan.whole(plan.k)} "
            f"within {plan.whole(plan.budget)} of all items; numbers below are of all items."
        )
