from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from adacur.errors import DamagedIndex, IncompleteIndex, IndexMismatch
from adacur.protocols import ScorerCard
from adacur.store import AnchorTable, IndexFolder, Progress, read_manifest, save_table, verify


def test_a_built_folder_gives_back_every_score_bit_for_bit(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    assert folder.matrix.dtype == np.float32
    assert folder.matrix.tobytes() == np.ascontiguousarray(known.scores.T).tobytes()
    assert folder.anchor_queries == tuple(known.anchors)
    assert folder.manifest.scorer == known.scorer.card


def test_half_precision_takes_half_the_space_and_is_widened_on_reading(known, tmp_path) -> None:
    folder = known.build(tmp_path / "half", dtype="float16")
    assert folder.matrix.dtype == np.float32
    assert folder.matrix.tolist() == known.scores.T.astype(np.float16).tolist()
    full = known.build(tmp_path / "full")
    sizes = [(whole.path / "parts/built/scores.zarr/c/0/0").stat().st_size - 4 for whole in (folder, full)]
    assert sizes[0] * 2 == sizes[1]


def test_the_folder_says_to_pyterrier_what_it_is(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    assert json.loads((folder.path / "pt_meta.json").read_text()) == {
        "type": "adacur_index",
        "format": "adacur",
        "package_hint": "adacur",
    }


def test_a_missing_chunk_and_a_flipped_byte_are_refused_with_the_block(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    chunk = folder.path / "parts/built/scores.zarr/c/3/0"
    whole = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(DamagedIndex):
        folder.matrix
    chunk.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(DamagedIndex):
        folder.matrix
    chunk.write_bytes(whole)
    assert folder.matrix.shape == (53, 7)


def test_an_array_that_the_manifest_does_not_speak_of_is_refused(known, tmp_path) -> None:
    one = known.build(tmp_path / "one")
    other = known.build(tmp_path / "other", block_items=5)
    shutil.rmtree(one.path / "parts/built/scores.zarr")
    with pytest.raises(DamagedIndex):
        one.matrix
    shutil.copytree(other.path / "parts/built/scores.zarr", one.path / "parts/built/scores.zarr")
    with pytest.raises(DamagedIndex):
        one.matrix


def test_items_of_another_folder_are_refused(known, tmp_path) -> None:
    one = known.build(tmp_path / "one")
    fewer = AnchorTable.from_arrays(items=known.items[:9], anchor_queries=known.anchors, scores=known.scores[:, :9])
    other = save_table(fewer, tmp_path / "other")
    shutil.copy(other.path / "parts/built/items.sqlite", one.path / "parts/built/items.sqlite")
    with pytest.raises(DamagedIndex):
        IndexFolder.open(one.path)


def test_a_finished_folder_leaves_no_log_beside_its_database(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    assert {entry.name for entry in (folder.path / "parts/built").iterdir()} == {
        "items.sqlite",
        "manifest.json",
        "keys.npy",
        "scores.zarr",
    }


def test_first_stage_folders_are_listed_and_kept_inside(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    assert folder.first_names() == ()
    for name in ("dense", "bm25"):
        (folder.home / "first" / name).mkdir(parents=True)
    (folder.home / "first" / ".half.unfinished").mkdir()
    assert folder.first_names() == ("bm25", "dense")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_table_is_read_back_bit_for_bit(known, tmp_path, dtype) -> None:
    table = AnchorTable.from_arrays(
        items=known.items, anchor_queries=known.anchors, scores=known.scores.astype(dtype) / 3
    )
    card = ScorerCard(name="elsewhere", backend="service")
    folder = save_table(table, tmp_path / "new" / "index", card=card)
    assert folder.matrix.dtype == dtype
    assert folder.matrix.tobytes() == table.matrix.tobytes()
    assert folder.items.at(range(53)) == known.items
    assert folder.manifest.scorer == card
    assert len(folder.manifest.probes) == 32
    assert verify(folder.path).ok


def test_a_table_of_a_folder_can_be_saved_again(known, tmp_path) -> None:
    first = known.build(tmp_path / "one")
    second = save_table(first, tmp_path / "two", card=first.manifest.scorer)
    assert second.matrix.tobytes() == first.matrix.tobytes()
    assert second.manifest.items_digest == first.manifest.items_digest
    assert len(second.manifest.probes) == len(first.manifest.probes) == 32


def test_saving_never_overwrites_and_leaves_nothing_behind_when_it_fails(known, tmp_path, monkeypatch) -> None:
    table = AnchorTable.from_arrays(items=known.items, anchor_queries=known.anchors, scores=known.scores)
    folder = save_table(table, tmp_path / "index")
    with pytest.raises(IndexMismatch):
        save_table(table, folder.path)
    (tmp_path / "empty").mkdir()
    assert save_table(table, tmp_path / "empty").matrix.shape == (53, 7)

    def stop(*anything, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("adacur.store.scored_parts.choose_probes", stop)
    with pytest.raises(KeyboardInterrupt):
        save_table(table, tmp_path / "stopped")
    assert {entry.name for entry in tmp_path.iterdir()} == {"index", "empty"}


def test_an_unfinished_folder_says_how_far_it_is_and_what_to_do(known, tmp_path) -> None:
    class Stop(Exception):
        pass

    class Stopping(Progress):
        def add_block(self, pairs: int, *, workers: int) -> None:
            super().add_block(pairs, workers=workers)
            if self.blocks_done == 2:
                raise Stop

    with pytest.raises(Stop):
        known.build(tmp_path / "index", progress=Stopping())
    # The third block had been scored by then, and what is scored is kept.
    with pytest.raises(IncompleteIndex):
        IndexFolder.open(tmp_path / "index")
    assert read_manifest(tmp_path / "index").status == "building"
