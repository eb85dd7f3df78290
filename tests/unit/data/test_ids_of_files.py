"""Ids that repeat or are absent."""

from __future__ import annotations

import pytest

from adacur.data import DataWarning, ItemFile, read_items
from adacur.errors import FileFormatError, UnknownOption

MESSY = "id,text\na,one\nb,two\na,three\nc,four\nb,five\na,six\n"


@pytest.fixture
def messy(tmp_path):
    file = tmp_path / "messy.csv"
    file.write_text(MESSY)
    return file


def test_the_first_of_each_id_can_be_kept_and_the_others_are_named(messy) -> None:
    with pytest.warns(DataWarning):
        items = list(ItemFile(messy, repeated="first"))
    assert [(item.id, item.text) for item in items] == [("a", "one"), ("b", "two"), ("c", "four")]
    with pytest.raises(UnknownOption):
        list(read_items(messy, repeated="last"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n1,x\n,y\n3,z\n ,w\n"),
        ("a.jsonl", '{"id": 1, "text": "x"}\n\n{"text": "y"}\n{"id": 3, "text": "z"}\n{"id": null, "text": "w"}\n'),
    ],
)
def test_a_record_without_an_id_is_named_and_lines_can_be_numbered(tmp_path, name, content) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(FileFormatError):
        list(read_items(file))
    items = list(read_items(file, id_field="line"))
    assert [item.text for item in items] == ["x", "y", "z", "w"]
    assert len({item.id for item in items}) == 4
    assert items[0].metadata["id"] in ("1", 1)
