"""Item vectors on a torch device: the nearest items of many queries in a few kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.model.on_device import DeviceRows
from adacur.model.rows import PackedRows
from adacur.requirements import require

# Beyond those wanted, so that rounding does not decide who is among them.
_SLACK = 64
# Numbers in float64 at a time: 512 MB.
_NUMBERS_AT_ONCE = 1 << 26
# Of the memory that is free on the device when the vectors come: the Gaussian's features need some too.
_MOST_OF_MEMORY = 0.25


class DeviceVectors:
    """Rows as they are stored, float16, float32 or int8 with scales, on a device."""

    def __init__(self, stored: Any, scales: FloatArray | None, *, device: str) -> None:
        self._torch = require("torch", extra="torch")
        self._rows = DeviceRows.of(PackedRows(stored, scales), device=device)
        self._device = device

    @staticmethod
    def fit(nbytes: int, device: str) -> bool:
        """Whether vectors of this size fit into the device's memory."""
        torch = require("torch", extra="torch")
        named = torch.device(device)
        return named.type != "cuda" or bool(nbytes <= _MOST_OF_MEMORY * torch.cuda.mem_get_info(named)[0])

    def nearest(self, vectors: FloatArray, k: int, *, margins: FloatArray) -> tuple[IntArray, FloatArray, BoolArray]:
        """Per query k positions or more and their exact products, best first; and whether the best k are among them.

        They are if all others, by float32 products that may be off by half a query's margin, lie below the k-th. Of
        equal products any may come first.
        """
        torch, n_items = self._torch, self._rows.shape[0]
        given = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(self._device)
        values, at = self._rows.products(given).topk(min(k + _SLACK, n_items), dim=1)
        at_once = max(1, _NUMBERS_AT_ONCE // (at.shape[1] * vectors.shape[1]))
        exact = torch.cat(
            [
                self._exact(given[start : start + at_once], at[start : start + at_once])
                for start in range(0, len(given), at_once)
            ]
        )
        exact, order = exact.sort(dim=1, descending=True)
        sure = np.ones(len(vectors), dtype=np.bool_)
        if at.shape[1] < n_items:
            sure = (exact[:, k - 1] - values[:, -1]).cpu().numpy() > margins
        return at.gather(1, order).cpu().numpy(), exact.float().cpu().numpy(), sure

    def _exact(self, vectors: Any, at: Any) -> Any:
        rows = self._rows.rows(at)
        return (rows @ vectors.double()[:, :, None])[:, :, 0]
