"""Rows in torch tensors on a GPU, or on any device that torch knows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.names import NARROW_PRODUCT, named
from adacur.requirements import require

if TYPE_CHECKING:
    from adacur.model.rows import PackedRows

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
            values[rows] = moved(packed.values[rows], device)
        return cls(values, None if packed.scales is None else moved(packed.scales, device))

    @property
    def shape(self) -> tuple[int, int]:
        """Items and features."""
        return self._values.shape[0], self._values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device, scales included."""
        return int(self._values.nbytes + (0 if self._scales is None else self._scales.nbytes))

    def rows(self, at: Any) -> Any:
        """The rows at these places, float64."""
        rows = self._values[at].double()
        return rows if self._scales is None else rows * self._scales[at][..., None]

    def products(self, weights: Any) -> Any:
        """The products of all rows with many weights, float32, (weights, rows): rounded by their number."""
        torch, values, weights = require("torch", extra="torch"), self._values, weights.float()
        if values.dtype == torch.float32:
            # A lone query's is a product with a vector, which is faster.
            return self._scaled((values @ weights[0])[None, :] if len(weights) == 1 else weights @ values.T)
        fused = _fused_product() if len(weights) == 1 and values.is_cuda else None
        if fused:
            return self._scaled(fused(torch, values, weights[0].contiguous())[None, :])
        products = torch.empty((len(weights), len(values)), dtype=torch.float32, device=values.device)
        # A block at a time: a copy of all rows in float32 may not fit.
        for start in range(0, len(values), _ROWS_PER_TRANSFER):
            rows = slice(start, start + _ROWS_PER_TRANSFER)
            torch.mm(weights, values[rows].float().T, out=products[:, rows])
        return self._scaled(products)

    def _scaled(self, products: Any) -> Any:
        return products if self._scales is None else products.mul_(self._scales)


def moved(values: Any, device: Any, *, dtype: str | None = None) -> Any:
    """A tensor of these values on a device."""
    # A copy, since torch does not take arrays that it may not write to, such as mapped files. `new_tensor` takes six
    # times as long, and indices left on the host are copied one by one by some versions of torch.
    return require("torch", extra="torch").from_numpy(np.array(values, dtype=dtype)).to(device)


@functools.cache
def _fused_product() -> Any:
    """A product in one pass over narrow rows, in a tenth of the time on a GPU; None where Triton cannot run."""
    torch = require("torch", extra="torch")
    try:
        product_of_narrow = named(NARROW_PRODUCT)
        product_of_narrow(torch, torch.ones((3, 5), dtype=torch.int8, device="cuda"), torch.ones(5, device="cuda"))
    except Exception:
        # A C compiler may be missing.
        return None
    return product_of_narrow
