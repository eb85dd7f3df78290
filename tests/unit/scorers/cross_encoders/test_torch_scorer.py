from __future__ import annotations

import gc
import json
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import FetchError, InputError, ScorerFailed, TextTooLong
from adacur.extras.kernels.packed_encoder import PackedEncoder
from adacur.records import Item, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers import scorer as scorer_of
from adacur.scorers.cross_encoders.forwards import in_dtype
from tests.real_models import torch_cross_encoder
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("tiny") / "bert", "bert")


# Where the architecture is the point: positions, token types and padding differ.
@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert"])
def architecture(request, tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("tiny") / request.param, request.param)


def plainly(folder: Path, pairs, *, max_length: int) -> np.ndarray:
    """What transformers says, one pair at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).float().eval()
    scores = []
    for query, item in pairs:
        # Lists, since transformers takes a lone empty text for no text at all.
        inputs = tokenizer(
            [query.text], [item.text], truncation="only_second", max_length=max_length, return_tensors="pt"
        )
        with torch.inference_mode():
            scores.append(model(**inputs).logits[0, 0].item())
    return np.array(scores, np.float32)


@pytest.mark.parametrize("max_tokens", [64, 32])
def test_scores_are_those_of_a_plain_forward(architecture, max_tokens) -> None:
    expected = plainly(architecture, PAIRS, max_length=max_tokens)
    assert np.ptp(expected) > 0.1
    for batch_tokens in (None, 1, 150, 100_000) if max_tokens == 64 else (None, 150):
        with TorchCrossEncoder(architecture, device="cpu", batch_tokens=batch_tokens, max_tokens=max_tokens) as scorer:
            np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-4)
            grid = scorer.score_grid(QUERIES, ITEMS)
        np.testing.assert_allclose(grid, expected.reshape(len(QUERIES), len(ITEMS)), atol=1e-4)


def test_a_limit_on_items_holds_in_grids_and_pairs(folder) -> None:
    short = [Item(item.id, " ".join(item.text.split()[:4])) for item in ITEMS]
    with (
        TorchCrossEncoder(folder, device="cpu", max_item_tokens=4) as limited,
        TorchCrossEncoder(folder, device="cpu") as scorer,
    ):
        expected = scorer.score_grid(QUERIES, short)
        np.testing.assert_allclose(limited.score_grid(QUERIES, ITEMS), expected, atol=1e-5)
        np.testing.assert_allclose(limited.score(PAIRS), expected.ravel(), atol=1e-5)


def test_a_real_model_scores_as_in_a_plain_forward() -> None:
    folder = torch_cross_encoder()
    texts = ["Penicillin was discovered by Alexander Fleming.", "Paris is in France. " * 12, "bananas " * 600]
    query = Query("q", "who discovered penicillin?")
    items = [Item(text, text) for text in texts]
    pairs = [(query, item) for item in items]
    expected = plainly(folder, pairs, max_length=512)
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        np.testing.assert_allclose(scorer.score(pairs), expected, atol=1e-4)
        np.testing.assert_allclose(scorer.score_grid([query], items).ravel(), expected, atol=1e-4)


def test_the_body_is_halved_and_the_head_is_not(architecture) -> None:
    with (
        TorchCrossEncoder(architecture, device="cpu", dtype="float16") as half,
        TorchCrossEncoder(architecture, device="cpu") as full,
    ):
        np.testing.assert_allclose(half.score(PAIRS), full.score(PAIRS), atol=0.05)
        assert not np.array_equal(half.score(PAIRS), full.score(PAIRS))
        # Logits that had passed through half precision would still be the same after a round trip.
        assert not np.array_equal(half.score(PAIRS), half.score(PAIRS).astype(np.float16).astype(np.float32))
        assert half.score(PAIRS).dtype == np.float32
        assert (half.card.dtype, full.card.dtype) == ("float16", "float32")
        assert half.card.weights == full.card.weights


def test_a_large_grid_is_scored_in_parts(folder, monkeypatch) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        whole = scorer.score_grid(QUERIES, ITEMS)
        monkeypatch.setattr("adacur.scorers.cross_encoders.torch._PAIRS_AT_ONCE", 3 * len(QUERIES))
        np.testing.assert_allclose(scorer.score_grid(QUERIES, ITEMS), whole, atol=1e-5)
        assert scorer.score_grid(QUERIES, []).shape == (len(QUERIES), 0)
        assert scorer.score_grid([], ITEMS).shape == (0, len(ITEMS))


def test_a_text_that_spells_the_padding_token_scores_as_in_a_plain_forward(architecture) -> None:
    items = [Item(f"i{n}", f"w1 {'[PAD] <pad> ' * n}w2 w3") for n in range(3)]
    pairs = [(query, item) for query in (Query("q", "w4"), Query("p", "w4 <pad> [PAD] w5")) for item in items]
    expected = plainly(architecture, pairs, max_length=64)
    with TorchCrossEncoder(architecture, device="cpu") as scorer:
        np.testing.assert_allclose(scorer.score(pairs), expected, atol=1e-4)


def test_a_padding_id_that_positions_need_is_not_done_without(tmp_path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_transformer(tmp_path, "roberta"))
    assert PackedEncoder.can_run(model.base_model)
    model.config.pad_token_id = None
    assert not PackedEncoder.can_run(model.base_model)


def test_rotary_frequencies_are_not_halved(tmp_path) -> None:
    folder = tiny_transformer(tmp_path)
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=1,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=2,
        sep_token_id=3,
    )
    transformers.ModernBertForSequenceClassification(config).save_pretrained(folder)
    whole, kept = (transformers.AutoModel.from_pretrained(folder, dtype=torch.float32) for _ in range(2))
    in_dtype(kept, torch.float16)
    frequencies = [name for name, _ in whole.named_buffers() if "inv_freq" in name]
    assert frequencies
    for name in frequencies:
        torch.testing.assert_close(kept.get_buffer(name), whole.get_buffer(name), rtol=0, atol=0)
    with TorchCrossEncoder(folder, device="cpu", dtype="float16") as half:
        assert np.isfinite(half.score(PAIRS)).all()


def test_a_device_without_memory_gets_smaller_batches_and_no_score_is_lost(folder, caplog) -> None:
    """There is no GPU to fill here, so the forward pass refuses what would not fit."""
    with TorchCrossEncoder(folder, device="cpu", batch_tokens=100_000) as scorer:
        expected = scorer.score(PAIRS)
        forward, asked = scorer._forward, []
        logits = forward.logits

        def with_little_memory(batches, start, end, **options):
            asked.append(batches.tokens(start, end))
            if asked[-1] > 200:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return logits(batches, start, end, **options)

        forward.logits = with_little_memory
        np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-5)
        assert max(asked) > 200
        assert "ran out of memory" in caplog.text
        refused = len([tokens for tokens in asked if tokens > 200])
        asked.clear()
        np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-5)
        assert max(asked) <= 200, "what was too much once is not tried again"
        assert refused > 1


def test_a_device_without_memory_for_one_pair_is_an_error_that_says_what_to_do(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:

        def no_memory(*_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory")

        scorer._forward.logits = no_memory
        with pytest.raises(ScorerFailed):
            scorer.score(PAIRS[:1])


def test_a_scorer_goes_to_another_process_with_its_options(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu", max_item_tokens=5, name="mine") as scorer:
        way = pickle.loads(pickle.dumps(scorer.reopening()))
        with way.open() as again:
            assert again.card == scorer.card
            np.testing.assert_array_equal(again.score(PAIRS), scorer.score(PAIRS))
    with pytest.raises(InputError, match="tpu-of-mine"):
        TorchCrossEncoder(folder, device="tpu-of-mine")


def test_a_tokenizer_without_types_means_the_first_type_everywhere(tmp_path) -> None:
    folder = tiny_transformer(tmp_path / "typeless")
    settings = folder / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    content["model_input_names"] = ["input_ids", "attention_mask"]
    settings.write_text(json.dumps(content))
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        np.testing.assert_allclose(scorer.score(PAIRS), plainly(folder, PAIRS, max_length=64), atol=1e-4)


def test_the_token_limit_is_the_models_own(architecture) -> None:
    with TorchCrossEncoder(architecture, device="cpu") as scorer:
        assert scorer.card.max_tokens == 64
        with pytest.raises(TextTooLong, match=r"'long'.*60"):
            scorer.score_grid([Query("long", "w1 " * 60)], ITEMS)
    with pytest.raises(InputError, match=r"64\b.*\b65"):
        TorchCrossEncoder(architecture, device="cpu", max_tokens=65)


def test_what_is_no_cross_encoder_is_refused(tmp_path) -> None:
    with pytest.raises(InputError):
        TorchCrossEncoder(tiny_transformer(tmp_path / "two", labels=2))
    headless = tiny_transformer(tmp_path / "headless")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(headless)
    weights = {name: weight for name, weight in model.state_dict().items() if "classifier" not in name}
    model.save_pretrained(headless, state_dict=weights)
    with pytest.raises(InputError, match=r"'classifier"):
        TorchCrossEncoder(headless)
    (headless / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError):
        TorchCrossEncoder(headless)


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"device": "abacus"}, {"batch_tokens": 0}])
def test_options_that_mean_nothing_are_refused(folder, options) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} "):
        TorchCrossEncoder(folder, **options)


def test_a_gpu_number_that_is_not_there_is_refused(folder, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"cuda:0\b.*cuda:1"):
        TorchCrossEncoder(folder, device="cuda:2")


def test_closing_frees_a_model_that_refers_to_itself(tmp_path) -> None:
    scorer = TorchCrossEncoder(tiny_transformer(tmp_path), device="cpu")
    encoder = scorer._forward._encoder
    encoder.itself = encoder._embed
    held = weakref.ref(encoder)
    del encoder
    gc.disable()
    try:
        scorer.close()
        assert held() is None
    finally:
        gc.enable()


def test_a_model_that_cannot_be_fetched_is_named(tmp_path, monkeypatch) -> None:
    # The hub reads its variables once, when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FetchError, match=r"'nobody/nothing'.*HF_HUB_OFFLINE"):
        scorer_of("nobody/nothing")
