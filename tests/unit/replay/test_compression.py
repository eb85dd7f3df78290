"""Compressed features in an index folder: read instead of the scores, and refused where they do not belong."""

from __future__ import annotations

import errno
import json
import os
import shutil

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Dense
from adacur import replay as tuning
from adacur.errors import BudgetError, IndexMismatch, InputError, StorageFull
from adacur.first_stages import placed
from adacur.first_stages.encoders import EncoderCard
from adacur.first_stages.saved import StoredIds
from adacur.replay import compression, decompress
from adacur.store import IndexFolder
from adacur.store.items import StoredItems
from adacur.store.model_file import _on_disk
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
    return [hits.ids for hits in index.search(WORLD.test, 10, budget=60)]


def compress(path, **options):
    with adacur.load(path, encoder=Encoder()) as index:
        return tuning.compress(index, **({"rank": 40, "budget": 50} | options))


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
    assert decompress(index)
    assert found(index) == before
    assert not decompress(index)
    assert {file for file in path.rglob("*") if file.name != "build.lock"} == files


def test_what_it_costs_is_measured_on_held_out_anchor_queries(path) -> None:
    mild, harsh = (
        compress(path, k=30, budget=80, **given) for given in ({"rank": 60}, {"rank": 2, "storage": "float16"})
    )
    assert mild.queries == harsh.queries == 40
    assert mild.recall_before == harsh.recall_before
    assert mild.low < mild.lost < mild.high
    assert mild.lost == pytest.approx(mild.recall_before - mild.recall_after)
    assert mild.lost < harsh.lost
    assert harsh.low > 0
    # A byte for each of 60 and 12 columns, a scale for the leading ones and one for the others, a float64 mean.
    assert mild.bytes_after == 300 * (60 + 12 + 2 * 4 + 8)
    assert harsh.bytes_after < mild.bytes_before / 10


def of_something_else(path, what: str) -> None:
    file = path / "versions/1/model" / "model.json"
    about = json.loads(file.read_text())
    assert what in about["made_from"]
    about["made_from"][what] = "another"
    file.write_text(json.dumps(about))


@pytest.mark.parametrize("what", ["items", "anchor queries", "scores", "vectors"])
def test_a_compressed_model_of_something_else_is_refused_and_a_whole_one_is_made_again(path, what) -> None:
    before = found(opened(path))
    of_something_else(path, what)
    assert found(opened(path)) == before
    compress(path)
    of_something_else(path, what)
    with pytest.raises(IndexMismatch):
        found(opened(path))
    compress(path)
    found(opened(path))


def test_what_a_crash_left_behind_is_cleared_and_never_read(path) -> None:
    before = found(opened(path))
    (path / ".model.0.unfinished").mkdir()
    assert found(opened(path)) == before
    compress(path)
    assert not list(path.glob("versions/1/.model.*"))


def test_features_of_something_else_hinder_no_other_method(path) -> None:
    compress(path)
    of_something_else(path, "vectors")
    for method in ("adacur", "rerank"):
        assert len(opened(path).search(WORLD.test[0], 10, budget=60, method=method)) == 10


def test_a_device_makes_the_same_answers(path) -> None:
    pytest.importorskip("torch")
    compress(path, storage="float16")
    assert found(opened(path, device="cpu")) == found(opened(path))


def test_few_anchor_queries_and_no_folder_are_refused(tmp_path) -> None:
    few = make_world(n_anchors=19)
    few.index.save(tmp_path / "few")
    with pytest.raises(InputError):
        tuning.compress(adacur.load(tmp_path / "few"))
    with pytest.raises(InputError):
        tuning.compress(WORLD.index)


def test_the_whole_matrix_is_never_read(path, monkeypatch) -> None:
    def whole(self):
        raise AssertionError("the whole matrix was asked for")

    monkeypatch.setattr(IndexFolder, "matrix", property(whole))
    compress(path)
    found(opened(path))


def test_searching_reads_no_list_of_ids_once_the_first_stage_is_open(path, monkeypatch) -> None:
    compress(path)
    index = opened(path)
    index.first_stage("dense")

    def every(self):
        raise AssertionError("all ids were asked for")

    monkeypatch.setattr(StoredItems, "ids", property(every))
    monkeypatch.setattr(StoredIds, "__iter__", every)
    found(index)


def test_vectors_in_another_order_are_put_in_that_of_the_index(path, tmp_path) -> None:
    turned = WORLD.items[::-1]
    dense = Dense.build(turned, encoder=Encoder())
    other = tmp_path / "turned"
    AnchorIndex.from_arrays(
        items=WORLD.items, anchor_queries=WORLD.anchors, scores=WORLD.anchor_scores, first={"dense": dense}
    ).save(other)
    compress(path)
    compress(other)
    for part in ("part0", "part1"):
        assert (
            np.load(path / "versions/1/model" / f"{part}.npy") == np.load(other / "versions/1/model" / f"{part}.npy")
        ).all()


def test_of_many_items_recall_is_measured_among_a_sample(path, monkeypatch) -> None:
    whole = compress(path)
    monkeypatch.setattr(compression, "_SCORES_TO_MEASURE_BY", 150 * 80)
    sampled = compress(path)
    assert (whole.items, sampled.items) == (300, 150)
    assert sampled.bytes_after == whole.bytes_after
    assert 0.5 < sampled.recall_after <= sampled.recall_before + 0.05


def test_among_a_sample_a_first_stage_is_searched_deeper() -> None:
    first, some = placed(WORLD.noisy_first(), WORLD.index.items), np.arange(0, 300, 3)
    among = compression._Among(first, some, [f"i{position}" for position in some]).search(WORLD.test, 40)
    for hits, (positions, scores) in zip(among, first.search(WORLD.test, 300), strict=True):
        of_sample = np.isin(positions, some)
        assert hits.ids == tuple(f"i{position}" for position in positions[of_sample][:40])
        assert (hits.scores == scores[of_sample][:40]).all()


def test_room_on_the_disk_is_taken_before_it_is_filled(tmp_path) -> None:
    if not hasattr(os, "posix_fallocate"):
        pytest.skip("this system cannot set space aside")
    rows = _on_disk(tmp_path)("part0", (1000, 1000), "int8")
    assert (tmp_path / "part0.npy").stat().st_blocks * 512 >= rows.nbytes


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"storage": "int4"}, {"budget": 5, "k": 6}])
def test_what_cannot_be_done_is_refused_before_anything_is_read(path, wrong, monkeypatch) -> None:
    monkeypatch.setattr(compression, "held_out", lambda *_, **__: pytest.fail("the work had begun"))
    with pytest.raises((InputError, BudgetError)):
        compress(path, **wrong)


@pytest.mark.parametrize("fails", ["os.posix_fallocate", "numpy.save", "os.replace"])
def test_a_full_disk_is_told_and_the_index_stays_whole(folder, tmp_path, monkeypatch, fails: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = shutil.copytree(folder, tmp_path / "index")
    before = {file.relative_to(path) for file in path.rglob("*") if file.name != "build.lock"}
    index = adacur.load(path, scorer=WORLD.scorer, encoder=Encoder(), check=False)
    with monkeypatch.context() as patched:
        patched.setattr(fails, full, raising=False)
        with pytest.raises(StorageFull):
            tuning.compress(index, rank=8)
    assert {file.relative_to(path) for file in path.rglob("*") if file.name != "build.lock"} == before
    assert adacur.store.verify(path).ok
    tuning.compress(index, rank=8)
