from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur.errors import DamagedIndex, InputError
from adacur.first_stages import Dense, EncoderCard, OnnxEncoder, load_first_stage
from adacur.first_stages.saved import write_ids
from adacur.records import Item
from adacur.remembered import Remembered


class VectorEncoder:
    """Reads a vector from its text."""

    dimension = 16

    def __init__(self, weights: str | None = "v1") -> None:
        self.card = EncoderCard(kind="vectors", dimension=self.dimension, weights=weights)

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([np.fromstring(text, sep=" ") for text in texts], dtype=np.float32).reshape(-1, 16)

    encode_queries = encode_items


def as_text(vector: np.ndarray) -> str:
    return " ".join(str(float(value)) for value in vector)


RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(20_000, 16)).astype(np.float32)
IDS = [f"i{row}" for row in range(len(VECTORS))]
QUERIES = [as_text(vector) for vector in RNG.normal(size=(7, 16)).astype(np.float32)]
FEW = [Item(id_, as_text(vector)) for id_, vector in zip(IDS[:600], VECTORS, strict=False)]


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("k", [1, 100, 9000])
def test_it_finds_the_highest_dot_products_of_the_stored_vectors(storage, k) -> None:
    retriever = Dense.from_embeddings(IDS, VECTORS, encoder=VectorEncoder(), storage=storage)
    products = retriever.embed_queries(QUERIES).astype(float) @ retriever.vectors().all_rows().astype(float).T
    for row, hits in zip(products, retriever.search(QUERIES, k), strict=True):
        row = row.astype(np.float32)
        best = np.lexsort((IDS, -row))[:k]
        assert hits.positions.tolist() == best.tolist()
        np.testing.assert_array_equal(hits.scores, row[best])


def test_scores_do_not_depend_on_the_batch_to_the_last_bit() -> None:
    retriever = Dense.from_embeddings(IDS, VECTORS, encoder=VectorEncoder())
    together = retriever.search(QUERIES, 50)
    for query, hits in zip(QUERIES, together, strict=True):
        (alone,) = retriever.search([query], 50)
        assert alone.positions.tolist() == hits.positions.tolist()
        assert alone.scores.tobytes() == hits.scores.tobytes()


@pytest.mark.parametrize(("storage", "error"), [("float32", 0.0), ("float16", 0.002), ("int8", 0.02)])
def test_storage_keeps_the_vectors_up_to_its_precision(storage, error) -> None:
    retriever = Dense.from_embeddings(IDS, VECTORS, storage=storage)
    assert retriever.vectors().all_rows().dtype == np.float32
    assert np.abs(retriever.vectors().all_rows() - VECTORS).max() <= error


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_embeddings_written_to_a_file_are_those_kept_in_memory(tmp_path, storage) -> None:
    kept = Dense.build(FEW, encoder=VectorEncoder(), storage=storage)
    written = Dense.build(iter(FEW), encoder=VectorEncoder(), storage=storage, folder=tmp_path)
    assert np.load(tmp_path / "embeddings.npy").shape == (600, 16)
    assert (written.vectors().all_rows() == kept.vectors().all_rows()).all()


def test_saving_over_its_own_file_loses_nothing(tmp_path) -> None:
    retriever = Dense.build(FEW, encoder=VectorEncoder(), folder=tmp_path)
    before = retriever.vectors().all_rows()
    retriever.save(tmp_path)
    assert (Dense.load(tmp_path, encoder=VectorEncoder()).vectors().all_rows() == before).all()


def test_without_an_encoder_it_says_how_to_pass_one(tmp_path) -> None:
    retriever = Dense.from_embeddings(IDS[:3], VECTORS[:3])
    with pytest.raises(InputError):
        retriever.search(["river"], 1)
    retriever.save(tmp_path)
    with pytest.raises(InputError):
        load_first_stage(tmp_path).search(["river"], 1)


def test_another_encoder_is_refused(tmp_path) -> None:
    Dense.build(FEW, encoder=VectorEncoder()).save(tmp_path)
    Dense.load(tmp_path, encoder=VectorEncoder(weights=None))
    with pytest.raises(InputError):
        Dense.load(tmp_path, encoder=VectorEncoder(weights="v2"))
    narrow = VectorEncoder()
    narrow.dimension = 8
    with pytest.raises(InputError):
        Dense.load(tmp_path, encoder=narrow)
    pooled = VectorEncoder()
    pooled.card = replace(pooled.card, pooling="mean")
    Dense.load(tmp_path, encoder=pooled)


def test_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError):
        Dense.from_embeddings(["a", "b"], np.zeros((3, 2)))
    with pytest.raises(InputError):
        Dense.from_embeddings(["a", "b"], np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(InputError):
        Dense.from_embeddings(["a"], np.zeros((1, 2)), storage="int4")


def test_files_that_disagree_are_refused(tmp_path) -> None:
    Dense.build(FEW, encoder=VectorEncoder(), storage="int8").save(tmp_path)
    write_ids(tmp_path, ["a", "b"])
    with pytest.raises(DamagedIndex):
        Dense.load(tmp_path)
    (tmp_path / "scales.npy").unlink()
    with pytest.raises(DamagedIndex):
        Dense.load(tmp_path)


def test_the_encoder_of_the_card_is_opened_at_the_first_search(tmp_path, tiny_onnx_encoder) -> None:
    encoder: OnnxEncoder = tiny_onnx_encoder(tmp_path / "model")
    items = [Item("r", "old river"), Item("c", "old city"), Item("w", "water")]
    built = Dense.build(items, encoder=encoder)
    built.save(tmp_path / "saved")
    loaded = load_first_stage(tmp_path / "saved")
    answers = zip(loaded.search(["river", "city"], 3), built.search(["river", "city"], 3), strict=True)
    assert all(one.positions.tolist() == other.positions.tolist() for one, other in answers)


def test_another_tokenizer_prefix_or_limit_under_the_same_weights_is_refused(tmp_path, tiny_model) -> None:
    folder = tiny_model(tmp_path / "model")
    own = {"pooling": "mean", "max_tokens": 16}
    Dense.build([Item("r", "old river")], encoder=OnnxEncoder(folder, **own)).save(tmp_path / "saved")
    Dense.load(tmp_path / "saved", encoder=OnnxEncoder(folder, **own, query_prefix="query: "))
    for changed in ({"max_tokens": 8}, {"item_prefix": "old "}):
        with pytest.raises(InputError):
            Dense.load(tmp_path / "saved", encoder=OnnxEncoder(folder, **(own | changed)))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError):
        Dense.load(tmp_path / "saved", encoder=OnnxEncoder(folder, **own))
    settings = tmp_path / "saved" / "retriever.json"
    before = json.loads(settings.read_text())
    del before["encoder"]["settings"]
    settings.write_text(json.dumps(before))
    Dense.load(tmp_path / "saved", encoder=OnnxEncoder(folder, **own))


def test_a_lost_or_changed_model_is_refused_at_the_first_search(tmp_path, tiny_onnx_encoder) -> None:
    model: Path = tmp_path / "model"
    Dense.build([Item("r", "old river")], encoder=tiny_onnx_encoder(model)).save(tmp_path / "saved")
    tiny_onnx_encoder(model, seed=1)
    with pytest.raises(InputError):
        load_first_stage(tmp_path / "saved").search(["river"], 1)
    for damaged in ("model.onnx", "tokenizer.json"):
        (model / damaged).write_text("no such thing")
        # Those who read it raise errors of their own.
        with pytest.raises(InputError, match="cannot be opened"):
            load_first_stage(tmp_path / "saved").search(["river"], 1)
        assert not load_first_stage(tmp_path / "saved").answers_anything
    shutil.rmtree(model)
    with pytest.raises(InputError):
        load_first_stage(tmp_path / "saved").search(["river"], 1)


def room_for(n: int) -> int:
    """The bytes that the vectors of n queries take, and not of one more."""
    known = Remembered(most_bytes=10**9)
    known.keep({query: np.zeros(16, np.float32) for query in QUERIES})
    return known.n_bytes * n // len(QUERIES) + 100


def test_the_vectors_of_the_last_queries_are_remembered_however_large_a_batch_and_no_others(monkeypatch) -> None:
    asked: list[str] = []
    batches: list[weakref.ref] = []

    class Counting(VectorEncoder):
        def encode_queries(self, texts):
            asked.extend(texts)
            vectors = np.array(self.encode_items(texts))
            batches.append(weakref.ref(vectors))
            return vectors

    a, b, c, *four = QUERIES
    monkeypatch.setattr("adacur.first_stages.encoders._BYTES_REMEMBERED", room_for(2))
    retriever = Dense.from_embeddings(IDS[:600], VECTORS[:600], encoder=Counting())
    retriever.embed_queries([a, b])
    retriever.embed_queries([c])
    retriever.embed_queries([b, c])
    assert asked == [a, b, c]
    np.testing.assert_array_equal(retriever.embed_queries(four), VectorEncoder().encode_items(four))
    retriever.embed_queries(four[2:])
    assert asked[3:] == four
    retriever.embed_queries(four[:1])
    assert asked[7:] == four[:1]
    # One vector would hold the whole batch.
    assert [batch() for batch in batches] == [None] * len(batches)


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_a_device_finds_the_same_items(storage: Any) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    vectors = np.repeat(rng.normal(size=(150, 8)).astype(np.float32), 2, axis=0)
    here, there = (
        Dense.from_embeddings([f"i{at:03}" for at in rng.permutation(300)], vectors, storage=storage) for _ in range(2)
    )
    there._ids = here._ids
    there.search_on("cpu")
    asked = rng.normal(size=(7, 8)).astype(np.float32)
    for k in (1, 20, 299, 300, 1000):
        for one, other in zip(here.nearest(asked, k), there.nearest(asked, k), strict=True):
            assert one.positions.tolist() == other.positions.tolist()
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6, atol=1e-6)


def test_more_ties_than_a_device_returns_are_ranked_on_the_host() -> None:
    pytest.importorskip("torch")
    ids = [f"i{at:04}" for at in range(2000)][::-1]
    dense = Dense.from_embeddings(ids, np.ones((2000, 4), dtype=np.float32))
    dense.search_on("cpu")
    (ranking,) = dense.nearest(np.ones((1, 4), dtype=np.float32), 3)
    assert [ids[at] for at in ranking.positions.tolist()] == ["i0000", "i0001", "i0002"]


def test_a_device_without_memory_leaves_the_search_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    dense = Dense.from_embeddings(["a", "b", "c"], np.eye(3, dtype=np.float32))
    dense.search_on("cpu")

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("adacur.first_stages.device_vectors.DeviceVectors._exact", full)
    (ranking,) = dense.nearest(np.array([[0.1, 3.0, 1.0]], dtype=np.float32), 2)
    assert ranking.positions.tolist() == [1, 2]
