"""Algorithm 2 (SampleItems): greedy, by softmax, or uniformly at random.

Ties go to the smaller random key, whatever the order of the items: saturated scores tie by the thousand, and no item is
to be preferred for its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.errors import InputError
from adacur.seeds import uniform

# With fewer values a sample saves no time.
_MANY = 100_000
# A prime, so that what repeats in the order of the items does not repeat in the sample.
_STRIDE = 61


def nth_largest(values: FloatArray, n: int) -> Any:
    """The n-th largest value; among many values, a sample narrows down where to look."""
    if len(values) >= _MANY and n < len(values) // 4:
        sample = values[::_STRIDE]
        expected = n / _STRIDE
        at = len(sample) - int(expected + 4 * math.sqrt(expected) + 16)
        if at > 0:
            large = values[values >= np.partition(sample, at)[at]]
            values = large if len(large) >= n else values
    return np.partition(values, len(values) - n)[len(values) - n]


def best_positions(values: FloatArray, n: int, *, keys: KeyArray) -> IntArray:
    """Positions of the n largest values, best first; ties go to the smaller key; -inf is never chosen."""
    n = min(n, len(values))
    if n <= 0:
        return np.empty(0, dtype=np.intp)
    threshold = nth_largest(values, n)
    chosen = np.flatnonzero(values >= threshold)
    if threshold == -np.inf:
        chosen = chosen[values[chosen] > -np.inf]
    if len(chosen) > 4 * n:
        # Saturated scores tie by the thousand: keep the winners, then only as many of the tied as are needed.
        above = chosen[values[chosen] > threshold]
        tied = chosen[values[chosen] == threshold]
        tied = tied[np.argpartition(keys[tied], n - len(above) - 1)[: n - len(above)]]
        chosen = np.concatenate([above, tied])
    return chosen[np.lexsort((keys[chosen], -values[chosen]))][:n]


@dataclass(frozen=True, slots=True)
class TopK:
    """The items with the highest predictions."""

    def choose(self, predicted: FloatArray, *, unscored: BoolArray, n: int, keys: KeyArray, stream: int) -> IntArray:
        """n unscored positions, best first."""
        return best_positions(np.where(unscored, predicted, -np.inf), n, keys=keys)


@dataclass(frozen=True, slots=True)
class Softmax:
    """A sample without replacement, with probability proportional to exp(prediction / temperature)."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive; got {self.temperature}. For the greedy choice use TopK().")

    def choose(self, predicted: FloatArray, *, unscored: BoolArray, n: int, keys: KeyArray, stream: int) -> IntArray:
        """n unscored positions, in the order drawn."""
        # Gumbel top-k draws the same sample as softmax without replacement and never overflows.
        gumbel = -np.log(-np.log(uniform(stream, keys)))
        return best_positions(np.where(unscored, predicted / self.temperature + gumbel, -np.inf), n, keys=keys)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform sample; predictions are ignored."""

    def choose(self, predicted: FloatArray, *, unscored: BoolArray, n: int, keys: KeyArray, stream: int) -> IntArray:
        """n unscored positions, in the order drawn."""
        return best_positions(np.where(unscored, uniform(stream, keys), -np.inf), n, keys=keys)
