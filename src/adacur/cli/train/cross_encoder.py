"""`adacur train cross-encoder`."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from adacur.cli import options as opt
from adacur.cli.train.running import Base, Data, Epochs, First, Out, TrainingOptions, run_training


def cross_encoder(
    data: Data,
    out: Out,
    base: Base = None,
    first: First = None,
    teacher: Annotated[
        list[str] | None,
        Option(help="Learn the scores of this scorer, named as for build; of several, their mean."),
    ] = None,
    epochs: Epochs = None,
    settings: TrainingOptions = None,
    as_json: opt.Json = False,
) -> None:
    """Train a cross-encoder on judged queries, with hard negatives of a first stage; or on the scores of teachers.

    Example: adacur train cross-encoder my-beir-folder my-reranker --epochs 2 --set negatives=15
    """
    flags = {"base": base, "first": first, "teacher": teacher, "epochs": epochs}
    run_training("cross-encoder", data, out, settings=settings, flags=flags, as_json=as_json)
