"""Runs of search methods as they are stored, and side by side: what each found, for how much, and how certainly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput, FileFormatError, InputError
from adacur.first_stages.joined import SEPARATOR
from adacur.replay.measures import FEWEST_QUERIES, MATTERS, mean_of
from adacur.search.tuned import Mean
from adacur.store.writing import write_atomically

_FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Measures per query of one method with one set of settings; the unit that is stored, compared and drawn.

    `settings` holds plain values: method, budget, rounds, anchors, first, seed and whatever else was chosen.
    `measures` maps names such as "recall@10", "nDCG@10", "calls" or "seconds.score" to one value per query, NaN where
    a query has none (it was not judged, say).
    """

    collection: str
    method: str
    settings: Mapping[str, Any]
    query_ids: tuple[str, ...]
    measures: Mapping[str, FloatArray]
    made: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.measures.items():
            if np.shape(values) != (len(self.query_ids),):
                raise InputError(
                    f"A measure has one value per query; {name!r} has shape {np.shape(values)} "
                    f"for {len(self.query_ids)} queries."
                )

    def values(self, measure: str) -> FloatArray:
        """The values of a measure, without the queries that have none."""
        if measure not in self.measures:
            raise InputError(
                f"The run of {self.method!r} on {self.collection!r} has no {measure!r}. "
                f"It has: {', '.join(self.measures)}."
            )
        values = np.asarray(self.measures[measure], dtype=np.float64)
        return values[~np.isnan(values)]

    def save(self, path: str | Path) -> None:
        """Write one JSON file, in one step."""
        content = {
            "format": _FORMAT,
            "collection": self.collection,
            "method": self.method,
            "settings": dict(self.settings),
            "made": dict(self.made),
            "query_ids": list(self.query_ids),
            "measures": {name: [_plain(value) for value in values] for name, values in self.measures.items()},
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise FileFormatError(f"{path} has the run format {content['format']}; this version reads {_FORMAT}.")
            return cls(
                collection=content["collection"],
                method=content["method"],
                settings=content["settings"],
                query_ids=tuple(content["query_ids"]),
                measures={
                    name: np.array([math.nan if value is None else value for value in values], dtype=np.float64)
                    for name, values in content["measures"].items()
                },
                made=content["made"],
            )
        except FileFormatError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path} is not a stored run: {error!r}.") from error


def _plain(value: Any) -> float | None:
    # Six digits tell every recall apart and halve the file.
    return None if math.isnan(value) else round(float(value), 6)


def paired_difference(left: Run, right: Run, measure: str, **interval: Any) -> Mean:
    """Left minus right on one measure, matched by query id; queries without a value in either are left out.

    The `interval` is as in `mean_of`.
    """
    if left.collection != right.collection:
        raise InputError(
            f"Runs are compared query by query, on one collection; got {left.collection!r} and {right.collection!r}."
        )
    ours, theirs = _by_query(left, measure), _by_query(right, measure)
    if not (differences := [value - theirs[id_] for id_, value in ours.items() if id_ in theirs]):
        raise EmptyInput(
            f"The runs of {left.method!r} and {right.method!r} share no query with a value of {measure!r}. "
            "Were they searched with the same queries?"
        )
    return mean_of(np.array(differences), **interval)


def _by_query(run: Run, measure: str) -> dict[str, float]:
    run.values(measure)  # names the measures that there are, where this one is missing
    values = np.asarray(run.measures[measure], dtype=np.float64).tolist()
    return {id_: value for id_, value in zip(run.query_ids, values, strict=True) if not np.isnan(value)}


JUDGED = "nDCG@10"
# Of the order by the scorer alone, where the order that is judged blends the first stage in.
OWN_ORDER = f"{JUDGED} in the scorer's order"
# The method that calls no scorer, and the one that needs no index.
ALONE, RERANK = "first", "rerank"
# Where all items are scored, a gain this large must not be overlooked.
_OVERLOOKED = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One run as a table shows it: its measures, and how far it is from the rival at the same budget."""

    run: Run
    means: Mapping[str, Mean]
    differences: Mapping[str, Mean]

    @property
    def name(self) -> str:
        """The method and what it starts from."""
        first = self.run.settings.get("first")
        return f"{self.run.method} · {first}" if first else self.run.method

    @property
    def paid(self) -> int:
        """Scorer calls before the first search: anchor queries × items."""
        return int(self.run.settings.get("anchors", 0)) * int(self.run.made["items"])


def compare(runs: Sequence[Run], *, rival: str = RERANK) -> list[Row]:
    """A row per run, by budget; differences are taken to the rival's run of the same budget and first stage.

    The rival "first" has one: all first stages joined, with 0 calls.
    """
    measures = _measures_of(runs)
    of_rival = [run for run in runs if run.method == rival]
    rows = []
    for run in sorted(runs, key=lambda run: run.settings.get("budget", np.inf)):
        same = [one for one in of_rival if all(one.settings.get(of) == run.settings.get(of) for of in _PRICE)]
        other = _most_joined(of_rival) if rival == ALONE else next(iter(same), None)
        # A rival has none, and all joined is not compared with itself.
        is_rival = run is other if rival == ALONE else run.method == rival
        differences = {}
        if other is not None and not is_rival:
            both = [name for name in measures if _has(run, name) and _has(other, name)]
            differences = {name: paired_difference(run, other, name) for name in both}
        means = {name: mean_of(run.values(name)) for name in measures if _has(run, name)}
        rows.append(Row(run, means, differences))
    return rows


_PRICE = ("budget", "first")


def verdict(runs: Sequence[Run]) -> str:
    """In two sentences: whether the scorer is worth any call, and more depth its calls.

    What was not run, or not judged, is left out.
    """
    return " ".join(filter(None, (worth(runs), depth(runs))))


def worth(runs: Sequence[Run]) -> str:
    """Whether the scorer is worth its calls, by judgements: the best way to spend them against the best without any."""
    judged = [run for run in runs if _has(run, JUDGED)]
    # The best of what costs nothing, joined or not: a scorer that only mends a bad start is not worth its calls.
    alone = max((run for run in judged if run.method == ALONE), key=_quality, default=None)
    spent = [run for run in judged if run.settings.get("budget")]
    if alone is None or not spent:
        return ""
    best = max(spent, key=_quality)
    # Of many runs the best is flattered: the interval is that of all of them together.
    gain = paired_difference(best, alone, JUDGED, level=1 - 0.05 / len(spent), samples=10_000)
    unproved = f"No gain is proved on {gain.n} judged queries; use none, or more of them (--queries)"
    answer = "Yes" if gain.low > 0 else "No: use none here" if gain.high < MATTERS else unproved
    fuse = f", fuse {best.settings['fuse']:g}" if best.settings.get("fuse") else ""
    return (
        f"Is the scorer worth its calls? {_told(gain, answer)}. {alone.settings['first']} alone, 0 calls: {JUDGED} "
        f"{_quality(alone):.3f}; {best.method} ({best.settings['first']} first{fuse}), "
        f"{best.settings['budget']} calls, the best of {len(spent)}: {gain.value:+.3f} (95 % {gain.low:+.3f} to "
        f"{gain.high:+.3f})."
    )


def depth(runs: Sequence[Run]) -> str:
    """Whether the scorer's own order gets better or worse where it sees every item; empty where that was not judged.

    A scorer that was trained on near misses alone has opinions about everything else that nobody corrected.
    """
    judged = [run for run in runs if _has(run, JUDGED)]
    exact = next((run for run in judged if run.method == "exact"), None)
    # The most that one would re-rank, from the most first stages joined.
    most = max((run.settings["budget"] for run in judged if run.method == RERANK), default=0)
    reranked = _most_joined([run for run in judged if run.method == RERANK and run.settings["budget"] == most])
    if exact is None or reranked is None or most >= exact.made["items"]:
        return ""
    change = paired_difference(exact, reranked, OWN_ORDER)
    if change.high < 0 and change.value <= -MATTERS:
        answer = "No: mend it first (adacur train), or search only the first stage's best"
    elif change.low > 0 and change.value >= MATTERS:
        answer = "Yes, deeper is better"
    elif max(change.high, -change.low) > _OVERLOOKED:
        answer = f"Too wide an interval to tell on {change.n} judged queries; use more (--queries)"
    else:
        answer = "Deeper is neither better nor worse for certain"
    return (
        f"Can the scorer be searched? {_told(change, answer)}. From {reranked.settings['first']}'s best {most} to all "
        f"{exact.made['items']:,} items {JUDGED} in the scorer's own order changes by {change.change()}."
    )


def _told(mean: Mean, answer: str) -> str:
    """The answer, where there are queries enough for one."""
    few = f"{mean.n} judged queries cannot tell; use at least {FEWEST_QUERIES} (--queries)"
    return few if mean.n < FEWEST_QUERIES else answer


def _measures_of(runs: Sequence[Run]) -> list[str]:
    """The recalls by k, then judged quality: the two numbers always stand together."""
    recalls = {name for run in runs for name in run.measures if name.startswith("recall@")}
    judged = [JUDGED] if any(_has(run, JUDGED) for run in runs) else []
    return [*sorted(recalls, key=lambda name: int(name.removeprefix("recall@"))), *judged]


def _most_joined(runs: Iterable[Run]) -> Run | None:
    return max(runs, key=lambda run: run.settings["first"].count(SEPARATOR), default=None)


def _has(run: Run, measure: str) -> bool:
    return measure in run.measures and len(run.values(measure)) > 0


def _quality(run: Run) -> float:
    return float(run.values(JUDGED).mean())
