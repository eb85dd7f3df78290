"""Attention among the tokens of each text in a packed batch, where no padding exists."""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)


class Spans(NamedTuple):
    """What the queries of some texts see: the text's own keys, and where attention is causal all of a prefix before it.

    Text i owns the rows `query_starts[i]` up to `query_starts[i + 1]` of the queries. Its keys are the `counts[i]` rows
    from `starts[i]`, and the `prefix_counts[i]` rows from `prefix_starts[i]`. Where attention is causal, its queries
    are its last tokens, and see no key behind themselves. All are int32, on the host or on the device.
    """

    query_starts: Any
    starts: Any
    counts: Any
    prefix_starts: Any
    prefix_counts: Any
    longest_query: int
    longest: int
    longest_prefix: int


def attend(torch: Any, query: Any, key: Any, value: Any, spans: Spans, answers: Any, *, causal: bool) -> None:
    """Scaled dot-product attention into the texts' rows of `answers`; shapes are (tokens, heads, head size).

    Key and value may have fewer heads, each for a group of the query's. Other rows of `answers` stay undefined.
    """
    if has_kernel(torch, query.device, dtype=query.dtype, head_size=query.shape[2]):
        kernels_for(query.device, query.dtype).attend_on_gpu(torch, query, key, value, spans, answers, causal=causal)
    else:
        attend_padded(torch, query, key, value, spans, answers, causal=causal)


def has_kernel(torch: Any, device: Any, *, dtype: Any, head_size: int) -> bool:
    """Whether one kernel does it, which never waits for the device."""
    # The kernel's blocks have powers of two; float32 would lose its precision in the tensor cores.
    fits = dtype != torch.float32 and head_size & (head_size - 1) == 0 and 16 <= head_size <= 128
    return fits and kernels_for(device, dtype) is not None


@functools.cache
def kernels_for(device: Any, dtype: Any) -> Any:
    """The module of Triton kernels where they run on this device, in this half precision, else None."""
    if device.type != "cuda":
        return None
    try:
        import torch

        from adacur.scorers.cross_encoders import gpu_kernels as kernels

        # What is there may still not run, for want of a C compiler most often.
        texts = torch.zeros(2, 1, 16, dtype=dtype, device=device)
        places = torch.tensor([0, 2], dtype=torch.int32, device=device)
        spans = Spans(places, places[:1], places[1:], places, places, 2, 2, 0)
        kernels.attend_on_gpu(torch, texts, texts, texts, spans, torch.empty_like(texts), causal=False)
    except Exception as error:
        _log.warning("Triton kernels cannot be used, so scoring takes a slower way: %s", error)
        return None
    return kernels


def attend_padded(torch: Any, query: Any, key: Any, value: Any, spans: Spans, answers: Any, *, causal: bool) -> None:
    """The same by way of a padded copy: for the CPU, for float32, and where there is no Triton."""
    device, before = query.device, spans.longest_prefix
    counts, starts = spans.counts[:, None], spans.starts[:, None]
    column = torch.arange(before + spans.longest, device=device)[None, :] - before
    is_key, place = column < counts, starts + column
    if before:
        is_key = torch.where(column < 0, column + before < spans.prefix_counts[:, None], is_key)
        place = torch.where(column < 0, spans.prefix_starts[:, None] + before + column, place)
    # What fills up must not lie beyond the texts: rows there may hold NaN, and NaN times a weight of zero is NaN.
    place = torch.where(is_key, place, starts + counts - 1)
    row = torch.arange(spans.longest_query, device=device)[None, :]
    n_queries = (spans.query_starts[1:] - spans.query_starts[:-1])[:, None]
    is_query = row < n_queries
    query_place = torch.where(is_query, spans.query_starts[:-1, None] + row, spans.query_starts[:-1, None])
    # Without prefixes and with a query for each key, no row that counts sees what was filled up.
    is_plain = causal and not before and spans.longest_query == spans.longest
    sees = is_key[:, None, None, :]
    if causal:
        last = counts - n_queries + row
        sees = None if is_plain else sees & (column[:, None, :] <= last[:, :, None])[:, None]
    group = query.shape[1] // key.shape[1]
    keys, values = (part[place].transpose(1, 2) for part in (key, value))
    if group > 1:
        keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[query_place].transpose(1, 2), keys, values, attn_mask=sees, is_causal=is_plain
    ).transpose(1, 2)
    answers[query_place[is_query]] = attended[is_query]
