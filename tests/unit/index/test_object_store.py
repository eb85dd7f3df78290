"""An index in an object store, over a real S3 API on loopback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur.core.errors import (
    AdacurError,
    DamagedIndex,
    IncompleteIndex,
    IndexLocked,
    IndexMismatch,
    InputError,
    MissingExtra,
    NotAnIndex,
    StorageUnavailable,
)
from adacur.core.records import Item, Query
from adacur.index import IndexFolder, build_scores, object_store, verify
from adacur.index.copying import copy_index
from adacur.index.mirror import located
from adacur.index.object_store import ObjectPlace, WriterLock, index_url
from adacur.scorers import FunctionScorer
from tests.editing import Edited
from tests.object_stores import BUCKET, Proxy

ITEMS = [Item(f"i{number}", f"text {number} of kind {number % 7}", {"n": number}) for number in range(130)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(24)]
BLOCK = 20
N_BLOCKS = 7


def score(pairs):
    return [zlib.crc32(f"{query}\0{text}".encode()) / 2**28 - 8 for query, text in pairs]


def build(path, scorer=score, **options) -> IndexFolder:
    items = options.pop("items", ITEMS)
    options.setdefault("block_items", BLOCK)
    return build_scores(items, ANCHORS, scorer=FunctionScorer(scorer, name="checks"), path=path, **options)


class Counted:
    """Counts the blocks it scores; tired of it after a while."""

    def __init__(self, stops_after: int = 10**9) -> None:
        self.blocks = 0
        self._stops_after = stops_after

    def __call__(self, pairs):
        if len(pairs) > 8:
            if self.blocks == self._stops_after:
                raise RuntimeError("that is enough")
            self.blocks += 1
        return score(pairs)


def files_of(folder: Path) -> list[str]:
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if file != "build.lock")


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> IndexFolder:
    return build(tmp_path_factory.mktemp("local") / "my.adacur")


@pytest.fixture
def another_machine(tmp_path, monkeypatch):
    def move(name: str = "another") -> None:
        monkeypatch.setenv("ADACUR_CACHE", str(tmp_path / name))

    return move


@pytest.fixture
def no_patience(monkeypatch):
    from datetime import timedelta

    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 1, "retry_timeout": timedelta(seconds=2)})


def test_a_path_is_a_url_only_where_it_begins_with_a_scheme():
    assert index_url("my.adacur") is None
    assert index_url(Path("a/b")) is None
    assert index_url("C:/indexes/my.adacur") is None
    assert index_url("s3://bucket/a/b/") == "s3://bucket/a/b"
    assert index_url(Path("s3://bucket/a/b")) == "s3://bucket/a/b"
    assert index_url("gs://bucket/a") == "gs://bucket/a"
    for unknown in ("ftp://host/a", "file:///a/b", "s4://bucket/a"):
        with pytest.raises(InputError, match=r"begins with s3://, gs://, az://"):
            index_url(unknown)
    with pytest.raises(InputError, match=r"Name a place within the bucket, such as s3://bucket/my.adacur"):
        index_url("s3://bucket")


def test_an_index_in_a_store_equals_the_one_in_a_folder(s3_url, another_machine, tmp_path):
    options = {"scorer": score, "block_items": BLOCK, "progress": False}
    here = adacur.build(ITEMS, ANCHORS, path=tmp_path / "my.adacur", **options)
    there = adacur.build(ITEMS, ANCHORS, path=s3_url, **options)
    assert repr(there).endswith(f"at {s3_url!r})")
    another_machine()
    opened = adacur.load(s3_url, scorer=score)
    for one in (there, opened):
        assert np.array_equal(one.matrix, here.matrix)
        assert one.items.at(range(len(ITEMS))) == ITEMS
        assert one.tunings == here.tunings != ()
        found, expected = one.search("text 3 of kind 5", budget=40), here.search("text 3 of kind 5", budget=40)
        assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in expected]
    assert verify(s3_url).ok
    assert sorted(ObjectPlace(s3_url).names()) == files_of(tmp_path / "my.adacur")


def test_a_finished_index_is_opened_and_not_built_again(s3_url, another_machine):
    build(s3_url)
    another_machine()
    counted = Counted()
    assert build(s3_url, counted).manifest.status == "complete"
    assert counted.blocks == 0
    with pytest.raises(IndexMismatch, match=r"my\.adacur was built from something else: item 'i3'"):
        build(s3_url, items=[*ITEMS[:3], Item("i3", "other"), *ITEMS[4:]])


def test_a_store_that_fails_a_tenth_of_the_time_gives_the_same_index(s3_url, s3_endpoint, local, monkeypatch):
    draw = random.Random(0)
    with Proxy(s3_endpoint, lambda *_: 503 if draw.random() < 0.1 else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        built = build(s3_url, block_items=5)
        assert np.array_equal(built.matrix, local.matrix)
        assert verify(s3_url).ok
    assert proxy.refused > 5


@pytest.mark.parametrize("same_machine", [True, False])
def test_a_killed_build_goes_on_where_it_stopped(s3_url, another_machine, local, same_machine, monkeypatch):
    script = """
import os, signal, sys
from tests.unit.index.test_object_store import Counted, build
counted = Counted()
def killed(pairs):
    if counted.blocks == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(pairs)
build(sys.argv[1], killed)
"""
    ended = subprocess.run([sys.executable, "-c", script, s3_url], cwd=Path(__file__).parents[3])
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(IncompleteIndex, match=r"has not finished: [345] blocks are done"):
        located(s3_url)
    if not same_machine:
        another_machine()
        with pytest.raises(IndexLocked, match=r"last heard of \d+ s ago.*lapses after 120 s"):
            build(s3_url)
        monkeypatch.setattr(object_store, "_LAPSES", -1.0)
    counted = Counted()
    assert np.array_equal(build(s3_url, counted).matrix, local.matrix)
    # Five were begun; the last was being scored and the one before perhaps being written.
    assert N_BLOCKS - 5 <= counted.blocks <= N_BLOCKS - 3
    assert not [name for name in ObjectPlace(s3_url).names() if name.startswith(("finished", "build.lock"))]


def test_a_build_goes_on_elsewhere_only_with_the_same_items(s3_url, another_machine, local):
    with pytest.raises(AdacurError, match="that is enough"):
        build(s3_url, Counted(stops_after=3))
    another_machine()
    for _ in range(2):
        with pytest.raises(IndexMismatch, match="the items, or their order, are others"):
            build(s3_url, items=ITEMS[::-1])
    with pytest.raises(IndexMismatch, match="dtype: 'float32' in the folder, 'float16' now"):
        build(s3_url, dtype="float16")
    # The last chunk is not full, and some versions of zarr read such a one before they write it.
    ObjectPlace(s3_url).write("scores.zarr/c/6/0", b"damaged")
    counted = Counted()
    assert np.array_equal(build(s3_url, counted).matrix, local.matrix)
    assert counted.blocks == N_BLOCKS - 3


def test_several_processes_write_to_the_store_themselves(s3_url, local):
    built = build(s3_url, workers=2)
    assert np.array_equal(built.matrix, local.matrix)


class OnNodes:
    """Scores, on nodes that have keys to the store in their environment."""

    def __reduce__(self):
        return _on_a_node, ({name: os.environ[name] for name in os.environ if name.startswith("AWS_")},)

    def __call__(self, pairs):
        return score(pairs)


def _on_a_node(keys):
    os.environ.update(keys)
    return OnNodes()


def test_ray_actors_write_to_the_store_themselves(s3_url, local, ray_cluster):
    built = build(s3_url, OnNodes(), engine="ray", workers=2)
    assert np.array_equal(built.matrix, local.matrix)


def test_a_second_writer_is_refused_and_a_silent_one_taken_over(s3_url, monkeypatch):
    monkeypatch.setattr(object_store, "_RENEWED", 0.2)
    place = ObjectPlace(s3_url)
    with WriterLock(place, cache="one").held() as first:
        with (
            pytest.raises(IndexLocked, match="Another process is writing to s3://"),
            WriterLock(place, cache="2").held(),
        ):
            pass
        time.sleep(1.2)
        first.check()
        # Now it is taken for dead.
        monkeypatch.setattr(object_store, "_LAPSES", -1.0)
        with WriterLock(place, cache="two").held() as second:
            _until(lambda: first._lost)
            with pytest.raises(IndexLocked, match="taken over"):
                first.check()
            second.check()
    assert place.read("build.lock") is None


def test_a_lock_of_a_process_of_this_machine_that_died_is_taken_over_at_once(s3_url):
    place = ObjectPlace(s3_url)
    lock = WriterLock(place, cache="the same")
    lock._acquire(time.monotonic())
    with WriterLock(place, cache="the same").held() as other:
        other.check()


def test_two_builds_at_once_are_refused(s3_url, another_machine, local):
    begun, go_on = threading.Event(), threading.Event()

    def waits(pairs):
        begun.set()
        go_on.wait(30)
        return score(pairs)

    built = []
    first = threading.Thread(target=lambda: built.append(build(s3_url, waits)))
    first.start()
    try:
        assert begun.wait(30)
        with pytest.raises(IndexLocked, match="of this machine is writing to s3://"):
            build(s3_url)
        another_machine()
        with pytest.raises(IndexLocked, match="last heard of"):
            build(s3_url)
    finally:
        # Back where the first build runs, whose cache alone holds its folder.
        another_machine("cache")
        go_on.set()
        first.join()
    assert np.array_equal(built[0].matrix, local.matrix)


def test_an_object_deleted_under_an_index_is_named(s3_url, another_machine):
    build(s3_url)
    place = ObjectPlace(s3_url)
    place.remove(["scores.zarr/c/3/0"])
    with pytest.raises(DamagedIndex, match=r"Block 3 .* of s3://.*its chunk is missing, file scores.zarr/c/3/0"):
        _ = IndexFolder.open(s3_url).matrix
    assert [problem.file for problem in verify(s3_url).problems] == ["scores.zarr/c/3/0"]
    place.remove(["items.sqlite"])
    another_machine()
    with pytest.raises(DamagedIndex, match=r"s3://.*/items.sqlite is missing"):
        IndexFolder.open(s3_url)


def test_what_one_machine_adds_to_an_index_the_others_find(s3_url, another_machine):
    adacur.build(ITEMS, ANCHORS, scorer=score, path=s3_url, block_items=BLOCK, first=[], tune=False, progress=False)
    place = ObjectPlace(s3_url)
    another_machine("b")
    kept_open = adacur.load(s3_url, scorer=score)
    assert kept_open.first_stages == ("random",)
    another_machine("a")
    here = adacur.build(ITEMS, ANCHORS, scorer=score, path=s3_url, first=["bm25"], progress=False)
    here.tune(k=5, budget=30, queries=20, quick=True)
    here.compress(rank=4, k=5, budget=30)
    another_machine("b")
    there = adacur.load(s3_url, scorer=score)
    assert there.first_stages == ("bm25", "random")
    assert [one.k for one in there.tunings] == [5]
    assert not list((there.path / "gaussian").glob("*.unfinished"))
    assert verify(s3_url).ok
    expected = [hit.id for hit in here.search("text 3", 5, budget=30)]
    assert [hit.id for hit in there.search("text 3", 5, budget=30)] == expected
    assert there.decompress()
    assert not [name for name in place.names() if name.startswith("gaussian")]
    another_machine("a")
    assert not (adacur.load(s3_url).path / "gaussian").exists()


def test_what_is_half_written_in_the_store_is_not_seen(s3_url, another_machine):
    adacur.build(ITEMS, ANCHORS, scorer=score, path=s3_url, tune=False, progress=False)
    place = ObjectPlace(s3_url)
    checksums = place.read("first/bm25/checksums.json")
    place.remove(["first/bm25/checksums.json"])
    another_machine()
    assert adacur.load(s3_url).first_stages == ("random",)
    place.write("first/bm25/checksums.json", checksums)
    assert adacur.load(s3_url).first_stages == ("bm25", "random")
    place.write("first/bm25/ids.json", b"[]")
    with pytest.raises(DamagedIndex, match=r"s3://.*/first/bm25/ids.json: its content is not what was written"):
        adacur.load(s3_url)


def test_a_copy_in_the_cache_that_lost_files_is_fetched_again(s3_url):
    adacur.build(ITEMS, ANCHORS, scorer=score, path=s3_url, tune=False, progress=False)
    folder = located(s3_url)
    objects = sorted(ObjectPlace(s3_url).names())
    (folder / "first" / "bm25" / "ids.json").unlink()
    (folder / "items.sqlite").write_bytes(b"")
    assert verify(s3_url).ok
    adacur.load(s3_url).tune(k=5, budget=30, queries=20, quick=True)
    assert sorted(ObjectPlace(s3_url).names()) == sorted([*objects, "tuned.json"])


def test_what_could_not_be_put_into_the_store_is_put_there_next_time(s3_url, s3_endpoint, monkeypatch, no_patience):
    down = True
    options = {"scorer": score, "path": s3_url, "first": ["bm25"], "tune": False, "progress": False}
    with Proxy(s3_endpoint, lambda _, method, path: 503 if down and "bm25/ids" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnavailable, match=r"first/bm25/ids.json: the store does not do what was asked"):
            adacur.build(ITEMS, ANCHORS, **options)
        assert adacur.load(s3_url).first_stages == ("bm25", "random")
        down = False
        monkeypatch.setattr(adacur.BM25, "build", None)
        adacur.load(s3_url).tune(k=5, budget=30, queries=20, quick=True)
        assert ObjectPlace(s3_url).read("first/bm25/checksums.json")


def test_a_store_that_stays_away_is_one_clear_error_and_the_build_goes_on_later(
    s3_url,
    s3_endpoint,
    local,
    monkeypatch,
    no_patience,
):
    down = False
    counted = Counted()

    def goes_down(pairs):
        nonlocal down
        down = counted.blocks >= 3
        return counted(pairs)

    with Proxy(s3_endpoint, lambda *_: 503 if down else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnavailable) as told:
            build(s3_url, goes_down)
        assert s3_url in str(told.value)
        assert "of 7 blocks are safely stored; the same build again continues where it stopped." in str(told.value)
        down = False
        assert np.array_equal(build(s3_url).matrix, local.matrix)


def test_wrong_credentials_and_a_missing_bucket_are_one_clear_error(s3_url, s3_endpoint, monkeypatch, no_patience):
    with pytest.raises(StorageUnavailable, match=r"there is no bucket 'nobody'. Create it, or check the URL"):
        build("s3://nobody/my.adacur")
    with pytest.raises(StorageUnavailable, match="there is no bucket 'nobody'"):
        adacur.load("s3://nobody/my.adacur")
    with Proxy(s3_endpoint, lambda *_: 403) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        for use in (build, adacur.load):
            with pytest.raises(StorageUnavailable, match=r"manifest.json: the store refuses. Check the credentials"):
                use(s3_url)


def test_an_index_that_may_only_be_read_is_opened_searched_and_tuned(s3_url, s3_endpoint, another_machine, monkeypatch):
    adacur.build(ITEMS, ANCHORS, scorer=score, path=s3_url, tune=False, progress=False)
    another_machine()
    with Proxy(s3_endpoint, lambda _, method, path: None if method in ("GET", "HEAD") else 403) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        index = adacur.load(s3_url, scorer=score)
        index.tune(k=5, budget=30, queries=20, quick=True)
        assert [one.k for one in index.tunings] == [5]
        assert len(index.search("text 3", 5, budget=30)) == 5
        assert ObjectPlace(s3_url).read("tuned.json") is None


def test_where_there_is_no_index_that_is_said(s3_url):
    with pytest.raises(NotAnIndex, match=r"s3://.* is not an index: it has no manifest.json"):
        adacur.load(s3_url)
    ObjectPlace(s3_url).write("notes/today.txt", b"mine")
    with pytest.raises(NotAnIndex, match=r"s3://.* holds other objects, such as notes,"):
        build(s3_url)
    ObjectPlace(s3_url).write("manifest.json", json.dumps({"type": "something"}).encode())
    with pytest.raises(NotAnIndex, match=r"manifest.json is not one of adacur's"):
        adacur.load(s3_url)


def test_an_index_in_a_store_is_changed_in_a_folder(s3_url, tmp_path):
    build(s3_url)
    index = adacur.load(s3_url, scorer=score)
    for change in (
        lambda: Edited(index).add([Item("new", "new")]),
        lambda: Edited(index).remove(["i1"]),
        Edited(index).compact,
        lambda: index.save(f"{s3_url}-2"),
    ):
        with pytest.raises(InputError, match=r"takes a folder, and s3://.* is in an object store"):
            change()


def test_a_copy_goes_there_and_back_with_all_it_has(s3_url, s3_endpoint, tmp_path, monkeypatch, no_patience):
    options = {"scorer": score, "block_items": BLOCK, "progress": False}
    here = adacur.build(ITEMS, ANCHORS, path=tmp_path / "here", **options)
    # A changed index has parts and versions, which lie in the store as they do here.
    here.add([Item("new", "a new text")], progress=False)
    here.remove(["i7"])
    down = True
    with Proxy(s3_endpoint, lambda _, method, path: 503 if down and "items.sqlite" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnavailable, match=r"items.sqlite"):
            copy_index(tmp_path / "here", s3_url)
        with pytest.raises(NotAnIndex):
            located(s3_url)
        down = False
        copy_index(tmp_path / "here", s3_url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    with pytest.raises(IndexMismatch, match="is in use already"):
        copy_index(tmp_path / "here", s3_url)
    there = adacur.load(s3_url, scorer=score)
    assert (there.version, len(there)) == (3, 130)
    assert np.array_equal(there.matrix, here.matrix)
    assert verify(s3_url).ok
    copy_index(s3_url, tmp_path / "back")
    assert verify(tmp_path / "back").ok
    back = adacur.load(tmp_path / "back", scorer=score)
    back.add([Item("newer", "a newer text")], progress=False)
    assert np.array_equal(back.matrix[:130], here.matrix)
    for pair in ((tmp_path / "here", tmp_path / "there"), (s3_url, f"{s3_url}-2")):
        with pytest.raises(InputError, match="One of the two is a URL"):
            copy_index(*pair)


def test_without_the_extra_the_line_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r" install .*\[object-store\]'"):
        adacur.load(f"s3://{BUCKET}/my.adacur")


def _until(condition) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)
