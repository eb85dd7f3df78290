from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from adacur.errors import DamagedIndex, IndexMismatch
from adacur.protocols import ScorerCard
from adacur.store import AnchorTable, IndexFolder, save_table, verify


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
    sizes = [(whole.path / "parts/built/scores/0.npy").stat().st_size - 128 - 16 for whole in (folder, full)]
    assert sizes[0] * 2 == sizes[1]


def test_the_folder_says_to_pyterrier_what_it_is(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index")
    assert json.loads((folder.path / "pt_meta.json").read_text()) == {
        "type": "adacur_index",
        "format": "adacur",
        "package_hint": "adacur",
    }


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
        "scores",
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
