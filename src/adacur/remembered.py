"""What was computed from texts and will be asked for again."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# What an entry takes beside its text and its numbers: an array object, its place in the dictionary.
_BESIDE = 256


class Remembered:
    """Arrays by text, the newest: at most `most_bytes` of them with their texts. Safe to share between threads."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, texts: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
        """The arrays of those of these texts that are remembered."""
        with self._lock:
            return {text: self._kept[text] for text in texts if text in self._kept}

    def keep(self, new: Mapping[str, npt.NDArray[Any]]) -> None:
        """Remember these; the oldest are forgotten."""
        with self._lock:
            for text, array in new.items():
                if text not in self._kept:
                    # A row of a batch would hold all of it.
                    self._kept[text] = array = array if array.base is None else np.array(array)
                    self.n_bytes += _size(text, array)
            while self.n_bytes > self._most:
                self.n_bytes -= _size(*self._kept.popitem(last=False))


def _size(text: str, array: npt.NDArray[Any]) -> int:
    return sys.getsizeof(text) + array.nbytes + _BESIDE
