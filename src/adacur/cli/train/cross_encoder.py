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
    turns: Annotated[
        int | None,
        Option(
            help="Divide the epochs into this many turns; before each but the first, searches with the model find what "
            "it wrongly likes (default: 2, or 1 with one epoch)."
        ),
    ] = None,
    settings: TrainingOptions = None,
    as_json: opt.Json = False,
) -> None:
    """Train a cross-encoder that can be searched, on judged queries or on the scores of teachers.

    Negatives are near misses of a first stage, random items, and what searches with the model itself find.

    Example: adacur train cross-encoder my-beir-folder my-reranker --epochs 2 --set mixture=near=1,random=1,found=1
    """
    flags = {"base": base, "first": first, "teacher": teacher, "epochs": epochs, "turns": turns}
    run_training("cross-encoder", data, out, settings=settings, flags=flags, as_json=as_json)
