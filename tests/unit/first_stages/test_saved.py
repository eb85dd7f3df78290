from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from adacur.errors import NotAnIndex, OtherFormat, UnknownName
from adacur.first_stages import load_first_stage
from adacur.first_stages.saved import StoredIds, read_ids, write_ids
from adacur.seeds import item_keys


def test_an_unknown_kind_names_the_known_ones(tmp_path) -> None:
    (tmp_path / "retriever.json").write_text(json.dumps({"kind": "splade", "format": 1}))
    with pytest.raises(UnknownName):
        load_first_stage(tmp_path)


def test_another_format_is_refused(tmp_path) -> None:
    (tmp_path / "retriever.json").write_text(json.dumps({"kind": "bm25", "format": 2}))
    with pytest.raises(OtherFormat):
        load_first_stage(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_without_a_description_is_refused(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "retriever.json").write_text(content)
    with pytest.raises(NotAnIndex):
        load_first_stage(tmp_path)


def test_importing_the_room_costs_numpy_only() -> None:
    code = (
        "import sys, adacur.first_stages as room; [getattr(room, name) for name in room.__all__];"
        "heavy = {'bm25s', 'Stemmer', 'onnxruntime', 'tokenizers', 'torch', 'sentence_transformers', 'sklearn'};"
        "heavy.add('scipy');"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_are_read_one_at_a_time_from_the_disk(tmp_path) -> None:
    ids = ("a", "", "schön", "日本", "x" * 1000)
    write_ids(tmp_path, ids)
    stored = read_ids(tmp_path)
    assert isinstance(stored, StoredIds)
    assert tuple(stored) == ids
    assert [stored[at] for at in (-1, 0, 1, 2, 3)] == ["x" * 1000, "a", "", "schön", "日本"]
    assert list(stored[1:4]) == ["", "schön", "日本"]
    with pytest.raises(IndexError):
        stored[5]
    # Over the very files that are read.
    write_ids(tmp_path, stored)
    assert tuple(read_ids(tmp_path)) == ids


def test_the_keys_of_ids_are_stored(tmp_path) -> None:
    ids = ("a", "", "schön")
    write_ids(tmp_path, ids)
    assert read_ids(tmp_path).keys.tolist() == item_keys(ids).tolist()
    np.save(tmp_path / "ids_keys.npy", item_keys(ids[:2]))
    with pytest.raises(ValueError, match="ids_keys"):
        read_ids(tmp_path)


def test_many_ids_are_read_in_blocks(tmp_path) -> None:
    ids = tuple(str(number) for number in range(150_000))
    write_ids(tmp_path, ids)
    assert tuple(read_ids(tmp_path)) == ids
    (tmp_path / "ids.utf8").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"ids\.utf8"):
        read_ids(tmp_path)
