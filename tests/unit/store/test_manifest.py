from __future__ import annotations

import json
import os

import pytest

from adacur.errors import IndexFolderError, NotAnIndex, OtherFormat
from adacur.protocols import ScorerCard
from adacur.store import IndexFolder, Manifest, Origin
from adacur.store.manifest import FORMAT, Probe, manifest_in, write_manifest


def manifest(**changed) -> Manifest:
    card = ScorerCard(name="m", backend="onnx", weights="abc", dtype="int8", max_tokens=512, source="somewhere")
    told = {
        "status": "complete",
        "n_items": 25,
        "n_anchors": 3,
        "dtype": "float16",
        "block_items": 10,
        "items_digest": "aa",
        "anchors_digest": "bb",
        "scorer": card,
        "seed": 7,
        "probes": (Probe(item=3, anchor=1, score=-0.1),),
    }
    return Manifest(**(told | changed))


@pytest.mark.parametrize("scorer", [None, ScorerCard(name="f", backend="function")])
def test_what_is_written_is_what_is_read(tmp_path, scorer) -> None:
    written = manifest(scorer=scorer)
    write_manifest(tmp_path, written)
    assert manifest_in(tmp_path) == written
    assert {"adacur", "numpy", "python"} == set(written.packages)


def test_the_fields_of_the_file_are_remembered(tmp_path) -> None:
    written = manifest(origin=Origin(None, ("text",)))
    write_manifest(tmp_path, written)
    assert manifest_in(tmp_path) == written
    file = tmp_path / "manifest.json"
    whole = json.loads(file.read_text())
    for changed in ({"text_fields": "text"}, {"text_fields": [1]}, {"id_field": 7}):
        file.write_text(json.dumps(whole | {"origin": whole["origin"] | changed}))
        with pytest.raises(IndexFolderError, match="manifest"):
            manifest_in(tmp_path)


def test_blocks_cover_every_item_once() -> None:
    whole = manifest()
    assert [list(whole.block(number)) for number in range(whole.n_blocks)] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]


def test_a_manifest_that_could_not_be_written_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    write_manifest(tmp_path, manifest(seed=1))

    def no_power(descriptor: int) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", no_power)
    with pytest.raises(OSError, match="power cut"):
        write_manifest(tmp_path, manifest(seed=2))
    assert manifest_in(tmp_path).seed == 1
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_a_missing_folder_and_a_foreign_folder_are_told_apart(tmp_path) -> None:
    with pytest.raises(NotAnIndex, match="does not exist"):
        IndexFolder.open(tmp_path / "nowhere")
    with pytest.raises(NotAnIndex, match=r"no manifest\.json"):
        IndexFolder.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"name": "a web app", "icons": []}',
        b'{"type": "adacur_index"}',
        b'{"type": "adacur_index", "format": "one"}',
        b"\xff\xfe\x00",
    ],
)
def test_a_manifest_of_another_kind_is_not_an_index(tmp_path, content) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(NotAnIndex, match=r"manifest\.json"):
        IndexFolder.open(tmp_path)


@pytest.mark.parametrize(
    "changed", [{"status": "done"}, {"dtype": "bfloat16"}, {"n_items": 0}, {"block_items": "x"}, {"probes": [1]}]
)
def test_values_that_no_build_writes_are_refused(tmp_path, changed) -> None:
    write_manifest(tmp_path, manifest())
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(NotAnIndex):
        manifest_in(tmp_path)


@pytest.mark.parametrize("other", [1, FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_with_both_numbers_whatever_else_it_says(tmp_path, other) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"type": "adacur_index", "format": other}))
    with pytest.raises(OtherFormat) as refused:
        IndexFolder.open(tmp_path)
    assert all(str(number) in str(refused.value) for number in (other, FORMAT))


def test_fields_that_a_later_version_adds_are_passed_over(tmp_path) -> None:
    write_manifest(tmp_path, manifest())
    file = tmp_path / "manifest.json"
    told = json.loads(file.read_text())
    told["scorer"]["temperature"] = 2
    file.write_text(json.dumps(told | {"later": True}))
    assert manifest_in(tmp_path).scorer == manifest().scorer
