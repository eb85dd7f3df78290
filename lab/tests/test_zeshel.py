from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adacur.data import DataWarning, JudgedCollection
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, InputError, UnknownName
from adacur.records import Item, Query
from adacur_lab.zeshel import ZeshelTags, read_zeshel, zeshel_split, zeshel_worlds


@pytest.fixture
def zeshel_folder() -> Path:
    return Path(__file__).parents[2] / "tests" / "fixtures" / "zeshel"


def test_the_worlds_are_the_files_of_documents(zeshel_folder) -> None:
    assert zeshel_worlds(zeshel_folder) == ["lighthouses", "tea_houses"]


def test_a_world_has_its_entities_as_items_and_its_mentions_as_queries(zeshel_folder) -> None:
    world = read_zeshel(zeshel_folder, "lighthouses")
    assert world.name == "lighthouses"
    assert [item.id for item in world.items] == ["L1", "L2", "L3", "L4"]
    assert world.items[1].text.startswith("Ada Brook [unused2] Ada Brook was a keeper of lamps .")
    assert world.items[1].metadata == {"title": "Ada Brook"}
    assert world.qrels == {"m1": {"L1": 1}, "m2": {"L2": 1}, "m3": {"L3": 1}, "m4": {"L4": 1}}
    assert world.judged == world.queries
    assert [query.id for query in read_zeshel(zeshel_folder, "tea_houses").queries] == ["m5", "m6", "m7"]


def test_a_mention_stands_between_its_tags_in_its_context(zeshel_folder) -> None:
    assert read_zeshel(zeshel_folder, "lighthouses", context=3).queries[0] == Query(
        "m1", "ship that passed [unused0] Grey Point [unused1] and wrote the"
    )
    whole = read_zeshel(zeshel_folder, "lighthouses", context=100).queries[0].text
    assert whole.startswith("Ada Brook was")
    assert whole.endswith("on the wall .")
    bare = read_zeshel(zeshel_folder, "lighthouses", context=0)
    assert [query.text for query in bare.queries][1] == "[unused0] Ada Brook [unused1]"


def test_tags_can_be_others_or_none(zeshel_folder) -> None:
    own = read_zeshel(zeshel_folder, "tea_houses", context=1, tags=ZeshelTags("<m>", "</m>", "<e>"))
    assert own.queries[0].text == "the <m> House of Nine Kettles </m> ."
    assert own.items[1].text.startswith("Old Ming <e> Old Ming has poured")
    plain = read_zeshel(zeshel_folder, "tea_houses", context=1, tags=None)
    assert plain.queries[0].text == "the House of Nine Kettles ."
    assert plain.items[1].text.startswith("Old Ming. Old Ming has poured")


def test_a_context_ends_where_the_document_begins(zeshel_folder, tmp_path) -> None:
    folder = shutil.copytree(zeshel_folder, tmp_path / "zeshel")
    edit(folder / "mentions" / "test.json", 1, text="Brook", start_index=1, end_index=1)
    assert read_zeshel(folder, "lighthouses", context=2).queries[0].text == "Ada [unused0] Brook [unused1] was a"


def edit(file: Path, line: int, **changes: object) -> None:
    """Change fields of one line; None removes a field."""
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    rows[line - 1] = {name: value for name, value in (rows[line - 1] | changes).items() if value is not None}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("file", "changes", "error", "message"),
    [
        ("documents/lighthouses", {"document_id": "L1"}, DuplicateId, r"line 2: the document 'L1' occurs a second"),
        ("documents/lighthouses", {"title": None}, FileFormatError, r"line 2: expected the field 'title' .* 'text'"),
        ("documents/lighthouses", {"text": 3}, FileFormatError, r"line 2: .* 'text' to be a str; it is 3"),
        ("mentions/test", {"mention_id": "m1"}, DuplicateId, r"line 2: the mention 'm1' occurs a second"),
        ("mentions/test", {"label_document_id": "T1"}, FileFormatError, r"line 2: label_document_id is 'T1', which"),
        ("mentions/test", {"context_document_id": "X"}, FileFormatError, r"line 2: context_document_id is 'X', which"),
        ("mentions/test", {"start_index": 20}, FileFormatError, r"line 2: words 20 to \d+ .* says 'Ada Brook'"),
        ("mentions/test", {"start_index": "4"}, FileFormatError, r"line 2: .* 'start_index' to be a int; it is '4'"),
        ("mentions/test", {"corpus": None}, FileFormatError, r"line 2: expected the field 'corpus'"),
    ],
)
def test_a_damaged_line_is_named(zeshel_folder, tmp_path, file, changes, error, message) -> None:
    folder = shutil.copytree(zeshel_folder, tmp_path / "zeshel")
    edit(folder / f"{file}.json", 2, **changes)
    with pytest.raises(error, match=rf"{file}\.json, {message}"):
        read_zeshel(folder, "lighthouses")


def test_a_line_that_is_no_json_is_named(zeshel_folder, tmp_path) -> None:
    folder = shutil.copytree(zeshel_folder, tmp_path / "zeshel")
    with (folder / "documents" / "lighthouses.json").open("a") as file:
        file.write('{"title": "torn')
    with pytest.raises(FileFormatError, match=r"lighthouses\.json.*line 5"):
        read_zeshel(folder, "lighthouses")


def test_what_is_missing_is_named(zeshel_folder, tmp_path) -> None:
    with pytest.raises(UnknownName, match=r"'lighthouse'.*'lighthouses'"):
        read_zeshel(zeshel_folder, "lighthouse")
    with pytest.raises(FileFormatError, match=r"documents has no \.json"):
        zeshel_worlds(tmp_path)
    folder = shutil.copytree(zeshel_folder, tmp_path / "zeshel")
    (folder / "mentions" / "test.json").unlink()
    assert len(read_zeshel(folder, "tea_houses").queries) == 3
    with pytest.raises(EmptyInput, match=r"'lighthouses'.*train\.json"):
        read_zeshel(folder, "lighthouses")
    (folder / "mentions" / "train.json").unlink()
    with pytest.raises(FileFormatError, match=r"train\.json.*val\.json.*test\.json"):
        read_zeshel(folder, "tea_houses")
    (folder / "documents" / "tea_houses.json").write_text("\n")
    with pytest.raises(EmptyInput, match="holds no document"):
        read_zeshel(folder, "tea_houses")


def test_documents_without_a_word_are_left_out_and_named(zeshel_folder, tmp_path) -> None:
    folder = shutil.copytree(zeshel_folder, tmp_path / "zeshel")
    with (folder / "documents" / "tea_houses.json").open("a") as file:
        file.write('{"document_id": "EMPTY", "title": "", "text": " "}\n')
    with pytest.warns(DataWarning, match="1 item.*EMPTY"):
        world = read_zeshel(folder, "tea_houses")
    assert [item.id for item in world.items] == [item.id for item in read_zeshel(zeshel_folder, "tea_houses").items]


def world_of(name: str, n_mentions: int) -> JudgedCollection:
    queries = [Query(f"m{place}", f"mention number {place}") for place in range(n_mentions)]
    return JudgedCollection(name, [Item("e", "an entity")], queries, {query.id: {"e": 1} for query in queries})


@pytest.mark.parametrize(
    ("name", "n_mentions", "n_test"),
    [
        ("yugioh", 3374, (3274, 2874, 1374)),
        ("star_trek", 4227, (4127, 3727, 2227)),
        ("military", 13063, (2300, 1900, 400)),
    ],
)
def test_splits_have_the_sizes_of_the_papers_table(name, n_mentions, n_test) -> None:
    world = world_of(name, n_mentions)
    for n_train, size in zip((100, 500, 2000), n_test, strict=True):
        split = zeshel_split(world, n_train)
        assert (len(split.anchors), len(split.test)) == (n_train, size)
        assert not {query.id for query in split.anchors} & {query.id for query in split.test}
        assert split != zeshel_split(world, n_train, seed=1)


def test_a_split_of_a_small_world_is_refused_in_plain_words(zeshel_folder) -> None:
    with pytest.raises(InputError, match=r"4 queries.*with 4 different.*give 100 anchor"):
        zeshel_split(read_zeshel(zeshel_folder, "lighthouses"), 100)
