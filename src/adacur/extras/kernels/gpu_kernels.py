"""The steps of an encoder that CUDA's libraries do slowly at a cross-encoder's sizes, as Triton kernels.

Flash attention spends blocks of 128 tokens on each text. Pairs of a query and an item are often 40 to 200 tokens long,
with heads of 32, where it reaches a tenth of the chip; the kernel here takes blocks that fit. And cuBLAS joins only
GELU's tanh approximation to a product, which moves logits by up to 0.02; the kernel here joins GELU itself. The third
adds and normalises in one pass over the rows instead of two.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634


def attend_on_gpu(
    torch: Any, query: Any, key: Any, value: Any, query_starts: Any, starts: Any, query_longest: int
) -> Any:
    """As `attend` in attention.py promises, for half-precision tensors whose last two axes lie close together."""
    n_heads, head_size = query.shape[1:]
    answers = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    rows, columns, warps = _blocks(query_longest, head_size)
    grid = ((len(starts) - 1) * n_heads, triton.cdiv(query_longest, rows))
    # Triton launches on the current device, which need not be the one that holds the tensors.
    with torch.cuda.device_of(query):
        _attend[grid](
            query,
            key,
            value,
            answers,
            query_starts,
            starts,
            head_size**-0.5 * LOG2_E,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            answers.stride(0),
            N_HEADS=n_heads,
            HEAD_SIZE=head_size,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
            num_stages=2,
        )
    return answers


def _blocks(longest: int, head_size: int) -> tuple[int, int, int]:
    """Query rows and key columns per step, and warps: the fastest on an H200 with heads of 32."""
    if longest <= 16:
        return 16, 32, 1
    if longest <= 32:
        return 32, 32, 2
    if longest <= 64 or head_size > 64:
        return 64, 32, 4
    # The larger block where it wastes no more rows than the smaller.
    return (128, 32, 2) if triton.cdiv(longest, 64) % 2 == 0 else (64, 32, 1)


@triton.jit
def fold(
    rows_read, key, value, place, has_pair, has_column, inner, scale, key_stride, value_stride, highest, total, mixed
):
    # One step of attention over some keys: what rows have seen of it so far, and what they see with these.
    keys = tl.load(key + place[None, :] * key_stride + inner[:, None], mask=has_column[None, :], other=0.0)
    values = tl.load(value + place[:, None] * value_stride + inner[None, :], mask=has_column[:, None], other=0.0)
    logits = tl.where(has_pair, tl.dot(rows_read, keys) * scale, float("-inf"))
    now_highest = tl.maximum(highest, tl.max(logits, 1))
    weights = tl.math.exp2(logits - now_highest[:, None])
    shrink = tl.math.exp2(highest - now_highest)
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * shrink[:, None])
    return now_highest, total, mixed


@triton.jit
def _attend(
    query,
    key,
    value,
    answers,
    query_starts,
    starts,
    scale,
    query_stride,
    key_stride,
    value_stride,
    answer_stride,
    N_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # Heads vary fastest: those of one text then run together and share its rows in the cache.
    text, head, block = tl.program_id(0) // N_HEADS, tl.program_id(0) % N_HEADS, tl.program_id(1)
    query_start = tl.load(query_starts + text).to(tl.int64)
    n_rows = tl.load(query_starts + text + 1).to(tl.int64) - query_start
    if block * ROWS >= n_rows:
        return
    start = tl.load(starts + text).to(tl.int64)
    n_columns = (tl.load(starts + text + 1).to(tl.int64) - start).to(tl.int32)
    rows = block * ROWS + tl.arange(0, ROWS)
    inner = head * HEAD_SIZE + tl.arange(0, HEAD_SIZE)
    at = (query_start + rows)[:, None]
    has_row = (rows < n_rows)[:, None]
    rows_read = tl.load(query + at * query_stride + inner[None, :], mask=has_row, other=0.0)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, HEAD_SIZE), tl.float32)
    for first in range(0, n_columns, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        has_column = columns < n_columns
        highest, total, mixed = fold(
            rows_read, key, value, start + columns, has_column[None, :], has_column, inner, scale, key_stride,
            value_stride, highest, total, mixed,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    tl.store(answers + at * answer_stride + inner[None, :], mixed.to(rows_read.dtype), mask=has_row)


def add_norm(torch: Any, change: Any, states: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    """Layer norm of each row of change + states, in float32 inside; all are of one dtype and close together."""
    n_rows, size = states.shape
    width = triton.next_power_of_2(size)
    rows = max(1, 2048 // width)
    answers = torch.empty_like(states)
    with torch.cuda.device_of(states):
        _add_norm[(triton.cdiv(n_rows, rows),)](
            change, states, weight, bias, answers, n_rows, epsilon, SIZE=size, WIDTH=width, ROWS=rows, num_warps=4
        )
    return answers


@triton.jit
def _add_norm(
    change,
    states,
    weight,
    bias,
    answers,
    n_rows,
    epsilon,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, WIDTH)
    is_there = (rows < n_rows)[:, None] & (inner < SIZE)[None, :]
    place = rows[:, None] * SIZE + inner[None, :]
    x = tl.load(change + place, mask=is_there, other=0.0).to(tl.float32)
    x += tl.load(states + place, mask=is_there, other=0.0).to(tl.float32)
    x = tl.where(is_there, x - tl.sum(x, 1)[:, None] / SIZE, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
    x = x * tl.load(weight + inner, mask=inner < SIZE, other=0.0).to(tl.float32)[None, :]
    x = x + tl.load(bias + inner, mask=inner < SIZE, other=0.0).to(tl.float32)[None, :]
    tl.store(answers + place, x.to(answers.dtype.element_ty), mask=is_there)


_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH = 128, 256, 64


def can_join_gelu(torch: Any, device: Any) -> bool:
    """Whether the device has the bulk copies that `linear_gelu` lives on (Hopper and later)."""
    return bool(device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9)


def linear_gelu(torch: Any, rows: Any, weight: Any, bias: Any, *, programs: int, native_tanh: bool = True) -> Any:
    """GELU of (rows · weightᵀ + bias) in one pass, for half-precision tensors whose rows are whole 16 bytes long.

    `programs` is the number of multiprocessors. GELU is within some 0.0002 of its definition, less than half
    precision shows.
    """
    n_rows, depth = rows.shape
    n_columns = len(weight)
    answers = torch.empty((n_rows, n_columns), dtype=rows.dtype, device=rows.device)
    with torch.cuda.device_of(rows):
        _linear_gelu[(programs,)](
            TensorDescriptor.from_tensor(rows, [_TILE_ROWS, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(weight, [_TILE_COLUMNS, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(answers, [_TILE_ROWS, _TILE_COLUMNS // 2]),
            bias,
            n_rows,
            N_COLUMNS=n_columns,
            DEPTH=depth,
            PROGRAMS=programs,
            NATIVE_TANH=native_tanh,
            TILE_ROWS=_TILE_ROWS,
            TILE_COLUMNS=_TILE_COLUMNS,
            TILE_DEPTH=_TILE_DEPTH,
            num_warps=8,
            num_stages=4,
        )
    return answers


@triton.jit
def _linear_gelu(
    rows,
    weight,
    answers,
    bias,
    n_rows,
    N_COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    NATIVE_TANH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    across: tl.constexpr = (N_COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS
    half: tl.constexpr = TILE_COLUMNS // 2
    # One program per multiprocessor takes tile after tile, so that storing one overlaps with computing the next.
    for tile in tl.range(tl.program_id(0), tl.cdiv(n_rows, TILE_ROWS) * across, PROGRAMS, flatten=True):
        top, left = tile // across * TILE_ROWS, tile % across * TILE_COLUMNS
        total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        for step in range(0, (DEPTH + TILE_DEPTH - 1) // TILE_DEPTH):
            some_rows = rows.load([top, step * TILE_DEPTH])
            some_weight = weight.load([left, step * TILE_DEPTH])
            total = tl.dot(some_rows, some_weight.T, total)
        # In halves: a whole tile of float32 does not fit beside the next tile's copies.
        first, second = tl.split(tl.permute(tl.reshape(total, (TILE_ROWS, 2, half)), (0, 2, 1)))
        columns = left + tl.arange(0, half)
        first += tl.load(bias + columns, mask=columns < N_COLUMNS, other=0.0)[None, :].to(tl.float32)
        answers.store([top, left], _gelu(first, NATIVE_TANH).to(answers.dtype))
        columns += half
        second += tl.load(bias + columns, mask=columns < N_COLUMNS, other=0.0)[None, :].to(tl.float32)
        answers.store([top, left + half], _gelu(second, NATIVE_TANH).to(answers.dtype))


@triton.jit
def _gelu(x, NATIVE_TANH: tl.constexpr):
    # erf(x / √2) = tanh(u) with u = x (.7977 + .03682 x² − .00032 x⁴), a fit that is off by 5e-5 at most; beyond
    # |x| = 5 the fit bends back, but there GELU is x or 0 to half precision.
    x = x.to(tl.float32)
    square = tl.minimum(x * x, 25.0)
    u = x * (0.79770450 + square * (0.03681912 + square * -0.000320553))
    if NATIVE_TANH:
        tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)
    else:
        tanh = 1.0 - 2.0 / (1.0 + tl.math.exp2(u * 2.8853900817779268))
    return 0.5 * x + 0.5 * x * tanh
