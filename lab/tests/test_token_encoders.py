from __future__ import annotations

import numpy as np
import pytest

from adacur.data import fetch
from adacur.first_stages import OnnxEncoder, SentenceTransformerEncoder
from adacur_lab.first_stages import token_encoder
from tests.unit.first_stages.conftest import tiny_model_fixture

__all__ = ["tiny_model_fixture"]


def table_of(encoder: OnnxEncoder, *words: str) -> np.ndarray:
    ids = np.array([[encoder._tokenizer.token_to_id(word) for word in words]])
    return encoder._session.run(None, {"input_ids": ids})[0][0]


def test_tokens_are_the_states_of_prefix_text_and_special_tokens(tmp_path, tiny_model) -> None:
    encoder = OnnxEncoder(tiny_model(tmp_path), query_prefix="query: ", item_prefix="old ")
    tokens = token_encoder(encoder)
    query, short = tokens.encode_query_tokens(["river city", "water"])
    assert (query == table_of(encoder, "[CLS]", "query", ":", "river", "city", "[SEP]")).all()
    assert (short == table_of(encoder, "[CLS]", "query", ":", "water", "[SEP]")).all()
    assert (tokens.encode_item_tokens(["city"])[0] == table_of(encoder, "[CLS]", "old", "city", "[SEP]")).all()
    assert tokens.encode_item_tokens([]) == []


def test_the_mean_of_a_sentence_transformer_s_tokens_is_its_vector() -> None:
    pytest.importorskip("sentence_transformers")
    encoder = SentenceTransformerEncoder(fetch("all-MiniLM-L6-v2"), query_prefix="query: ")
    texts = ["river", "The Thames is a river that flows through London.", "old city"]
    by_token = token_encoder(encoder)
    for tokens, vectors in (
        (by_token.encode_query_tokens(texts), encoder.encode_queries(texts)),
        (by_token.encode_item_tokens(texts), encoder.encode_items(texts)),
    ):
        assert all(states.dtype == np.float32 for states in tokens)
        means = np.array([states.mean(axis=0) for states in tokens])
        np.testing.assert_allclose(means / np.linalg.norm(means, axis=1, keepdims=True), vectors, atol=1e-5)
    assert [len(states) for states in by_token.encode_item_tokens(texts)] == [3, 12, 4]
    assert by_token.encode_item_tokens([]) == []
