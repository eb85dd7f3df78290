"""Stored runs sorted into what a table or a figure shows: panels, and lines with names that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adacur.errors import EmptyInput, FileFormatError
from adacur.replay import Run, bootstrap_interval

__all__ = [
    "Estimate",
    "Line",
    "Panel",
    "estimate",
    "labels",
    "lines",
    "measured",
    "panels",
    "pooled",
    "read_runs",
    "replaced",
    "setting",
    "setting_words",
    "without_sweeps",
]

_WORDS = {
    "first": "{} first",
    "budget": "{} calls",
    "rounds": "{} rounds",
    "anchors": "{} anchors",
    "anchor_kind": "{} anchors",
    "epsilon": "ε = {}",
    "k_masked": "top {} masked",
    "temperature": "temperature {}",
    "split": "split {}",
    "first_share": "first share {}",
    "pool": "pool {}",
    "blend": "λ = {}",
}
# No choice of a method: its name, the draw, and how much of the ranking was kept, which follows from the budget and k.
_NO_CHOICE = ("method", "seed", "seeds", "k_max")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over n queries and its 95 % interval; NaN bounds where one query says nothing about the next."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Panel:
    """The runs that share a collection and a number of anchor queries; methods without an index are in every one."""

    collection: str
    anchors: int | None
    title: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Runs of one method, told apart by one setting, in its order."""

    label: str
    method: str
    runs: tuple[Run, ...]
    along: tuple[float, ...]


def read_runs(folder: str | Path) -> tuple[list[Run], list[Path]]:
    """The runs stored anywhere under a folder, and the JSON files there that are none.

    Where `adacur evaluate` wrote into the folder, that is its runs/ alone: beside them are scores, JSON files and all.
    """
    folder = Path(folder)
    runs, others = [], []
    for file in sorted((folder / "runs" if (folder / "runs").is_dir() else folder).rglob("*.json")):
        try:
            runs.append(Run.load(file))
        except FileFormatError:
            others.append(file)
    if not runs:
        raise EmptyInput(
            f"No stored run was found under {folder} ({len(others)} JSON files are something else). "
            "Give the folder that `adacur evaluate` or `Run.save` wrote into."
        )
    return runs, others


def pooled(runs: Iterable[Run]) -> list[Run]:
    """Runs that differ in the seed only become one: each query counts once, with its mean over the seeds.

    Runs that do not even differ in that (to another depth, say, or made again) become one too: of each measure the
    newest counts, provided that queries and items are those of the newest run; `replaced` names those that do not.
    Where a collection was scored by several scorers, each makes a collection of its own. Whether anchors are real or
    pseudo-queries becomes a setting, "anchor_kind".
    """
    newest = [[_merged(alike) for alike in by_seed] for by_seed in _alike(runs)]
    return [group[0] if len(group) == 1 else _mean_run(group) for group in newest]


def replaced(runs: Iterable[Run]) -> list[Run]:
    """The runs of which nothing is left once they are `pooled`: newer ones of the same settings take their places."""
    return [run for by_seed in _alike(runs) for alike in by_seed for run in alike if run not in _used(alike)]


def setting(run: Run, name: str) -> Any:
    """A setting of a run; None where it has none."""
    return run.settings.get(name)


def panels(runs: Iterable[Run], *, by_anchors: bool = True) -> list[Panel]:
    """One panel per collection and, unless told otherwise, number of anchor queries."""
    by_collection: dict[str, list[Run]] = {}
    for run in pooled(runs):
        by_collection.setdefault(run.collection, []).append(run)
    made = []
    for collection, own in by_collection.items():
        sizes = sorted({int(size) for run in own if (size := setting(run, "anchors"))})
        if not by_anchors or not sizes:
            made.append(Panel(collection, None, collection, tuple(own)))
            continue
        for size in sizes:
            there = tuple(run for run in own if (setting(run, "anchors") or size) == size)
            title = collection if len(sizes) == 1 else f"{collection}, {size} anchors"
            made.append(Panel(collection, size, title, there))
    return made


def labels(runs: Sequence[Run], *, along: str = "budget", given: Sequence[str] = ()) -> dict[Run, str]:
    """A name per run: the method, and as few settings as it takes to give runs of other settings another name.

    `along`, the place on an axis or in a column, is no part of a name, and two places do not excuse a difference. What
    is `given`, the panel's settings or a column's, is no part of it either, and does: names need to differ within it.
    """
    telling = {
        method: _telling([run for run in runs if run.method == method], along, given)
        for method in dict.fromkeys(run.method for run in runs)
    }
    return {
        run: ", ".join([run.method, *(setting_words(name, setting(run, name)) for name in telling[run.method])])
        for run in runs
    }


def lines(
    shown: Sequence[Panel], *, along: str, measures: Sequence[str] = (), known: Sequence[str] = ()
) -> list[list[Line]]:
    """The lines of each panel along a setting; runs without it or without any of the measures are left out.

    All points of a line agree in all other settings. Names leave out what is `known` from the panel, beside its number
    of anchors. Where some lines have several points, single points at one place are left out: they are the sweep of
    another setting there.
    """
    usable = [
        [
            run
            for run in panel.runs
            if _is_number(setting(run, along)) and (not measures or any(estimate(run, name) for name in measures))
        ]
        for panel in shown
    ]
    given = [*known, *(["anchors"] if any(panel.anchors for panel in shown) else [])]
    made = _lines(usable, along, given)
    if any(len(line.runs) > 1 for own in made for line in own):
        # Once more: with the others gone, fewer settings are needed to tell these apart.
        made = _lines(
            [[run for line in own if not _is_swept(line, own) for run in line.runs] for own in made], along, given
        )
    return made


def without_sweeps(runs: Iterable[Run]) -> list[Run]:
    """The runs on lines along budgets, or without a budget: those that a sweep of another setting adds are left out."""
    found = panels(runs)
    along = {run for own in lines(found, along="budget") for line in own for run in line.runs}
    return [
        run
        for run in dict.fromkeys(run for panel in found for run in panel.runs)
        if run in along or not _is_number(setting(run, "budget"))
    ]


def setting_words(name: str, value: Any) -> str:
    """A setting in words: "5 rounds", "dense first", "ε = 0.5", "without embeddings"."""
    if name == "anchor_kind" and value is None:
        return "anchors of unknown kind"
    if value is None or isinstance(value, bool):
        return f"{'no' if value is None else 'with' if value else 'without'} {name.replace('_', ' ')}"
    shown = f"{value:g}" if _is_number(value) else _word(value)
    special = {("rounds", "1"): "1 round", ("k_masked", "0"): "none masked"}
    if (name, shown) in special:
        return special[name, shown]
    return _WORDS.get(name, name.replace("_", " ") + " {}").format(shown)


@lru_cache(maxsize=8192)
def estimate(run: Run, measure: str) -> Estimate | None:
    """Mean and 95 % bootstrap interval over the queries that have the measure; None where none has."""
    values = run.values(measure) if measure in run.measures else np.empty(0)
    if not len(values):
        return None
    low, high = bootstrap_interval(values) if len(values) > 1 else (np.nan, np.nan)
    return Estimate(float(values.mean()), low, high, len(values))


def measured(runs: Iterable[Run], measures: Sequence[str]) -> list[Run]:
    """The runs in which at least one query has one of the measures."""
    return [run for run in runs if any(estimate(run, measure) for measure in measures)]


def _is_swept(line: Line, beside: Sequence[Line]) -> bool:
    """Whether a line is a single point at which its method has others."""
    return len(line.runs) == 1 and any(
        other.method == line.method and other is not line and line.along[0] in other.along for other in beside
    )


def _lines(usable: Sequence[Sequence[Run]], along: str, given: Sequence[str]) -> list[list[Line]]:
    named = labels(list(dict.fromkeys(run for own in usable for run in own)), along=along, given=given)
    made = []
    for own in usable:
        groups: dict[str, list[Run]] = {}
        for run in sorted(own, key=lambda run: float(setting(run, along))):
            groups.setdefault(named[run], []).append(run)
        made.append(
            [
                Line(label, group[0].method, tuple(group), tuple(float(setting(run, along)) for run in group))
                for label, group in groups.items()
            ]
        )
    return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _telling(runs: Sequence[Run], along: str, given: Sequence[str]) -> list[str]:
    names = dict.fromkeys([*_WORDS, *(name for run in runs for name, _ in _choices(run))])
    telling: list[str] = []
    for name in names:
        if name in (along, *given):
            continue
        seen: dict[Any, set[str]] = {}
        for run in runs:
            alike = (run.collection, *(_plain(setting(run, known)) for known in (*given, *telling)))
            seen.setdefault(alike, set()).add(_plain(setting(run, name)))
        if any(len(values) > 1 for values in seen.values()):
            telling.append(name)
    return telling


def _choices(run: Run) -> list[tuple[str, Any]]:
    return sorted((name, value) for name, value in run.settings.items() if name not in _NO_CHOICE)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else _plain(value)


def _alike(runs: Iterable[Run]) -> list[list[list[Run]]]:
    """Runs by all that was chosen, then by seed; of one seed the newest is the first."""
    runs = _told_apart(list(runs))

    def key(run: Run) -> Any:
        return run.collection, run.method, tuple((name, _plain(value)) for name, value in _choices(run))

    # In the order given, whatever was made when.
    alike: dict[Any, dict[Any, list[Run]]] = {key(run): {} for run in runs}
    for run in sorted(runs, key=lambda run: str(run.made.get("at", ""))):
        alike[key(run)].setdefault(setting(run, "seed"), []).insert(0, run)
    return [list(by_seed.values()) for by_seed in alike.values()]


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """What is known of a run beside its settings and tells it from others: by which scorer, with which anchors."""
    scorers: dict[str, set[str]] = {}
    for run in runs:
        scorers.setdefault(run.collection, set()).add(_scorer(run))
    made = []
    for run in runs:
        if len(scorers[run.collection]) > 1:
            run = replace(run, collection=f"{run.collection} · {_scorer(run)}")
        if "pseudo_anchors" in run.made and "anchor_kind" not in run.settings:
            kind = "pseudo" if run.made["pseudo_anchors"] else "real"
            run = replace(run, settings={**run.settings, "anchor_kind": kind})
        made.append(run)
    return made


def _scorer(run: Run) -> str:
    return str(run.made.get("scorer") or "unknown scorer")


def _used(alike: Sequence[Run]) -> list[Run]:
    """The newest run, and of the older ones those that add a measure on the same queries and items."""

    def ground(run: Run) -> Any:
        return frozenset(run.query_ids), run.made.get("items"), run.made.get("embeddings")

    used: list[Run] = []
    known: set[str] = set()
    for run in alike:
        if not used or (ground(run) == ground(alike[0]) and not known.issuperset(run.measures)):
            used.append(run)
            known |= set(run.measures)
    return used


def _merged(alike: Sequence[Run]) -> Run:
    newest, *older = _used(alike)
    measures = dict(newest.measures)
    for run in older:
        row = {id_: position for position, id_ in enumerate(run.query_ids)}
        rows = [row[id_] for id_ in newest.query_ids]
        measures |= {name: values[rows] for name, values in run.measures.items() if name not in measures}
    return replace(newest, measures=measures) if older else newest


def _mean_run(group: Sequence[Run]) -> Run:
    ids = tuple(dict.fromkeys(id_ for run in group for id_ in run.query_ids))
    row = {id_: position for position, id_ in enumerate(ids)}
    measures = {}
    for name in dict.fromkeys(name for run in group for name in run.measures):
        total, count = np.zeros(len(ids)), np.zeros(len(ids))
        for run in group:
            if name in run.measures:
                values = np.asarray(run.measures[name], dtype=np.float64)
                known = ~np.isnan(values)
                rows = np.array([row[id_] for id_ in run.query_ids], dtype=np.intp)[known]
                np.add.at(total, rows, values[known])
                np.add.at(count, rows, 1)
        # Seeds added up in another order must not differ in the last bit, which a paired test would take for certain.
        measures[name] = np.round(np.divide(total, count, out=np.full(len(ids), np.nan), where=count > 0), 9)
    seeds = [seed for run in group if (seed := setting(run, "seed")) is not None]
    chosen = {name: value for name, value in group[0].settings.items() if name != "seed"} | {"seeds": seeds}
    return Run(group[0].collection, group[0].method, chosen, ids, measures, group[0].made)
