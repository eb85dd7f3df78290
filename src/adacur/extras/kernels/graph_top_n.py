"""The predictions and the choice of one query, recorded as a CUDA graph: one launch instead of some forty."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.extras.kernels.cuda_graphs import Capture, cuda_graphs
from adacur.model.features import Features
from adacur.model.posterior import State, rises
from adacur.requirements import require

_log = logging.getLogger(__name__)
# Room for scored and for listed items comes in multiples of these.
_SCORED_STEP, _LISTED_STEP = 128, 1024
# Shapes recorded per set of features; they differ by the budget, the size of a round and the first stages.
_MOST = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recorded choice has room for: listed items, scored items and chosen ones."""

    listed: int
    scored: int
    top: int

    @classmethod
    def of(cls, *, listed: int, n_scored: int, n: int, n_items: int) -> Shape:
        """The smallest that holds these."""
        listed = -(-listed // _LISTED_STEP) * _LISTED_STEP
        scored, top = -(-n_scored // _SCORED_STEP) * _SCORED_STEP, min(n_items, 1 << (n - 1).bit_length())
        return cls(listed=listed, scored=scored, top=top)


class CudaGraphTopN:
    """Predicts all items for one query and takes the best; reads and writes fixed places, so one caller at a time.

    `capture` records what a function does; by default as a CUDA graph.
    """

    def __init__(self, features: Features, shape: Shape, *, capture: Capture | None = None) -> None:
        torch = self._torch = require("torch", extra="torch")
        self._features, self._shape = features, shape
        self._device = features.device_means.device
        # The mean's and the level's too.
        self._n_features = features.factors.n_features + 2
        self.lock = threading.Lock()
        on_cuda = self._device.type == "cuda"
        self._n_places = shape.listed + shape.scored
        n_numbers = shape.listed + self._n_features
        self._host = torch.zeros(self._n_places + n_numbers, dtype=torch.float64, pin_memory=on_cuda)
        self._given = torch.zeros_like(self._host, device=self._device)
        self._answer = torch.zeros((shape.top, 2 + self._n_features), dtype=torch.float64, device=self._device)
        self._back = torch.zeros(self._answer.shape, dtype=torch.float64, pin_memory=on_cuda)
        self._replay = (capture or cuda_graphs(torch, self._device))(self._run)

    def best(
        self, *, weights: FloatArray, listed: IntArray, rises: FloatArray, scored: IntArray
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """Predictions of the best unscored items, their positions, and their features.

        The `listed` items rise by `rises`.
        """
        shape = self._shape
        # Float64 holds a position exactly. Padding names an item that rises by 0, or one already scored.
        places, heights = np.full(shape.listed, listed[0] if len(listed) else 0.0), np.zeros(shape.listed)
        if shape.listed:
            places[: len(listed)], heights[: len(listed)] = listed, rises
        filled = np.full(shape.scored, scored[0], dtype=np.float64)
        filled[: len(scored)] = scored
        with self.lock:
            np.concatenate([places, filled, heights, weights], out=self._host.numpy())
            self._given.copy_(self._host, non_blocking=True)
            self._replay()
            self._back.copy_(self._answer, non_blocking=True)
            if self._device.type == "cuda":
                self._torch.cuda.current_stream(self._device).synchronize()
            answer = self._back.numpy().copy()
        return answer[:, 0], answer[:, 1].astype(np.intp), answer[:, 2:]

    def _run(self) -> None:
        torch, shape, features, given = self._torch, self._shape, self._features, self._given
        places, numbers = given[: self._n_places].long(), given[self._n_places :]
        listed, scored = places.split([shape.listed, shape.scored])
        rises, weights = numbers.split([shape.listed, self._n_features])
        predicted = features.predictions(weights[None, :])[0]
        predicted.scatter_add_(0, listed, rises.float())
        predicted.scatter_(0, scored, -math.inf)
        values, at = predicted.topk(shape.top)
        found = torch.stack([values.double(), at.double()], 1)
        self._answer.copy_(torch.cat([found, features.rows(at)], 1))


class RecordedChoices:
    """The recorded choices over one set of features, each made when its shape is first met; thread-safe."""

    def __init__(self, *, capture: Capture | None = None) -> None:
        self._capture = capture
        self._lock = threading.Lock()
        self._known: dict[Shape, CudaGraphTopN | None] = {}

    def best(self, features: Features, state: State, n: int) -> tuple[FloatArray, IntArray, FloatArray] | None:
        """The choice of n items or more for a lone query, whose state is in memory; None where it cannot be recorded.

        The answer is that of `CudaGraphTopN`.
        """
        n_scored, n_listed = state.at.shape[1], state.prior.listed.shape[1]
        if not n_scored:
            return None
        choice = self.of(features, listed=n_listed, n_scored=n_scored, n=n, n_items=features.factors.n_items)
        if choice is None:
            return None
        listed, rise = state.prior.listed[0], rises(state)[0]
        return choice.best(weights=state.weights[0], listed=listed, rises=rise, scored=state.at[0])

    def of(self, features: Features, **sizes: Any) -> CudaGraphTopN | None:
        """The choice of the smallest shape that holds these sizes (`Shape.of`); None where none can be recorded."""
        if self._capture is None and features.device_means.device.type != "cuda":
            return None
        shape = Shape.of(**sizes)
        with self._lock:
            if shape not in self._known and len(self._known) < _MOST:
                self._known[shape] = self._recorded(features, shape)
            return self._known.get(shape)

    def _recorded(self, features: Features, shape: Shape) -> CudaGraphTopN | None:
        try:
            return CudaGraphTopN(features, shape, capture=self._capture)
        except Exception as error:
            # Triton, cuBLAS and the driver each have errors of their own.
            _log.warning("Rounds cannot be recorded as CUDA graphs, so they take longer: %s", error)
            return None
