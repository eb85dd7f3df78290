"""An index folder may come from anybody: what it names lies inside it, and what it counts is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur.errors import AdacurError, DamagedIndex, IndexFolderError, NotAnIndex
from adacur.store import IndexFolder, is_finished, verify
from adacur.store.database import digest_texts
from adacur.store.versions import _delete, version_files
from adacur.store.writing import check_inside, digest_file
from tests.editing import Edited
from tests.living_world import build, item, query, score

OUTSIDE = (
    "../victim",
    "{parent}/victim",
    "parts/../../victim",
    "parts/..",
    "..",
    "/no-such-folder",
    "",
    "parts/",
    "parts/a/b",
    "p\\x",
)


@pytest.fixture(name="changed")
def changed_fixture(tmp_path: Path) -> Path:
    """An index at its third version, beside something precious."""
    path = tmp_path / "wiki.adacur"
    with build(path, [item(n) for n in range(12)], [query(n) for n in range(4)]) as index:
        Edited(index).add([item(20)])
        Edited(index).remove(["i3"])
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious.txt").write_text("precious")
    return path


@pytest.fixture(name="wiki", scope="module")
def wiki_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("untrusted") / "wiki.adacur"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)]).close()
    return path


@pytest.fixture(name="path")
def path_fixture(wiki: Path, tmp_path: Path) -> Path:
    return shutil.copytree(wiki, tmp_path / "wiki.adacur")


def name_part(manifest: Path, path: str) -> None:
    content = json.loads(manifest.read_bytes())
    content["parts"][0] = path
    manifest.write_text(json.dumps(content))


def current(index: Path) -> Path:
    return index / "versions" / str(json.loads((index / "manifest.json").read_bytes())["version"])


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_part_outside_the_index_is_neither_opened_nor_deleted(changed: Path, path: str) -> None:
    outside = path.replace("{parent}", str(changed.parent))
    stale = changed / "versions" / "1"
    shutil.copytree(current(changed), stale)
    name_part(stale / "manifest.json", outside)

    with adacur.load(changed, scorer=score) as index:
        Edited(index).remove(["i1"])
    assert (changed.parent / "victim" / "precious.txt").read_text() == "precious"
    assert not stale.exists()

    name_part(current(changed) / "manifest.json", outside)
    with pytest.raises(NotAnIndex):
        adacur.load(changed)
    assert not verify(changed).ok


def test_deleting_stays_inside_the_index_and_follows_no_link(changed: Path) -> None:
    victim = changed.parent / "victim"
    for outside in (victim, changed / ".." / "victim", changed / "parts" / ".." / ".." / "victim", changed / ".."):
        with pytest.raises(DamagedIndex):
            _delete(changed, outside)
    (changed / "parts" / "link").symlink_to(victim)
    _delete(changed, changed / "parts" / "link")
    assert not (changed / "parts" / "link").is_symlink()
    # A link that took a folder's place after it was looked at.
    shutil.move(changed / "parts", changed.parent / "moved")
    (changed / "parts").symlink_to(changed.parent)
    with pytest.raises(DamagedIndex):
        _delete(changed, changed / "parts" / "victim")
    assert (victim / "precious.txt").exists()
    check_inside(changed, changed / "versions" / "3")


@pytest.mark.parametrize(
    "name", ["notes.txt", "manifest.json.partial", "build.lock", "parts/built/items.sqlite", "versions"]
)
def test_a_link_in_a_folder_is_refused_by_whatever_opens_it(changed: Path, name: str) -> None:
    secret = changed.parent / "secret.txt"
    secret.write_text("TOP SECRET")
    place = changed / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(secret)

    with pytest.raises(DamagedIndex):
        adacur.load(changed)
    assert not verify(changed).ok
    assert secret.read_text() == "TOP SECRET"


@pytest.mark.parametrize("name", ["build.lock", "parts", "manifest.json.partial", "versions"])
def test_a_build_writes_through_no_link_that_lies_where_it_begins(tmp_path: Path, name: str) -> None:
    (secret := tmp_path / "secret.txt").write_text("TOP SECRET")
    (tmp_path / "new.adacur").mkdir()
    (tmp_path / "new.adacur" / name).symlink_to(secret)
    with pytest.raises(IndexFolderError):
        build(tmp_path / "new.adacur", [item(1)], [query(1)])
    assert secret.read_text() == "TOP SECRET"


def test_a_build_compares_itself_with_no_database_that_a_finished_folder_links_to(tmp_path: Path) -> None:
    path, others = tmp_path / "wiki.adacur", tmp_path / "others.sqlite"
    build(path, [item(1)], [query(1)]).close()
    (path / "parts/built/items.sqlite").rename(others)
    changed = sqlite3.connect(others)
    changed.execute("UPDATE items SET text = 'TOP SECRET'")
    changed.commit()
    changed.close()
    (path / "parts/built/items.sqlite").symlink_to(others)
    with pytest.raises(DamagedIndex):
        build(path, [item(1)], [query(1)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_a_pipe_in_a_folder_is_refused_instead_of_waited_for(changed: Path) -> None:
    (changed / "manifest.json").unlink()
    os.mkfifo(changed / "manifest.json")
    with pytest.raises(DamagedIndex):
        IndexFolder.open(changed)


def test_a_snapshot_of_the_hubs_cache_may_link_into_its_blobs_and_nowhere_else(changed: Path, tmp_path: Path) -> None:
    root = tmp_path / "datasets--a--b"
    snapshot, blobs = root / "snapshots" / ("0" * 40), root / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in changed.rglob("*") if path.is_file())):
        place = snapshot / file.relative_to(changed)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blobs / str(number))
        place.symlink_to(os.path.relpath(blobs / str(number), place.parent))
    assert len(IndexFolder.open(snapshot).items) == 12

    (snapshot / "notes.txt").symlink_to(tmp_path / "victim" / "precious.txt")
    with pytest.raises(DamagedIndex):
        IndexFolder.open(snapshot)


def test_only_files_of_the_index_are_packed(path: Path) -> None:
    (path / "evil.py").write_text("import os")
    (path / "notes").mkdir()
    (path / "notes" / "private.txt").write_text("private")
    names = version_files(path, IndexFolder.open(path).home)
    assert {"manifest.json", "parts/built/items.sqlite", "parts/built/scores/0.npy"} <= set(names)
    assert not [name for name in names if "evil" in name or "notes" in name]


def changed_database(path: Path, *statements: str, part: str = "built") -> None:
    with contextlib.closing(sqlite3.connect(path / "parts" / part / "items.sqlite")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE items SET metadata = '[1, 2]'"],
        ["UPDATE items SET metadata = 'not JSON'"],
        ["UPDATE items SET metadata = x'00'"],
        ["UPDATE items SET text = x'00ff'"],
        ["UPDATE anchors SET text = x'00ff'"],
        ["UPDATE anchors SET id = x'00ff' WHERE position = 1"],
        ["DELETE FROM items WHERE position = 4"],
        ["UPDATE items SET position = position - 3 WHERE position < 3"],
        ["UPDATE items SET position = 1000000000000 WHERE position = 11"],
        [
            "ALTER TABLE items RENAME TO old",
            "CREATE TABLE items (position INTEGER PRIMARY KEY, id, text, metadata)",
            "INSERT INTO items SELECT position, position, text, metadata FROM old",
            "DROP TABLE old",
        ],
        ["CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"],
        ["CREATE TRIGGER t AFTER INSERT ON anchors BEGIN DELETE FROM items; END"],
    ],
)
def test_a_database_of_other_shapes_is_one_clear_error(path: Path, statements: list[str]) -> None:
    changed_database(path, *statements)
    with pytest.raises(DamagedIndex), adacur.load(path, scorer=score) as index:
        index.search("red thing", k=12, budget=12)


@pytest.mark.parametrize("header", ["-" * 9000 + "1", "(" * 9000, "1" + "+1j" * 3000, "{**{}}", "'" + "a" * 60_000])
@pytest.mark.parametrize("name", ["parts/built/scores/0.npy", "versions/1/first/bm25/bm25s/data.csc.index.npy"])
def test_a_header_that_python_itself_cannot_read_is_damage(path: Path, name: str, header: str) -> None:
    (path / name).write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    assert not verify(path).ok
    with adacur.load(path, scorer=score, check=False) as index, pytest.raises(DamagedIndex):
        _ = index.anchors.matrix, index.search("which red thing", 3, budget=8, first="bm25")


@pytest.mark.parametrize("n_items", [10**12, 10**18, 2**63])
def test_a_manifest_that_counts_more_than_is_there_takes_no_memory(path: Path, n_items: int) -> None:
    for folder in (current(path), path / "parts/built"):
        edited(folder / "manifest.json", n_items=n_items)
    with contextlib.suppress(sqlite3.Error, OverflowError):
        changed_database(path, f"UPDATE items SET position = {n_items - 1} WHERE position = 11")
    with pytest.raises(AdacurError), adacur.load(path, scorer=score) as index:
        _ = index.matrix


def test_scores_cut_short_are_told_before_memory_is_taken_for_them(path: Path) -> None:
    chunk = path / "parts/built/scores" / "0.npy"
    chunk.write_bytes(chunk.read_bytes()[:8])
    with pytest.raises(DamagedIndex):
        _ = IndexFolder.open(path).matrix


@pytest.mark.parametrize("header", [{"shape": (2**40, 4)}, {"descr": "|O"}, {"descr": "<f8"}, {"fortran_order": True}])
def test_scores_whose_header_says_something_else_are_refused_before_memory_is_taken(path: Path, header) -> None:
    file = path / "parts/built/scores" / "0.npy"
    values = np.load(file)
    with file.open("wb") as stream:
        about = {"descr": "<f4", "fortran_order": False, "shape": values.shape}
        np.lib.format.write_array_header_1_0(stream, about | header)
        stream.write(values.tobytes())
    with pytest.raises(DamagedIndex):
        _ = IndexFolder.open(path).matrix


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../../dev/zero", "../manifest.json", "a/./b", "c:x"])
def test_a_checksum_is_of_a_file_in_its_own_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "wiki.adacur"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], first=["bm25"]).close()
    (path / "versions/1/first/bm25/checksums.json").write_text(json.dumps({name: "0"}))
    (problem,) = verify(path).problems
    assert problem.file == "versions/1/first/bm25/checksums.json"


def test_a_journal_that_names_another_file_is_not_read(path: Path) -> None:
    journal, victim = path / "parts/built/items.sqlite-journal", path.parent / "victim"
    victim.write_text("precious")
    name = str(victim).encode()
    end = len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + bytes.fromhex("d9d505f920a163d7")
    journal.write_bytes(bytes(600) + name + end)
    adacur.load(path).close()
    assert victim.exists()
    assert journal.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"n_items": 11},
        {"n_items": 13},
        {"n_items": 2**40},
        {"n_anchors": 3},
        {"n_anchors": 2**40},
        {"brings_items": False},
        {"brings_anchors": False},
    ],
)
def test_parts_that_do_not_hold_what_a_version_says_are_damage(changed: Path, changes: dict[str, object]) -> None:
    part, version = changed / "parts/built/manifest.json", current(changed) / "manifest.json"
    edited(part, probes=[], **changes)
    names = json.loads(version.read_bytes())["parts"]
    for parts in (names, names[::-1], names[:1], names * 2):
        for n_items in (12, 2**40):
            edited(version, parts=parts, n_items=n_items)
            with pytest.raises(DamagedIndex):
                adacur.load(changed)


PLACES = {
    "none": lambda places: places[:0],
    "one too few": lambda places: places[:-1],
    "one too many": lambda places: np.append(places, 0),
    "not in order": lambda places: places[::-1],
    "all in one place": lambda places: places * 0,
    "beyond the end": lambda places: places + 1,
    "removed in another way": lambda places: np.where(places < 0, -2, places),
    "two axes": lambda places: places[None],
    "fractions": lambda places: places / 2,
}


@pytest.mark.parametrize("how", PLACES)
def test_places_that_do_not_fit_the_parts_are_damage(changed: Path, how: str) -> None:
    write_places(changed, PLACES[how](np.load(current(changed) / "places.npy")))
    with pytest.raises(DamagedIndex):
        adacur.load(changed)


def test_a_score_that_lies_twice_in_one_place_and_nowhere_in_another_is_damage(changed: Path) -> None:
    with adacur.load(changed, scorer=score) as index:
        Edited(index).add_anchors([query(9)])
    # The second part has one item's scores for the first four anchor queries; the third part has the fifth.
    places = np.load(current(changed) / "places.npy")
    assert places[16:21].tolist() == [11, 0, 1, 2, 3]
    places[20] = 4
    write_places(changed, places)
    with pytest.raises(DamagedIndex):
        _ = IndexFolder.open(changed).matrix


def write_places(index: Path, places: np.ndarray) -> None:
    """With the digest that belongs to it."""
    np.save(current(index) / "places.npy", places)
    edited(current(index) / "manifest.json", places=digest_file(current(index) / "places.npy"))


def edited(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_bytes()) | fields))


def test_a_part_counts_once_however_often_a_manifest_names_it(changed: Path) -> None:
    first = json.loads((current(changed) / "manifest.json").read_bytes())["parts"][0]
    edited(current(changed) / "manifest.json", parts=[first] * 100_000)
    with pytest.raises(DamagedIndex):
        adacur.load(changed)
    assert len(verify(changed).problems) == 1


def test_items_that_no_part_holds_take_no_memory_where_there_are_no_scores(tmp_path: Path) -> None:
    path = tmp_path / "wiki.adacur"
    with adacur.build([item(n) for n in range(12)], 0, scorer=score, path=path, progress=False) as index:
        Edited(index).add([item(20)])
    edited(current(path) / "manifest.json", n_items=2**46)
    with pytest.raises(DamagedIndex, match=str(2**46)):
        adacur.load(path)


def test_a_chunk_that_is_missing_is_told_before_memory_is_taken_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = IndexFolder.open(path)
    shutil.rmtree(path / "parts/built/scores")
    monkeypatch.setattr("numpy.empty", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(DamagedIndex):
        _ = folder.matrix
    assert [problem.block for problem in verify(path).problems] == [0]


def test_verify_looks_for_no_more_blocks_than_the_files_have_room_for(path: Path) -> None:
    for folder in (current(path), path / "parts/built"):
        edited(folder / "manifest.json", n_items=2**40, block_items=1)
    problem, *_ = verify(path).problems
    assert str(2**40) in problem.what


def test_a_remembered_score_beyond_all_floats_is_one_clear_error(path: Path) -> None:
    edited(current(path) / "manifest.json", probes=[{"item": 0, "anchor": 0, "score": 10**400}])
    with pytest.raises(IndexFolderError):
        adacur.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "wiki.adacur").mkdir()
    os.mkfifo(tmp_path / "wiki.adacur" / "manifest.json")
    with pytest.raises(NotAnIndex):
        is_finished(tmp_path / "wiki.adacur")


def test_a_folder_that_is_no_index_is_called_so_whatever_links_it_holds(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "lib64").symlink_to(tmp_path)

    with pytest.raises(NotAnIndex):
        adacur.load(tmp_path / "clone")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../victim", "", "."])
def test_a_first_stage_outside_the_index_is_refused_and_found(path: Path, name: str) -> None:
    edited(current(path) / "manifest.json", first=[name])
    assert not verify(path).ok
    with pytest.raises(IndexFolderError):
        IndexFolder.open(path)


def test_a_seed_that_no_generator_begins_with_is_refused_before_an_edit_is_paid_for(path: Path) -> None:
    edited(current(path) / "manifest.json", seed=-1)
    assert not verify(path).ok
    with pytest.raises(IndexFolderError):
        adacur.load(path, scorer=score)


def test_a_finished_version_of_an_unfinished_part_is_damage(path: Path) -> None:
    edited(path / "parts/built/manifest.json", status="building")
    (path / "parts/built/scores/0.npy").unlink()
    assert not verify(path).ok
    with pytest.raises(DamagedIndex):
        IndexFolder.open(path)


def test_blocks_that_were_exchanged_are_told_when_scores_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wiki.adacur"
    with build(path, [item(n) for n in range(20)], [query(n) for n in range(4)], block_items=5) as index:
        Edited(index).remove(["i3"])
    scores = path / "parts/built/scores"
    for source, target in (("1", "held"), ("2", "1"), ("held", "2")):
        (scores / f"{source}.npy").rename(scores / f"{target}.npy")
    with pytest.raises(DamagedIndex):
        _ = IndexFolder.open(path).matrix


@pytest.mark.parametrize("removed", [[], ["i3"]])
def test_an_open_index_does_not_mix_its_items_with_scores_of_a_folder_in_its_place(tmp_path: Path, removed) -> None:
    items, anchors = [item(n) for n in range(12)], [query(n) for n in range(4)]
    for name, order in (("wiki", items), ("other", items[::-1])):
        with build(tmp_path / name, order, anchors) as index:
            if removed:
                Edited(index).remove(removed)
    opened = IndexFolder.open(tmp_path / "wiki")
    (tmp_path / "wiki").rename(tmp_path / "earlier")
    (tmp_path / "other").rename(tmp_path / "wiki")
    with pytest.raises(DamagedIndex):
        _ = opened.matrix


def test_an_item_that_two_parts_hold_is_found(path: Path) -> None:
    again = shutil.copytree(path / "parts/built", path / "parts/again")
    changed_database(path, "DELETE FROM anchors", part="again")
    edited(again / "manifest.json", brings_anchors=False, anchors_digest=digest_texts(()))
    rows, columns = np.arange(12, dtype=np.int32), np.arange(4, dtype=np.int32)
    np.save(current(path) / "places.npy", np.concatenate([rows, columns, rows + 12, columns]))
    places = digest_file(current(path) / "places.npy")
    edited(current(path) / "manifest.json", parts=["built", "again"], n_items=24, places=places)
    assert len(IndexFolder.open(path).items) == 24
    assert any("'i0'" in problem.what for problem in verify(path).problems)
