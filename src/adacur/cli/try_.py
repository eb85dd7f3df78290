"""`adacur try`: whether it is worth it on your data, in a few minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from adacur.as_json import as_json as to_json
from adacur.cli import arguments as opt
from adacur.cli.messages import note, print_table, say
from adacur.units import duration

if TYPE_CHECKING:
    from adacur.replay import TrialSizes


def try_(
    folder: Annotated[
        Path,
        Argument(
            metavar="FOLDER",
            help="Items (corpus.jsonl or one file), and if there are any queries.jsonl and qrels/test.tsv.",
        ),
    ],
    scorer: opt.ScorerName = opt.DEFAULT_SCORER,
    scorer_set: opt.ScorerSettings = None,
    max_item_tokens: opt.MaxItemTokens = None,
    encoder: Annotated[str, Option(help="Encoder of the dense first stage; 'none' leaves it out.")] = (
        opt.DEFAULT_ENCODER
    ),
    minutes: Annotated[float, Option(help="The time that encoding and scoring may take.")] = 5.0,
    calls: Annotated[int | None, Option(min=1, help="Also make at most N scorer calls.")] = None,
    seed: opt.Seed = 0,
    id_field: opt.IdField = None,
    text_field: opt.TextFields = None,
    cache: opt.CacheFile = None,
    save_queries: Annotated[
        Path | None, Option(metavar="FILE", help="Write the queries that were used to this .jsonl file.")
    ] = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write all figures to this file.")] = None,
) -> None:
    """Say whether a scorer is worth its calls on your data.

    A sample is scored, and the advice printed. What was scored is kept: after Ctrl-C, or with more --minutes, the same
    command goes on. Of an index, `tune` chooses the settings; on judged data, `evaluate` compares: see docs/try.md,
    Three ways to measure.

    Example: adacur try my-folder --minutes 5
    """
    from adacur.replay import try_collection

    trial = try_collection(
        folder,
        scorer=opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set),
        encoder=None if encoder == "none" else encoder,
        minutes=minutes,
        calls=calls,
        seed=seed,
        id_field=id_field,
        text_fields=text_field,
        save_queries=save_queries,
        on_plan=_print_plan,
    )
    if json_file is not None:
        json_file.write_text(json.dumps(to_json(trial), indent=1) + "\n", encoding="utf-8")
        note(f"All figures: {json_file}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for answer in trial.answers:
        table.add_row(Text(answer.question), Text(answer.words))
    print_table(table)
    plan = trial.plan
    earlier = f" {trial.known:,} more were known." if trial.known else ""
    planned = plan.n_queries + plan.n_more
    fewer = f" The time was over after {trial.n_queries} of {planned} queries." * (trial.n_queries < planned)
    note(f"{trial.calls:,} pairs scored in {duration(trial.seconds)}.{earlier}{fewer} Intervals are of 95 %.")
    note(f"The queries: {trial.queries_file}\nNext:")
    for line in trial.commands:
        say(f"  {line}")


def _print_plan(plan: TrialSizes) -> None:
    note(f"{plan.collection}: {plan.summary()}")
    for line in plan.notes:
        note(line)
    if plan.share < 1:
        note(
            f"The best {plan.k} within {plan.budget} calls of the sample stand for the best {plan.whole(plan.k)} "
            f"within {plan.whole(plan.budget)} of all items; numbers below are of all items."
        )
