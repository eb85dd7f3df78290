"""Attention among the tokens of each text in a packed batch, where no padding exists."""

from __future__ import annotations

import functools
import logging
from typing import Any

_log = logging.getLogger(__name__)


def attend(
    torch: Any, query: Any, key: Any, value: Any, *, query_starts: Any, starts: Any, query_longest: int, longest: int
) -> Any:
    """Scaled dot-product attention per text; shapes (tokens, heads, head size).

    Text i owns the rows `starts[i]` up to `starts[i + 1]` of `key` and `value`, and likewise `query_starts` of `query`;
    rows behind the last text come back undefined. Both starts are int32, on the device.
    """
    if has_kernel(torch, query.device, dtype=query.dtype, head_size=query.shape[2]):
        return kernels_for(query.device).attend_on_gpu(torch, query, key, value, query_starts, starts, query_longest)
    return _padded(torch, query, key, value, query_starts, starts, query_longest, longest)


def has_kernel(torch: Any, device: Any, *, dtype: Any, head_size: int) -> bool:
    """Whether one kernel does it, which never waits for the device."""
    # The kernel's blocks have powers of two; float32 would lose its precision in the tensor cores.
    fits = dtype != torch.float32 and head_size & (head_size - 1) == 0 and 16 <= head_size <= 128
    return fits and kernels_for(device) is not None


@functools.cache
def kernels_for(device: Any) -> Any:
    """The module of Triton kernels where they run on this device, else None."""
    if device.type != "cuda":
        return None
    try:
        import torch

        from adacur.extras.kernels import gpu_kernels as kernels

        # What is there may still not run, for want of a C compiler most often.
        texts = torch.zeros(2, 1, 16, dtype=torch.float16, device=device)
        starts = torch.tensor([0, 2], dtype=torch.int32, device=device)
        kernels.attend_on_gpu(torch, texts, texts, texts, starts, starts, 2)
    except Exception as error:
        _log.warning("Triton kernels cannot be used, so scoring takes a slower way: %s", error)
        return None
    return kernels


def _padded(
    torch: Any,
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    starts: Any,
    query_longest: int,
    longest: int,
) -> Any:
    """The same by way of a padded copy: for the CPU, for float32, and where there is no Triton."""
    rows, seen = _rows(torch, starts, longest)
    query_rows, query_seen = _rows(torch, query_starts, query_longest)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[query_rows].transpose(1, 2),
        key[rows].transpose(1, 2),
        value[rows].transpose(1, 2),
        attn_mask=seen[:, None, None, :],
    ).transpose(1, 2)
    answers = torch.empty_like(query)
    answers[query_rows[query_seen]] = attended[query_seen]
    return answers


def _rows(torch: Any, starts: Any, longest: int) -> tuple[Any, Any]:
    """Rows of each text, (texts, longest), and which of them exist; the others repeat the text's last.

    They must not reach beyond their text: filler rows may hold NaN, and NaN times a weight of zero is NaN.
    """
    rows = starts[:-1, None] + torch.arange(longest, device=starts.device, dtype=starts.dtype)
    return torch.minimum(rows, starts[1:, None] - 1), rows < starts[1:, None]
