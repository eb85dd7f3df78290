"""A training run as a figure: the loss of every update, and the checks on held-out queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput
from adacur_lab.report.figures import looks, panel_grid

__all__ = ["training_curves"]

# What a line of the log says of an update; anything else was measured by a check.
_OF_UPDATES = ("step", "epoch", "loss", "learning_rate", "grad_norm")
_LOOK = (("#d55e00", "o"), ("#0072b2", "s"), ("#009e73", "D"), ("#aa4499", "^"), ("#333333", "v"))
_UPDATES_PER_MEAN = 50


def training_curves(log: Sequence[Mapping[str, Any]], *, best_update: int | None = None) -> Any:
    """The log of a run (`Trained.log`): loss against updates with its running mean, and every measure of the checks.

    Those that are losses or errors stand beside the training's own.
    `best_update` is marked: the model that was kept is the one of that check.
    """
    losses = [(line["step"], line["loss"]) for line in log if "loss" in line]
    checks = [line for line in log if "loss" not in line]
    measured = list(dict.fromkeys(name for line in checks for name in line if name not in _OF_UPDATES))
    distances = [name for name in measured if name.endswith(("loss", "error"))]
    names = [name for name in measured if name not in distances]
    if not losses:
        raise EmptyInput(f"A figure of a training run needs the loss of an update; the log has {len(log)} lines.")
    updates, values = (np.array(column, float) for column in zip(*losses, strict=True))
    with looks():
        figure, axes = panel_grid(1, 2 if names else 1)
        of_loss, *of_checks = axes.flat
        of_loss.plot(updates, values, color="#bbbbbb", lw=1, label="each update")
        width = max(1, len(values) // _UPDATES_PER_MEAN)
        if width > 1:
            of_loss.plot(updates, _running_mean(values, width), color="#d55e00", lw=1.8, label=f"mean of {width}")
        _draw(of_loss, checks, distances, _LOOK[1:])
        of_loss.set(title="loss", ylabel="loss")
        for axis in of_checks:
            _draw(axis, checks, names, _LOOK)
            axis.set(title="held-out queries", ylabel="mean over the queries")
            # Shares, as most measures are, keep one scale from run to run.
            if all(0 <= line[name] <= 1 for line in checks for name in names if name in line):
                axis.set_ylim(0, 1.04)
        for axis in axes.flat:
            if best_update is not None:
                axis.axvline(best_update, color="#888888", lw=1, ls="--", zorder=0, label="kept")
            axis.set_xlabel("updates")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(alpha=0.25)
            axis.legend(frameon=False)
    return figure


def _draw(
    axis: Any, checks: Sequence[Mapping[str, Any]], names: Sequence[str], looks: Sequence[tuple[str, str]]
) -> None:
    for place, name in enumerate(names):
        colour, marker = looks[place % len(looks)]
        points = [(line["step"], line[name]) for line in checks if name in line]
        label = name.replace("_", " ")
        axis.plot(*zip(*points, strict=True), color=colour, marker=marker, ms=4.5, lw=1.6, label=label)


def _running_mean(values: FloatArray, width: int) -> FloatArray:
    """Means of the last `width` values; of all before, where there are fewer."""
    sums = np.cumsum(np.concatenate((np.zeros(1), values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    means: FloatArray = (sums[ends] - sums[starts]) / (ends - starts)
    return means
