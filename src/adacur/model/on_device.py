"""Features in torch tensors on a GPU, or on any device that torch knows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.requirements import require

if TYPE_CHECKING:
    from adacur.model.item_factors import PackedRows

_ROWS_PER_TRANSFER = 65_536


class DeviceRows:
    """Rows in a tensor as they are packed: float32, float16, or int8 with `scales`."""

    def __init__(self, values: Any, scales: Any = None) -> None:
        self._values = values
        self._scales = scales

    @classmethod
    def of(cls, packed: PackedRows, *, device: str) -> DeviceRows:
        """The same rows on a device; float64 becomes float32."""
        torch = require("torch", extra="torch")
        dtype = torch.float32 if packed.values.dtype == np.float64 else getattr(torch, packed.values.dtype.name)
        values = torch.empty(packed.shape, dtype=dtype, device=device)
        for start in range(0, len(packed.values), _ROWS_PER_TRANSFER):
            rows = slice(start, start + _ROWS_PER_TRANSFER)
            values[rows] = _moved(packed.values[rows], values)
        return cls(values, None if packed.scales is None else _moved(packed.scales, values))

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
        return self.on_host(self.rows_here, positions)

    def on_host(self, read: Callable[[Any], Any], positions: IntArray) -> FloatArray:
        """The result of `read`, which takes these positions on the device, as an array in memory."""
        return np.asarray(read(_moved(positions, self._values, dtype="int64")).cpu().numpy())

    def product(self, weights: FloatArray) -> Any:
        """Every row · weights: a float32 tensor on the device."""
        return self._one_product(_moved(weights, self._values, dtype="float32"))

    def _one_product(self, column: Any) -> Any:
        if self._values.dtype == column.dtype:
            return self._values @ column
        fused = _fused_product() if self._values.is_cuda else None
        torch = require("torch", extra="torch")
        if fused:
            product = fused(torch, self._values, column.contiguous())
        else:
            # A block at a time: a copy of all rows in float32 may not fit.
            product = torch.cat([block.float() @ column for block in self._values.split(_ROWS_PER_TRANSFER)])
        return product if self._scales is None else product.mul_(self._scales)

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights in one product, shape (weights, rows), on the host: rounded by their number."""
        return np.asarray(self.products_here(_moved(weights, self._values, dtype="float32")).cpu().numpy())

    def products_here(self, weights: Any) -> Any:
        """The products of all rows with many float32 weights, (weights, rows), on the device."""
        torch, values = require("torch", extra="torch"), self._values
        if len(weights) == 1:
            return self._one_product(weights[0])[None, :]
        if values.dtype == torch.float32:
            products = weights @ values.T
        else:
            products = torch.empty((len(weights), len(values)), dtype=torch.float32, device=values.device)
            for start in range(0, len(values), _ROWS_PER_TRANSFER):
                rows = slice(start, start + _ROWS_PER_TRANSFER)
                torch.mm(weights, values[rows].float().T, out=products[:, rows])
        return products if self._scales is None else products.mul_(self._scales)

    def rows_here(self, at: Any) -> Any:
        """The rows at these places, float64, on the device."""
        rows = self._values[at].double()
        return rows if self._scales is None else rows * self._scales[at, None]


def _moved(values: Any, like: Any, *, dtype: str | None = None) -> Any:
    """A tensor of these values on the device of another."""
    # A copy, since torch does not take arrays that it may not write to, such as mapped files. `new_tensor` takes six
    # times as long, and indices left on the host are copied one by one by some versions of torch.
    return require("torch", extra="torch").from_numpy(np.array(values, dtype=dtype)).to(like.device)


@functools.cache
def _fused_product() -> Any:
    """A product in one pass over narrow rows, in a tenth of the time on a GPU; None where Triton cannot run."""
    torch = require("torch", extra="torch")
    try:
        from adacur.model.device_kernels import product_of_narrow

        product_of_narrow(torch, torch.ones((3, 5), dtype=torch.int8, device="cuda"), torch.ones(5, device="cuda"))
    except Exception:
        # A C compiler may be missing.
        return None
    return product_of_narrow
