"""What was computed and will be asked for again."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# What an entry takes besides its key and its numbers: an array object, its place in the dictionary.
_BESIDE = 256


class Remembered:
    """Arrays by key, such as a text: the newest, at most `most_bytes` with their keys. Threads may share it."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, keys: Iterable[Hashable]) -> dict[Any, npt.NDArray[Any]]:
        """The arrays of those of these keys that are remembered."""
        with self._lock:
            return {key: self._kept[key] for key in keys if key in self._kept}

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept: OrderedDict[Any, npt.NDArray[Any]] = OrderedDict()
            self.n_bytes = 0

    def keep(self, new: Mapping[Any, npt.NDArray[Any]]) -> None:
        """Remember these; the oldest are forgotten."""
        with self._lock:
            for key, array in new.items():
                if key not in self._kept:
                    # A row of a batch would hold all of it.
                    self._kept[key] = array = array if array.base is None else np.array(array)
                    self.n_bytes += _size(key, array)
            while self.n_bytes > self._most:
                self.n_bytes -= _size(*self._kept.popitem(last=False))


def _size(key: Hashable, array: npt.NDArray[Any]) -> int:
    return sys.getsizeof(key) + array.nbytes + _BESIDE
