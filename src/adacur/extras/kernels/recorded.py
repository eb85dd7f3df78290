"""Forward passes recorded as CUDA graphs: a small call costs one launch instead of some hundred.

A recording has a fixed shape, so pairs are filled into one of a few buckets. They are joined on the host: up to 512
pairs take some tenths of a millisecond there and one copy, about as long as the dozen kernels that would join them on
the device, and no graph depends on where a growing table of tokens lies.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.arrays import FloatArray, IntArray
from adacur.extras.kernels.cuda_graphs import Capture, cuda_graphs
from adacur.extras.kernels.pair_batches import PackedTokens
from adacur.scorers.cross_encoders.pair_tokens import PairTemplate, TokenArray, TokenPairs

_log = logging.getLogger(__name__)
# Each takes some tens of milliseconds to record and about a megabyte; their work space is shared.
_MOST_GRAPHS = 64
# 512 pairs of 256 tokens.
_MOST_TOKENS = 131_072
# What filled the device may be gone by then.
_CALLS_BEFORE_TRYING_AGAIN = 1000
# In half precision, two passes over the same tokens differ by less, relative to the largest score.
_ROUNDING = 0.01
# Texts without tokens cost next to nothing, so there are few of these.
_PAIRS = (1, 8, 32, 128, 512)
# The attention kernel's blocks, and a step where it saves rows.
_LONGEST = (64, 128, 192, 256, 384, 512)
_LEAST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Bucket:
    """Space for `pairs` pairs of `tokens` tokens together, none with more than `longest`.

    What a call needs to say is one row of int32, `size` long: ids, where each pair starts, and where its item starts.
    """

    pairs: int
    tokens: int
    longest: int

    @classmethod
    def of(cls, lengths: IntArray) -> Bucket | None:
        """The smallest bucket for pairs of these lengths; None where there are too many."""
        if not 0 < len(lengths) <= _PAIRS[-1]:
            return None
        n_tokens, longest = int(lengths.sum()), int(lengths.max())
        # Four sizes per power of two: a tenth of filler in the mean.
        step = max(_LEAST_TOKENS, 1 << max(0, (n_tokens - 1).bit_length() - 3))
        return cls(
            pairs=_PAIRS[bisect_left(_PAIRS, len(lengths))],
            tokens=-(-n_tokens // step) * step,
            longest=-(-longest // 512) * 512 if longest > 512 else _LONGEST[bisect_left(_LONGEST, longest)],
        )

    @property
    def size(self) -> int:
        return self.tokens + (self.pairs + 1) + self.pairs

    def holds(self, other: Bucket) -> bool:
        """Whether all that fits into the other fits here."""
        return self.pairs >= other.pairs and self.tokens >= other.tokens and self.longest >= other.longest

    def parts(self, numbers: Any) -> tuple[Any, Any, Any]:
        """Views of a row, in an array or a tensor: ids, starts, item starts."""
        starts = self.tokens
        item_starts = starts + self.pairs + 1
        return numbers[:starts], numbers[starts:item_starts], numbers[item_starts : self.size]


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
        """One score per pair, in order; None where no recording can serve: pairs too many or too long, or no memory."""
        if self._calls_to_wait > 0:
            self._calls_to_wait -= 1
            return None
        lengths, types = pairs.lengths, two_types(pairs.texts.template)
        bucket = Bucket.of(lengths)
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
            fill(recorded.written, pairs, recorded.bucket, lengths=lengths, pad_id=self._pad_id, late=types[2])
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

    def _recorded_for(self, bucket: Bucket, *, types: tuple[int, int, int]) -> _Recorded | None:
        if (recorded := self._recorded.get(bucket)) is not None:
            return recorded
        if len(self._recorded) < self._most:
            self._recorded[bucket] = self._record(bucket, types=types)
            return self._recorded[bucket]
        larger = [other for other in self._recorded if other.holds(bucket) and other.tokens <= 2 * bucket.tokens]
        return self._recorded[min(larger, key=lambda other: other.tokens)] if larger else None

    def _record(self, bucket: Bucket, *, types: tuple[int, int, int]) -> _Recorded:
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


def two_types(template: PairTemplate) -> tuple[int, int, int] | None:
    """The token types up to a place and from there on, and how many tokens before the item that place is.

    None where they change elsewhere too.
    """
    middle = template.middle[1].tolist()
    late = len(list(takewhile(lambda kind: kind == template.item_type != template.query_type, reversed(middle))))
    head = {template.query_type, *template.prefix[1].tolist(), *middle[: len(middle) - late]}
    tail = {template.item_type, *template.suffix[1].tolist()}
    return (head.pop(), tail.pop(), late) if len(head) == len(tail) == 1 else None


def fill(
    numbers: npt.NDArray[np.int32], pairs: TokenPairs, bucket: Bucket, *, lengths: IntArray, pad_id: int, late: int = 0
) -> None:
    """Write these pairs, of these lengths, into a row; places behind them hold pairs without tokens.

    The item's token type begins `late` tokens before the item.
    """
    texts, n = pairs.texts, len(pairs)
    heads, suffix, spaces = [head[0] for head in texts.heads], texts.template.suffix[0], texts.space.tolist()
    parts: list[TokenArray] = []
    for query, item in zip(pairs.query_of.tolist(), pairs.item_of.tolist(), strict=True):
        tokens = texts.items[item]
        if len(tokens) > spaces[query]:
            tokens = texts.item_beside(query, item)
        parts += (heads[query], tokens, suffix)
    ends = np.cumsum(lengths)
    n_tokens, firsts = int(ends[-1]), ends - lengths
    head_lengths = texts.head_lengths[pairs.query_of]
    ids, starts, item_starts = bucket.parts(numbers)
    into: npt.NDArray[np.int32] = ids[:n_tokens]
    np.concatenate(parts, out=into, casting="same_kind")
    ids[n_tokens:] = pad_id
    starts[0] = 0
    starts[1 : n + 1] = ends
    starts[n + 1 :] = n_tokens
    item_starts[:n] = firsts + head_lengths - late
    item_starts[n:] = n_tokens


def packed(torch: Any, numbers: Any, bucket: Bucket, *, types: tuple[int, int, int]) -> PackedTokens:
    """What an encoder takes, of a row on its device; never waits for the device."""
    ids, starts, item_starts = bucket.parts(numbers)
    rows = torch.arange(bucket.tokens, dtype=starts.dtype, device=starts.device)
    text = torch.searchsorted(starts[1:], rows, right=True).clamp(max=bucket.pairs - 1)
    return PackedTokens(
        ids=ids.long(),
        types=types[0] + (types[1] - types[0]) * (rows >= item_starts[text]).long(),
        # Filler has no place in a text, and must not point beyond the last.
        positions=(rows - starts[text]).masked_fill(rows >= starts[-1], 0).long(),
        starts=starts,
        longest=bucket.longest,
        # A pair without tokens has no row of its own; what is read of it is thrown away.
        read_rows=starts[:-1, None].long().clamp(max=bucket.tokens - 1),
    )
