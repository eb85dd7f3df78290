"""Models that want more than a plain pair of texts score as in sentence-transformers, or are refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur.errors import InputError, MissingExtra
from adacur.scorers import OnnxCrossEncoder, SentenceTransformersScorer, TorchCrossEncoder, scorer
from tests.unit.scorers.cross_encoders.tiny_models import (
    CHAT_TEMPLATE,
    ITEMS,
    PAIRS,
    QUERIES,
    tiny_decoder,
    tiny_modular,
    tiny_onnx,
)

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")


def causal(folder: Path) -> Path:
    return tiny_decoder(folder, kind="causal")


def template_in_tokenizer_config(folder: Path) -> Path:
    tiny_decoder(folder, template=False)
    edit(folder / "tokenizer_config.json", chat_template=CHAT_TEMPLATE)
    return folder


def edit(file: Path, **settings) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def saved_by_the_library(folder: Path) -> Path:
    """With modules.json, one token to read, and an instruction of its own."""
    base = str(tiny_decoder(folder.with_name("base"), kind="causal"))
    body = library.base.modules.Transformer(base, transformer_task="text-generation")
    score = library.cross_encoder.modules.LogitScore(true_token_id=body.tokenizer.convert_tokens_to_ids("no"))
    prompts = {"task": "w5 w6 w7"}
    model = library.CrossEncoder(modules=[body, score], prompts=prompts, default_prompt_name="task", device="cpu")
    model.save_pretrained(str(folder))
    return folder


KINDS = {
    "a classifier with a chat template": tiny_decoder,
    "a chat template in tokenizer_config.json": template_in_tokenizer_config,
    "a causal model": causal,
    "a causal model with a readout and an instruction": saved_by_the_library,
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def folder(request, tmp_path_factory) -> Path:
    return request.param(tmp_path_factory.mktemp("more") / "model")


def scores_of_the_library(folder: Path) -> np.ndarray:
    model = library.CrossEncoder(str(folder), device="cpu")
    texts = [(query.text, item.text) for query, item in PAIRS]
    return model.predict(texts, activation_fn=torch.nn.Identity(), show_progress_bar=False)


def test_its_scores_are_those_of_sentence_transformers(folder) -> None:
    with scorer(folder, device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)
        expected = scores_of_the_library(folder)
        assert np.ptp(expected) > 0.1
        np.testing.assert_allclose(opened.score(PAIRS), expected, atol=1e-4)
        np.testing.assert_allclose(opened.score_grid(QUERIES, ITEMS).ravel(), expected, atol=1e-4)


def test_several_modules_go_to_sentence_transformers_and_never_score_plain_pairs(tmp_path) -> None:
    folder = tiny_modular(tmp_path / "modular")
    with scorer(folder, device="cpu") as opened:
        assert isinstance(opened, SentenceTransformersScorer)
        np.testing.assert_allclose(opened.score(PAIRS), scores_of_the_library(folder), atol=1e-5)
    with pytest.raises(InputError, match=r"modules.*wrong"):
        TorchCrossEncoder(folder, device="cpu")


def test_by_its_hub_name_it_is_what_it_is_by_its_folder(folder, tmp_path, monkeypatch) -> None:
    fetched = hub_of({"org/reranker": folder}, tmp_path, monkeypatch)
    with scorer("org/reranker", device="cpu") as opened, scorer(folder, device="cpu") as local:
        assert isinstance(opened, TorchCrossEncoder)
        assert (opened.card.name, opened.card.source) == ("org/reranker", "org/reranker")
        assert (opened.card.weights, opened.card.settings) == (local.card.weights, local.card.settings)
        np.testing.assert_array_equal(opened.score(PAIRS), local.score(PAIRS))
        again = opened.reopening().open()
        assert again.card == opened.card
        again.close()
    assert fetched


def hub_of(models: dict[str, Path], folder: Path, monkeypatch) -> list[str]:
    """A hub that holds these models, and hands out the files that are asked for; the list of what it was asked."""
    hub = pytest.importorskip("huggingface_hub")
    fetched: list[str] = []

    def download(name, *, allow_patterns, **_):
        files = [str(path.relative_to(models[name])) for path in models[name].rglob("*") if path.is_file()]
        snapshot = folder / "hub" / name
        for file in hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns):
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(models[name] / file, snapshot / file)
        fetched.append(name)
        return str(snapshot)

    monkeypatch.setattr(hub, "snapshot_download", download)
    return fetched


def test_nothing_is_fetched_that_could_not_be_run(tmp_path, monkeypatch) -> None:
    fetched = hub_of({"org/plain": tmp_path}, tmp_path, monkeypatch)
    for module in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"hub model.*torch"):
        scorer("org/plain")
    assert not fetched


def test_without_sentence_transformers_it_is_refused_with_the_reason_and_the_remedy(tmp_path, monkeypatch) -> None:
    made = tiny_modular(tmp_path / "made")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match="sentence-transformers"):
        scorer(made)


def test_a_language_model_without_a_template_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="Qwen3ForCausalLM"):
        scorer(tiny_decoder(tmp_path, kind="causal", template=False))


def test_an_onnx_graph_beside_a_chat_template_is_refused(tmp_path) -> None:
    folder = tiny_onnx(tmp_path)
    OnnxCrossEncoder(folder).close()
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    with pytest.raises(InputError):
        scorer(folder)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("modules.json", {"type": "evil.Module"}),
        ("modules.json", {"type": "os.system"}),
        ("modules.json", {"path": "../evil"}),
        ("2_Dense/config.json", {"activation_function": "evil.Module"}),
    ],
)
@pytest.mark.parametrize("opens", ["scorer", "encoder"])
def test_code_that_a_folder_names_is_not_run(tmp_path, monkeypatch, file, change, opens) -> None:
    folder = tiny_modular(tmp_path / "modular")
    place = folder / file
    now = json.loads(place.read_text())
    place.write_text(json.dumps([*now, now[1] | change] if isinstance(now, list) else now | change))
    mark = tmp_path / "was-run"
    for at in (folder, tmp_path):
        (at / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Module: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    if opens == "encoder":
        edit(folder / "config_sentence_transformers.json", model_type="SentenceTransformer")
    # Of an activation sentence-transformers takes its own instead, and warns.
    with pytest.raises(InputError) if file == "modules.json" else contextlib.suppress(InputError):
        getattr(adacur, opens)(str(folder))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config_sentence_transformers.json", {"prompts": ["a"]}),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}, "default_prompt_name": "a"}),
        ("sentence_bert_config.json", {"processing_kwargs": {"chat_template": [1]}}),
        ("tokenizer_config.json", {"model_max_length": "x", "tokenizer_class": "PreTrainedTokenizerFast"}),
    ],
)
def test_settings_of_an_odd_type_are_the_folders_fault(tmp_path, file, content) -> None:
    folder = tiny_decoder(tmp_path / "model")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError):
        scorer(folder, device="cpu")


def test_a_classifier_trained_on_plain_pairs_has_no_template_of_its_base(tmp_path) -> None:
    from adacur.extras.train.ranking_model import untrained

    tokenizer, model = untrained(tiny_decoder(tmp_path / "base"), None)
    for saved in (tokenizer, model):
        saved.save_pretrained(tmp_path / "trained")
    with scorer(tmp_path / "trained", device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)
