"""Indexes copied to an object store and back, and opened there, over a real S3 API on loopback."""

from __future__ import annotations

import json
import random
import sys
import zlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur.core.errors import (
    DamagedIndex,
    IncompleteIndex,
    IndexMismatch,
    InputError,
    MissingExtra,
    NotAnIndex,
    StorageUnavailable,
)
from adacur.core.records import Item, Query
from adacur.index import IndexFolder, index_url, object_store, verify
from adacur.index.copying import copy_index, version_files
from adacur.index.object_store import ObjectStore, copies
from tests.editing import Edited
from tests.object_stores import BUCKET, Proxy

ITEMS = [Item(f"i{number}", f"text {number} of kind {number % 7}", {"n": number}) for number in range(130)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(24)]


def score(pairs):
    return [zlib.crc32(f"{query}\0{text}".encode()) / 2**28 - 8 for query, text in pairs]


@pytest.fixture
def here(tmp_path) -> adacur.AnchorIndex:
    options = {"scorer": score, "block_items": 20, "progress": False}
    return adacur.build(ITEMS, ANCHORS, path=tmp_path / "my.adacur", **options)


@pytest.fixture
def no_patience(monkeypatch):
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 1, "retry_timeout": timedelta(seconds=2)})


def test_a_path_is_a_url_only_where_it_begins_with_a_scheme() -> None:
    assert index_url("my.adacur") is None
    assert index_url(Path("a/b")) is None
    assert index_url("C:/indexes/my.adacur") is None
    assert index_url("s3://bucket/a/b/") == "s3://bucket/a/b"
    assert index_url(Path("s3://bucket/a/b")) == "s3://bucket/a/b"
    assert index_url("gs://bucket/a") == "gs://bucket/a"
    for unknown in ("ftp://host/a", "file:///a/b", "s4://bucket/a"):
        with pytest.raises(InputError, match=r"s3://, gs://, az://"):
            index_url(unknown)
    with pytest.raises(InputError, match=r"s3://bucket/my.adacur"):
        index_url("s3://bucket")


def test_an_index_at_a_url_is_copied_once_and_finds_the_same(s3_url, s3_endpoint, here, monkeypatch) -> None:
    copy_index(here.path, s3_url)
    requests = []
    with Proxy(s3_endpoint, lambda _, method, path: requests.append(path)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        there = adacur.load(s3_url, scorer=score)
        assert np.array_equal(there.matrix, here.matrix)
        assert there.items.at(range(len(ITEMS))) == ITEMS
        assert there.tunings == here.tunings != ()
        hits = [index.search("text 3 of kind 5", budget=40) for index in (there, here)]
        assert [(hit.id, hit.score) for hit in hits[0]] == [(hit.id, hit.score) for hit in hits[1]]
        assert verify(s3_url).ok
        assert sum("items.sqlite" in path for path in requests) == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    assert sorted(ObjectStore(s3_url).names()) == version_files(IndexFolder.open(here.path))


def test_a_new_version_at_a_url_is_copied_anew(s3_url, here) -> None:
    copy_index(here.path, s3_url)
    first = adacur.load(s3_url, scorer=score)
    Edited(here).remove(["i7"])
    for name in version_files(IndexFolder.open(here.path)):
        ObjectStore(s3_url).upload(here.path / name, name)
    second = adacur.load(s3_url, scorer=score)
    assert (first.version, len(first)) == (1, 130)
    assert (second.version, len(second)) == (2, 129)
    assert np.array_equal(second.matrix, here.matrix)


def test_a_changed_index_goes_there_and_back(s3_url, s3_endpoint, here, tmp_path, monkeypatch, no_patience) -> None:
    Edited(here).add([Item("new", "a new text")])
    Edited(here).remove(["i7"])
    down = True
    with Proxy(s3_endpoint, lambda _, method, path: 503 if down and "items.sqlite" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnavailable, match=r"items.sqlite"):
            copy_index(here.path, s3_url)
        with pytest.raises(NotAnIndex):
            adacur.load(s3_url)
        down = False
        copy_index(here.path, s3_url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    with pytest.raises(IndexMismatch, match=s3_url):
        copy_index(here.path, s3_url)
    copy_index(s3_url, tmp_path / "back")
    assert verify(tmp_path / "back").ok
    back = adacur.load(tmp_path / "back", scorer=score)
    assert (back.version, len(back)) == (3, 130)
    Edited(back).add([Item("newer", "a newer text")])
    assert np.array_equal(back.matrix[:130], here.matrix)
    with pytest.raises(IndexMismatch, match="back"):
        copy_index(s3_url, tmp_path / "back")
    for pair in ((here.path, tmp_path / "there"), (s3_url, f"{s3_url}-2")):
        with pytest.raises(InputError, match="URL"):
            copy_index(*pair)


def test_a_store_that_fails_a_tenth_of_the_time_gets_the_same_index(s3_url, s3_endpoint, here, monkeypatch) -> None:
    draw = random.Random(0)
    with Proxy(s3_endpoint, lambda *_: 503 if draw.random() < 0.1 else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        copy_index(here.path, s3_url)
        assert verify(s3_url).ok
    assert proxy.refused > 1


def test_only_files_of_an_index_are_copied_down(s3_url, here, tmp_path) -> None:
    copy_index(here.path, s3_url)
    (tmp_path / "evil").write_text("evil")
    strangers = ["notes.txt", "first/.hidden", "build.lock", "first/bm25/..\\..\\up", "parts/C:/x"]
    for name in strangers:
        ObjectStore(s3_url).upload(tmp_path / "evil", name)
    copy_index(s3_url, tmp_path / "back")
    files = {file.relative_to(tmp_path / "back").as_posix() for file in (tmp_path / "back").rglob("*")}
    assert not files & {"notes.txt", "build.lock"}
    assert not [file for file in (tmp_path / "back").rglob("*") if file.is_file() and file.read_bytes() == b"evil"]
    # Nor does a copy go where something else lies.
    ObjectStore(f"{s3_url}-2").upload(tmp_path / "evil", "notes.txt")
    with pytest.raises(IndexMismatch):
        copy_index(here.path, f"{s3_url}-2")


def test_a_chunk_that_is_missing_in_the_store_is_named_before_the_copy_is_used(s3_url, here, tmp_path) -> None:
    names = [name for name in version_files(IndexFolder.open(here.path)) if name != "scores.zarr/c/3/0"]
    for name in names:
        ObjectStore(s3_url).upload(here.path / name, name)
    with pytest.raises(DamagedIndex, match=r"scores.zarr/c/3/0"):
        adacur.load(s3_url)
    assert not list(copies().glob("*.partial"))
    with pytest.raises(DamagedIndex, match=r"scores.zarr/c/3/0"):
        copy_index(s3_url, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_index_is_built_and_changed_in_a_folder_only(s3_url, here) -> None:
    copy_index(here.path, s3_url)
    index = adacur.load(s3_url, scorer=score)
    for change in (
        lambda: Edited(index).add([Item("new", "new")]),
        lambda: Edited(index).remove(["i1"]),
        lambda: index.save(f"{s3_url}-2"),
        lambda: adacur.build(ITEMS, ANCHORS, scorer=score, path=f"{s3_url}-2", progress=False),
        lambda: adacur.build(ITEMS, ANCHORS, scorer=score, path=Path(f"{s3_url}-2"), dry_run=True),
    ):
        with pytest.raises(InputError, match="folder"):
            change()


def test_what_is_not_a_finished_index_is_refused(s3_url, tmp_path) -> None:
    store, manifest = ObjectStore(s3_url), tmp_path / "manifest.json"
    with pytest.raises(NotAnIndex, match=r"manifest.json"):
        adacur.load(s3_url)
    for content, error in (
        ({"type": "something"}, NotAnIndex),
        ([], NotAnIndex),
        ({"type": "adacur_index", "format": 1, "status": "building"}, IncompleteIndex),
    ):
        manifest.write_text(json.dumps(content))
        store.upload(manifest, "manifest.json")
        with pytest.raises(error, match=s3_url):
            adacur.load(s3_url)


def test_wrong_credentials_and_a_missing_bucket_are_one_clear_error(
    s3_url, s3_endpoint, monkeypatch, no_patience
) -> None:
    with pytest.raises(StorageUnavailable, match=r"no bucket 'nobody'"):
        adacur.load("s3://nobody/my.adacur")
    with Proxy(s3_endpoint, lambda *_: 403) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnavailable, match=r"manifest.json.*AWS_ACCESS_KEY_ID"):
            adacur.load(s3_url)


def test_without_the_extra_the_install_command_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r" install .*\[object-store\]'"):
        adacur.load(f"s3://{BUCKET}/my.adacur")
