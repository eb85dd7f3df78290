from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from adacur.data import fetch
from adacur.errors import InputError
from adacur.first_stages import Dense, Encoder, OnnxEncoder, SentenceTransformerEncoder, bge_small
from adacur.records import Item


def table_of(encoder: OnnxEncoder, *words: str) -> np.ndarray:
    ids = np.array([[encoder._tokenizer.token_to_id(word) for word in words]])
    return encoder._session.run(None, {"input_ids": ids})[0][0]


def test_mean_pooling_averages_the_tokens_and_no_padding(tmp_path, tiny_model) -> None:
    encoder = OnnxEncoder(tiny_model(tmp_path), pooling="mean", normalise=False)
    expected = table_of(encoder, "[CLS]", "old", "city", "[SEP]").mean(axis=0)
    np.testing.assert_allclose(encoder.encode_items(["old city"])[0], expected, rtol=1e-6)


def test_cls_pooling_takes_the_first_token_and_normalises(tmp_path, tiny_model) -> None:
    encoder = OnnxEncoder(tiny_model(tmp_path), pooling="cls")
    expected = table_of(encoder, "[CLS]")[0]
    np.testing.assert_allclose(encoder.encode_items(["old city"])[0], expected / np.linalg.norm(expected), rtol=1e-6)


def test_prefixes_go_before_queries_or_items_alone(tmp_path, tiny_model) -> None:
    folder = tiny_model(tmp_path)
    plain = OnnxEncoder(folder, pooling="mean")
    prefixed = OnnxEncoder(folder, pooling="mean", query_prefix="query: ", item_prefix="old ")
    assert (prefixed.encode_queries(["river"]) == plain.encode_queries(["query: river"])).all()
    assert (prefixed.encode_items(["river"]) == plain.encode_items(["old river"])).all()


def test_texts_are_cut_at_max_tokens(tmp_path, tiny_model) -> None:
    encoder = OnnxEncoder(tiny_model(tmp_path), pooling="mean", max_tokens=4)
    assert (encoder.encode_items(["old city river water"]) == encoder.encode_items(["old city"])).all()


@pytest.mark.parametrize("modules", [True, False])
def test_texts_are_cut_where_sentence_transformers_would_cut_them(tmp_path, tiny_model, modules) -> None:
    folder = tiny_model(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 5}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4}))
    if modules:
        (folder / "modules.json").write_text("[]")
    encoder = OnnxEncoder(folder, pooling="mean")
    assert encoder.card.max_tokens == (4 if modules else 5)
    kept = "old city" if modules else "old city river"
    assert (encoder.encode_items(["old city river water"]) == encoder.encode_items([kept])).all()


def test_a_card_says_who_the_encoder_is(tmp_path, tiny_model) -> None:
    one, other = OnnxEncoder(tiny_model(tmp_path / "a")), OnnxEncoder(tiny_model(tmp_path / "b", seed=1))
    assert isinstance(one, Encoder)
    assert one.dimension == one.card.dimension == 8
    assert one.card.source == str((tmp_path / "a").resolve())
    assert one.card.weights != other.card.weights
    assert one.card.weights == OnnxEncoder(tmp_path / "a", pooling="mean").card.weights


def test_a_folder_without_a_model_and_unknown_pooling_are_refused(tmp_path) -> None:
    with pytest.raises(InputError):
        OnnxEncoder(tmp_path)
    with pytest.raises(InputError):
        OnnxEncoder(tmp_path, pooling="max")


def test_a_vector_does_not_depend_on_its_batch_even_in_int8() -> None:
    encoder = bge_small(fetch("bge-small-en-v1.5"))
    texts = ["river", "The Thames is a river that flows through London. " * 20, "who discovered penicillin?"]
    together = encoder.encode_items(texts)
    assert all((encoder.encode_items([text])[0] == row).all() for text, row in zip(texts, together, strict=True))
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


def test_bge_small_puts_the_answer_first() -> None:
    encoder = bge_small(fetch("bge-small-en-v1.5"))
    items = encoder.encode_items(["Paris is the capital of France.", "Fleming discovered penicillin in 1928."])
    scores = encoder.encode_queries(["who discovered penicillin?"]) @ items.T
    assert scores[0, 1] > scores[0, 0] + 0.1


def test_sentence_transformers_encode_by_path_or_as_an_object() -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = fetch("all-MiniLM-L6-v2")
    by_path = SentenceTransformerEncoder(folder, normalise=True, query_prefix="query: ")
    model = sentence_transformers.SentenceTransformer(str(folder))
    as_object = SentenceTransformerEncoder(model)
    assert isinstance(by_path, Encoder)
    assert by_path.dimension == 384
    assert by_path.card.weights == as_object.card.weights
    assert (by_path.card.source, as_object.card.source) == (str(folder.resolve()), None)
    expected = model.encode(["query: river"], normalize_embeddings=True)
    np.testing.assert_allclose(by_path.encode_queries(["river"]), expected, atol=1e-5)
    assert by_path.encode_items([]).shape == (0, 384)


def test_a_stage_of_static_vectors_which_cut_no_text_opens_again(tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers")
    static = pytest.importorskip("sentence_transformers.models").StaticEmbedding
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "red": 1, "river": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    model = library.SentenceTransformer(modules=[static(tokenizer, embedding_dim=4)], device="cpu")
    model.save(str(tmp_path / "model"))
    encoder = SentenceTransformerEncoder(tmp_path / "model")
    assert encoder.card.max_tokens is None
    stage = Dense.build([Item("a", "red"), Item("b", "river")], encoder=encoder)
    stage.save(tmp_path / "stage")
    again = Dense.load(tmp_path / "stage")
    assert again.open_encoder().card == encoder.card
    assert (again.embed_queries(["red river"]) == stage.embed_queries(["red river"])).all()


def test_by_its_hub_name_an_encoder_is_what_it_is_by_its_folder(monkeypatch) -> None:
    pytest.importorskip("sentence_transformers")
    hub, folder = pytest.importorskip("huggingface_hub"), fetch("all-MiniLM-L6-v2")
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(folder))
    by_name, by_path = SentenceTransformerEncoder("org/encoder"), SentenceTransformerEncoder(folder)
    assert by_name.card == replace(by_path.card, source="org/encoder")
    assert by_name.card.settings is not None


def test_an_encoder_of_the_hub_runs_no_code_that_it_names(tmp_path, monkeypatch) -> None:
    pytest.importorskip("sentence_transformers")
    hub = pytest.importorskip("huggingface_hub")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Module"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(tmp_path))
    with pytest.raises(InputError):
        SentenceTransformerEncoder("org/evil")
