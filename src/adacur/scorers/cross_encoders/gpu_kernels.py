"""The steps of encoders and decoders that CUDA's libraries do slowly at a scorer's sizes, as Triton kernels.

Flash attention spends blocks of 128 tokens on each text. Pairs of a query and an item are often 40 to 200 tokens long,
with heads of 32, where it reaches a tenth of the chip; the kernel here takes blocks that fit. And cuBLAS joins only
GELU's tanh approximation to a product, which moves logits by up to 0.02; the kernel here joins GELU itself, or SwiGLU.
The others add, normalise and turn rows in one pass over them instead of several.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634


def attend_on_gpu(torch: Any, query: Any, key: Any, value: Any, spans: Any, answers: Any, *, causal: bool) -> None:
    """As `attend` in attention.py promises, for half-precision tensors whose last two axes lie close together.

    The query heads that share keys lie in one block, and a prefix is read where it lies instead of copied.
    """
    n_heads, head_size = query.shape[1:]
    n_shared = key.shape[1]
    group = n_heads // n_shared
    rows, columns, warps, stages = blocks(spans.longest_query * group, head_size, causal=causal)
    grid = (len(spans.starts) * n_shared, triton.cdiv(spans.longest_query * group, rows))
    # Triton launches on the current device, which need not be the one that holds the tensors.
    with torch.cuda.device_of(query):
        _attend[grid](
            query,
            key,
            value,
            answers,
            *spans[:5],
            head_size**-0.5 * LOG2_E,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            answers.stride(0),
            CAUSAL=causal,
            N_SHARED=n_shared,
            GROUP=group,
            HEAD_SIZE=head_size,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
            num_stages=stages,
        )


def blocks(longest: int, head_size: int, *, causal: bool) -> tuple[int, int, int, int]:
    """Rows (tokens × heads of a group) and key columns per step, warps and stages: the fastest on an H200.

    Encoders were tried with heads of 32; for decoders, which are causal, llm_grid.py --tune tries others.
    """
    if longest <= 16:
        return 16, 32, 1, 2
    if longest <= 32:
        return 32, 32, 2, 2
    columns = 64 if causal and head_size <= 64 else 32
    if longest <= 64 or head_size > 64:
        return 64, columns, 4, 2
    # The larger block where it wastes no more rows than the smaller.
    rows = 128 if triton.cdiv(longest, 64) % 2 == 0 else 64
    return rows, columns, 4 if causal else rows // 64, 2


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
    counts,
    prefix_starts,
    prefix_counts,
    scale,
    query_stride,
    key_stride,
    value_stride,
    answer_stride,
    CAUSAL: tl.constexpr,
    N_SHARED: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # Heads vary fastest: those of one text then run together and share its rows in the cache.
    text, shared, block = tl.program_id(0) // N_SHARED, tl.program_id(0) % N_SHARED, tl.program_id(1)
    query_start = tl.load(query_starts + text).to(tl.int64)
    n_queries = (tl.load(query_starts + text + 1).to(tl.int64) - query_start).to(tl.int32)
    if block * ROWS >= n_queries * GROUP:
        return
    start, count = tl.load(starts + text).to(tl.int64), tl.load(counts + text)
    rows = block * ROWS + tl.arange(0, ROWS)
    token = rows // GROUP
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
    seen = count
    # Every row sees the first key of each step below, or has seen one before: no row's highest stays at -inf.
    if CAUSAL:
        prefix_start, prefix_count = tl.load(prefix_starts + text).to(tl.int64), tl.load(prefix_counts + text)
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
        sees = has[None, :]
        if CAUSAL:
            # Queries are the last tokens of the text, and none sees what is behind it.
            sees = (columns[None, :] <= (count - n_queries + token)[:, None]) & sees
        highest, total, mixed = fold(
            rows_read, key, value, start + columns, sees, has, own, scale, key_stride, value_stride,
            highest, total, mixed,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    tl.store(answers + at[:, None] * answer_stride + wide, mixed.to(rows_read.dtype), mask=has_row)


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


# A tile has 128 rows of gate and 128 of up, which lie side by side in the joint weight.
_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH = 128, 256, 64


def joining_programs(torch: Any, device: Any) -> int:
    """Programs of `linear_gelu` and `linear_swiglu`, one per multiprocessor; 0 without Hopper's bulk copies."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def linear_gelu(torch: Any, rows: Any, weight: Any, bias: Any, *, programs: int, native_tanh: bool = True) -> Any:
    """GELU of (rows · weightᵀ + bias) in one pass, for half-precision tensors whose rows are whole 16 bytes long.

    GELU is within some 0.0002 of its definition, less than half precision shows.
    """
    return _linear(torch, rows, weight, bias, len(weight), programs=programs, native_tanh=native_tanh)


def linear_swiglu(torch: Any, rows: Any, weight: Any, *, programs: int) -> Any:
    """silu(rows · gateᵀ) · (rows · upᵀ) in one pass; `weight` has 128 rows of each in turn."""
    return _linear(torch, rows, weight, None, len(weight) // 2, programs=programs)


def _linear(
    torch: Any, rows: Any, weight: Any, bias: Any, n_answers: int, *, programs: int, native_tanh: bool = True
) -> Any:
    n_rows, depth = rows.shape
    answers = torch.empty((n_rows, n_answers), dtype=rows.dtype, device=rows.device)
    with torch.cuda.device_of(rows):
        _linear_joined[(programs,)](
            TensorDescriptor.from_tensor(rows, [_TILE_ROWS, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(weight, [_TILE_COLUMNS, _TILE_DEPTH]),
            TensorDescriptor.from_tensor(answers, [_TILE_ROWS, _TILE_COLUMNS // 2]),
            bias,
            n_rows,
            N_COLUMNS=len(weight),
            DEPTH=depth,
            PROGRAMS=programs,
            IS_GATED=bias is None,
            NATIVE_TANH=native_tanh,
            TILE_ROWS=_TILE_ROWS,
            TILE_COLUMNS=_TILE_COLUMNS,
            TILE_DEPTH=_TILE_DEPTH,
            num_warps=8,
            num_stages=4,
        )
    return answers


@triton.jit
def _linear_joined(
    rows,
    weight,
    answers,
    bias,
    n_rows,
    N_COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    IS_GATED: tl.constexpr,
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
        if IS_GATED:
            joined = first / (1.0 + tl.math.exp2(first * -1.4426950408889634)) * second
            answers.store([top, left // 2], joined.to(answers.dtype))
        else:
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
