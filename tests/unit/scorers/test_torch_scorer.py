from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adacur.core.errors import InputError, ScorerFailed, TextTooLong
from adacur.core.records import Item, Query
from adacur.scorers import TorchCrossEncoder
from tests.real_models import torch_cross_encoder
from tests.unit.scorers.tiny_models import ITEMS, PAIRS, QUERIES, tiny_transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request, tmp_path_factory) -> Path:
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


@pytest.mark.parametrize("batch_tokens", [None, 1, 150, 100_000])
@pytest.mark.parametrize("max_tokens", [64, 32])
def test_scores_are_those_of_a_plain_forward(folder, batch_tokens, max_tokens) -> None:
    expected = plainly(folder, PAIRS, max_length=max_tokens)
    assert np.ptp(expected) > 0.1
    with TorchCrossEncoder(folder, device="cpu", batch_tokens=batch_tokens, max_tokens=max_tokens) as scorer:
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
    queries = [Query(text, text) for text in ("who discovered penicillin?", "capital of france")]
    items = [Item(text, text) for text in texts]
    pairs = [(query, item) for query in queries for item in items]
    expected = plainly(folder, pairs, max_length=512)
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        np.testing.assert_allclose(scorer.score(pairs), expected, atol=1e-4)
        np.testing.assert_allclose(scorer.score_grid(queries, items).ravel(), expected, atol=1e-4)


def test_the_body_is_halved_and_the_head_is_not(folder) -> None:
    with (
        TorchCrossEncoder(folder, device="cpu", dtype="float16") as half,
        TorchCrossEncoder(folder, device="cpu") as full,
    ):
        dtypes = {name: weight.dtype for name, weight in half._model.named_parameters()}
        head = {name for name in dtypes if name.startswith("classifier") or ".pooler." in name}
        assert {dtypes[name] for name in head} == {torch.float32}
        assert {dtypes[name] for name in dtypes.keys() - head} == {torch.float16}
        np.testing.assert_allclose(half.score(PAIRS), full.score(PAIRS), atol=0.05)
        assert not np.array_equal(half.score(PAIRS), full.score(PAIRS))
        assert half.score(PAIRS).dtype == np.float32
        assert (half.card.dtype, full.card.dtype) == ("float16", "float32")
        assert half.card.weights == full.card.weights


def test_attention_is_fused(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        assert scorer._model.config._attn_implementation == "sdpa"


def test_the_token_limit_is_the_models_own(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        assert scorer.card.max_tokens == 64
        with pytest.raises(TextTooLong, match="query 'long' has 60"):
            scorer.score_grid([Query("long", "w1 " * 60)], ITEMS)
    with pytest.raises(InputError, match="limit of 64; got 65"):
        TorchCrossEncoder(folder, device="cpu", max_tokens=65)


def test_what_is_no_cross_encoder_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="has 2 labels"):
        TorchCrossEncoder(tiny_transformer(tmp_path / "two", labels=2))
    headless = tiny_transformer(tmp_path / "headless")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(headless)
    weights = {name: weight for name, weight in model.state_dict().items() if "classifier" not in name}
    model.save_pretrained(headless, state_dict=weights)
    with pytest.raises(InputError, match=r"lacks the weights \['classifier"):
        TorchCrossEncoder(headless)
    (headless / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="cannot be read"):
        TorchCrossEncoder(headless)


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"device": "abacus"}, {"batch_tokens": 0}])
def test_options_that_mean_nothing_are_refused(folder, options) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} "):
        TorchCrossEncoder(folder, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that must be absent")
def test_a_gpu_that_is_not_there_is_refused(folder) -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        TorchCrossEncoder(folder, device="cuda")


def test_a_closed_scorer_says_so_and_keeps_its_card(folder) -> None:
    scorer = TorchCrossEncoder(folder, device="cpu", name="mine")
    scorer.close()
    with pytest.raises(ScorerFailed, match="'mine' has been closed"):
        scorer.score(PAIRS)
    assert scorer.card.name == "mine"


def test_opening_prints_nothing(folder) -> None:
    program = f"from adacur.scorers import TorchCrossEncoder; TorchCrossEncoder({str(folder)!r}).close()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_model_that_cannot_be_fetched_is_named(tmp_path) -> None:
    program = (
        "from adacur.core.errors import FetchError\n"
        "from adacur.scorers import scorer\n"
        "try: scorer('nobody/nothing')\n"
        "except FetchError as error: print(error)"
    )
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=offline)
    assert "'nobody/nothing'" in done.stdout
