from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

import adacur
from adacur.errors import DamagedIndex, ScorerFailed
from adacur.scorers.known import MatrixScorer
from adacur.store import IndexFolder, verify
from tests import living_world
from tests.editing import Edited


@pytest.fixture
def folder(known, tmp_path):
    return known.build(tmp_path / "index").path


def change(folder, sql: str) -> None:
    connection = sqlite3.connect(folder / "parts/built/items.sqlite")
    with connection:
        connection.execute(sql)
    connection.close()


def test_an_untouched_folder_is_in_order(folder) -> None:
    report = verify(folder)
    assert report.ok
    assert report.complete
    assert (report.blocks_checked, report.blocks) == (6, 6)


def test_a_flipped_bit_anywhere_in_a_chunk_is_found_with_its_block(folder) -> None:
    rng = np.random.default_rng(0)
    chunks = sorted((folder / "parts/built/scores").iterdir())
    assert len(chunks) == 6
    for chunk in chunks:
        whole = chunk.read_bytes()
        # The first byte, the last, and some in between; spaces after the header, of which numpy reads none, apart.
        places = [0, len(whole) - 1, *rng.integers(0, len(whole), size=8).tolist()]
        for place in (place for place in places if whole[place : place + 1] != b" "):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            chunk.write_bytes(flipped)
            problems = verify(folder).problems
            assert [(problem.block, problem.file) for problem in problems] == [
                (int(chunk.stem), str(chunk.relative_to(folder)))
            ]
        chunk.write_bytes(whole)
    assert verify(folder).ok


def test_a_block_of_other_scores_with_their_digest_is_found(folder, known, tmp_path) -> None:
    other = replace(known, scores=known.scores + 1).build(tmp_path / "other")
    shutil.copy(other.path / "parts/built/scores/3.npy", folder / "parts/built/scores/3.npy")
    assert not verify(folder).ok


@pytest.mark.parametrize("size", [0, 3, 100])
def test_a_cut_chunk_is_found(folder, size) -> None:
    chunk = folder / "parts/built/scores/2.npy"
    chunk.write_bytes(chunk.read_bytes()[:size])
    assert [problem.block for problem in verify(folder).problems] == [2]


def test_missing_chunks_are_all_found(folder) -> None:
    (folder / "parts/built/scores/0.npy").unlink()
    (folder / "parts/built/scores/4.npy").unlink()
    problems = verify(folder).problems
    assert [problem.block for problem in problems] == [0, 4]
    assert all("missing" in problem.what for problem in problems)


@pytest.mark.parametrize(
    "change", [lambda scores: scores + 1, lambda scores: scores[:-1], lambda scores: scores.astype(float)]
)
def test_scores_that_were_written_over_are_found(folder, change) -> None:
    file = folder / "parts/built/scores/3.npy"
    np.save(file, change(np.load(file)))
    assert [(problem.block, problem.file) for problem in verify(folder).problems] == [(3, "parts/built/scores/3.npy")]
    with pytest.raises(DamagedIndex):
        _ = IndexFolder.open(folder).matrix


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE items SET text = 'another' WHERE position = 40", "among its items"),
        ("UPDATE items SET id = 'another' WHERE position = 40", "among its items"),
        ("UPDATE anchors SET text = 'another' WHERE position = 1", "among its anchors"),
        ("DELETE FROM items WHERE position = 52", "52 items; the manifest says 53"),
        ("DELETE FROM anchors WHERE position = 6", "6 anchors; the manifest says 7"),
        ("DROP TABLE anchors", "cannot be read"),
    ],
)
def test_changed_rows_are_found(folder, sql, said) -> None:
    change(folder, sql)
    report = verify(folder)
    assert not report.ok
    assert any(said in problem.what for problem in report.problems)


def test_flipped_bytes_of_the_database_never_make_it_raise(folder) -> None:
    database = folder / "parts/built/items.sqlite"
    whole = database.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), size=60):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        database.write_bytes(flipped)
        verify(folder)
    text = whole.index(b"item number 17")
    database.write_bytes(whole[:text] + b"I" + whole[text + 1 :])
    assert [problem.file for problem in verify(folder).problems] == ["parts/built/items.sqlite"]
    database.write_bytes(whole[:text] + b"\xff" + whole[text + 1 :])
    assert [problem.file for problem in verify(folder).problems] == ["parts/built/items.sqlite"]
    database.write_bytes(whole[: len(whole) // 2])
    assert not verify(folder).ok
    database.unlink()
    assert not verify(folder).ok


def test_a_manifest_that_cannot_be_read_or_remembers_wrongly_is_found(folder, tmp_path) -> None:
    for name in ("parts/built/manifest.json", "versions/1/manifest.json"):
        file = folder / name
        content = file.read_text()
        told = json.loads(content)
        for probe in ({"score": 1e9}, {"anchor": 99}):
            told["probes"][3] |= probe
            file.write_text(json.dumps(told))
            problems = {problem.file for problem in verify(folder).problems}
            # One that cannot be parsed hides which version is meant.
            assert problems == {name} or ("anchor" in probe and problems == {"manifest.json"})
        file.write_text(content)
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    assert "99" in verify(folder).problems[0].what
    file.write_text("{")
    assert [problem.file for problem in verify(folder).problems] == ["manifest.json"]
    assert [problem.file for problem in verify(tmp_path / "nowhere").problems] == ["manifest.json"]


def test_an_unfinished_build_is_in_order_as_far_as_it_went(known, tmp_path) -> None:
    class Tires(MatrixScorer):
        grids = 0

        def score_grid(self, queries, items):
            self.grids += 1
            if self.grids > 2:
                raise ValueError("tired")
            return super().score_grid(queries, items)

    with pytest.raises(ScorerFailed):
        known.build(tmp_path / "index", scorer=Tires(known.anchors, known.items, known.scores))
    report = verify(tmp_path / "index")
    assert report.ok
    assert not report.complete
    assert (report.blocks_checked, report.blocks) == (2, 6)
    (tmp_path / "index/parts/built/scores/1.npy").write_bytes(b"?")
    assert [problem.block for problem in verify(tmp_path / "index").problems] == [1]


def test_a_damaged_block_is_mended_by_replacing_its_items_which_pays_for_no_others(tmp_path) -> None:
    path = tmp_path / "index"
    items, anchors = [living_world.item(n) for n in range(30)], [living_world.query(n) for n in range(4)]
    living_world.build(path, items, anchors, block_items=10).close()
    edited = adacur.load(path, scorer=living_world.score)
    block = IndexFolder.open(path).manifest.block(1)
    chunk = path / "parts/built/scores/1.npy"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    assert [problem.block for problem in verify(path).problems] == [1]
    change = Edited(edited).replace([living_world.item(n) for n in block])
    assert change.calls == len(block) * 4
    Edited(edited).compact()
    assert verify(path).ok
