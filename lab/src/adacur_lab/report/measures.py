"""Measures by name: their order, their words, their digits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from adacur.replay import Run

__all__ = [
    "JUDGED",
    "band_words",
    "error_measures",
    "in_order",
    "measure_words",
    "number",
    "recall_k",
    "recall_measures",
]

# Judged quality stands beside every recall: a better search of the scorer need not please the judges.
JUDGED = "nDCG@10"


def recall_k(measure: str) -> int | None:
    """The k of "recall@k"; None for any other measure."""
    found = re.fullmatch(r"recall@(\d+)", measure)
    return int(found[1]) if found else None


def recall_measures(runs: Iterable[Run]) -> list[str]:
    """The recalls of the scorer's own top k that the runs hold, by k."""
    return in_order({name for run in runs for name in run.measures if recall_k(name)})


def error_measures(runs: Iterable[Run]) -> list[str]:
    """The approximation errors to draw: by band of ranks where there are bands, otherwise of the top k; then all."""
    found = in_order({name for run in runs for name in run.measures if name.startswith("error.")})
    bands = [name for name in found if name.startswith("error.ranks@")]
    return [*bands, *(name for name in found if name == "error.all")] if bands else found


def in_order(measures: Iterable[str]) -> list[str]:
    """Measures by the numbers in their names, those of all items last."""
    return sorted(measures, key=lambda name: (name.endswith("all"), [int(n) for n in re.findall(r"\d+", name)], name))


def measure_words(measure: str) -> str:
    """A measure as an axis or a column calls it."""
    return f"top-{k} recall" if (k := recall_k(measure)) else measure.replace("_", " ")


def band_words(measure: str) -> str:
    """What "error.all", "error.top@10" and "error.ranks@11-100" are over."""
    name = measure.removeprefix("error.")
    if name.endswith("-"):
        return name.replace("ranks@", "ranks ").removesuffix("-") + " on"
    return "all items" if name == "all" else name.replace("@", " ").replace("-", "–")


def number(value: float, measure: str, *, signed: bool = False) -> str:
    """A value with the digits its measure deserves: .891, 100, 2,591,500, 3.20 (milliseconds)."""
    if math.isnan(value):
        return "–"
    sign = "+" if signed else ""
    if measure == "milliseconds":
        return f"{value:{sign}.2f}" if abs(value) < 100 else f"{value:{sign},.0f}"
    if measure in ("calls", "index_calls"):
        return f"{value:{sign},.0f}" if value == round(value) else f"{value:{sign},.1f}"
    shown = f"{value:{sign}.3f}"
    if float(shown) == 0:
        return ".000"
    return re.sub(r"^([+-]?)0\.", r"\1.", shown).replace("-", "−")
