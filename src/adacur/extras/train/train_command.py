"""`adacur train`: a cross-encoder for a collection."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import KEPT, log_as_notes, rows_table, show
from adacur.units import duration


def train(
    data: Annotated[str, Argument(metavar="DATA", help="Judged queries and items: a BEIR folder, or 'mondo'.")],
    out: Annotated[Path, Argument(metavar="OUT", help="The folder to write; an interrupted run in it continues.")],
    base: Annotated[str | None, Option(help="The model to start from: a known name, a folder, or a hub name.")] = None,
    first: Annotated[
        str | None, Option(help="Finds near misses: bm25 (default), dense, or a dual encoder's path.")
    ] = None,
    epochs: Annotated[int | None, Option(help="The number of times that every query is seen.")] = None,
    turns: Annotated[
        int | None,
        Option(
            help="Divide the epochs into this many turns; before each but the first, searches with the model find what "
            "it wrongly likes (default: 2, or 1 with one epoch)."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any option of the training, such as learning_rate=2e-5 or negatives=15; may be repeated. A wrong "
            "name lists them all.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train a cross-encoder that can be searched, on judged queries.

    Negatives are near misses, random items, and what searches with the model itself find.
    An interrupted training continues with the same command.

    Example: adacur train my-beir-folder my-reranker --epochs 2 --set mixture=near=1,random=1,found=1
    """
    from adacur.extras.train import trained_by_name as by_name

    options = opt.settings_given(settings, takes=by_name.OPTIONS)
    flags = {"base": base, "first": first, "epochs": epochs, "turns": turns}
    options |= {name: value for name, value in flags.items() if value is not None}
    was_finished = (out / "training" / "result.json").exists()
    try:
        with log_as_notes("adacur.extras.train"):
            trained = by_name.train(data, out, options)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(KEPT) from error
    facts = {name: value for name, value in asdict(trained).items() if name not in ("folder", "log")}
    rows = [(name, f"{trained.before[name]:.3f}", f"{value:.3f}") for name, value in trained.best.items()]
    why = ", stopped early" if trained.stopped_early else ""
    useless = "No check was better than before the training. Try another learning rate, or more queries."
    # A model that was trained on cut items is at its best with them.
    cut = f" --max-item-tokens {options['max_item_tokens']}" if options.get("max_item_tokens") else ""
    show(
        {"model": str(out), **facts, "was_finished": was_finished},
        rows_table(("held-out queries", "before", "after"), rows),
        f"{out}: the model after {trained.best_update} of {trained.updates} updates{why}. "
        f"{duration(trained.seconds)}, {trained.queries / max(trained.seconds, 1e-9):,.1f} queries/s.",
        hints=(
            "" if trained.best_update else useless,
            "It was finished before: nothing was trained." if was_finished else "",
            f"Next: adacur build ITEMS INDEX --scorer {quote(str(out))}{cut}",
        ),
        as_json=as_json,
    )
