"""A row of numbers that stays on a GPU: what a search needs of it comes to the host, and never the whole."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from adacur.core.arrays import FloatArray, IntArray

__all__ = ["DeviceRow", "RankedRow"]


@runtime_checkable
class RankedRow(Protocol):
    """A row of predictions that finds its largest by itself, without being looked through as a whole."""

    def __len__(self) -> int: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray: ...

    def __getitem__(self, positions: IntArray) -> FloatArray: ...

    def among_largest(self, n: int) -> IntArray: ...


class DeviceRow:
    """One value per item in a torch tensor, used like a numpy array in the few ways a search uses predictions.

    Values read or written by positions are numpy arrays; `np.asarray` copies the whole row to the host.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values on the host."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    def __len__(self) -> int:
        return len(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.asarray(self.tensor.cpu().numpy(), dtype=dtype)

    def __getitem__(self, positions: IntArray) -> FloatArray:
        return np.asarray(self.tensor[self._at(positions)].cpu().numpy())

    def __setitem__(self, positions: IntArray, values: FloatArray) -> None:
        self.tensor[self._at(positions)] = self._there(values).to(self.tensor.dtype)

    def copy(self) -> DeviceRow:
        """A row of its own."""
        return DeviceRow(self.tensor.clone())

    def std(self, dtype: Any = None) -> float:
        """Of all values, in their precision, whatever `dtype` says."""
        return float(self.tensor.std(correction=0))

    def among_largest(self, n: int) -> IntArray:
        """Positions of the n largest values and of all that tie with the last of them; NaN counts as largest."""
        if not 0 < n < len(self.tensor):
            return np.arange(len(self.tensor) if n > 0 else 0)
        least = self.tensor.topk(n).values[-1]
        # Not `>=`: whatever cannot be compared is left to the host to judge.
        chosen = (self.tensor < least).logical_not_().nonzero()[:, 0]
        return np.asarray(chosen.cpu().numpy(), dtype=np.intp)

    def _at(self, positions: IntArray) -> Any:
        # Positions that stay on the host would be copied over one by one by some versions of torch.
        return self._there(np.asarray(positions, dtype=np.int64))

    def _there(self, values: Any) -> Any:
        # `new_tensor` does the same six times as slowly.
        return _torch().from_numpy(np.array(values)).to(self.tensor.device)


def _torch() -> Any:
    from adacur.core.extras import require

    return require("torch", extra="torch")
