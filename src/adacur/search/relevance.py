"""What a score says about an answer: its rank among the anchor queries' best scores, or how judges saw such hits.

Both are stored in the index folder. Without judgements `relevance` is the share of anchor queries whose best item
scores lower, which is a rank and not a probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from adacur.arrays import FloatArray
from adacur.data.stored import read_record, read_versioned, sealed_json
from adacur.errors import DamagedIndex
from adacur.model.scale import ScoreScale
from adacur.protocols import AnchorScores
from adacur.records import Query
from adacur.search.tuned import anchors_digest
from adacur.store import IndexFolder

RELEVANCE = "relevance.json"
ANSWERED, DOUBTFUL, NOTHING_FOUND = "answered", "doubtful", "nothing found"
# The share of questions without an answer that may pass for answered, and of others that may pass for nothing found.
ERRORS = 0.1
# A share of fewer anchor queries says next to nothing.
FEWEST_ANCHORS = 20
_TYPE, _FORMAT = "adacur_relevance", 1
_MOST_KNOTS = 256
# Products of these are still finite.
_LARGEST = 1e100
# Where relevance is not stored, it is computed from at most this many scores, which takes a second.
_MOST_SCORES = 100_000_000
_ITEMS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class Calibration:
    """The chance that a hit is judged relevant: logistic in the rarity of its score and the logarithm of its rank.

    `scores` and `rarities` are the knots of the index's `ScoreScale`. It was fitted to the hits of `queries` judged
    queries; `error` is the expected calibration error, each half of them by a fit to the other.
    """

    scores: tuple[float, ...]
    rarities: tuple[float, ...]
    constant: float
    per_rarity: float
    per_log_rank: float
    queries: int
    error: float

    def __post_init__(self) -> None:
        numbers = (*self.scores, *self.rarities, self.constant, self.per_rarity, self.per_log_rank)
        if max(map(abs, numbers)) > _LARGEST:
            raise ValueError(f"a number is larger than {_LARGEST:g}, so chances could not be computed")
        knots = np.array(self.scores), np.array(self.rarities)
        rises = len(knots[0]) == len(knots[1]) >= 2 and all(bool((np.diff(one) > 0).all()) for one in knots)
        if not rises or self.per_rarity < 0 or self.per_log_rank > 0:
            raise ValueError("the chance of being relevant must rise with the score and fall with the rank")

    def chances(self, scores: FloatArray, ranks: FloatArray) -> FloatArray:
        """The chances of hits with these scores at these ranks, counted from 1."""
        rarities = ScoreScale(np.array(self.scores), np.array(self.rarities)).rarity(scores)
        odds = self.constant + self.per_rarity * rarities + self.per_log_rank * np.log(ranks)
        return np.asarray(1 / (1 + np.exp(-np.clip(odds, -500, 500))))


@dataclass(frozen=True, slots=True)
class Relevance:
    """How to read the scores of an index.

    `best` are the best scores of its anchor queries, ascending, without a pseudo-query's own item. A question whose
    best score reaches `answered` counts as answered, one below `nothing` as without an answer. They are chosen so that
    a share of `ERRORS` is wrong: of queries without their relevant items (lacking judgements, without their best item)
    for the one, of queries with them for the other.
    """

    best: tuple[float, ...]
    answered: float
    nothing: float
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if len(self.best) < 2 or bool((np.diff(self.best) < 0).any()) or self.nothing > self.answered:
            raise ValueError("best scores must ascend, and nothing must not exceed answered")

    @classmethod
    def of_anchors(cls, anchors: AnchorScores) -> Relevance | None:
        """From the anchor scores; None where too few anchor queries were scored against every item."""
        exact = anchors.exact_anchors() if isinstance(anchors, IndexFolder) else None
        columns = np.arange(len(anchors.anchor_queries)) if exact is None else np.flatnonzero(exact)
        if len(columns) < FEWEST_ANCHORS or len(anchors.items) < 3:
            return None
        top = np.full((3, len(columns)), -np.inf)
        for block in _blocks(anchors):
            both = np.concatenate([top, block[:, columns]])
            top = np.partition(both, (-3, -2, -1), axis=0)[-3:]
        # Nobody asks in the very words of an item, as pseudo-queries do: their own item is left out.
        best = np.array([1 if anchors.anchor_queries[at].id.startswith("pq-") else 2 for at in columns.tolist()])
        every = np.arange(len(columns))
        return cls.by(best=top[best, every], without=top[best - 1, every])

    @classmethod
    def by(cls, *, best: FloatArray, without: FloatArray, calibration: Calibration | None = None) -> Relevance:
        """From the best scores of queries, with and `without` the items that answer them."""
        answered, nothing = float(np.quantile(without, 1 - ERRORS)), float(np.quantile(best, ERRORS))
        if answered < nothing:
            # The two are so far apart that nothing is doubtful.
            answered = nothing = (answered + nothing) / 2
        ascending = np.sort(np.asarray(best, dtype=np.float64))
        if len(ascending) > _MOST_KNOTS:
            ascending = ascending[np.linspace(0, len(ascending) - 1, _MOST_KNOTS).round().astype(np.intp)]
        return cls(tuple(ascending.tolist()), answered, nothing, calibration)

    @property
    def source(self) -> str:
        """What `of` is based on: "judgements" (a probability) or "anchors" (a share of anchor queries)."""
        return "anchors" if self.calibration is None else "judgements"

    def of(self, scores: FloatArray) -> FloatArray:
        """The relevance of hits with these scores, best first, from 0 to 1.

        By judgements the chance to be judged relevant, else the share of anchor queries whose best item scores lower.
        """
        scores = np.asarray(scores, dtype=np.float64)
        if self.calibration is not None:
            return self.calibration.chances(scores, np.arange(1.0, len(scores) + 1))
        return np.asarray(np.searchsorted(self.best, scores, side="left") / len(self.best))

    def verdict(self, scores: FloatArray) -> str:
        """Whether a question whose hits have these scores is answered."""
        best = float(np.max(scores)) if len(scores) else -np.inf
        return ANSWERED if best >= self.answered else NOTHING_FOUND if best < self.nothing else DOUBTFUL


def read_relevance(folder: Path | None, anchors: AnchorScores, *, compute: bool = True) -> Relevance | None:
    """The relevance stored in an index folder for these anchor queries; else computed where that is quick, or None."""
    if folder is not None and (stored := _stored(folder / RELEVANCE, anchors.anchor_queries)) is not None:
        return stored
    if not compute or len(anchors.items) * len(anchors.anchor_queries) > _MOST_SCORES:
        return None
    return Relevance.of_anchors(anchors)


def as_stored(relevance: Relevance, *, anchor_queries: Sequence[Query]) -> str:
    """The text of the file that `read_relevance` reads."""
    data = {"type": _TYPE, "format": _FORMAT, "anchors_digest": anchors_digest(anchor_queries)}
    return sealed_json(data | {"relevance": asdict(relevance)})


def _stored(file: Path, anchor_queries: Sequence[Query]) -> Relevance | None:
    try:
        without = "relevance then follows from the anchor scores"
        data = read_versioned(file, type_=_TYPE, format_=_FORMAT, without=without)
        relevance = read_record(Relevance, data["relevance"])
        return relevance if str(data["anchors_digest"]) == anchors_digest(anchor_queries) else None
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise DamagedIndex(
            f"{file} does not hold what adacur writes ({error}). Remove it: relevance then follows from the anchor "
            f"scores, until `adacur tune {file.parent}` has been run again."
        ) from error


def _blocks(anchors: AnchorScores) -> Iterator[FloatArray]:
    """All anchor scores, some items at a time."""
    if isinstance(anchors, IndexFolder):
        yield from (values for _, values in anchors.blocks())
    else:
        for start in range(0, len(anchors.items), _ITEMS_AT_ONCE):
            yield anchors.matrix[start : start + _ITEMS_AT_ONCE]
