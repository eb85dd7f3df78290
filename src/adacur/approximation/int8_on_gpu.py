"""Rows in bytes times a vector on a GPU, as a Triton kernel.

CUDA's libraries multiply bytes only with bytes, and take as long for that as for rows in float16, which are twice the
bytes. The kernel here reads bytes, multiplies in float32 and is done in little more than the time of reading them.
"""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl

from adacur.core.extras import require

__all__ = ["product", "runs_on"]

_ROWS = 32


def product(torch: Any, values: Any, scales: Any, weights: Any) -> Any:
    """scales · (values @ weights), float32, for int8 rows that lie close together."""
    n_rows, width = values.shape
    products = torch.empty(n_rows, dtype=torch.float32, device=values.device)
    # Triton launches on the current device, which need not be the one that holds the tensors.
    with torch.cuda.device_of(values):
        _product[(triton.cdiv(n_rows, _ROWS),)](
            values,
            scales,
            weights,
            products,
            n_rows,
            width=width,
            columns=triton.next_power_of_2(width),
            rows=_ROWS,
        )
    return products


@functools.cache
def runs_on(device: Any) -> bool:
    """Whether the kernel works there; what is installed may still lack a C compiler."""
    torch = require("torch", extra="torch")
    if device.type != "cuda":
        return False
    try:
        values = torch.ones((3, 5), dtype=torch.int8, device=device)
        ones = torch.ones(5, dtype=torch.float32, device=device)
        return bool(product(torch, values, ones, ones).tolist() == [5.0, 5.0, 5.0])
    except Exception:
        return False


@triton.jit  # type: ignore[untyped-decorator]
def _product(values, scales, weights, products, n_rows, width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    there = row < n_rows
    # Beyond two billion numbers, 32 bits do not reach.
    places = row[:, None].to(tl.int64) * width + column[None, :]
    known = there[:, None] & (column < width)[None, :]
    block = tl.load(values + places, mask=known, other=0).to(tl.float32)
    weight = tl.load(weights + column, mask=column < width, other=0.0)
    scale = tl.load(scales + row, mask=there, other=0.0)
    tl.store(products + row, tl.sum(block * weight[None, :], axis=1) * scale, mask=there)
