"""The decoder's GPU kernels, run by Triton's interpreter on the CPU: the same program, slowly."""

from __future__ import annotations

import pytest

from tests.extras.kernels.interpreting import run_interpreted

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("triton", reason="Triton has no build for this machine")


def interpreted(program: str) -> None:
    run_interpreted(
        """
        import numpy as np
        import torch
        from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model
        from adacur.extras.kernels import (decoder_forward, decoder_kernels)
        from adacur.extras.kernels.decoder_forward import PackedDecoder, attend
        from adacur.extras.kernels.shared_prefixes import token_batch
        torch.manual_seed(0)
        """,
        program,
    )


def test_the_attention_kernel_sees_the_prefix_and_what_came_before() -> None:
    interpreted("""
        decoder = object.__new__(PackedDecoder)
        decoder._torch, decoder._device = torch, torch.device("cpu")
        for lengths, shared, heads in (([5, 1, 3, 2], 1, 3), ([20, 33, 0, 9], 3, 9), ([70, 50], 2, 2)):
            prefixes = [[1] * n for n in (40, 0, 9, 65)[: len(lengths)]]
            prefixes[1] = [2] * (33 if lengths[1] == 1 else 0)
            places = range(len(lengths))
            batch = decoder._on_device(token_batch(prefixes, [[3] * n for n in lengths], places, places))
            rows = len(batch.ids)
            joint = torch.randn(rows, heads + 2 * shared, 32, dtype=torch.float16)
            query, key, value = joint.split([heads, shared, shared], 1)
            wide = (query.float(), key.float(), value.float())
            expected, got = torch.empty(rows, heads, 32), torch.empty(rows, heads, 32, dtype=torch.float16)
            for spans in batch.spans:
                attend(torch, *wide, spans, expected)
                decoder_kernels.attend_on_gpu(torch, query, key, value, spans, got)
            torch.testing.assert_close(got.float(), expected, atol=2e-3, rtol=0)
            read = torch.empty(len(lengths), heads, 32, dtype=torch.float16)
            decoder_kernels.attend_on_gpu(torch, query[batch.read_rows], key, value, batch.read_spans, read)
            torch.testing.assert_close(read.float(), expected[batch.read_rows], atol=2e-3, rtol=0)
    """)


def test_the_linear_kernel_ends_in_swiglu() -> None:
    interpreted("""
        for n_rows, wide, depth in ((130, 256, 96), (5, 128, 64)):
            rows = torch.randn(n_rows, depth, dtype=torch.float16)
            gate, up = torch.randn(2, wide, depth, dtype=torch.float16) * 0.3
            joint = torch.stack([gate.view(-1, 128, depth), up.view(-1, 128, depth)], 1).flatten(0, 2)
            got = decoder_kernels.linear_swiglu(torch, rows, joint, programs=3).float()
            expected = torch.nn.functional.silu(rows.float() @ gate.float().T) * (rows.float() @ up.float().T)
            torch.testing.assert_close(got, expected, atol=5e-3, rtol=2e-3)
    """)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_decoder_with_kernels_answers_as_the_plain_forward_in_float32(family: str) -> None:
    interpreted(f"""
        shape = dict(
            vocab_size=97, hidden_size=48, intermediate_size=128, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, head_dim=16,
        )
        model = {family}Model({family}Config(**shape)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * 0.1
        rng = np.random.default_rng(0)
        prefixes, tails = ([rng.integers(0, 97, n) for n in lengths] for lengths in ((30, 0, 5), (4, 1, 20, 0, 9)))
        given, of = (prefixes, tails, [0, 1, 2, 2, 0]), range(5)
        expected = PackedDecoder(model, device="cpu", dtype="float32").last_hidden_shared(*given, continuation_of=of)
        half = PackedDecoder(model, device="cpu", dtype="float16")
        eager = half.last_hidden_shared(*given, continuation_of=of)
        half._kernels, half._programs, decoder_forward._ROWS_FOR_KERNEL = decoder_kernels, 2, 1
        got = half.last_hidden_shared(*given, continuation_of=of)
        off = (eager - expected).abs().max()
        assert 0 < off < 0.1
        assert (got - expected).abs().max() <= 2 * off and not torch.equal(got, eager)
    """)
