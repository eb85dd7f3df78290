"""Forward passes recorded as CUDA graphs: a small call costs one launch instead of some hundred."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import FloatArray
from adacur.core.recording import Capture, cuda_graphs
from adacur.scorers.cross_encoders.buckets import Bucket, fill, packed, reads_of, two_types
from adacur.scorers.cross_encoders.packed_encoder import PackedTokens
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs

_log = logging.getLogger(__name__)
# Each takes some tens of milliseconds to record and about a megabyte; their work space is shared.
_MOST_GRAPHS = 64
# 512 pairs of 256 tokens.
_MOST_TOKENS = 131_072
# What filled the device may be gone by then.
_CALLS_BEFORE_TRYING_AGAIN = 1000
# In half precision, two passes over the same tokens differ by less, relative to the largest score.
_ROUNDING = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A forward pass that reads `numbers` and writes `scores`, both at fixed places; `host` is copied to `numbers`."""

    bucket: Bucket
    host: Any
    written: npt.NDArray[np.int32]
    numbers: Any
    scores: Any
    replay: Callable[[], None]
    run: Callable[[], None]


class RecordedForward:
    """Scores of small calls by recorded forward passes, one for each bucket that was met.

    `forward` makes logits of packed tokens without waiting for the device. At most `most` passes are recorded; behind
    that the next larger one serves. `capture` records what a function does and gives back what does it again; by
    default as a CUDA graph. One caller at a time.
    """

    def __init__(
        self,
        torch: Any,
        forward: Callable[[PackedTokens], Any],
        *,
        device: Any,
        pad_id: int,
        most: int = _MOST_GRAPHS,
        capture: Capture | None = None,
    ) -> None:
        self._torch, self._forward, self._device, self._pad_id = torch, forward, device, pad_id
        self._most = most
        self._given_capture = capture
        self._capture: Capture | None = None
        self._recorded: dict[Bucket, _Recorded] = {}
        self._checked: set[Bucket] = set()
        self._calls_to_wait = 0.0
        self._has_warned = False
        self.n_recorded = 0
        self.seconds_recording = 0.0

    def scores(self, pairs: TokenPairs, *, most_tokens: int) -> FloatArray | None:
        """One score per pair, in order; None where this is not the way: too large, too odd, or no memory for it."""
        if self._calls_to_wait > 0:
            self._calls_to_wait -= 1
            return None
        lengths, types = pairs.lengths, two_types(pairs.texts.template)
        bucket = Bucket.of(lengths, reads=reads_of(pairs.texts))
        if bucket is None or types is None or bucket.tokens > min(most_tokens, _MOST_TOKENS):
            return None
        with self._on_device():
            try:
                recorded = self._recorded_for(bucket, types=types)
            except Exception as error:
                # Triton, cuBLAS and the driver each have errors of their own.
                self._give_up(error)
                return None
            if recorded is None:
                return None
            fill(recorded.written, pairs, recorded.bucket, lengths=lengths, pad_id=self._pad_id)
            try:
                recorded.numbers.copy_(recorded.host, non_blocking=True)
                recorded.replay()
                # The only wait: after it `host` may be written again.
                scores: FloatArray = recorded.scores[: len(pairs)].cpu().numpy().copy()
                self._check_once(recorded, scores)
            except RuntimeError as error:
                self._give_up(error)
                return None
            return scores

    def _check_once(self, recorded: _Recorded, scores: FloatArray) -> None:
        """Compare the first scores of a recorded pass with those of a plain one: a wrong recording would not show."""
        if recorded.bucket in self._checked:
            return
        recorded.run()
        plain = recorded.scores[: len(scores)].cpu().numpy()
        apart = float(np.abs(plain - scores).max(initial=0.0))
        if not apart <= _ROUNDING * max(1.0, float(np.abs(plain).max(initial=0.0))):
            raise RuntimeError(f"scores of a recorded pass are {apart:.3g} from those of a plain one")
        self._checked.add(recorded.bucket)

    def drop(self) -> bool:
        """Free all recorded passes and their memory; whether there were any. Later calls record anew."""
        had_some = bool(self._recorded)
        self._recorded.clear()
        self._checked.clear()
        self._capture = None
        if had_some and self._device.type == "cuda":
            # A device that is gone refuses this too, and says so at the next call.
            with contextlib.suppress(RuntimeError):
                self._torch.cuda.empty_cache()
        return had_some

    def _recorded_for(self, bucket: Bucket, *, types: tuple[int, int]) -> _Recorded | None:
        if (recorded := self._recorded.get(bucket)) is not None:
            return recorded
        if len(self._recorded) < self._most:
            self._recorded[bucket] = self._record(bucket, types=types)
            return self._recorded[bucket]
        larger = [other for other in self._recorded if other.holds(bucket) and other.tokens <= 2 * bucket.tokens]
        return self._recorded[min(larger, key=lambda other: other.tokens)] if larger else None

    def _record(self, bucket: Bucket, *, types: tuple[int, int]) -> _Recorded:
        torch, started = self._torch, time.perf_counter()
        on_cuda = self._device.type == "cuda"
        host = torch.zeros(bucket.size, dtype=torch.int32, pin_memory=on_cuda)
        # Of zeros all pairs are without tokens, which is as good as any to record.
        numbers = torch.zeros(bucket.size, dtype=torch.int32, device=self._device)
        scores = torch.zeros(bucket.pairs, dtype=torch.float32, device=self._device)

        def run() -> None:
            scores.copy_(self._forward(packed(torch, numbers, bucket, types=types)))

        if self._capture is None:
            self._capture = self._given_capture or cuda_graphs(torch, self._device)
        replay = self._capture(run)
        seconds = time.perf_counter() - started
        self.n_recorded += 1
        self.seconds_recording += seconds
        _log.debug("Recorded %s on %s in %.0f ms; %d so far.", bucket, self._device, 1000 * seconds, self.n_recorded)
        return _Recorded(bucket, host, host.numpy(), numbers, scores, replay, run)

    def _give_up(self, error: Exception) -> None:
        """Free everything; where memory was lacking, for a while."""
        self.drop()
        no_memory = isinstance(error, self._torch.OutOfMemoryError) or "out of memory" in str(error).lower()
        self._calls_to_wait = _CALLS_BEFORE_TRYING_AGAIN if no_memory else float("inf")
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "The device %s %s CUDA graphs, so small calls are slower: %s",
                self._device,
                "has too little memory for" if no_memory else "refuses",
                str(error).partition("\n")[0],
            )

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
