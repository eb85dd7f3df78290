from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import adacur_lab.first_stages.multi_vector as module
from adacur.errors import DamagedIndex, InputError
from adacur.first_stages import EncoderCard, OnnxEncoder
from adacur.first_stages.saved import write_ids
from adacur.records import Item
from adacur_lab.first_stages import MultiVector
from tests.unit.first_stages.conftest import tiny_onnx_encoder

__all__ = ["tiny_onnx_encoder"]


class WordEncoder:
    """A random vector per word, always the same for the same word."""

    def __init__(self, weights: str | None = "v1", *, dimension: int = 24) -> None:
        self.dimension = dimension
        self.card = EncoderCard(kind="words", dimension=dimension, weights=weights)

    def encode_item_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([self.vector(word) for word in text.split()]) for text in texts]

    encode_query_tokens = encode_item_tokens

    def vector(self, word: str) -> np.ndarray:
        return np.random.default_rng([*word.encode()]).normal(size=self.dimension).astype(np.float32) * 7


RNG = np.random.default_rng(0)
ITEMS = [Item(f"i{n}", " ".join(f"w{word}" for word in RNG.integers(0, 300, RNG.integers(1, 40)))) for n in range(400)]
QUERIES = [" ".join(f"w{word}" for word in RNG.integers(0, 300, length)) for length in (1, 3, 9, 30, 2, 5, 5)]


def max_sim(encoder: WordEncoder, query: str, item: str) -> float:
    """The definition, a token at a time."""
    total = 0.0
    for word in query.split():
        vector = encoder.vector(word)
        cosines = [
            float(vector @ other / np.linalg.norm(vector) / np.linalg.norm(other))
            for other in (encoder.vector(name) for name in item.split())
        ]
        total += max(cosines)
    return total


def test_scores_are_max_sims_up_to_the_precision_of_float16() -> None:
    encoder = WordEncoder()
    few = ITEMS[:40]
    for query, hits in zip(QUERIES[:4], MultiVector.build(few, encoder=encoder).search(QUERIES[:4], 40), strict=True):
        expected = {item.id: max_sim(encoder, query, item.text) for item in few}
        np.testing.assert_allclose(
            hits.scores,
            [expected[few[position].id] for position in hits.positions],
            atol=0.003 * len(query.split()) ** 0.5,
        )


def test_products_of_stored_vectors_are_exact() -> None:
    """In whole numbers nothing is rounded, so that equality says that nothing was in float32 either."""
    encoder = WordEncoder(dimension=768)
    retriever = MultiVector.build(ITEMS[:50], encoder=encoder)
    stored = np.rint(retriever._tokens.astype(np.float64) * 2048).astype(np.int64)
    assert (stored / 2048 == retriever._tokens).all()
    query = QUERIES[3]
    steps, _ = module._in_steps(encoder.encode_query_tokens([query]), n=1, width=768)
    products = np.rint(steps.astype(np.float64) * 2048).astype(np.int64) @ stored.T
    best = np.maximum.reduceat(products, retriever._offsets[:-1], axis=1).sum(axis=0) / 2.0**22
    (hits,) = retriever.search([query], 50)
    assert dict(zip(hits.positions.tolist(), hits.scores.tolist(), strict=True)) == {
        position: float(np.float32(score)) for position, score in enumerate(best)
    }


@pytest.mark.parametrize(
    "limits",
    [
        {"_QUERIES_AT_ONCE": 2},
        {"_SCORES_AT_ONCE": 1},
        {"_PRODUCTS_AT_ONCE": 1},
        {"_ITEM_TOKENS_AT_ONCE": 41, "_PRODUCTS_AT_ONCE": 1000},
    ],
)
def test_neither_blocks_nor_batches_change_a_bit(monkeypatch, limits) -> None:
    retriever = MultiVector.build(ITEMS, encoder=WordEncoder())
    before = retriever.search(QUERIES, 30)
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)
    for one, other in zip(before, retriever.search(QUERIES, 30), strict=True):
        assert one.positions.tolist() == other.positions.tolist()
        assert one.scores.tobytes() == other.scores.tobytes()


def test_vectors_written_to_a_file_are_those_kept_in_memory(tmp_path) -> None:
    kept = MultiVector.build(ITEMS, encoder=WordEncoder())
    written = MultiVector.build(iter(ITEMS), encoder=WordEncoder(), folder=tmp_path)
    assert isinstance(written._tokens, np.memmap)
    assert kept._tokens.dtype == np.float16
    assert (written._tokens == kept._tokens).all()
    assert (tmp_path / "tokens.f16").stat().st_size == 2 * 24 * sum(len(item.text.split()) for item in ITEMS)


def test_saving_over_its_own_file_loses_nothing(tmp_path) -> None:
    built = MultiVector.build(ITEMS, encoder=WordEncoder(), folder=tmp_path)
    built.save(tmp_path)
    loaded = MultiVector.load(tmp_path, encoder=WordEncoder())
    assert isinstance(loaded._tokens, np.memmap)
    assert [hits.positions.tolist() for hits in loaded.search(QUERIES, 5)] == [
        hits.positions.tolist() for hits in built.search(QUERIES, 5)
    ]


def test_a_token_without_direction_is_near_nothing() -> None:
    encoder = WordEncoder()
    encoder.encode_item_tokens = lambda texts: [np.zeros((1, 24)) for _ in texts]
    (hits,) = MultiVector.build(ITEMS[:2], encoder=encoder).search(["w1"], 2)
    assert hits.scores.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([np.ones((2, 3))], r"for 2 texts"),
        ([np.ones((2, 3)), np.ones((0, 3))], "at least one row"),
        ([np.ones((2, 3)), np.ones((2, 4))], "3 columns"),
        ([np.ones(3), np.ones(3)], "one matrix per text"),
        ([np.ones((2, 3)), np.full((2, 3), np.nan)], "finite"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(given, says) -> None:
    encoder = WordEncoder()
    encoder.encode_item_tokens = lambda texts: given
    with pytest.raises(InputError, match=says):
        MultiVector.build(ITEMS[:2], encoder=encoder)


def test_another_encoder_is_refused(tmp_path) -> None:
    built = MultiVector.build(ITEMS, encoder=WordEncoder())
    built.save(tmp_path)
    MultiVector.load(tmp_path, encoder=WordEncoder(weights=None))
    with pytest.raises(InputError, match=r"'v1'.*'v2'"):
        MultiVector.load(tmp_path, encoder=WordEncoder(weights="v2"))
    with pytest.raises(InputError, match="24 columns"):
        MultiVector.load(tmp_path, encoder=WordEncoder(dimension=8)).search(QUERIES, 3)
    with pytest.raises(InputError, match="encode_query_tokens"):
        MultiVector.load(tmp_path, encoder="bge")
    with pytest.raises(InputError, match="encoder"):
        MultiVector.load(tmp_path).search(QUERIES, 3)


def test_files_that_disagree_are_refused(tmp_path) -> None:
    built = MultiVector.build(ITEMS, encoder=WordEncoder())
    built.save(tmp_path)
    write_ids(tmp_path, ["a", "b"])
    with pytest.raises(DamagedIndex, match="2 ids, 400 items"):
        MultiVector.load(tmp_path)
    built.save(tmp_path)
    whole = (tmp_path / "tokens.f16").read_bytes()
    (tmp_path / "tokens.f16").write_bytes(whole[:-48])
    with pytest.raises(DamagedIndex, match="Build it again"):
        MultiVector.load(tmp_path)
    (tmp_path / "tokens.f16").write_bytes(whole[:-1])
    with pytest.raises(DamagedIndex, match="cannot be read"):
        MultiVector.load(tmp_path)


def test_the_encoder_of_the_card_is_opened_at_the_first_search(tmp_path, tiny_onnx_encoder) -> None:
    encoder: OnnxEncoder = tiny_onnx_encoder(tmp_path / "model")
    items = [Item("r", "old river"), Item("c", "old city"), Item("w", "water")]
    built = MultiVector.build(items, encoder=encoder)
    # [CLS] and [SEP] are tokens like others.
    assert np.diff(built._offsets).tolist() == [4, 4, 3]
    built.save(tmp_path / "saved")
    loaded = MultiVector.load(tmp_path / "saved")
    assert [hits.positions.tolist() for hits in loaded.search(["river", "city"], 3)] == [
        hits.positions.tolist() for hits in built.search(["river", "city"], 3)
    ]
    assert built.search(["old city"], 1)[0].scores[0] == pytest.approx(4, abs=0.01)
    tiny_onnx_encoder(tmp_path / "model", seed=1)
    with pytest.raises(InputError, match="weights"):
        MultiVector.load(tmp_path / "saved").search(["river"], 1)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(InputError, match="cannot be opened"):
        MultiVector.load(tmp_path / "saved").search(["river"], 1)


def test_a_model_that_moved_is_fetched_by_its_name(tmp_path) -> None:
    from adacur.data import fetch
    from adacur.first_stages import bge_small

    items = [Item("paris", "Paris is the capital of France."), Item("mould", "Fleming saw the mould kill bacteria.")]
    built = MultiVector.build(items, encoder=bge_small(fetch("bge-small-en-v1.5")))
    built._card = replace(built._card, source="/elsewhere/bge-small-en-v1.5")
    built.save(tmp_path)
    (hits,) = MultiVector.load(tmp_path).search(["who discovered penicillin?"], 2)
    assert hits.positions.tolist() == [1, 0]
