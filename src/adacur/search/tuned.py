"""Tunings kept with an index: read, written whole, and the one that serves a search."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from adacur.core.errors import DamagedIndex, NewerFormat
from adacur.core.records import Query
from adacur.data.stored import read_json
from adacur.index import locked
from adacur.index.database import digest_texts
from adacur.index.files import write_atomically
from adacur.search.settings import GaussianSettings
from adacur.search.tuning import Gain, Prediction, Tuning

__all__ = ["TUNED", "TuningWarning", "keep_tuning", "nearest_tuning", "reach_of", "read_tunings", "with_tuning"]

TUNED = "tuned.json"
_TYPE = "adacur_tuned"
_FORMAT = 1
# A tuning serves searches up to so many times its k and its budget, and down to as small a part of them.
_REACH = 2
# Seconds: another tuning is written in far less, and what was tuned for minutes is not to be lost to it.
_PATIENCE = 10.0


class TuningWarning(UserWarning):
    """An index was tuned for other anchor queries than it has; the defaults are used."""


def read_tunings(folder: Path, *, anchor_queries: Sequence[Query]) -> tuple[Tuning, ...]:
    """The tunings of an index folder; none, with a warning, if they belong to other anchor queries."""
    file = folder / TUNED
    try:
        data = read_json(file)
        if data["type"] != _TYPE:
            raise ValueError(f"its type is {data['type']!r}, not {_TYPE!r}")
        if int(data["format"]) > _FORMAT:
            raise NewerFormat(
                f"{file} is written in format {data['format']}; this adacur reads formats up to {_FORMAT}. Upgrade it: "
                "pip install -U adacur, or remove the file: searches then use the defaults."
            )
        tunings = tuple(_parsed(entry) for entry in data["tunings"])
        digest = str(data["anchors_digest"])
    except FileNotFoundError:
        return ()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise DamagedIndex(
            f"{file} does not hold the tuned settings that adacur writes ({reason}). Remove it: searches then use the "
            f"defaults, until `adacur tune {folder}` has been run again."
        ) from error
    if digest != _digest(anchor_queries):
        warnings.warn(
            f"{file} was tuned for other anchor queries than the index has, so the defaults are used. "
            f"Tune again: adacur tune {folder}",
            TuningWarning,
            stacklevel=2,
        )
        return ()
    return tunings


def keep_tuning(folder: Path, tuning: Tuning, *, anchor_queries: Sequence[Query]) -> tuple[Tuning, ...]:
    """Add a tuning to a folder's, in the place of one for the same k and budget; all of them."""
    with locked(folder, wait=_PATIENCE), warnings.catch_warnings():
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        warnings.simplefilter("ignore", TuningWarning)
        tunings = with_tuning(read_tunings(folder, anchor_queries=anchor_queries), tuning)
        entries = [asdict(one) for one in tunings]
        data = {"type": _TYPE, "format": _FORMAT, "anchors_digest": _digest(anchor_queries), "tunings": entries}
        write_atomically(folder / TUNED, json.dumps(data, indent=1))
    return tunings


def with_tuning(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    """The tunings with one more, by k and budget; it takes the place of one for the same."""
    others = (one for one in tunings if (one.k, one.budget) != (tuning.k, tuning.budget))
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def nearest_tuning(tunings: Iterable[Tuning], *, k: int, budget: int, first: str | None) -> Tuning | None:
    """The tuning to search with: the one with the least |log k ratio| + |log budget ratio|.

    Only those from the same first stage, and with k and budget each within a factor of two, count.
    """

    def apart(tuning: Tuning) -> tuple[float, float]:
        return abs(math.log(tuning.k / k)), abs(math.log(tuning.budget / budget))

    reach = math.log(_REACH) + 1e-9
    near = [one for one in tunings if one.first == first and one.n_queries and max(apart(one)) <= reach]
    return min(near, key=lambda one: sum(apart(one)), default=None)


def reach_of(value: int) -> tuple[int, int]:
    """The least and the greatest k, or budget, of searches that a tuning for this one serves."""
    return -(-value // _REACH), value * _REACH


def _digest(anchor_queries: Sequence[Query]) -> str:
    return digest_texts((query.id, query.text) for query in anchor_queries)


def _parsed(entry: Mapping[str, Any]) -> Tuning:
    given = entry["settings"]
    if unknown := sorted(set(given) - {field.name for field in fields(GaussianSettings)}):
        raise ValueError(f"there is no setting {unknown[0]!r}")
    settings = GaussianSettings(**given)
    for name in ("noise", "embedding_weight", "locality", "first_batch", "first_share", "first_weight"):
        value = getattr(settings, name)
        if value is None and name in ("embedding_weight", "locality", "first_batch"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, not a number of at least 0")
    if settings.first_share > 1 or settings.locality == 0:
        raise ValueError(f"first_share is {settings.first_share}, locality {settings.locality}")
    if settings.first_batch is not None and not 0 < settings.first_batch < 1:
        raise ValueError(f"first_batch is {settings.first_batch}, not between 0 and 1")
    counts = {name: entry[name] for name in ("k", "budget", "n_queries", "seed")} | {"rounds": settings.rounds}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < (name in ("k", "budget", "rounds")):
            raise ValueError(f"{name} is {value!r}, not a count")
    predictions = tuple(Prediction(**prediction) for prediction in entry["predictions"])
    gain = None if entry["gain"] is None else Gain(**entry["gain"])
    for expected in (*predictions, *(() if gain is None else (gain,))):
        if not all(
            isinstance(share, int | float) and math.isfinite(share)
            for share in (expected.recall, expected.low, expected.high)
        ):
            raise ValueError(
                f"an expected recall is {expected.recall!r}, between {expected.low!r} and {expected.high!r}"
            )
    return Tuning(
        k=entry["k"],
        budget=entry["budget"],
        settings=settings,
        first=None if entry["first"] is None else str(entry["first"]),
        n_queries=entry["n_queries"],
        seed=entry["seed"],
        pseudo=bool(entry["pseudo"]),
        predictions=predictions,
        gain=gain,
    )
