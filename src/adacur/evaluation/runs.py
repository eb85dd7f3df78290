"""One search method, once, on one set of queries: what came out, as it is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import FileFormatError, InputError

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
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        partial.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        partial.replace(target)

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
