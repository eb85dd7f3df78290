"""Features made a block at a time: the same as those made in memory, which they do not need."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.model import GaussianModel, PackedRows
from adacur.model import rows as packed_rows
from tests.conftest import make_world

WORLD = make_world(n_items=9000, n_anchors=60, rank=12, noise=0.3)
VECTORS = np.random.default_rng(7).normal(size=(60, 12))
EMBEDDINGS = WORLD.item_embeddings.astype(np.float32)


class Blocked:
    """Anchor scores that are only read in blocks of uneven size."""

    def __init__(self, items, anchor_queries, read, *, heights=(1, 999, 5000, 3000)):
        self.items, self.anchor_queries, self._read, self._heights = items, anchor_queries, read, heights

    @property
    def matrix(self):
        raise AssertionError("the whole matrix was asked for")

    def blocks(self):
        start = 0
        for height in self._heights:
            yield start, self._read(start, start + height)
            start += height


def embed_queries(queries):
    return np.stack([VECTORS[[anchor.id for anchor in WORLD.anchors].index(query.id)] for query in queries])


def gaussian(**options):
    return GaussianModel(embed_queries=embed_queries, **({"embeddings": EMBEDDINGS} | options))


BLOCKED = Blocked(WORLD.index.items, WORLD.anchors, lambda start, stop: WORLD.index.matrix[start:stop])


@pytest.mark.parametrize("rank", [20, 60])
@pytest.mark.parametrize("storage", ["int8", "float32"])
def test_blocks_give_the_features_that_the_whole_gives(rank, storage) -> None:
    whole = gaussian().compressed(WORLD.index, rank=rank, storage=storage)
    rows = {}

    def allocate(name, shape, dtype):
        rows[name] = np.zeros(shape, dtype=dtype)
        return rows[name]

    blocks = gaussian(embeddings=PackedRows(EMBEDDINGS)).compressed(
        BLOCKED, rank=rank, storage=storage, allocate=allocate
    )
    assert blocks.means == pytest.approx(whole.means, abs=1e-12)
    assert blocks.variance == pytest.approx(whole.variance)
    assert blocks.embedding_variance == pytest.approx(whole.embedding_variance)
    weights = np.append(np.random.default_rng(1).normal(size=72), [0.0, 0.0])[None]
    one = whole.predictions(weights)
    assert blocks.predictions(weights) == pytest.approx(one, abs=float(0.02 * one.std()))
    steps = [np.abs(a.values.astype(float) - b.values).max() for a, b in zip(*_parts(blocks, whole), strict=True)]
    assert max(steps) <= (1 if storage == "int8" else 1e-4)
    expected = {"means", *(f"part{number}" for number in range(len(steps)))}
    assert {name for name in rows if not name.endswith("_scales")} == expected


def _parts(*features):
    return [own.factors.parts for own in features]


def test_compressed_features_are_those_of_the_full_ones() -> None:
    full = gaussian().features_of(WORLD.index)
    whole = gaussian().compressed(WORLD.index, rank=60, storage="float32")
    weights = np.append(np.random.default_rng(1).normal(size=72), [0.0, 0.0])[None]
    assert whole.predictions(weights) == pytest.approx(full.predictions(weights), abs=1e-3)
    assert whole.means == pytest.approx(full.means)
    assert whole.variance == pytest.approx(full.variance)


def test_memory_does_not_grow_with_the_items() -> None:
    rng = np.random.default_rng(0)
    block = rng.normal(size=(4096, 60)).astype(np.float32)
    vectors = rng.normal(size=(4096, 12)).astype(np.float32)

    class Vectors:
        def __init__(self, n_items):
            self.shape = (n_items, 12)

        def rows(self, positions):
            return vectors[positions % 4096]

    class Numbered:
        def __init__(self, n_items):
            self.keys = rng.integers(0, 2**63, size=n_items, dtype=np.uint64)

        def __len__(self):
            return len(self.keys)

    given = np.zeros((200_000, 72), dtype=np.int8)

    def peak(n_blocks):
        n_items = 4096 * n_blocks
        anchors = Blocked(
            Numbered(n_items), WORLD.anchors, lambda start, stop: block[: stop - start], heights=(4096,) * n_blocks
        )
        tracemalloc.start()
        gaussian(embeddings=Vectors(n_items), rescale=False).compressed(
            anchors, rank=10, allocate=lambda name, shape, dtype: _elsewhere(given, name, shape, dtype)
        )
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reached

    small, large = peak(4), peak(32)
    # The score scale is left out: its sample is as large as all of these scores.
    assert large - small < 28 * 4096 * 24
    assert large < 32 * block.nbytes


def _elsewhere(given, name, shape, dtype):
    if len(shape) == 2:
        return given[: shape[0], : shape[1]]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype=dtype), shape=shape, strides=(0,))


def test_embeddings_that_are_not_numbers_or_too_few_are_refused() -> None:
    bad = EMBEDDINGS.copy()
    bad[8000, 3] = np.nan
    with pytest.raises(InputError, match="finite"):
        gaussian(embeddings=PackedRows(bad)).compressed(BLOCKED, rank=20)
    with pytest.raises(InputError, match="8999 for 9000"):
        gaussian(embeddings=PackedRows(EMBEDDINGS[1:])).compressed(BLOCKED, rank=20)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_products_are_the_same_on_any_number_of_threads(dtype, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 128, size=(30_011, 96)).astype(dtype)
    scales = rng.random(30_011).astype(np.float32) if dtype == "int8" else None
    rows, weights, some = PackedRows(values, scales), rng.normal(size=96), rng.permutation(30_011)[:20_000]
    products = []
    monkeypatch.setattr(packed_rows, "_NUMBERS_PER_THREAD", 200_000)
    for cores in (1, 2, 3, 16):
        monkeypatch.setattr(packed_rows, "_blas_threads", lambda cores=cores: cores)
        assert len(rows._shares(30_011, height=rows._height(131_072))) == min(cores, 12)
        products.append((rows.product(weights), rows.product(weights, some)))
    np.testing.assert_allclose(products[0][0], rows.rows(np.arange(30_011)) @ weights, rtol=1e-3, atol=0.01)
    for whole, part in products:
        assert (whole == products[0][0]).all()
        assert (part == products[0][1]).all()
        np.testing.assert_allclose(part, whole[some], rtol=1e-4, atol=1e-3)
