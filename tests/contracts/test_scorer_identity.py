"""Two scorers that score differently never pass for one: not for a cache, and not for an index without a call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur.errors import IndexMismatch, WrongScorer
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.scorers import Cached, HttpScorer, scorer
from adacur.scorers.cross_encoders import onnx as onnx_scorer
from adacur.store.probes import same_scorer
from tests.rerank_servers import RerankServer
from tests.unit.scorers.cross_encoders.tiny_models import (
    CHAT_TEMPLATE,
    WORDS,
    tiny_decoder,
    tiny_modular,
    tiny_onnx,
    tiny_transformer,
)

PAIR = (Query("q", "w1 w2"), Item("i", "w3 W4 w5"))
ITEMS = [Item(f"i{n}", " ".join(WORDS[(3 * n + step) % 40].upper() for step in range(n % 7 + 2))) for n in range(40)]
ANCHORS = [Query(f"a{n}", f"{WORDS[n]} {WORDS[39 - n]}") for n in range(4)]


def edit(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(name)))


def no_lower_case(folder: Path) -> Path:
    edit(folder / "tokenizer.json", lambda content: content["normalizer"].update(lowercase=False))
    return folder


def other_template(folder: Path) -> Path:
    pair = "post_processor"
    edit(folder / "tokenizer.json", lambda content: content[pair]["pair"].insert(1, content[pair]["pair"][0]))
    return folder


def model(folder: Path, kind: str) -> Path:
    return tiny_onnx(folder) if kind == "onnx" else tiny_transformer(folder)


@pytest.fixture(params=["onnx", "torch"])
def kind(request) -> str:
    return request.param


# An index asks only the cards, which the tests above compare for both.
ONE_KIND = pytest.mark.parametrize("kind", ["onnx"])


def opened(folder: Path, **options):
    return scorer(folder, **options) if any(folder.glob("*.onnx")) else scorer(folder, device="cpu", **options)


def told_apart(one, other, path: Path) -> None:
    """Neither of them is taken for the other without a call."""
    assert not same_scorer(one.card, other.card)
    first = Cached(one, path)
    first.score([PAIR])
    second = Cached(other, path)
    second.score([PAIR])
    assert (first.misses, second.misses, second.hits) == (1, 1, 0)


def test_one_model_in_two_folders_is_one(kind, tmp_path) -> None:
    folder = model(tmp_path / "one", kind)
    with opened(folder) as one, opened(copied(folder, "other"), name="renamed") as other:
        assert same_scorer(one.card, other.card)
        Cached(one, tmp_path / "cache").score([PAIR])
        again = Cached(other, tmp_path / "cache")
        again.score([PAIR])
        assert (again.hits, again.misses) == (1, 0)


def test_the_layout_of_json_and_the_padding_of_its_last_use_are_not_who_a_model_is(kind, tmp_path) -> None:
    folder = model(tmp_path / "one", kind)
    other = copied(folder, "other")
    edit(other / "tokenizer.json", lambda content: content.update(padding=None, truncation=None))
    with opened(folder) as one, opened(other) as same:
        assert same_scorer(one.card, same.card)


@pytest.mark.parametrize("change", [no_lower_case, other_template])
def test_another_tokenizer_under_the_same_weights_is_another_scorer(kind, tmp_path, change) -> None:
    folder = model(tmp_path / "one", kind)
    with opened(folder) as one, opened(change(copied(folder, "other"))) as other:
        assert one.card.weights == other.card.weights
        told_apart(one, other, tmp_path / "cache")


@pytest.mark.parametrize("limit", [{"max_tokens": 30}, {"max_item_tokens": 5}])
def test_another_limit_is_another_scorer(kind, tmp_path, limit) -> None:
    folder = model(tmp_path / "one", kind)
    with opened(folder) as one, opened(folder, **limit) as other:
        told_apart(one, other, tmp_path / "cache")


def test_another_configuration_of_the_same_weights_is_another_scorer(tmp_path) -> None:
    folder = tiny_transformer(tmp_path / "one")
    other = copied(folder, "other")
    edit(other / "config.json", lambda content: content.update(num_attention_heads=4))
    with opened(folder) as one, opened(other) as changed:
        assert one.score([PAIR]) != pytest.approx(changed.score([PAIR]))
        told_apart(one, changed, tmp_path / "cache")


def test_the_float_and_the_int8_file_of_one_folder_are_two_scorers(tmp_path) -> None:
    folder = tiny_onnx(tmp_path / "one")
    quantised = tiny_onnx(tmp_path / "int8", dynamic=True) / "model.onnx"
    quantised.rename(folder / "model_quantized.onnx")
    with scorer(folder / "model.onnx") as one, scorer(folder / "model_quantized.onnx") as other:
        assert (one.card.dtype, other.card.dtype) == ("float32", "int8")
        told_apart(one, other, tmp_path / "cache")


def test_weights_beside_the_graph_count_whatever_their_file_is_called(tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    folder = tiny_onnx(tmp_path / "one")
    graph = onnx.load(folder / "model.onnx")
    (folder / "model.onnx").unlink()
    onnx.save(graph, folder / "model.onnx", save_as_external_data=True, location="numbers.bin", size_threshold=100)
    other = copied(folder, "other")
    content = np.fromfile(other / "numbers.bin", np.float32)
    (content[: len(content) // 2] * np.float32(2)).tofile(other / "half")
    (other / "numbers.bin").write_bytes((other / "half").read_bytes() + content[len(content) // 2 :].tobytes())
    with scorer(folder) as one, scorer(other) as changed:
        told_apart(one, changed, tmp_path / "cache")


def test_another_arithmetic_is_another_scorer(tmp_path, monkeypatch) -> None:
    folder = tiny_onnx(tmp_path / "one", dynamic=True)
    with scorer(folder) as one, scorer(folder) as other:
        assert one.card.arithmetic
        monkeypatch.setattr(onnx_scorer, "int8_products", lambda: "saturating products")
        told_apart(one, other, tmp_path / "cache")


def other_chat(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("w3", "w9"))
    return folder


def other_pooling(folder: Path) -> Path:
    edit(
        folder / "1_Pooling" / "config.json",
        lambda content: content.update(
            {"pooling_mode": "cls"}
            if "pooling_mode" in content
            else {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
        ),
    )
    return folder


def with_prompt(folder: Path) -> Path:
    settings = {"prompts": {"ask": "w7 "}, "default_prompt_name": "ask"}
    edit(folder / "config_sentence_transformers.json", lambda content: content.update(settings))
    return folder


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (tiny_decoder, other_chat),
        (tiny_decoder, no_lower_case),
        (tiny_modular, other_pooling),
        (tiny_modular, no_lower_case),
        (tiny_modular, with_prompt),
    ],
)
@pytest.mark.parametrize("as_object", [False, True])
def test_another_template_pooling_or_prompt_is_another_scorer(tmp_path, make, change, as_object) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = make(tmp_path / "one")
    folders = (folder, copied(folder, "again"), change(copied(folder, "other")))
    sources = [library.CrossEncoder(str(each), device="cpu") for each in folders] if as_object else folders
    options = {} if as_object else {"device": "cpu"}
    one, again, other = (scorer(source, **options) for source in sources)
    one.score([PAIR])
    assert same_scorer(one.card, again.card)
    assert one.card.weights == other.card.weights
    assert one.score([PAIR]) != pytest.approx(other.score([PAIR]))
    told_apart(one, other, tmp_path / "cache")


def test_another_model_address_or_kind_of_score_of_a_service_is_another_scorer(tmp_path) -> None:
    with RerankServer("cohere") as server, RerankServer("cohere") as elsewhere:
        usual = {"kind": "cohere", "model": "a", "scores": "probability", "api_key": "k"}
        one = HttpScorer(server.root, **usual)
        for number, (url, options) in enumerate(
            (
                (server.root, usual | {"model": "b"}),
                (server.root, usual | {"scores": "raw"}),
                (elsewhere.root, usual),
            )
        ):
            told_apart(one, HttpScorer(url, **options), tmp_path / f"cache{number}")


# --- what an index does with it


def built(folder: Path, path: Path) -> None:
    with opened(folder) as own:
        adacur.build(ITEMS, ANCHORS, scorer=own, path=path, first=[], progress=False, tune=False)


@ONE_KIND
def test_an_index_asks_a_scorer_with_another_tokenizer_and_reports_or_refuses_it(kind, tmp_path) -> None:
    folder = model(tmp_path / "one", kind)
    built(folder, tmp_path / "index")
    with opened(no_lower_case(folder)) as other, pytest.raises(WrongScorer):
        adacur.load(tmp_path / "index", scorer=other)


@ONE_KIND
def test_a_build_goes_on_with_the_same_settings_only(kind, tmp_path) -> None:
    folder = model(tmp_path / "one", kind)
    built(folder, tmp_path / "index")
    with opened(no_lower_case(folder)) as other, pytest.raises(IndexMismatch):
        adacur.build(ITEMS, ANCHORS, scorer=other, path=tmp_path / "index", first=[], progress=False)


def test_a_card_that_says_more_than_another_proves_nothing() -> None:
    card = ScorerCard(name="n", backend="onnx", weights="w", settings="s", arithmetic="a")
    assert same_scorer(card, replace(card, name="m", source="elsewhere"))
    for less in ({"settings": None}, {"arithmetic": None}, {"weights": None}):
        assert not same_scorer(replace(card, **less), card)
        assert not same_scorer(card, replace(card, **less))
