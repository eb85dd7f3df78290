"""Runs of search methods as they are stored, and their differences query by query."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput, FileFormatError, InputError
from adacur.replay.means import mean_of
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
