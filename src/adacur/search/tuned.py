"""The settings of "gaussian" searches: the defaults, and tunings that are stored with an index."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from adacur.core.errors import DamagedIndex, InputError
from adacur.core.records import Query
from adacur.data.stored import read_record, read_versioned
from adacur.index.database import digest_texts
from adacur.search.effort import EffortRule

TUNED = "tuned.json"
_TYPE = "adacur_tuned"
_FORMAT = _RANKS_IN_PREDICTIONS = 2
# Fields that earlier versions did not write.
_NEW = ("rerank_first", "tried", "judged", "effort")
# What judgements choose (budget, fuse, pool) serves these; the others are there to be compared with.
JUDGED_METHODS = ("gaussian", "rerank")
# The first stage's weight without anchor queries, and the number of them that lets it fall to half: they tell what
# ranks are worth.
_FIRST_WEIGHT = 3.0
_ANCHORS_THAT_TELL = 2
# A tuning serves searches up to this many times its k and its budget, and down to as small a part of them.
REACH = 2


class TuningWarning(UserWarning):
    """An index was tuned for other anchor queries than it has; the defaults are used."""


@dataclass(frozen=True, slots=True)
class GaussianSettings:
    """How `method="gaussian"` predicts and spends.

    `noise`, `embedding_weight` and `locality` are the approximator's (`GaussianModel`; None: by the number of anchor
    queries). `first_batch` is the first round's share of the budget (None: as much as any other), `first_share` the
    first stage's share of each later round, and `first_weight` its say beside the predictions (None: the less, the more
    anchor queries there are).
    """

    rounds: int = 5
    noise: float = 0.3
    embedding_weight: float | None = None
    locality: float | None = None
    first_batch: float | None = None
    first_share: float = 0.0
    first_weight: float | None = None


def default_settings(k: int) -> GaussianSettings:
    """Settings that do well on every collection tried, for the best k.

    The smaller k, the more weight for the first stage: it is sharpest at the top.
    """
    if k <= 3:
        return GaussianSettings(first_batch=0.3, first_share=0.2)
    return GaussianSettings(first_batch=0.3) if k <= 30 else GaussianSettings()


def first_weight_of(settings: GaussianSettings, n_anchors: int) -> float:
    """The first stage's weight, which fades by default as anchor queries tell what its ranks are worth."""
    if settings.first_weight is not None:
        return settings.first_weight
    return _FIRST_WEIGHT / (1 + n_anchors / _ANCHORS_THAT_TELL)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The mean Top-k-Recall that a method is expected to reach, and where it will lie in 19 of 20 cases.

    The interval is for the mean over as many new queries as were replayed: both samples' noise is in it.
    """

    method: str
    recall: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Gain:
    """What the Gaussian is expected to add to re-ranking, query by query, with an interval of the same kind."""

    recall: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TriedFirst:
    """A first stage, and the mean recalls from it: of "gaussian" with the default settings, and of re-ranking."""

    first: str
    gaussian: float
    rerank: float


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over judged queries, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What judgements chose, and the judged quality to expect, measured on queries that did not choose.

    `largest` is the budget that could have been spent; the tuning's own is the smallest that is as good. `fuse` is 0
    and `pool` None where the order is left to the scorer. The means are of `measure`, such as nDCG@10: of a search as
    `chosen`, of a `plain` one (the default first stage, the largest budget, the scorer's order), their difference
    `gain`, and, at the chosen budget, from the chosen first stage, with its weight: of `rerank`, and of that stage
    `alone`. `calls` were paid for.
    """

    measure: str
    n_queries: int
    largest: int
    fuse: float
    pool: int | None
    chosen: Mean
    plain: Mean
    gain: Mean
    rerank: Mean
    alone: Mean
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings chosen for k items within a budget, and the recall to expect of them and of the other methods.

    `first` names the first stage that searches should start from and `rerank_first` the best for re-ranking, of those
    `tried`. `judged` is there where judgements chose. `n_queries` counts the anchor queries replayed, 0 where there
    were too few. `pseudo` says that they were pseudo-queries. `effort` tells when a search has done enough.
    """

    k: int
    budget: int
    settings: GaussianSettings
    first: str | None = None
    n_queries: int = 0
    seed: int = 0
    pseudo: bool = False
    predictions: tuple[Prediction, ...] = ()
    gain: Gain | None = None
    rerank_first: str | None = None
    tried: tuple[TriedFirst, ...] = ()
    judged: Judged | None = None
    effort: EffortRule | None = None

    def first_of(self, method: str) -> str | None:
        """The first stage for a method. Where judgements chose, it is the one that the weight was chosen for."""
        return self.rerank_first or self.first if method == "rerank" and self.judged is None else self.first

    def recall_of(self, method: str) -> Prediction:
        """The prediction for a method."""
        predictions = {prediction.method: prediction for prediction in self.predictions}
        if method not in predictions:
            raise InputError(f"Nothing is predicted of {method!r}; only of: {', '.join(predictions) or 'no method'}.")
        return predictions[method]

    @property
    def is_exact(self) -> bool:
        """Whether the budget covers every item, so that all methods find the same and there is nothing to choose."""
        return bool(self.predictions) and all(one.low == one.high == 1.0 for one in self.predictions)


def read_tunings(folder: Path, *, anchor_queries: Sequence[Query], warn: bool = True) -> tuple[Tuning, ...]:
    """The tunings of an index folder; none, and a warning if wanted, if they belong to other anchor queries."""
    file = folder / TUNED
    try:
        data = read_versioned(file, type_=_TYPE, newest=_FORMAT, without="searches then use the defaults")
        tunings = tuple(_parsed(entry) for entry in data["tunings"])
        if int(data["format"]) < _RANKS_IN_PREDICTIONS:
            # The weight was chosen for predictions that knew nothing of ranks.
            tunings = tuple(replace(one, settings=replace(one.settings, first_weight=None)) for one in tunings)
        digest = str(data["anchors_digest"])
    except FileNotFoundError:
        return ()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise DamagedIndex(
            f"{file} does not hold the tuned settings that adacur writes ({reason}). Remove it: searches then use the "
            f"defaults, until `adacur tune {folder}` has been run again."
        ) from error
    if digest == _digest(anchor_queries):
        return tunings
    if warn:
        warnings.warn(
            f"{file} was tuned for other anchor queries than the index has, so the defaults are used. "
            f"Tune again: adacur tune {folder}",
            TuningWarning,
            stacklevel=2,
        )
    return ()


def as_stored(tunings: Iterable[Tuning], *, anchor_queries: Sequence[Query]) -> str:
    """The text of the file that `read_tunings` reads."""
    entries = [asdict(tuning) for tuning in tunings]
    data = {"type": _TYPE, "format": _FORMAT, "anchors_digest": _digest(anchor_queries), "tunings": entries}
    return json.dumps(data, indent=1)


def reach_of(value: int) -> tuple[int, int]:
    """The least and the greatest k, or budget, of searches that a tuning for this one serves."""
    return -(-value // REACH), value * REACH


def _digest(anchor_queries: Sequence[Query]) -> str:
    return digest_texts((query.id, query.text) for query in anchor_queries)


def _parsed(entry: Mapping[str, Any]) -> Tuning:
    settings = GaussianSettings(**entry["settings"])
    for name, value in asdict(settings).items():
        if value is None and name in ("embedding_weight", "locality", "first_batch", "first_weight"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, not a number of at least 0")
    if settings.first_share > 1 or settings.locality == 0:
        raise ValueError(f"first_share is {settings.first_share}, locality {settings.locality}")
    if settings.first_batch is not None and not 0 < settings.first_batch < 1:
        raise ValueError(f"first_batch is {settings.first_batch}, not between 0 and 1")
    for name in ("k", "budget", "rounds", "n_queries", "seed"):
        value = settings.rounds if name == "rounds" else entry[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < (name in ("k", "budget", "rounds")):
            raise ValueError(f"{name} is {value!r}, not a count")
    predictions = tuple(Prediction(**prediction) for prediction in entry["predictions"])
    gain = None if entry["gain"] is None else Gain(**entry["gain"])
    for expected in (*predictions, *(() if gain is None else (gain,))):
        shares = (expected.recall, expected.low, expected.high)
        if not all(isinstance(share, int | float) and math.isfinite(share) for share in shares):
            raise ValueError(f"an expected recall and its interval are {shares}")
    # What tunings of earlier versions lack is as if it had not been tried.
    values = {
        field.name: entry[field.name] for field in fields(Tuning) if field.name in entry or field.name not in _NEW
    }
    firsts = {name: None if values.get(name) is None else str(values[name]) for name in ("first", "rerank_first")}
    judged = None if values.get("judged") is None else _parsed_judged(values["judged"])
    tried = tuple(TriedFirst(**one) for one in values.get("tried", ()))
    effort = None if values.get("effort") is None else read_record(EffortRule, values["effort"])
    parts = {"settings": settings, "predictions": predictions, "gain": gain, "tried": tried, "judged": judged}
    parts |= {"effort": effort}
    return Tuning(**values | parts | firsts)


def _parsed_judged(entry: Mapping[str, Any]) -> Judged:
    means = {name: Mean(**entry[name]) for name in ("chosen", "plain", "gain", "rerank", "alone")}
    judged = Judged(**{**entry, **means, "measure": str(entry["measure"])})
    numbers = [judged.fuse, *(value for mean in means.values() for value in asdict(mean).values())]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers) or judged.fuse < 0:
        raise ValueError(f"judged quality and fuse are {numbers}")
    counts = (judged.largest, judged.n_queries, 1 if judged.pool is None else judged.pool)
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in counts):
        raise ValueError(f"largest budget, queries and pool are {counts}")
    return judged
