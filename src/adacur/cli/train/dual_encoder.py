"""`adacur train dual-encoder`."""

from __future__ import annotations

from adacur.cli import options as opt
from adacur.cli.train.running import Base, Data, Epochs, First, Out, TrainingOptions, run_training


def dual_encoder(
    data: Data,
    out: Out,
    base: Base = None,
    first: First = None,
    epochs: Epochs = None,
    settings: TrainingOptions = None,
    as_json: opt.Json = False,
) -> None:
    """Train a dual encoder on judged queries: a first stage made for your collection.

    Example: adacur train dual-encoder my-beir-folder my-encoder --epochs 2 --set towers=shared
    """
    flags = {"base": base, "first": first, "epochs": epochs}
    run_training("dual-encoder", data, out, settings=settings, flags=flags, as_json=as_json)
