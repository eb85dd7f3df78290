"""Features and predictions in torch tensors on a GPU, or on any device that torch knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.approximation.packed_rows import PackedRows
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.extras import require

__all__ = ["DeviceRow", "DeviceRows"]

_ROWS_PER_TRANSFER = 65_536


class DeviceRow:
    """A query's prediction of every item, which stays on the device.

    It is read and written by positions, as numpy arrays; `np.asarray` copies the whole row to the host.
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
        return np.asarray(self.tensor[_moved(positions, self.tensor, dtype="int64")].cpu().numpy())

    def __setitem__(self, positions: IntArray, values: FloatArray) -> None:
        moved = _moved(values, self.tensor).to(self.tensor.dtype)
        self.tensor[_moved(positions, self.tensor, dtype="int64")] = moved

    def copy(self) -> DeviceRow:
        """An independent row."""
        return DeviceRow(self.tensor.clone())

    def std(self, dtype: Any = None) -> float:
        """The standard deviation of all values, in their own precision whatever `dtype` says."""
        return float(self.tensor.std(correction=0))

    def among_largest(self, n: int) -> IntArray:
        """Positions of the n largest values and of all that tie with the last of them; NaN counts as largest."""
        if not 0 < n < len(self.tensor):
            return np.arange(len(self.tensor) if n > 0 else 0)
        least = self.tensor.topk(n).values[-1]
        # Not `>=`: NaN, which cannot be compared, is left to the host to judge.
        chosen = (self.tensor < least).logical_not_().nonzero()[:, 0]
        return np.asarray(chosen.cpu().numpy(), dtype=np.intp)


class DeviceRows:
    """Rows in a tensor: float32, float16, or int8 with `scales`."""

    def __init__(self, values: Any, scales: Any = None) -> None:
        self._values = values
        self._scales = scales

    @classmethod
    def of(cls, packed: PackedRows, *, device: str) -> DeviceRows:
        """The same rows there; bytes become float16, which tells them apart, where they cannot be multiplied fast."""
        torch = require("torch", extra="torch")
        stay = packed.scales is not None and _multiplies_bytes(torch.device(device))
        dtype = torch.float16 if packed.values.dtype in (np.int8, np.float16) else torch.float32
        values = torch.empty(packed.shape, dtype=torch.int8 if stay else dtype, device=device)
        for start in range(0, len(packed.values), _ROWS_PER_TRANSFER):
            rows = slice(start, start + _ROWS_PER_TRANSFER)
            block = _moved(packed.values[rows], values)
            if packed.scales is not None and not stay:
                block = block.float() * _moved(packed.scales[rows, None], values)
            values[rows] = block
        return cls(values, _moved(packed.scales, values) if stay else None)

    @property
    def shape(self) -> tuple[int, int]:
        """Items and features."""
        return self._values.shape[0], self._values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device, scales included."""
        return int(self._values.nbytes + (0 if self._scales is None else self._scales.nbytes))

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, float64, on the host."""
        at = _moved(positions, self._values, dtype="int64")
        rows = np.asarray(self._values[at].cpu().numpy(), dtype=np.float64)
        return rows if self._scales is None else rows * self._scales[at, None].cpu().numpy()

    def product(self, weights: FloatArray) -> Any:
        """Every row · weights: a float32 tensor on the device."""
        torch = require("torch", extra="torch")
        if self._scales is not None:
            from adacur.approximation.int8_on_gpu import product

            return product(torch, self._values, self._scales, _moved(weights, self._values, dtype="float32"))
        column = _moved(weights, self._values, dtype="float32")
        # A block at a time: a product of halves would be rounded to halves, and a copy in float32 takes twice the room.
        return torch.cat([block.float() @ column for block in self._values.split(_ROWS_PER_TRANSFER)])

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights, shape (weights, rows), on the host."""
        return np.stack([self.product(one).cpu().numpy() for one in weights])


def _moved(values: Any, beside: Any, *, dtype: str | None = None) -> Any:
    """A tensor of these values on the device of another."""
    # A copy, since torch does not take arrays that it may not write to, such as mapped files. `new_tensor` takes six
    # times as long, and indices left on the host are copied one by one by some versions of torch.
    return require("torch", extra="torch").from_numpy(np.array(values, dtype=dtype)).to(beside.device)


def _multiplies_bytes(device: Any) -> bool:
    """Whether bytes are multiplied there as they are, in half the time of float16."""
    if device.type != "cuda":
        return False
    try:
        from adacur.approximation.int8_on_gpu import runs_on
    except ImportError:
        return False
    return runs_on(device)
