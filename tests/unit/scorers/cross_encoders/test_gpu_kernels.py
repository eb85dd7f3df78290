"""The GPU kernels, run by Triton's interpreter on the CPU: the same program, slowly."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no build for this machine")


def interpreted(program: str) -> None:
    """Run a program in which Triton interprets; it must know that before it is imported."""
    prelude = """
        import torch
        from torch.nn.functional import gelu, linear
        from adacur.scorers.cross_encoders.attention import _padded
        from adacur.scorers.cross_encoders.gpu_kernels import attend_on_gpu, linear_gelu
        torch.manual_seed(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(program)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_attention_kernel_attends_within_each_text_alone() -> None:
    interpreted("""
        for longest in (9, 30, 60, 100, 150):
            lengths = [longest, 1, longest // 2, longest - 1]
            starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            rows = int(starts[-1])
            query, key, value = torch.randn(rows + 5, 3, 2, 32, dtype=torch.float16).unbind(1)
            # What stands behind the last text must not be read.
            key[rows:], value[rows:] = float("nan"), float("nan")
            got = attend_on_gpu(torch, query, key, value, starts, starts, longest)[:rows]
            wide = (query.float(), key.float(), value.float())
            expected = _padded(torch, *wide, starts, starts, longest, longest)[:rows]
            torch.testing.assert_close(got.float(), expected, atol=2e-3, rtol=0)

            firsts, one_each = query[starts[:-1]], torch.arange(5, dtype=torch.int32)
            got = attend_on_gpu(torch, firsts, key, value, one_each, starts, 1)
            torch.testing.assert_close(got.float(), expected[starts[:-1]], atol=2e-3, rtol=0)

            wanted = torch.stack((starts[1:] - 1, starts[:-1], (starts[:-1] + starts[1:]) // 2), 1).flatten()
            got = attend_on_gpu(torch, query[wanted], key, value, 3 * one_each, starts, 3)
            torch.testing.assert_close(got.float(), expected[wanted], atol=2e-3, rtol=0)
    """)


def test_the_linear_kernel_ends_in_gelu() -> None:
    interpreted("""
        for n_rows, columns, depth in ((130, 384, 96), (300, 304, 64), (5, 512, 128)):
            rows = torch.randn(n_rows, depth, dtype=torch.float16) * 2
            weight = torch.randn(columns, depth, dtype=torch.float16) * 0.2
            bias = torch.randn(columns, dtype=torch.float16)
            got = linear_gelu(torch, rows, weight, bias, programs=3, native_tanh=False).float()
            expected = gelu(linear(rows.float(), weight.float(), bias.float()))
            assert expected.abs().max() > 5, "the tails are part of it"
            torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    """)


def test_the_kernels_run_on_the_device_of_their_tensors() -> None:
    interpreted("""
        import contextlib
        entered = []

        @contextlib.contextmanager
        def device_of(tensor):
            entered.append(tensor)
            yield

        torch.cuda.device_of = device_of
        texts, starts = torch.randn(4, 1, 16, dtype=torch.float16), torch.tensor([0, 4], dtype=torch.int32)
        attend_on_gpu(torch, texts, texts, texts, starts, starts, 4)
        rows, weight = torch.randn(5, 64, dtype=torch.float16), torch.randn(64, 64, dtype=torch.float16)
        linear_gelu(torch, rows, weight, weight[0], programs=1, native_tanh=False)
        assert [tensor is expected for tensor, expected in zip(entered, (texts, rows), strict=True)] == [True, True]
    """)
