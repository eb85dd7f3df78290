"""How fast the singular values of score matrices fall, as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput
from adacur_lab.report.figures import looks, panel_grid

__all__ = ["decay"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#333333")


def decay(panels: Mapping[str, Mapping[str, FloatArray]]) -> Any:
    """Per panel a line for each matrix: the share of its sum of squares that its best approximation of a rank misses.

    Matrices come as their singular values, largest first.
    """
    if not any(panels.values()):
        raise EmptyInput("A figure of spectra needs the singular values of at least one matrix.")
    columns = min(3, len(panels))
    with looks():
        figure, axes = panel_grid(-(-len(panels) // columns), columns)
        for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
            for colour, (label, values) in zip(_COLOURS, lines.items(), strict=False):
                squares = np.asarray(values, dtype=np.float64) ** 2
                if not squares.any():
                    continue
                missed = 1 - np.cumsum(squares) / squares.sum()
                # The last is zero but for rounding, which a logarithm would blow up.
                axis.plot(np.arange(1, len(values)), missed[:-1], color=colour, lw=1.8, label=label)
            axis.set(title=title, xscale="log", yscale="log", ylim=(1e-3, 1))
            axis.grid(alpha=0.25)
            if axis.lines:
                axis.legend(frameon=False)
        for axis in axes[-1]:
            axis.set_xlabel("rank")
        for row in axes:
            row[0].set_ylabel("share of the sum of squares missed")
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
    return figure
