"""The steps of a decoder between its matrix products, as Triton kernels: attention with shared prefixes, norms, turns.

As for encoders (gpu_kernels.py), flash attention would spend blocks of 128 tokens on texts of 30 to 200. The kernel
here lays the query heads that share keys into one block, and reads a shared prefix where it lies instead of copying it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from adacur.extras.kernels.gpu_kernels import LOG2_E, fold


def attend_on_gpu(torch: Any, query: Any, key: Any, value: Any, spans: Any, answers: Any) -> None:
    """As `attend` in decoder_forward.py promises, for half-precision tensors whose last two axes lie close together."""
    n_heads, head_size = query.shape[1:]
    n_shared = key.shape[1]
    group = n_heads // n_shared
    rows, columns, warps, stages = blocks(spans.longest_query * group, head_size)
    grid = (len(spans.starts) * n_shared, triton.cdiv(spans.longest_query * group, rows))
    # Triton launches on the current device, which need not be the one that holds the tensors.
    with torch.cuda.device_of(query):
        _attend[grid](
            query,
            key,
            value,
            answers,
            spans.query_starts,
            spans.starts,
            spans.counts,
            spans.prefix_starts,
            spans.prefix_counts,
            head_size**-0.5 * LOG2_E,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            answers.stride(0),
            N_SHARED=n_shared,
            GROUP=group,
            HEAD_SIZE=head_size,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
            num_stages=stages,
        )


def blocks(longest: int, head_size: int) -> tuple[int, int, int, int]:
    """Rows (tokens × heads of a group) and key columns per step, warps and stages; llm_grid.py --tune tries others."""
    if longest <= 16:
        return 16, 32, 1, 2
    if longest <= 32:
        return 32, 32, 2, 2
    if longest <= 64 or head_size > 64:
        return 64, 64 if head_size <= 64 else 32, 4, 2
    # The larger block where it wastes no more rows than the smaller.
    return (128, 64, 4, 2) if triton.cdiv(longest, 64) % 2 == 0 else (64, 64, 4, 2)


@triton.jit
def _attend(
    query,
    key,
    value,
    answers,
    query_starts,
    starts,
    counts,
    prefix_starts,
    prefix_counts,
    scale,
    query_stride,
    key_stride,
    value_stride,
    answer_stride,
    N_SHARED: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    text, shared, block = tl.program_id(0) // N_SHARED, tl.program_id(0) % N_SHARED, tl.program_id(1)
    query_start = tl.load(query_starts + text).to(tl.int64)
    n_queries = (tl.load(query_starts + text + 1).to(tl.int64) - query_start).to(tl.int32)
    if block * ROWS >= n_queries * GROUP:
        return
    start, count = tl.load(starts + text).to(tl.int64), tl.load(counts + text)
    prefix_start, prefix_count = tl.load(prefix_starts + text).to(tl.int64), tl.load(prefix_counts + text)
    rows = block * ROWS + tl.arange(0, ROWS)
    token = rows // GROUP
    # The last key of its text that a row sees: queries are the last tokens of the text.
    last = count - n_queries + token
    inner = tl.arange(0, HEAD_SIZE)
    at = query_start + token
    head = shared * GROUP + rows % GROUP
    has_row = (token < n_queries)[:, None]
    wide = head[:, None] * HEAD_SIZE + inner[None, :]
    rows_read = tl.load(query + at[:, None] * query_stride + wide, mask=has_row, other=0.0)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, HEAD_SIZE), tl.float32)
    own = shared * HEAD_SIZE + inner
    # Every row sees the first key of each step below, or has seen one before: no row's highest stays at -inf.
    for first in range(0, prefix_count, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        has = columns < prefix_count
        highest, total, mixed = fold(
            rows_read, key, value, prefix_start + columns, has[None, :], has, own, scale, key_stride, value_stride,
            highest, total, mixed,
        )  # fmt: skip
    seen = tl.minimum(count, count - n_queries + (block * ROWS + ROWS - 1) // GROUP + 1)
    for first in range(0, seen, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        has = columns < count
        sees = (columns[None, :] <= last[:, None]) & has[None, :]
        highest, total, mixed = fold(
            rows_read, key, value, start + columns, sees, has, own, scale, key_stride, value_stride,
            highest, total, mixed,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    tl.store(answers + at[:, None] * answer_stride + wide, mixed.to(rows_read.dtype), mask=has_row)


def rms_norm(torch: Any, states: Any, weight: Any, epsilon: float) -> Any:
    """RMSNorm of each row, in float32 inside."""
    answers = torch.empty_like(states)
    n_rows, size = states.shape
    at_once = max(1, 2048 // triton.next_power_of_2(size))
    with torch.cuda.device_of(states):
        _rms_norm[(triton.cdiv(n_rows, at_once),)](
            states, weight, answers, n_rows, epsilon, SIZE=size, WIDTH=triton.next_power_of_2(size), ROWS=at_once
        )
    return answers


@triton.jit
def _rms_norm(states, weight, answers, n_rows, epsilon, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inner = tl.arange(0, WIDTH)
    there = (rows < n_rows)[:, None] & (inner < SIZE)[None, :]
    place = rows[:, None] * SIZE + inner[None, :]
    x = tl.load(states + place, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(weight + inner, mask=inner < SIZE, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
    # transformers rounds before it applies the weight.
    x = x.to(answers.dtype.element_ty).to(tl.float32) * scale[None, :]
    tl.store(answers + place, x.to(answers.dtype.element_ty), mask=there)


def turn(
    torch: Any, joint: Any, positions: Any, turns: tuple[Any, Any], *, n_heads: int, norms: Any, epsilon: float
) -> None:
    """Rotary embedding in place of each row's first `n_heads` heads, behind their RMSNorm if `norms` are given.

    `norms` has a row per head; `turns` are cosines and sines, a row per position and half a head wide.
    """
    cosines, sines = turns
    half = cosines.shape[1]
    with torch.cuda.device_of(joint):
        _turn[(len(joint),)](
            joint,
            positions,
            cosines,
            sines,
            cosines if norms is None else norms,
            joint.stride(0),
            epsilon,
            HAS_NORM=norms is not None,
            N_HEADS=n_heads,
            HEADS=triton.next_power_of_2(n_heads),
            HALF=half,
            num_warps=4 if n_heads * half >= 512 else 2,
        )


@triton.jit
def _turn(
    joint,
    positions,
    cosines,
    sines,
    norms,
    stride,
    epsilon,
    HAS_NORM: tl.constexpr,
    N_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    heads, inner = tl.arange(0, HEADS), tl.arange(0, HALF)
    there = (heads < N_HEADS)[:, None]
    at = heads[:, None] * (2 * HALF) + inner[None, :]
    left = tl.load(joint + row * stride + at, mask=there, other=0.0).to(tl.float32)
    right = tl.load(joint + row * stride + at + HALF, mask=there, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * HALF) + epsilon)[:, None]
        left = left * scale * tl.load(norms + at, mask=there, other=0.0).to(tl.float32)
        right = right * scale * tl.load(norms + at + HALF, mask=there, other=0.0).to(tl.float32)
    cosine = tl.load(cosines + position * HALF + inner)[None, :]
    sine = tl.load(sines + position * HALF + inner)[None, :]
    kind = joint.dtype.element_ty
    tl.store(joint + row * stride + at, (left * cosine - right * sine).to(kind), mask=there)
    tl.store(joint + row * stride + at + HALF, (right * cosine + left * sine).to(kind), mask=there)


# Rows of gate and of up that lie side by side in the joint weight, so that one tile has both.
_TILE_HALF = 128
_TILE_ROWS, _TILE_DEPTH = 128, 64


def linear_swiglu(torch: Any, rows: Any, weight: Any, *, programs: int) -> Any:
    """silu(rows · gateᵀ) · (rows · upᵀ) in one pass on Hopper or later; `weight` has 128 rows of each in turn."""
    n_rows, depth = rows.shape
    n_columns = len(weight)
    answers = torch.empty((n_rows, n_columns // 2), dtype=rows.dtype, device=rows.device)
    with torch.cuda.device_of(rows):
        _linear_swiglu[(programs,)](
            TensorDescriptor.from_tensor(rows, [_TILE_ROWS, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(weight, [2 * _TILE_HALF, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(answers, [_TILE_ROWS, _TILE_HALF]),
            n_rows,
            N_COLUMNS=n_columns,
            DEPTH=depth,
            PROGRAMS=programs,
            TILE_ROWS=_TILE_ROWS,
            TILE_COLUMNS=2 * _TILE_HALF,
            TILE_DEPTH=_TILE_DEPTH,
            num_warps=8,
            num_stages=4,
        )
    return answers


@triton.jit
def _linear_swiglu(
    rows,
    weight,
    answers,
    n_rows,
    N_COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    across: tl.constexpr = N_COLUMNS // TILE_COLUMNS
    half: tl.constexpr = TILE_COLUMNS // 2
    # One program per multiprocessor takes tile after tile, so that storing one overlaps with computing the next.
    for tile in tl.range(tl.program_id(0), tl.cdiv(n_rows, TILE_ROWS) * across, PROGRAMS, flatten=True):
        top, left = tile // across * TILE_ROWS, tile % across * TILE_COLUMNS
        sums = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        for step in range(0, (DEPTH + TILE_DEPTH - 1) // TILE_DEPTH):
            some_rows = rows.load([top, step * TILE_DEPTH])
            some_weight = weight.load([left, step * TILE_DEPTH])
            sums = tl.dot(some_rows, some_weight.T, sums)
        gate, up = tl.split(tl.permute(tl.reshape(sums, (TILE_ROWS, 2, half)), (0, 2, 1)))
        joined = gate / (1.0 + tl.math.exp2(gate * -1.4426950408889634)) * up
        answers.store([top, left // 2], joined.to(answers.dtype))
