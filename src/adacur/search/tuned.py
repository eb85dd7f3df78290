"""The settings of "gaussian" searches: the defaults, and tunings that are stored with an index."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adacur.budget import USUAL_CALLS
from adacur.data.stored import read_record, read_versioned, sealed_json
from adacur.errors import DamagedIndex, InputError
from adacur.protocols import ScorerCard
from adacur.records import Query
from adacur.search.stopping import EffortRule
from adacur.store.database import digest_texts

TUNED = "tuned.json"
_TYPE = "adacur_tuned"
_FORMAT = 4
# The methods that use what judgements choose: budget and fuse.
JUDGED_METHODS = ("gaussian", "rerank")
USUAL_ROUNDS = 5
# A tuning serves searches whose k and budget are within this factor of its own.
REACH = 2
_FARTHEST = math.log(REACH) + 1e-9


class TuningWarning(UserWarning):
    """An index was tuned for other anchor queries than it has; the defaults are used."""


@dataclass(frozen=True, slots=True)
class GaussianSettings:
    """How `method="gaussian"` predicts and spends.

    `rounds` are those that the budget is spent in (None: by what a call costs), `first_batch` is the first one's share
    of it (None: as much as any other).
    """

    rounds: int | None = None
    first_batch: float | None = None


def usual_rounds(card: ScorerCard) -> int:
    """The rounds of searches where nothing names them: more find more, and each is a call that others wait for.

    Twice as many where a model runs in this process: it loses nothing by smaller batches. Each call of a service is a
    wait, and of a function nobody knows.
    """
    return 2 * USUAL_ROUNDS if card.runs_here else USUAL_ROUNDS


def default_settings(k: int) -> GaussianSettings:
    """Settings for this k that do well on every collection tried."""
    return GaussianSettings(first_batch=0.3) if k <= 30 else GaussianSettings()


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over n queries, and its 95 % interval."""

    value: float
    low: float
    high: float
    n: int = 0

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"

    def change(self) -> str:
        """As a difference."""
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected mean Top-k-Recall of a method, with a 95 % interval.

    The interval is for the mean over as many new queries as were replayed: it covers the noise of both samples.
    """

    method: str
    recall: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected mean gain of the Gaussian over re-ranking, with an interval of the same kind."""

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
class Judged:
    """What judgements chose, and the judged quality to expect, measured on queries that did not choose.

    `largest` is the largest budget tried; the tuning's own is the smallest that is as good. `fuse` is 0 where the
    order is left to the scorer. The means are of `measure`, such as nDCG@10: of a search as `chosen`, of a
    `plain` one (the default first stage and weight, the largest budget), of their difference `gain`, and, with the
    chosen budget, first stage and weight, of `rerank`; and, with 0 calls, of all first stages joined, `alone`, over
    which the chosen search gains `worth`. Judging took `calls`.
    """

    measure: str
    n_queries: int
    largest: int
    fuse: float
    chosen: Mean
    plain: Mean
    gain: Mean
    rerank: Mean
    alone: Mean
    calls: int = 0
    worth: Mean | None = None
    alone_first: str | None = None

    def order(self) -> str:
        """What orders the hits."""
        return f"fuse {self.fuse:g}" if self.fuse else "the scorer's order"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings chosen for k items within a budget, and the recall to expect of them and of the other methods.

    Of the first stages `tried`, `first` is the one to start searches from and `rerank_first` the best for re-ranking.
    `judged` is set where judgements chose. `n_queries` counts the anchor queries replayed, 0 where there were too few;
    `pseudo` says that they were pseudo-queries. `effort` tells when a search has done enough.
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
        """The first stage for a method. Where judgements chose, the one that the weight was chosen for."""
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
    """The tunings of an index folder; none, with a warning, if they belong to other anchor queries."""
    file = folder / TUNED
    try:
        data = read_versioned(file, type_=_TYPE, format_=_FORMAT, without="searches then use the defaults")
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
    if digest == anchors_digest(anchor_queries):
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
    data = {"type": _TYPE, "format": _FORMAT, "anchors_digest": anchors_digest(anchor_queries), "tunings": entries}
    return sealed_json(data)


def near(tunings: Iterable[Tuning], *, k: int, budget: int) -> list[Tuning]:
    """Those whose k and budget are each within a factor of two, by |log k ratio| + |log budget ratio|.

    A tuning by judgements also serves the budgets between the one that it chose and the largest that it tried.
    """
    found = []
    for tuning in tunings:
        largest = tuning.judged.largest if tuning.judged else tuning.budget
        nearest = min(max(budget, tuning.budget), largest)
        apart = abs(math.log(tuning.k / k)), abs(math.log(nearest / budget))
        if tuning.n_queries and max(apart) <= _FARTHEST:
            found.append((sum(apart), tuning))
    return [tuning for _, tuning in sorted(found, key=lambda one: one[0])]


def default_budget(tunings: Iterable[Tuning], k: int, *, method: str) -> int:
    """The budget of a search that names none: the one that judgements chose for about this k, at most the usual.

    A folder may come from anybody: it can lower the cost of a search, and not raise it.
    """
    judged = [tuning for tuning in tunings if tuning.judged and method in JUDGED_METHODS]
    nearest = min(judged, key=lambda one: abs(math.log(one.k / k)), default=None)
    if nearest is None or abs(math.log(nearest.k / k)) > _FARTHEST:
        return USUAL_CALLS
    return min(max(k, nearest.budget), USUAL_CALLS)


def reach_of(value: int) -> tuple[int, int]:
    """The least and the greatest k, or budget, of searches that a tuning for this one serves."""
    return -(-value // REACH), value * REACH


def anchors_digest(anchor_queries: Sequence[Query]) -> str:
    """A hash of the ids and texts of anchor queries."""
    return digest_texts((query.id, query.text) for query in anchor_queries)


def _parsed(entry: Any) -> Tuning:
    """A tuning whose values can be used."""
    tuning = read_record(Tuning, entry)
    settings, judged = tuning.settings, tuning.judged
    if unknown := entry["settings"].keys() - asdict(settings).keys():
        raise ValueError(f"there is no setting {', '.join(map(repr, sorted(unknown)))}")
    numbers = asdict(settings) | {"n_queries": tuning.n_queries, "seed": tuning.seed}
    counts = {"k": tuning.k, "budget": tuning.budget, "rounds": settings.rounds or USUAL_ROUNDS}
    if judged is not None:
        numbers |= {"fuse": judged.fuse}
        counts |= {"largest": judged.largest, "judged queries": judged.n_queries}
    for least, values in ((0, numbers), (1, counts)):
        for name, value in values.items():
            if value is not None and value < least:
                raise ValueError(f"{name} is {value!r}, less than {least}")
    if settings.first_batch is not None and not 0 < settings.first_batch < 1:
        raise ValueError(f"first_batch is {settings.first_batch}, not between 0 and 1")
    return tuning
