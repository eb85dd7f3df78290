"""`adacur train distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.train.running import Base, Epochs, Out, TrainingOptions, run_training


def distill(
    data: Annotated[
        str,
        Argument(
            metavar="INDEX|DATA",
            help="An index, whose anchor scores teach; or, with --teacher, a collection as for dual-encoder, or with "
            "--queries any items that build takes.",
        ),
    ],
    out: Out,
    base: Base = None,
    teacher: Annotated[
        list[str] | None,
        Option(help="A scorer, named as for build, whose scores are learnt; of several, their mean."),
    ] = None,
    queries: Annotated[Path | None, Option(help="With --teacher: a file of queries, judged or not.")] = None,
    epochs: Epochs = None,
    settings: TrainingOptions = None,
    as_json: opt.Json = False,
) -> None:
    """Train a dual encoder to order items as a cross-encoder does. From an index, nothing is scored.

    Example: adacur train distill my.adacur my-encoder
    """
    flags = {"base": base, "teacher": teacher, "queries": queries, "epochs": epochs}
    run_training("distill", data, out, settings=settings, flags=flags, as_json=as_json)
