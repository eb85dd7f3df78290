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
from adacur.model.acquire import ROUNDING, SCORES_THAT_TELL
from adacur.model.features import Features
from adacur.model.posterior import State, rises
from adacur.model.rank_slopes import RANKS_THAT_COUNT, RISE
from adacur.requirements import require

_log = logging.getLogger(__name__)
# Room for scored and for listed items comes in multiples of these.
_SCORED_STEP, _LISTED_STEP = 128, 1024
# Shapes recorded per set of features; they differ by the budget, the size of a round and the first stages.
_MOST = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recorded choice has room for: listed items, the first stage's candidates, scored items and chosen ones.

    Where there are `candidates`, they raise predictions.
    """

    listed: int
    candidates: int
    scored: int
    top: int

    @classmethod
    def of(cls, *, listed: int, raises: bool, n_scored: int, n: int, n_items: int) -> Shape:
        """The smallest that holds these."""
        listed = -(-listed // _LISTED_STEP) * _LISTED_STEP
        candidates = min(RANKS_THAT_COUNT, n_items) if raises else 0
        scored, top = -(-n_scored // _SCORED_STEP) * _SCORED_STEP, min(n_items, 1 << (n - 1).bit_length())
        return cls(listed=listed, candidates=candidates, scored=scored, top=top)


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
        n_listed = shape.listed + shape.candidates
        self._n_places = n_listed + shape.scored
        n_numbers = n_listed + self._n_features + 1
        self._host = torch.zeros(self._n_places + n_numbers, dtype=torch.float64, pin_memory=on_cuda)
        self._given = torch.zeros_like(self._host, device=self._device)
        self._answer = torch.zeros((shape.top, 3 + self._n_features), dtype=torch.float64, device=self._device)
        self._back = torch.zeros(self._answer.shape, dtype=torch.float64, pin_memory=on_cuda)
        self._replay = (capture or cuda_graphs(torch, self._device))(self._run)

    def best(
        self,
        *,
        weights: FloatArray,
        listed: IntArray,
        rises: FloatArray,
        candidates: IntArray,
        first_weight: float,
        scored: IntArray,
    ) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
        """Raised and plain predictions of the best unscored items, their positions, and their features.

        The `listed` items rise by `rises`. Where the shape has `candidates`, these are raised by `first_weight`.
        """
        shape = self._shape
        # Float64 holds a position exactly. Padding names an item that rises by 0, or one already scored.
        steps = RISE[: len(candidates)]
        places, heights = [], []
        for some, own, room in ((listed, rises, shape.listed), (candidates, steps, shape.candidates)):
            places.append(np.full(room, some[0] if len(some) else 0, dtype=np.float64))
            heights.append(np.zeros(room))
            if room:
                places[-1][: len(some)], heights[-1][: len(some)] = some, own
        filled = np.full(shape.scored, scored[0], dtype=np.float64)
        filled[: len(scored)] = scored
        parts: list[Any] = [*places, filled, *heights, weights, [first_weight]]
        with self.lock:
            np.concatenate(parts, out=self._host.numpy())
            self._given.copy_(self._host, non_blocking=True)
            self._replay()
            self._back.copy_(self._answer, non_blocking=True)
            if self._device.type == "cuda":
                self._torch.cuda.current_stream(self._device).synchronize()
            answer = self._back.numpy().copy()
        return answer[:, 0], answer[:, 1], answer[:, 2].astype(np.intp), answer[:, 3:]

    def _run(self) -> None:
        torch, shape, features, given = self._torch, self._shape, self._features, self._given
        places, numbers = given[: self._n_places].long(), given[self._n_places :]
        listed, candidates, scored = places.split([shape.listed, shape.candidates, shape.scored])
        rises, steps, weights, first_weight = numbers.split([shape.listed, shape.candidates, self._n_features, 1])
        predicted = features.predictions(weights[None, :])[0]
        predicted.scatter_add_(0, listed, rises.float())
        raised = predicted.clone()
        if shape.candidates:
            deviation, height = predicted.std(correction=0), predicted[candidates[:1]].abs()
            unit = torch.where(deviation <= ROUNDING * height, height.clamp(min=1.0), deviation)
            unit = torch.where(unit.isfinite(), unit, 0.0) * first_weight.float()
            raised.scatter_add_(0, candidates, unit * steps.float())
        raised.scatter_(0, scored, -math.inf)
        values, at = raised.topk(shape.top)
        found = torch.stack([values.double(), predicted[at].double(), at.double()], 1)
        self._answer.copy_(torch.cat([found, features.rows(at)], 1))


class RecordedChoices:
    """The recorded choices over one set of features, each made when its shape is first met; thread-safe."""

    def __init__(self, *, capture: Capture | None = None) -> None:
        self._capture = capture
        self._lock = threading.Lock()
        self._known: dict[Shape, CudaGraphTopN | None] = {}

    def best(
        self, features: Features, state: State, n: int, found: IntArray, first_weight: float
    ) -> tuple[FloatArray, FloatArray, IntArray, FloatArray] | None:
        """The choice of n items or more for a lone query, whose state is in memory; None where it cannot be recorded.

        The first stage's best, `found`, raise predictions by `first_weight`; the answer is that of `CudaGraphTopN`.
        """
        n_scored, raises = state.at.shape[1], bool(first_weight and len(found))
        if not n_scored:
            return None
        sizes = {"n_scored": n_scored, "n": n, "n_items": features.factors.n_items}
        choice = self.of(features, listed=state.prior.listed.shape[1], raises=raises, **sizes)
        if choice is None:
            return None
        return choice.best(
            weights=state.weights[0],
            listed=state.prior.listed[0],
            rises=rises(state)[0],
            candidates=found[:RANKS_THAT_COUNT] if raises else found[:0],
            first_weight=1 / (1 / first_weight + n_scored / SCORES_THAT_TELL) if first_weight else 0.0,
            scored=state.at[0],
        )

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
