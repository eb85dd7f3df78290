"""The GPU kernels, run by Triton's interpreter on the CPU: the same program, slowly."""

from __future__ import annotations

import pytest

from tests.extras.kernels.interpreting import run_interpreted
from tests.unit.scorers.cross_encoders.tiny_models import tiny_emb, tiny_transformer

pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no build for this machine")


def interpreted(program: str) -> None:
    run_interpreted(
        """
        import numpy as np
        import torch
        from torch.nn.functional import gelu, linear
        from adacur.scorers import TorchCrossEncoder
        from adacur.extras.kernels import (attention, gpu_kernels)
        from adacur.extras.kernels.attention import _padded
        from adacur.extras.kernels.narrow_product import product_of_narrow
        from adacur.extras.kernels.gpu_kernels import add_norm, attend_on_gpu, linear_gelu
        torch.manual_seed(0)
        """,
        program,
    )


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


def test_the_norm_kernel_adds_and_normalises_each_row() -> None:
    interpreted("""
        from torch.nn.functional import layer_norm
        for n_rows, size in ((1, 32), (7, 384), (130, 96), (3, 3000)):
            change, states = torch.randn(2, n_rows, size, dtype=torch.float16).unbind(0)
            weight, bias = torch.randn(2, size, dtype=torch.float16).unbind(0)
            got = add_norm(torch, change, states + 3, weight, bias, 1e-12).float()
            wide = change.float() + (states + 3).float()
            expected = layer_norm(wide, (size,), weight.float(), bias.float(), 1e-12)
            torch.testing.assert_close(got, expected, atol=5e-3, rtol=5e-3)
    """)


def test_the_product_of_narrow_rows_is_that_of_wide_ones() -> None:
    interpreted("""
        for n_rows, columns in ((1, 5), (64, 128), (130, 384), (65, 129)):
            column = torch.randn(columns)
            for rows in (
                torch.randint(-127, 128, (n_rows, columns), dtype=torch.int8),
                torch.randn(n_rows, columns, dtype=torch.float16),
            ):
                got = product_of_narrow(torch, rows, column)
                torch.testing.assert_close(got, rows.float() @ column, atol=1e-2, rtol=1e-4)
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


def test_texts_without_tokens_disturb_no_other() -> None:
    interpreted("""
        starts = torch.tensor([0, 9, 39, 39, 39], dtype=torch.int32)
        query, key, value = torch.randn(50, 3, 2, 32, dtype=torch.float16).unbind(1)
        got = attend_on_gpu(torch, query, key, value, starts, starts, 64)[:39]
        full = starts[:3]
        expected = attend_on_gpu(torch, query, key, value, full, full, 30)[:39]
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)

        # In the last layer each text has rows to read, and those without tokens read nothing.
        firsts = torch.tensor([0, 9, 0, 0])
        got = attend_on_gpu(torch, query[firsts], key, value, torch.arange(5, dtype=torch.int32), starts, 1)
        torch.testing.assert_close(got[:2], expected[firsts[:2]], atol=1e-3, rtol=0)
    """)


def test_a_filled_up_bucket_scores_with_the_kernels_as_plainly_in_float32(tmp_path) -> None:
    """All of a recorded forward pass but the recording."""
    for name, make in (("bert", tiny_transformer), ("emb", tiny_emb)):
        folder = make(tmp_path / name)
        interpreted(f"""
            from adacur.extras.kernels.recorded import RecordedForward
            from tests.unit.scorers.cross_encoders.tiny_models import PAIRS

            pairs, called = PAIRS[:11], []
            expected = TorchCrossEncoder({str(folder)!r}, device="cpu").score(pairs)
            half = TorchCrossEncoder({str(folder)!r}, device="cpu", dtype="float16")
            eager = half.score(pairs)
            attend, attention.kernels_for = gpu_kernels.attend_on_gpu, lambda device: gpu_kernels
            gpu_kernels.attend_on_gpu = lambda *given: called.append(1) or attend(*given)
            assert half._forward._encoder.can_be_recorded
            half._recorded = RecordedForward(
                torch, half._forward.of_packed, device=half._device, pad_id=half._pad_id, capture=lambda run: run
            )
            scores = half.score(pairs)
            # Once as recorded, and once to compare.
            assert half._recorded.n_recorded == 1 and len(called) == 4
            off = max(0.02, 2 * float(np.abs(eager - expected).max()))
            np.testing.assert_allclose(scores, expected, atol=off)
        """)
