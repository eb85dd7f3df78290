"""New versions of an index: what is refused, what readers keep, what a crash leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Gaussian, Item, Query
from adacur.errors import (
    AdacurError,
    DamagedIndex,
    DuplicateId,
    EmptyInput,
    IndexLocked,
    IndexMismatch,
    InputError,
    NotAnIndex,
    OtherFormat,
    ScorerFailed,
    StorageFull,
    UnknownName,
    WrongScorer,
)
from adacur.seeds import item_keys
from adacur.store import IndexFolder, Manifest, editing, home_of, locked, read_manifest
from adacur.store.manifest import FORMAT
from tests import living_world as world
from tests.editing import Edited
from tests.living_world import Counted, build, item, query

ITEMS = [item(number) for number in range(12)]
ANCHORS = [query(number) for number in range(4)]


@pytest.fixture(name="built", scope="module")
def built_fixture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("updates") / "built.adacur"
    build(path, ITEMS, ANCHORS, block_items=5).close()
    return path


@pytest.fixture(name="path")
def path_fixture(built, tmp_path) -> Path:
    return shutil.copytree(built, tmp_path / "living.adacur")


def load(path: Path, scorer: object = world.score, **options: object) -> AnchorIndex:
    return adacur.load(path, scorer=scorer, check=False, **options)


def holds(path: Path) -> tuple[tuple[Item, ...], tuple[Query, ...], bytes]:
    folder = IndexFolder.open(path)
    return tuple(folder.items.at(range(len(folder.items)))), folder.anchor_queries, folder.matrix.tobytes()


def files(path: Path) -> set[str]:
    """All that lies in an index, but for what is inside parts, scores and first stages."""
    return {str(file.relative_to(path)) for depth in ("*", "*/*") for file in path.glob(depth)}


def test_a_version_is_what_was_asked_for_and_every_part_is_verified(path) -> None:
    index = load(path)
    assert index.version == 1
    Edited(index).add([item(20), item(21)])
    Edited(index).remove(["i3", "i20"])
    Edited(index).drop_anchors(["q1"])
    change = Edited(index).add_anchors([query(9)])
    assert (change.version, change.items, change.anchors, change.calls) == (5, 12, 4, 12)
    items, anchors, _ = holds(path)
    assert [one.id for one in items] == [f"i{n}" for n in (*range(3), *range(4, 12), 21)]
    assert [one.id for one in anchors] == ["q0", "q2", "q3", "q9"]
    expected = [world.score([(asked.text, own.text) for asked in anchors]) for own in items]
    assert IndexFolder.open(path).matrix == pytest.approx(np.array(expected, dtype=np.float32))
    report = adacur.store.verify(path)
    assert report.ok
    assert report.complete
    assert report.blocks == report.blocks_checked == 5
    assert index.items.positions(["i21", "i0"]).tolist() == [11, 0]
    with pytest.raises(UnknownName):
        index.items.positions(["i0", "i3"])
    with pytest.raises(IndexError):
        index.items.at([12])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda edit: edit.add([item(3)]), DuplicateId),
        (lambda edit: edit.add([item(20), item(20)]), DuplicateId),
        (lambda edit: edit.add([]), EmptyInput),
        (lambda edit: edit.add(["text"]), InputError),
        (lambda edit: edit.add(item(20)), InputError),
        (lambda edit: edit.add([Item("x", "y", {"z": {1}})]), InputError),
        (lambda edit: edit.add([Item("x", " ")]), EmptyInput),
        (lambda edit: edit.remove(["i1", *"abcde"]), UnknownName),
        (lambda edit: edit.remove([one.id for one in ITEMS]), EmptyInput),
        (lambda edit: edit.remove(["i1", "i1"]), DuplicateId),
        (lambda edit: edit.remove([]), EmptyInput),
        (lambda edit: edit.remove("i1"), InputError),
        (lambda edit: edit.remove([1]), InputError),
        (lambda edit: edit.remove(["\ud800"]), InputError),
        (lambda edit: edit.replace([item(20)]), UnknownName),
        (lambda edit: edit.replace(["text"]), InputError),
        (lambda edit: edit.replace([]), EmptyInput),
        (lambda edit: edit.replace([item(3), item(3)]), DuplicateId),
        (lambda edit: edit.add_anchors("red?"), InputError),
        (lambda edit: edit.add_anchors([query(0)]), DuplicateId),
        (lambda edit: edit.add_anchors([query(7), query(7)]), DuplicateId),
        (lambda edit: edit.drop_anchors(["q0", "nobody"]), UnknownName),
        (lambda edit: edit.drop_anchors([one.id for one in ANCHORS]), EmptyInput),
        (lambda edit: edit.add_anchor_scores([query(7)], np.zeros((1, 5))), InputError),
        (lambda edit: edit.add_anchor_scores([query(7)], np.full((1, 12), np.nan)), AdacurError),
        (lambda edit: edit.add_anchor_scores([query(7)], np.zeros((1, 12)), exact=np.ones((2, 12))), InputError),
    ],
)
def test_what_cannot_be_is_refused_before_a_call_is_spent_and_changes_nothing(path, change, error) -> None:
    scorer, before = Counted(), files(path)
    index = load(path, scorer)
    with pytest.raises(error):
        change(Edited(index))
    assert scorer.calls == 0
    assert index.version == IndexFolder.open(path).version == 1
    assert files(path) - before <= {"parts"}


def test_another_scorer_is_refused_on_adding(path) -> None:
    def other(pairs):
        return [float(len(text)) for _, text in pairs]

    with pytest.raises(WrongScorer):
        Edited(load(path, other)).add([item(20)])
    assert IndexFolder.open(path).version == 1


def test_the_scorer_is_recognised_once_and_after_items_that_were_probes_are_gone(path) -> None:
    scorer = Counted()
    index = load(path, scorer)
    Edited(index).add([item(20)])
    first = scorer.calls
    assert first > len(ANCHORS)
    Edited(index).add([item(21)])
    assert scorer.calls == first + len(ANCHORS)
    Edited(index).remove([f"i{number}" for number in range(11)])
    probes = IndexFolder.open(path).manifest.probes
    assert len(probes) == 12
    assert {probe.item for probe in probes} == {0, 1, 2}
    adacur.load(path, scorer=world.score).search("red", 1, budget=2)
    with pytest.raises(WrongScorer):
        adacur.load(path, scorer=lambda pairs: [float(len(text)) for _, text in pairs])


def test_an_index_keeps_a_score_that_its_scorer_gave(path) -> None:
    index = load(path)
    Edited(index).add_anchor_scores([query(7)], np.zeros((1, 12)), exact=np.zeros((1, 12), dtype=bool))
    with pytest.raises(InputError):
        Edited(index).drop_anchors([one.id for one in ANCHORS])
    assert IndexFolder.open(path).version == 2
    Edited(index).drop_anchors([one.id for one in ANCHORS[1:]])
    adacur.load(path, scorer=world.score)


def test_an_index_in_memory_cannot_be_changed() -> None:
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=ANCHORS, scores=np.zeros((4, 12)))
    assert index.version == 1
    with pytest.raises(InputError):
        Edited(index).remove(["i1"])


def test_a_second_writer_is_told_so_at_once(path) -> None:
    index = load(path)
    with locked(path), pytest.raises(IndexLocked):
        Edited(index).remove(["i1"])
    Edited(index).remove(["i1"])
    with editing(path), pytest.raises(IndexLocked), editing(path):
        pass


def test_a_compression_under_way_is_not_copied_half(path) -> None:
    index = load(path)
    Edited(index).remove(["i1"])
    with locked(home_of(path)), pytest.raises(IndexLocked):
        Edited(index).compact()
    assert Edited(index).compact().version == 3


def test_a_full_disk_is_told_and_leaves_the_index_as_it_was(path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index, before = load(path), holds(path)
    with monkeypatch.context() as patched:
        patched.setattr("adacur.store.new_version.write_places", full)
        with pytest.raises(StorageFull):
            Edited(index).remove(["i1"])
    assert holds(path) == before
    assert Edited(index).remove(["i1"]).version == 2


def test_changing_what_is_no_index_makes_none(tmp_path) -> None:
    with pytest.raises(NotAnIndex), editing(tmp_path / "nothing"):
        pass
    assert not (tmp_path / "nothing").exists()


def test_an_addition_that_was_interrupted_goes_on_where_it_stopped(path) -> None:
    new = [item(number) for number in range(20, 60)]
    # Three blocks, of 16, 16 and 8 items; the second fails.
    asleep = Counted(fail_at=32 + 16 * 4 + 30)
    with pytest.raises(ScorerFailed):
        Edited(load(path, asleep)).add(new)
    assert IndexFolder.open(path).version == 1
    index = load(path, scorer := Counted())
    # Another change comes between, which does not throw away what was paid for.
    Edited(index).remove(["i0"])
    change = Edited(index).add(iter(new))
    assert (change.calls, change.items) == ((40 - 16) * 4, 51)
    # Some known scores are asked for again, to recognise the scorer: probes, and some of a finished block.
    assert scorer.calls == change.calls + change.recognising
    assert 4 < change.recognising <= 32 + 8


@pytest.mark.parametrize(("check", "recognising"), [(True, 0), (False, 32)])
def test_a_change_tells_the_calls_that_it_spent_on_recognising_the_scorer(path, check, recognising) -> None:
    index = adacur.load(path, scorer=(scorer := Counted()), check=check)
    before = scorer.calls
    first, second = (Edited(index).add([item(number)]) for number in (20, 21))
    assert [(change.calls, change.recognising) for change in (first, second)] == [(4, recognising), (4, 0)]
    assert scorer.calls - before == 8 + recognising


def test_other_metadata_of_the_same_text_is_not_forgotten(path) -> None:
    index = load(path)
    Edited(index).add([Item("x", "a text", {"edition": 1})])
    Edited(index).replace([Item("x", "a text", {"edition": 2})])
    assert index.items.at(index.items.positions(["x"]))[0].metadata == {"edition": 2}


def test_what_is_added_again_after_its_removal_need_not_be_scored_again(path) -> None:
    index = load(path, scorer := Counted())
    reader = load(path)
    Edited(index).add([item(20)])
    held = load(path)
    Edited(index).remove(["i20"])
    spent = scorer.calls
    assert Edited(index).add([item(20)]).calls == 0
    assert scorer.calls - spent <= 8
    assert len(held) == len(index) == len(reader) + 1


def test_readers_keep_their_version_and_what_nobody_reads_is_deleted(path) -> None:
    first = load(path)
    index = load(path)
    Edited(index).add([item(20)])
    second = load(path)
    Edited(index).compact()
    Edited(index).remove(["i5"])
    # Nothing has been read yet: it must all still be there.
    assert first.version == 1
    assert second.version == 2
    assert index.version == 4
    assert first.matrix.shape == (12, 4)
    assert second.matrix.shape == (13, 4)
    assert index.matrix.shape == (12, 4)
    assert {hit.id for hit in second.search("thing number20", 13, budget=13)} == set(second.items.ids)
    assert [hit.id for hit in first.search("red thing", 1, method="rerank", budget=5)]
    del first, second
    Edited(index).remove(["i6"])
    assert files(path) >= {"manifest.json", "parts", "versions", "versions/5"}
    assert not files(path) & {"parts/built", "versions/1", "versions/2", "versions/4"}
    assert len(list((path / "parts").iterdir())) == 1


def test_a_reader_that_comes_while_the_first_change_is_switched_to_gets_one_version(path, monkeypatch) -> None:
    writer, opened = load(path), []

    def read(folder: Path) -> Manifest:
        if not opened:
            opened.append(folder)
            Edited(writer).remove(["i1"])
        return read_manifest(folder)

    for module in ("versions", "folder"):
        monkeypatch.setattr(f"adacur.store.{module}.read_manifest", read)
    folder = IndexFolder.open(path)
    assert opened
    assert folder.home == home_of(path)
    assert (folder.version, len(folder.items), folder.matrix.shape) == (2, 11, (11, 4))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no file that is open")
def test_a_version_of_which_nobody_can_tell_whether_it_is_read_is_kept(path, monkeypatch) -> None:
    def opened(file: object, *options: object, **named: object) -> int:
        if file == path / "versions" / "2" / "places.npy":
            raise OSError(errno.EMFILE, "Too many open files")
        return descriptor(file, *options, **named)

    index, descriptor = load(path), os.open
    Edited(index).remove(["i1"])
    reader = load(path)
    monkeypatch.setattr(os, "open", opened)
    Edited(index).compact()
    assert reader.matrix.shape == (11, 4)


def test_an_index_in_one_part_is_not_copied_to_compact_it(path) -> None:
    index = load(path)
    assert Edited(index).compact().version == 2
    assert [part.name for part in path.glob("parts/*")] == ["built"]
    Edited(index).add([item(20)])
    Edited(index).compact()
    Edited(index).compact()
    assert len(list(path.glob("parts/*"))) == 1
    assert adacur.store.verify(path).ok


def test_keys_do_not_bring_the_ids_into_memory(path) -> None:
    index = load(path)
    Edited(index).add([item(20)])
    Edited(index).remove(["i3"])
    items = IndexFolder.open(path).items
    keys = items.keys
    assert "ids" not in vars(items)
    assert keys.tolist() == item_keys(items.ids).tolist()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_many_parts_do_not_take_as_many_file_handles(path, monkeypatch) -> None:
    def handles() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    monkeypatch.setattr("adacur.store.folder._PARTS_KEPT_OPEN", 3)
    index = load(path)
    for number in range(20, 25):
        Edited(index).add([item(number)])
    del index
    before = handles()
    index = load(path)
    assert [one.id for one in index.items.at(range(17))] == list(index.items.ids)
    assert index.matrix.shape == (17, 4)
    # The lock on the version.
    assert handles() == before + 1


def test_a_search_under_way_stays_on_its_version(path) -> None:
    index = load(path)
    steps = index.search_iter("red thing", 12, budget=12, method=Gaussian(rounds=3))
    next(steps)
    Edited(index).remove(["i0", "i1", "i2"])
    Edited(index).compact()
    *_, last = steps
    assert {hit.id for hit in last} == {one.id for one in ITEMS}
    assert len(index.search("red thing", 9, budget=12)) == 9


def test_others_changes_are_built_upon(path) -> None:
    ours, theirs = load(path), load(path)
    Edited(theirs).add([item(20)])
    Edited(ours).remove(["i20"])
    assert (ours.version, len(ours), theirs.version, len(theirs)) == (3, 12, 2, 13)


def test_what_was_predicted_is_told_from_what_was_scored(path) -> None:
    index = load(path)
    exact = np.zeros((2, 12), dtype=bool)
    exact[0, :5] = exact[1, 3:] = True
    scores = [world.score([(query(n).text, own.text) for own in ITEMS]) for n in (7, 8)]
    Edited(index).add_anchor_scores([query(7), query(8)], np.where(exact, scores, -50.0), exact=exact)
    Edited(index).remove(["i1"])
    Edited(index).drop_anchors(["q0"])
    expected = np.delete(np.hstack([np.ones((12, 3), bool), exact.T]), 1, axis=0)
    assert np.array_equal(IndexFolder.open(path).exact_cells(), expected)
    assert IndexFolder.open(path).exact_anchors().tolist() == expected.all(axis=0).tolist()
    assert IndexFolder.open(path).n_exact == int(expected.sum())
    Edited(index).compact()
    folder = IndexFolder.open(path)
    assert np.array_equal(folder.exact_cells(), expected)
    assert folder.n_exact == int(expected.sum())
    # A predicted score would make a stranger of the scorer.
    assert all(expected[probe.item, probe.anchor] for probe in folder.manifest.probes)
    Edited(index).drop_anchors(["q1", "q2", "q3", "q8"])
    assert IndexFolder.open(path).n_exact == 4
    assert {probe.item for probe in IndexFolder.open(path).manifest.probes} <= set(range(4))
    adacur.load(path, scorer=world.score)
    cells = next(path.glob("parts/*/exact.npy"))
    cells.write_bytes(cells.read_bytes()[:-1] + b"?")
    assert [problem.file for problem in adacur.store.verify(path).problems] == [str(cells.relative_to(path))]


def test_a_changed_index_names_its_version_in_the_one_format(path) -> None:
    Edited(load(path)).remove(["i1"])
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest.items() >= {"type": "adacur_index", "format": FORMAT, "version": 2}.items()
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(OtherFormat):
        load(path)


def test_a_changed_index_is_not_built_again(path) -> None:
    Edited(load(path)).remove(["i1"])
    with pytest.raises(IndexMismatch):
        build(path, ITEMS, ANCHORS)


def test_damage_to_a_version_is_told(path) -> None:
    index = load(path)
    Edited(index).add([item(20)])
    Edited(index).remove(["i1"])
    home = home_of(path)
    part = next(part for part in path.glob("parts/*") if part.name != "built")
    for file, name in (
        (part / "scores" / "0.npy", "scores"),
        (home / "places.npy", "places"),
        (home / "first" / "bm25" / "ids.utf8", "first"),
        (part / "items.sqlite", "items.sqlite"),
    ):
        content = file.read_bytes()
        file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:] if name != "items.sqlite" else b"?")
        problems = adacur.store.verify(path).problems
        assert {path / problem.file for problem in problems} == {file}, problems
        file.write_bytes(content)
    assert adacur.store.verify(path).ok
    places = (home / "places.npy").read_bytes()
    (home / "places.npy").write_bytes(b"")
    with pytest.raises(DamagedIndex):
        load(path)
    (home / "places.npy").write_bytes(places)
    (home / "manifest.json").unlink()
    with pytest.raises(NotAnIndex):
        load(path)


def test_half_precision_stays_half_precision(tmp_path) -> None:
    index = build(tmp_path / "half", ITEMS, ANCHORS, dtype="float16")
    Edited(index).add([item(20)])
    Edited(index).compact()
    assert IndexFolder.open(tmp_path / "half").manifest.dtype == "float16"
    assert adacur.load(tmp_path / "half", scorer=world.score).matrix.dtype == np.float32


def test_several_changes_are_one_version_and_one_rebuild(path, monkeypatch) -> None:
    built = []
    updated = adacur.BM25.updated

    def counted(self, items, *given, **named):
        built.append(len(items))
        return updated(self, items, *given, **named)

    monkeypatch.setattr(adacur.BM25, "updated", counted)
    index = load(path)
    with index.edit(progress=False) as edit:
        edit.add([item(20), item(21)])
        edit.remove(["i3", "i20"])
        edit.replace([item(5, edition=1), item(21, edition=1)])
        edit.add_anchors([query(9)])
        edit.drop_anchors(["q1"])
        with pytest.raises(InputError):
            _ = edit.change
    assert built == [12]
    assert (edit.change.version, edit.change.items, edit.change.anchors) == (2, 12, 4)
    assert edit.change.calls == 2 * 4 + 2 * 4 + 12
    items = [one for one in ITEMS if one.id not in ("i3", "i5")] + [item(5, edition=1), item(21, edition=1)]
    assert list(index.items) == items
    asked = [one for one in ANCHORS if one.id != "q1"] + [query(9)]
    expected = [world.score([(one.text, other.text) for one in asked]) for other in items]
    assert np.array_equal(index.matrix, np.array(expected, dtype=np.float32))
    with pytest.raises(InputError):
        edit.remove(["i1"])


def test_an_edit_without_a_change_or_with_an_error_changes_nothing(path) -> None:
    index, before = load(path), holds(path)
    with index.edit() as edit:
        pass
    assert (edit.change.version, edit.change.calls) == (1, 0)

    def fail() -> None:
        with index.edit(progress=False) as edit:
            edit.remove(["i1"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with index.edit(progress=False) as edit:
        # What is refused and caught leaves the rest of the edit as it was.
        with pytest.raises(UnknownName):
            edit.replace([item(1, edition=1), item(77)])
        with pytest.raises(DuplicateId):
            edit.add([item(1)])
    assert holds(path) == before
    assert (index.version, len(index)) == (1, 12)
    with index.edit(progress=False) as edit:
        edit.add([item(20)])
        with pytest.raises(DuplicateId):
            edit.add([item(20)])
    assert (index.version, len(index)) == (2, 13)
