"""Stored runs side by side: what each found, for how much, and whether the difference to a rival is certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.first_stages.joined import SEPARATOR
from adacur.replay.runs import PairedDifference, Run, bootstrap_interval, paired_difference, paired_values

JUDGED = "nDCG@10"
# The method that calls no scorer.
ALONE = "first"
# Fewer queries cannot tell a usual difference from none.
FEWEST_QUERIES = 20
# A smaller gain of nDCG@10 is not worth calls.
_MATTERS = 0.01
_DEFAULT_METHOD = "gaussian"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over n queries and its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, run: Run, measure: str) -> Mean | None:
        """None where no query has the measure."""
        values = run.values(measure) if measure in run.measures else np.empty(0)
        return cls(float(values.mean()), *bootstrap_interval(values), len(values)) if len(values) else None

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One run as a table shows it: its price, its measures, and how far it is from the rival at the same budget.

    `paid` is the number of scorer calls before the first search: anchor queries × items.
    """

    method: str
    first: str | None
    budget: int | None
    rounds: int | None
    anchors: int | None
    paid: int
    n_queries: int
    means: Mapping[str, Mean]
    differences: Mapping[str, PairedDifference]

    @property
    def name(self) -> str:
        """The method and what it starts from."""
        return f"{self.method} · {self.first}" if self.first else self.method


def measures_of(runs: Sequence[Run]) -> list[str]:
    """The recalls by k, then judged quality: the two numbers always stand together."""
    recalls = {name for run in runs for name in run.measures if name.startswith("recall@")}
    judged = [JUDGED] if any(len(run.values(JUDGED)) for run in runs if JUDGED in run.measures) else []
    return [*sorted(recalls, key=lambda name: int(name.removeprefix("recall@"))), *judged]


def compare(runs: Sequence[Run], *, rival: str = "rerank") -> list[Row]:
    """A row per run, by budget; differences are taken to the rival's run of the same budget and first stage.

    The rival "first" has one: all first stages joined, with 0 calls.
    """
    measures, alone = measures_of(runs), _alone(runs)
    rows = []
    for run in sorted(runs, key=lambda run: run.settings.get("budget", np.inf)):
        price = [run.settings.get(name) for name in ("budget", "first")]
        rivals = (one for one in runs if one.method == rival != run.method)
        other = next((one for one in rivals if [one.settings.get(name) for name in ("budget", "first")] == price), None)
        if rival == ALONE:
            other = None if run is alone else alone
        rows.append(
            Row(
                method=run.method,
                first=run.settings.get("first"),
                budget=run.settings.get("budget"),
                rounds=run.settings.get("rounds"),
                anchors=run.settings.get("anchors"),
                paid=int(run.settings.get("anchors", 0)) * int(run.made["items"]),
                n_queries=len(run.query_ids),
                means={name: mean for name in measures if (mean := Mean.of(run, name))},
                differences={
                    name: paired_difference(run, other, name)
                    for name in measures
                    if other is not None and name in run.measures and name in other.measures
                },
            )
        )
    return rows


def _alone(runs: Sequence[Run]) -> Run | None:
    """What every other run must be better than: the most first stages joined, with 0 calls."""
    return max(
        (run for run in runs if run.method == ALONE),
        key=lambda run: run.settings["first"].count(SEPARATOR),
        default=None,
    )


def _judged_quality(run: Run) -> float:
    return float(run.values(JUDGED).mean())


def worth(runs: Sequence[Run]) -> str:
    """Whether the scorer is worth its calls, by judgements: the best way to spend them against the best without any."""
    judged = [run for run in runs if JUDGED in run.measures and len(run.values(JUDGED))]
    # The best of what costs nothing, joined or not: a scorer that only mends a bad start is not worth its calls.
    alone = max((run for run in judged if run.method == ALONE), key=_judged_quality, default=None)
    spent = [run for run in judged if run.settings.get("budget")]
    if alone is None or not spent:
        return ""
    best = max(spent, key=_judged_quality)
    pairs = np.array(list(paired_values(best, alone, JUDGED).values()))
    differences, n_queries = np.round(pairs[:, 0] - pairs[:, 1], 9), len(pairs)
    # Of many runs the best is flattered: the interval is that of all of them together.
    low, high = bootstrap_interval(differences, level=1 - 0.05 / len(spent), samples=10_000)
    answer = (
        f"{n_queries} judged queries cannot tell; use at least {FEWEST_QUERIES} (--queries)"
        if n_queries < FEWEST_QUERIES
        else "Yes"
        if low > 0
        else "No: use none here"
        if high < _MATTERS
        else f"No gain is proved on {n_queries} judged queries; use none, or more of them (--queries)"
    )
    fuse = f", fuse {best.settings['fuse']:g}" if best.settings.get("fuse") else ""
    return (
        f"Is the scorer worth its calls? {answer}. {alone.settings['first']} alone, 0 calls: {JUDGED} "
        f"{alone.values(JUDGED).mean():.3f}; {best.method} ({best.settings['first']} first{fuse}), "
        f"{best.settings['budget']} calls, the best of {len(spent)}: {differences.mean():+.3f} (95 % {low:+.3f} to "
        f"{high:+.3f})."
    )


def verdict(runs: Sequence[Run], *, rival: str = "rerank") -> str:
    """Whether an index finds more than the strongest rival, in a few sentences; empty where none was run.

    First of all, where queries are judged, whether the scorer is worth any call.
    The default method, or the best of the others where it was not run, is compared over all budgets and k together.
    """
    lines: dict[tuple[str, str], dict[int, Run]] = {}
    for run in runs:
        if run.settings.get("budget"):
            lines.setdefault((run.method, run.settings["first"]), {})[run.settings["budget"]] = run
    recalls = [name for name in measures_of(runs) if name != JUDGED]
    scorer = worth(runs)
    rivals = [key for key in lines if key[0] == rival]
    usual = [key for key in lines if key[0] == _DEFAULT_METHOD]
    contest = usual or [key for key in lines if key[0] != rival]
    if not rivals or not contest:
        return scorer

    def finds(key: tuple[str, str]) -> float:
        return float(np.mean([run.values(name).mean() for run in lines[key].values() for name in recalls]))

    best, strongest = max(contest, key=finds), max(rivals, key=finds)
    shared = sorted(lines[best].keys() & lines[strongest].keys())
    pairs = [(lines[best][budget], lines[strongest][budget]) for budget in shared]
    mean, low, high, n_queries = _together(pairs, recalls)
    if n_queries < FEWEST_QUERIES:
        few = f"Is an index worth it? {n_queries} queries cannot tell; use at least {FEWEST_QUERIES} (--queries)."
        return f"{scorer} {few}".strip()
    answer = (
        "Yes, by recall"
        if low > 0
        else f"No: {rival} finds as much or more"
        if high <= 0
        else f"{n_queries} queries cannot tell; use more (--queries)"
    )
    first_run = pairs[0][0]
    anchors, items = int(first_run.settings.get("anchors", 0)), int(first_run.made["items"])
    parts = [
        *([scorer] if scorer else []),
        f"Is an index worth it? {answer}. {best[0]} ({best[1]} first) against {strongest[0]} ({strongest[1]} first): "
        f"{mean:+.3f} of the scorer's top k (95 % {low:+.3f} to {high:+.3f}), the mean over budgets "
        f"{_listed(shared)} and k = {_listed(name.removeprefix('recall@') for name in recalls)} on {n_queries} "
        "queries.",
    ]
    if any(len(run.values(JUDGED)) for pair in pairs for run in pair if JUDGED in run.measures):
        mean, low, high, n_judged = _together(pairs, [JUDGED])
        moves = "rises" if low > 0 else "falls" if high < 0 else "does not change for certain"
        parts.append(f"{JUDGED} {moves}: {mean:+.3f} ({low:+.3f} to {high:+.3f}) on {n_judged} judged queries.")
    else:
        parts.append(f"{JUDGED} was not measured, so whether people would notice is open.")
    parts.append(f"Paid beforehand: {anchors} anchor queries × {items:,} items = {anchors * items:,} calls.")
    if len(contest) > 1:
        parts.append(f"It was picked as the best of {len(contest)} on these same queries, which flatters it a little.")
    return " ".join(parts)


def _together(pairs: Sequence[tuple[Run, Run]], measures: Sequence[str]) -> tuple[float, float, float, int]:
    """The mean difference over all pairs of runs and measures, its interval, the queries: one value per query."""
    by_query: dict[str, list[float]] = {}
    for left, right in pairs:
        for measure in measures:
            for id_, (ours, theirs) in paired_values(left, right, measure).items():
                by_query.setdefault(id_, []).append(ours - theirs)
    # What is zero but for the last bits of a sum must not lie above or below it.
    values = np.round([np.mean(of_query) for of_query in by_query.values()], 9)
    low, high = bootstrap_interval(values)
    return float(values.mean()), round(low, 9), round(high, 9), len(values)


def _listed(values: Any) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last
