"""The packed decoder against transformers' own forward pass, one sequence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adacur.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from adacur.extras.kernels.decoder_forward import PackedDecoder  # noqa: E402

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, wide": ("Llama", {"intermediate_size": 256, "num_key_value_heads": 6}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn rope": ("Llama", {"rope_parameters": YARN}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "one layer": ("Qwen3", {"num_hidden_layers": 1, "head_dim": 8}),
}


def body(kind: str) -> Any:
    family, options = KINDS[kind]
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**SHAPE | options)).eval()
    with torch.no_grad():
        # Fresh biases are 0 and fresh norms 1, which would hide their loss.
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return model


def decoder(model: Any) -> PackedDecoder:
    return PackedDecoder(model, device="cpu", dtype=torch.float32)


def ragged(rng: Any, lengths: list[int]) -> list[Any]:
    return [rng.integers(0, SHAPE["vocab_size"], length) for length in lengths]


def plain(model: Any, sequences: list[Any]) -> Any:
    with torch.inference_mode():
        return torch.stack(
            [model(input_ids=torch.as_tensor(np.asarray(ids))[None]).last_hidden_state[0, -1] for ids in sequences]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_sequences_get_the_vectors_of_the_plain_forward(kind: str) -> None:
    model = body(kind)
    sequences = ragged(np.random.default_rng(0), [1, 7, 40, 2, 1, 33, 150])
    expected = plain(model, sequences)
    assert expected.abs().max() > 1
    got = decoder(model).last_hidden([ids.tolist() for ids in sequences])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes_change_no_vector(kind: str) -> None:
    model, rng = body(kind), np.random.default_rng(1)
    prefixes = ragged(rng, [30, 1, 0, 9, 70, 4])
    continuations = ragged(rng, [5, 1, 20, 3, 0, 1, 12, 44, 2, 0])
    prefix_of = [4, 0, 2, 4, 0, 3, 4, 0, 1, 4]
    sequences = [
        np.concatenate((prefixes[at], tail)).astype(int) for at, tail in zip(prefix_of, continuations, strict=True)
    ]
    expected = plain(model, sequences)
    got = decoder(model).last_hidden_shared(prefixes, continuations, prefix_of, continuation_of=range(10))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_a_grid_lists_each_text_once() -> None:
    model, rng = body("llama"), np.random.default_rng(2)
    prefixes, continuations = ragged(rng, [12, 3, 25]), ragged(rng, [4, 9])
    prefix_of, continuation_of = np.divmod(np.arange(6), 2)
    got = decoder(model).last_hidden_shared(prefixes, continuations, prefix_of, continuation_of=continuation_of)
    expected = plain(model, [np.concatenate((head, tail)) for head in prefixes for tail in continuations])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_a_prefix_runs_once_however_many_continue_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, rows = decoder(body("llama")), []
    embed = tiny._on_device
    monkeypatch.setattr(tiny, "_on_device", lambda batch: rows.append(len(batch.ids)) or embed(batch))
    rng = np.random.default_rng(3)
    tiny.last_hidden_shared(ragged(rng, [100, 50]), ragged(rng, [3] * 20), [0, 1] * 10, continuation_of=range(20))
    assert sum(rows) == 100 + 50 + 20 * 3


def test_half_precision_is_as_near_as_the_plain_forward_in_it() -> None:
    model = body("qwen3")
    sequences = ragged(np.random.default_rng(5), [1, 40, 90])
    expected = plain(model, sequences)
    got = PackedDecoder(model, device="cpu", dtype="bfloat16").last_hidden(sequences)
    in_half = plain(body("qwen3").to(torch.bfloat16), sequences).float()
    assert (got - expected).abs().max() <= 2 * (in_half - expected).abs().max()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Mistral", {}),
        ("Gemma", {}),
        ("Llama", {"hidden_act": "gelu"}),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("Qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 8}),
        ("Llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    ],
)
def test_what_is_not_exactly_understood_does_not_fit(family: str, options: dict[str, Any]) -> None:
    config = getattr(transformers, f"{family}Config")
    assert not PackedDecoder.fits(config(**SHAPE | options))
    assert all(PackedDecoder.fits(body(kind).config) for kind in ("llama", "yarn rope", "qwen2", "qwen3"))


def test_a_body_with_more_than_its_own_weights_cannot_run() -> None:
    model = body("llama")
    assert PackedDecoder.can_run(model)
    model.layers[1].self_attn.q_proj.adapter = torch.nn.Linear(3, 3)
    assert not PackedDecoder.can_run(model)


def test_wrong_input_is_named() -> None:
    tiny = decoder(body("llama"))
    with pytest.raises(InputError, match="sequence 1 has none"):
        tiny.last_hidden([[1], []])
    with pytest.raises(InputError, match="96; got 3 to 97"):
        tiny.last_hidden([[3, 97]])
