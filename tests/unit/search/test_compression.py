"""Compressed features in an index folder: read instead of the scores, and refused where they do not belong."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Dense
from adacur.core.errors import DamagedIndex, IndexMismatch, InputError, NewerFormat
from adacur.retrievers.encoders import EncoderCard
from tests.conftest import World, make_world

WORLD = make_world(n_items=300, n_anchors=80, rank=12, noise=0.3)
VECTORS = np.random.default_rng(7).normal(size=(86, 12)).astype(np.float32)


class Encoder:
    """Vectors by the number in a text."""

    dimension = 12
    card = EncoderCard(kind="numbers", dimension=12)

    def encode_queries(self, texts):
        return np.stack([VECTORS[int(text.split()[-1]) + 80 * text.startswith("test")] for text in texts])

    def encode_items(self, texts):
        return np.stack([WORLD.item_embeddings[int(text.split()[-1])] for text in texts]).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("compression") / "index"
    dense = Dense.build(WORLD.items, encoder=Encoder())
    AnchorIndex.from_arrays(
        items=WORLD.items, anchor_queries=WORLD.anchors, scores=WORLD.anchor_scores, first={"dense": dense}
    ).save(path)
    return path


@pytest.fixture
def path(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "index")
    return tmp_path / "index"


def opened(path, world: World = WORLD, **options):
    return adacur.load(path, scorer=world.scorer, encoder=Encoder(), check=False, **options)


def found(index):
    return [hits.ids for hits in index.search_batch(WORLD.test, 10, budget=60)]


def compress(path, **options):
    return adacur.compress(path, encoder=Encoder(), **({"rank": 40, "budget": 50} | options))


def test_a_compressed_index_is_searched_without_its_scores(path) -> None:
    compress(path, rank=80, storage="float32")
    shutil.rmtree(path / "scores.zarr")
    with opened(path) as index:
        assert "features: 92" in str(index.search(WORLD.test[0], 10, budget=60).trace.settings["approximator"])
        hits = index.search_batch(WORLD.test, 10, budget=60)
    best = np.sort(WORLD.test_scores, axis=1)[:, -10:]
    recall = np.mean([np.isin(own.scores, row).mean() for own, row in zip(hits, best, strict=True)])
    assert recall > 0.8


def test_features_of_full_rank_find_what_the_scores_find(path) -> None:
    before = found(opened(path))
    compress(path, rank=80, storage="float32")
    assert found(opened(path)) == before


def test_dropped_features_leave_the_folder_as_it_was(path) -> None:
    before = found(opened(path))
    files = {file for file in path.rglob("*") if file.name != "build.lock"}
    compress(path, rank=3)
    assert found(opened(path)) != before
    index = opened(path)
    assert index.decompress()
    assert found(index) == before
    assert not index.decompress()
    assert {file for file in path.rglob("*") if file.name != "build.lock"} == files


def test_what_it_costs_is_measured_on_held_out_anchor_queries(path) -> None:
    mild, harsh = compress(path, rank=60), compress(path, rank=2, storage="float16")
    assert mild.queries == harsh.queries == 40
    assert mild.recall_before == harsh.recall_before
    assert mild.low < mild.lost < mild.high
    assert mild.lost == pytest.approx(mild.recall_before - mild.recall_after)
    assert mild.lost < harsh.lost
    assert harsh.low > 0
    # A byte for each of 60 and 12 columns, a scale for the leading ones and one for the others, a float64 mean.
    assert mild.bytes_after == 300 * (60 + 12 + 2 * 4 + 8)
    assert harsh.bytes_after < mild.bytes_before / 10


def test_no_scorer_is_called(path) -> None:
    adacur.load(path, scorer=lambda pairs: 1 / 0, encoder=Encoder(), check=False).compress(rank=20, budget=50)


def test_verify_finds_a_flipped_byte(path) -> None:
    compress(path)
    assert adacur.verify(path).ok
    file = path / "gaussian" / "part0.npy"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert [problem.file for problem in adacur.verify(path).problems] == ["gaussian/part0.npy"]


@pytest.mark.parametrize("damage", ["missing", "cut", "no json", "foreign"])
def test_damaged_features_are_refused_with_what_to_do(path, damage) -> None:
    compress(path)
    file = path / "gaussian" / ("features.json" if damage in ("no json", "foreign") else "part0.npy")
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:200])
    else:
        file.write_text("[]" if damage == "foreign" else "{")
    with pytest.raises(DamagedIndex, match="--drop"):
        found(opened(path))


@pytest.mark.parametrize("what", ["items_digest", "anchors_digest", "encoder", "dense"])
def test_features_of_something_else_are_refused_with_what_to_do(path, what) -> None:
    compress(path)
    file = path / "gaussian" / "features.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {what: "another"}))
    with pytest.raises(IndexMismatch, match=rf"another {what}.*--drop"):
        found(opened(path))
    compress(path)
    found(opened(path))


def test_features_of_a_later_version_are_refused(path) -> None:
    compress(path)
    file = path / "gaussian" / "features.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(NewerFormat, match="Upgrade"):
        found(opened(path))


def test_what_a_crash_left_behind_is_cleared_and_never_read(path) -> None:
    before = found(opened(path))
    (path / ".gaussian.0.unfinished").mkdir()
    assert found(opened(path)) == before
    compress(path)
    assert not list(path.glob(".gaussian.*"))


def test_other_methods_do_as_before(path) -> None:
    searches = [{"method": "axn"}, {"method": "adacur"}, {"method": "rerank"}]
    before = [opened(path).search(WORLD.test[0], 10, budget=60, **own).ids for own in searches]
    compress(path)
    assert [opened(path).search(WORLD.test[0], 10, budget=60, **own).ids for own in searches] == before


def test_features_of_something_else_hinder_no_other_method(path) -> None:
    compress(path)
    file = path / "gaussian" / "features.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder": "another"}))
    for method in ("axn", "adacur", "rerank"):
        assert len(opened(path).search(WORLD.test[0], 10, budget=60, method=method)) == 10


def test_a_device_makes_the_same_answers(path) -> None:
    pytest.importorskip("torch")
    compress(path, storage="float16")
    assert found(opened(path, device="cpu")) == found(opened(path))


def test_few_anchor_queries_and_no_folder_are_refused(tmp_path) -> None:
    few = make_world(n_anchors=19)
    few.index.save(tmp_path / "few")
    with pytest.raises(InputError, match="19"):
        adacur.compress(tmp_path / "few")
    with pytest.raises(InputError, match="save"):
        WORLD.index.compress()
