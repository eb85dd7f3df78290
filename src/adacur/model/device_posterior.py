"""Predictions on a torch device: scores and requests of a search are noted, and computed with those of other searches.

They are computed when the search reads the answer, or before, by `compute_together`: searches at the same point become
rows of one batch, with one product for all. A few queries are solved by numpy, before a device would have received
their systems; it only predicts and chooses. Only chosen positions and their predictions come back to the host.

Memory on the device, besides the features: queries × (12 bytes an item + 16 bytes × scores × features + 24 bytes ×
scores²), of which the first two are taken for fewer queries at a time where there is too little.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import DeviceFailed
from adacur.model.approximation import chance_above
from adacur.model.features import Features
from adacur.model.on_device import moved
from adacur.model.posterior import (
    Prior,
    State,
    Told,
    informed,
    joined,
    residual_deviations,
    rises,
    room_in,
    some_of,
    start,
    tell,
)
from adacur.model.scale import QueryScales
from adacur.requirements import require

_log = logging.getLogger(__name__)
_loading = threading.Lock()
# Items found beyond those wanted, so that ties with the last of them are seen, and are broken by the items' keys.
_SLACK = 32
# For so few queries, numpy solves the systems before a device would have received them.
_FEW_QUERIES = 6


class TopN(NamedTuple):
    """The most promising unscored items of one query, best first, and their predictions."""

    positions: IntArray
    predicted: FloatArray


class Request(NamedTuple):
    """What the next choice of a search is asked for: at least the best `n` unscored items of each query.

    `allowed` marks the items that may be scored, or all may.
    """

    n: int
    allowed: BoolArray | None = None


class DevicePosterior:
    """The approximation of the queries of one search: some rows of a batch that it may share with other searches.

    `prior` makes what a batch starts from. One thread at a time may use it, alone or through `compute_together`.
    """

    def __init__(self, features: Features, prior: Callable[[], Prior], *, n_queries: int) -> None:
        self._features, self._prior = features, functools.cache(prior)
        self._batch: _Batch | None = None
        self._rows = range(n_queries)
        self._scales = QueryScales(None if features.learns_level else features.scale, n_queries)
        self._told: tuple[Sequence[IntArray], Sequence[FloatArray]] | None = None
        self._request = Request(0)
        self._best: list[TopN] | None = None

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        if self._told is not None:
            with _failing(self._features):
                _batch_of([self])
        rarities = [self._scales.rarity(at, exact) if len(exact) else exact for at, exact in enumerate(scores)]
        self._told, self._best = (positions, rarities), None

    def want(self, request: Request) -> None:
        """Note what the next `best` will be asked for."""
        self._request = request

    def best(self, request: Request) -> list[TopN]:
        """Of each query, the most promising unscored items, or a few more."""
        if self._best is None:
            self.want(request)
            compute_together([self])
        best, self._best = self._best, None
        assert best is not None
        return best

    def predict(self) -> FloatArray:
        """Predictions for every item on the score scale, a row per query, on the host."""
        with _failing(self._features):
            return _batch_of([self]).predict()

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Predictions for one query as scores of the scorer."""
        return self._scales.of(query).score(predicted)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best)."""
        with _failing(self._features):
            batch = _batch_of([self]) if self._batch is None or self._told is not None else self._batch
            deviation = float(batch.deviations[self._rows[query]])
        return chance_above(self._scales.of(query), deviation, predicted, best, ranks)

    def _point(self) -> Hashable:
        """A key that searches which can be computed together have in common."""
        state = None if self._batch is None else self._batch.state
        if self._batch is not None and state is None:
            return id(self)
        told = () if self._told is None else tuple({len(some) for some in self._told[0]})
        return (
            id(self._features),
            state is None,
            self._prior().values.shape[1:] if state is None else room_in(state),
            told if len(told) < 2 else id(self),
            id(self._request.allowed),
        )


def compute_together(searches: Sequence[DevicePosterior]) -> None:
    """Add the noted scores of these searches and find what they request, in one batch for all at the same point.

    Their next `best` only reads the answer.
    """
    groups: dict[Hashable, list[DevicePosterior]] = {}
    are_few = sum(len(search._rows) for search in searches) <= _FEW_QUERIES
    for search in searches:
        if are_few and search._batch is None:
            prior, features = search._prior(), search._features
            here = [(start(some_of(prior, slice(at, at + 1))), KnownRows(features)) for at in search._rows]
            search._batch = _Batch(features, None, here)
        groups.setdefault(search._point(), []).append(search)
    for group in groups.values():
        requests = [search._request for search in group]
        with _failing(group[0]._features):
            best = _batch_of(group).best(requests[0]._replace(n=max(request.n for request in requests)))
        for search in group:
            search._best = best[search._rows.start : search._rows.stop]


def _batch_of(group: Sequence[DevicePosterior]) -> _Batch:
    """One batch of exactly these searches, in order, with the scores noted of them."""
    batch = _joined(group)
    if any(search._told is not None for search in group):
        nothing: Any = [np.empty(0, dtype=np.intp)]
        told = [search._told or (nothing * len(search._rows), nothing * len(search._rows)) for search in group]
        # A new one: if the device fails halfway, each search is where it was, and can be tried alone.
        batch = batch.told([one for where, _ in told for one in where], [one for _, own in told for one in own])
    begin = 0
    for search in group:
        search._batch, search._rows, search._told = batch, range(begin, begin + len(search._rows)), None
        begin = search._rows.stop
    return batch


def _joined(group: Sequence[DevicePosterior]) -> _Batch:
    """One batch of exactly these searches; the one that they are in, where they are all of it."""
    features, device = group[0]._features, group[0]._features.device_means.device
    with _loading:
        _load_linalg(device)
    parts: list[tuple[_Batch, list[int]]] = []
    for search in group:
        if search._batch is None:
            prior = joined([one._prior() for one in group])
            return _Batch(features, start(Prior(*(moved(array, device) for array in prior))))
        if search._batch.state is None:
            return search._batch
        if not parts or parts[-1][0] is not search._batch:
            parts.append((search._batch, []))
        parts[-1][1].extend(search._rows)
    first, rows = parts[0]
    if len(parts) == 1 and rows == list(range(first.n_queries)):
        return first
    states = [some_of(one.state, moved(rows, device, dtype="int64")) for one, rows in parts if one.state is not None]
    return _Batch(features, joined(states))


@dataclass(eq=False)
class _Batch:
    """Queries over features on a device, where their `state` is; or, of each, a state `here` in memory."""

    features: Features
    state: State | None
    here: Sequence[tuple[State, KnownRows]] = ()

    @property
    def n_queries(self) -> int:
        return len(self.here) if self.state is None else len(self.state.at)

    def told(self, positions: Sequence[IntArray], rarities: Sequence[FloatArray]) -> _Batch:
        """The batch with these rarities of exact scores too, per query."""
        if self.state is None:
            given = zip(self.here, positions, rarities, strict=True)
            here = [
                (self._told(state, Told(*_padded([at]), one[None]), rows), rows) for (state, rows), at, one in given
            ]
            return replace(self, here=here)
        at, filled = _padded(positions)
        values = np.zeros(at.shape)
        values[filled] = np.concatenate(rarities)
        # In one transfer: float64 holds a position exactly.
        told = moved(np.stack([at, filled, values]), self.features.device_means.device)
        told = Told(told[0].long(), told[1].bool(), told[2])
        return replace(self, state=self._told(self.state, told, self.features.rows))

    def _told(self, state: State, told: Told, rows: Callable[[Any], Any]) -> State:
        if not told.at.shape[1]:
            return state
        if self.features.learns_level and not state.at.shape[1]:
            state = start(informed(state.prior, told))
        states = _in_parts(len(state.at), lambda part: tell(_part(state, part), _part(told, part), rows))
        told_all: State = joined(states)
        return told_all

    @functools.cached_property
    def deviations(self) -> FloatArray:
        """Of the residuals, per query."""
        if self.state is not None:
            return np.asarray(residual_deviations(self.state).cpu())
        return np.concatenate([residual_deviations(state) for state, _ in self.here])

    def predict(self) -> FloatArray:
        """Predictions for every item, a row per query, on the host."""
        solved = self._solved()
        parts = _in_parts(self.n_queries, lambda part: self._predicted(_part(solved, part)).cpu().numpy())
        return np.concatenate(parts)

    def best(self, request: Request) -> list[TopN]:
        """Of each query, the most promising unscored items: at least `n`, as far as there are as many."""
        n = min(request.n + _SLACK, self.features.factors.n_items)
        if len(self.here) == 1 and self.features.recorded is not None and request.allowed is None:
            state, known_rows = self.here[0]
            recorded = self.features.recorded.best(self.features, state, n)
            if recorded is not None:
                predicted, positions, rows = recorded
                known_rows.expect(positions, rows)
                return [_top_n(predicted, positions)]
        torch, device, solved = require("torch", extra="torch"), self.features.device_means.device, self._solved()
        may = None if request.allowed is None else moved(request.allowed, device)

        def choose(part: slice | None) -> Any:
            some = _part(solved, part)
            predicted = self._predicted(some)
            if may is not None:
                predicted.masked_fill_(~may, -math.inf)
            if some.at.shape[1]:
                # Padding names any item, and changes nothing.
                predicted.scatter_reduce_(1, some.at, torch.where(some.filled, -math.inf, math.inf), "amin")
            values, positions = predicted.topk(n, dim=1)
            # In one transfer: float64 holds a position exactly.
            return torch.stack([values.double(), positions.double()]).cpu().numpy()

        chosen = np.concatenate(_in_parts(self.n_queries, choose), axis=1)
        return [_top_n(*of_query) for of_query in chosen.swapaxes(0, 1)]

    def _solved(self) -> _Solved:
        """What predictions take, on the device."""
        if (state := self.state) is not None:
            return _Solved(state.weights, state.prior.listed, rises(state), state.at, state.filled)
        each = [(state.weights, state.prior.listed, rises(state)) for state, _ in self.here]
        arrays = (*map(np.concatenate, zip(*each, strict=True)), *_padded([state.at[0] for state, _ in self.here]))
        return _Solved(*(moved(array, self.features.device_means.device) for array in arrays))

    def _predicted(self, solved: _Solved) -> Any:
        """Predictions of every item, (queries, items), float32 on the device."""
        predicted = self.features.predictions(solved.weights)
        if solved.listed.shape[1]:
            predicted.scatter_add_(1, solved.listed, solved.rises.float())
        return predicted


class KnownRows:
    """Reads features of one query's scored items from a device, but for those that are known already."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._at: IntArray = np.empty(0, dtype=np.intp)
        self._rows: FloatArray = np.empty((0, features.factors.n_features + 2))
        self._expected: dict[int, FloatArray] = {}

    def expect(self, positions: IntArray, rows: FloatArray) -> None:
        """These came with a choice of items, and are likely to be scored next."""
        self._expected = dict(zip(positions.tolist(), rows, strict=True))

    def __call__(self, at: IntArray) -> FloatArray:
        # Scored items only grow in number, unless a device failed meanwhile.
        known = len(self._at) if np.array_equal(at[0, : len(self._at)], self._at) else 0
        new = at[0, known:]
        rows = [self._expected[place] for place in new.tolist() if place in self._expected]
        read = np.array(rows) if len(rows) == len(new) > 0 else self._features.rows_in_memory(new)
        self._at, self._rows = at[0], np.concatenate([self._rows[:known], read])
        return self._rows[None]


class _Solved(NamedTuple):
    weights: Any
    listed: Any
    rises: Any
    at: Any
    filled: Any


def _in_parts(n_queries: int, compute: Callable[[slice | None], Any]) -> list[Any]:
    """What is computed for all queries, a part at a time where the device has too little memory for all at once."""
    torch = require("torch", extra="torch")
    size, answers, begin = n_queries, [], 0
    while begin < n_queries:
        try:
            answers.append(compute(None if size == n_queries else slice(begin, begin + size)))
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
            torch.cuda.empty_cache()
            _log.warning("A device ran out of memory; searches go on %d at a time.", size)
            continue
        begin += size
    return answers


def _part(record: Any, part: slice | None) -> Any:
    return record if part is None else some_of(record, part)


def _padded(positions: Sequence[IntArray]) -> tuple[IntArray, BoolArray]:
    """Positions of several queries, padded with their last or with 0, and which of them are not padding."""
    shape = (len(positions), max(map(len, positions), default=0))
    at, filled = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    for row, marks, some in zip(at, filled, positions, strict=True):
        row[: len(some)], marks[: len(some)] = some, True
        row[len(some) :] = some[-1] if len(some) else 0
    return at, filled


def _top_n(predicted: FloatArray, positions: FloatArray | IntArray) -> TopN:
    predicted = predicted.astype(np.float32)
    there = predicted > -math.inf
    return TopN(positions[there].astype(np.intp), predicted[there])


@contextmanager
def _failing(features: Features) -> Iterator[None]:
    """Turn whatever torch raises inside into one error that names the device."""
    torch = require("torch", extra="torch")
    try:
        yield
    except torch.linalg.LinAlgError:
        raise
    except RuntimeError as error:
        raise DeviceFailed(
            f"Predictions on the device {features.device_means.device} failed with {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]} A process whose GPU has failed can rarely use it again: start it "
            "again, or open the index without a device, so that predictions are made on the processor."
        ) from error


@functools.cache
def _load_linalg(device: Any) -> None:
    """Torch loads CUDA's linear algebra at its first use, and fails where two threads are the first at once."""
    torch = require("torch", extra="torch")
    torch.linalg.cholesky(torch.eye(2, dtype=torch.float64, device=device))
