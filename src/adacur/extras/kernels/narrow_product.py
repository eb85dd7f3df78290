"""The product of narrow rows with a vector, in one pass over their bytes, as a Triton kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_ROWS = 64
_COLUMNS = 128


def product_of_narrow(torch: Any, values: Any, column: Any) -> Any:
    """rows @ column in float32, where rows are int8 or float16 and lie close together."""
    product = torch.empty(len(values), dtype=torch.float32, device=values.device)
    # Triton launches on the current device, which need not be the one that holds the tensors.
    with torch.cuda.device_of(values):
        _multiply[(triton.cdiv(len(values), _ROWS),)](
            values, column, product, len(values), values.shape[1], ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4
        )
    return product


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(values, column, product, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_rows
    total = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(0, n_columns, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        is_column = columns < n_columns
        places = rows[:, None] * n_columns + columns[None, :]
        some = tl.load(values + places, mask=is_row[:, None] & is_column[None, :], other=0)
        weights = tl.load(column + columns, mask=is_column, other=0.0)
        total += tl.sum(some.to(tl.float32) * weights[None, :], axis=1)
    tl.store(product + rows, total, mask=is_row)
