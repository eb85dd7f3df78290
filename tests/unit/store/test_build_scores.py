from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import (
    DuplicateId,
    EmptyInput,
    IndexFolderError,
    IndexMismatch,
    InputError,
    NonFiniteScore,
    NotAnIndex,
    ScoreCountError,
    ScorerFailed,
)
from adacur.records import Item, Query
from adacur.scorers.function import FunctionScorer
from adacur.scorers.known import MatrixScorer
from adacur.store import IndexFolder, Progress, build_scores, verify
from adacur.store.blocks import largest_block


class Carded:
    """A scorer under another name, that may fail on the way."""

    def __init__(self, scorer, *, fail_after: int | None = None, error: Exception | None = None, **card) -> None:
        self.scorer = scorer
        self.card = replace(scorer.card, **card)
        self.fail_after = fail_after
        self.error = error or ValueError("out of luck")
        self.grids: list[str] = []

    def score(self, pairs):
        return self.scorer.score(pairs)

    def score_grid(self, queries, items):
        if self.fail_after is not None and len(self.grids) >= self.fail_after:
            raise self.error
        self.grids.append(items[0].id)
        return self.scorer.score_grid(queries, items)


def content(folder: Path) -> dict[str, bytes]:
    """Everything in a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def begin(known, path: Path, *, blocks: int = 2, **options) -> None:
    with pytest.raises(ScorerFailed):
        known.build(path, **({"scorer": Carded(known.scorer, fail_after=blocks)} | options))


# --- the whole of it


def test_items_may_come_from_a_generator_and_anchors_as_texts(tmp_path) -> None:
    scorer = FunctionScorer(lambda pairs: [len(query) * len(text) for query, text in pairs], name="lengths")
    items = (Item(f"i{size}", "x" * size) for size in range(1, 30))
    folder = build_scores(items, iter(["a", "bb"]), scorer=scorer, path=str(tmp_path / "index"))
    assert folder.matrix.tolist() == [[size, 2 * size] for size in range(1, 30)]


def test_a_block_size_is_chosen_where_none_is_given(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index", block_items=None)
    assert 16 <= folder.manifest.block_items <= 53
    assert folder.matrix.tolist() == known.scores.T.tolist()


def test_a_chunk_is_at_most_32_mb(known) -> None:
    assert largest_block(100, np.dtype("float32")) == 8192
    assert largest_block(10_000, np.dtype("float32")) == 838
    assert largest_block(10_000, np.dtype("float16")) == 1677
    assert largest_block(10**9, np.dtype("float32")) == 1


def test_progress_counts_blocks_and_the_pairs_of_this_run(known, tmp_path) -> None:
    begin(known, tmp_path / "index", blocks=2)
    progress = Progress()
    known.build(tmp_path / "index", progress=progress)
    assert (progress.blocks_done, progress.blocks, progress.scored) == (6, 6, 371 - 140)


def test_memory_stays_far_below_the_collection(tmp_path) -> None:
    count = 60_000
    one = Item("i000000", "text number 000000")
    collection = count * (sys.getsizeof(one) + sys.getsizeof(one.id) + sys.getsizeof(one.text))
    anchors = [Query("a", "anchor"), Query("b", "anchor")]

    class Zero:
        card = MatrixScorer(["a"], ["i"], [[0.0]]).card

        def score(self, pairs):
            raise AssertionError("the grid is asked")

        def score_grid(self, queries, items):
            return np.full((len(queries), len(items)), float(items[0].id[1:]), dtype=np.float32)

    def build() -> IndexFolder:
        items = (Item(f"i{number:06}", f"text number {number:06}") for number in range(count))
        return build_scores(items, anchors, scorer=Zero(), path=tmp_path / "index", block_items=2048)

    known_imports = tmp_path / "warm"
    build_scores([one], anchors, scorer=Zero(), path=known_imports, block_items=1)
    tracemalloc.start()
    try:
        build()
        peak_of_build = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        build()
        peak_of_comparison = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert verify(tmp_path / "index").ok
        peak_of_verification = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(peak_of_build, peak_of_comparison, peak_of_verification) < collection / 6


# --- the door


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([], EmptyInput),
        ([Item("x", "one"), Item("y", "two"), Item("x", "three")], DuplicateId),
        ([Item("x", "one"), Item("y", " \n")], EmptyInput),
        ([Item("x", "one"), "two"], InputError),
        ([Item(1, "one")], InputError),
        ([Item("x", None)], InputError),
        ([Item("x", "\ud800")], InputError),
        ([Item("x", "one", {"when": object()})], InputError),
    ],
)
def test_items_that_cannot_be_used_leave_no_folder_behind(known, tmp_path, items, error) -> None:
    with pytest.raises(error):
        build_scores(items, known.anchors, scorer=known.scorer, path=tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_collection_itself_is_passed_on_and_leaves_no_folder(known, tmp_path) -> None:
    def torn():
        yield Item("x", "one")
        raise EOFError("the file ends here")

    with pytest.raises(EOFError):
        build_scores(torn(), known.anchors, scorer=known.scorer, path=tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_and_empty_is_emptied_again_but_stays(tmp_path, known) -> None:
    with pytest.raises(EmptyInput):
        build_scores([], known.anchors, scorer=known.scorer, path=tmp_path)
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []
    assert known.build(tmp_path).matrix.shape == (53, 7)


@pytest.mark.parametrize(
    ("anchors", "options", "error"),
    [
        ([], {}, EmptyInput),
        ([Query("a", "one"), Query("a", "two")], {}, DuplicateId),
        (["one", "one"], {}, DuplicateId),
        ([Query("a", " ")], {}, EmptyInput),
        ("one text", {}, InputError),
        (["one"], {"dtype": "bfloat16"}, InputError),
        (["one"], {"dtype": "int8"}, InputError),
        (["one"], {"block_items": 0}, InputError),
        (["one"], {"seed": -1}, InputError),
        (["one"], {"seed": 1.5}, InputError),
    ],
)
def test_anchors_and_settings_that_cannot_be_used_leave_no_folder_behind(
    known, tmp_path, anchors, options, error
) -> None:
    with pytest.raises(error):
        build_scores(known.items, anchors, scorer=known.scorer, path=tmp_path / "index", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_and_a_file_are_refused_and_not_touched(known, tmp_path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "items.sqlite").write_bytes(b"years of work")
    (tmp_path / "file").write_bytes(b"x")
    before = content(tmp_path)
    for name in ("thesis", "file"):
        with pytest.raises(NotAnIndex):
            known.build(tmp_path / name)
    assert content(tmp_path) == before


# --- the scorer


def test_errors_of_our_own_are_not_wrapped(known, tmp_path) -> None:
    with pytest.raises(ScoreCountError):
        known.build(tmp_path / "index", scorer=Carded(known.scorer, fail_after=1, error=ScoreCountError("few")))


def test_a_score_that_is_not_a_number_is_named_and_not_stored(known, tmp_path) -> None:
    known.scores[4, 33] = 0
    broken = known.scores.copy()
    broken[4, 33] = np.nan
    scorer = Carded(known.scorer)
    scorer.score_grid = lambda queries, items: broken[:, [int(item.id[1:]) for item in items]]
    with pytest.raises(NonFiniteScore):
        known.build(tmp_path / "index", scorer=scorer)
    assert known.build(tmp_path / "index").matrix.tolist() == known.scores.T.tolist()


def test_a_score_too_large_for_half_precision_is_named(known, tmp_path) -> None:
    known.scores[2, 15] = 1e5
    with pytest.raises(InputError):
        known.build(tmp_path / "index", dtype="float16")


def test_scores_that_half_precision_would_all_make_nought_are_refused(known, tmp_path) -> None:
    known.scores[:] *= 1e-9 / np.abs(known.scores).max()
    with pytest.raises(InputError):
        known.build(tmp_path / "index", dtype="float16")
    assert known.build(tmp_path / "other").matrix.any()


# --- resuming


def test_a_finished_build_is_returned_without_a_call_or_a_change(known, tmp_path) -> None:
    known.build(tmp_path / "index")
    before = content(tmp_path)
    scorer = known.metered
    folder = known.build(tmp_path / "index", scorer=scorer)
    assert scorer.calls == 0
    assert content(tmp_path) == before
    assert folder.matrix.tolist() == known.scores.T.tolist()


def test_where_the_scorer_was_opened_from_does_not_matter(known, tmp_path) -> None:
    begin(known, tmp_path / "index")
    known.build(tmp_path / "index", scorer=Carded(known.scorer, source="moved/elsewhere"))


def test_the_block_size_a_build_began_with_is_kept(known, tmp_path) -> None:
    begin(known, tmp_path / "index")
    assert known.build(tmp_path / "index", block_items=3).manifest.block_items == 10


CHANGES = {
    "fewer items": lambda known: (replace(known, items=known.items[:-1]), {}),
    "more items": lambda known: (replace(known, items=[*known.items, Item("new", "new")]), {}),
    "other order": lambda known: (replace(known, items=known.items[::-1]), {}),
    "other text": lambda known: (replace(known, items=[*known.items[:-1], replace(known.items[-1], text="else")]), {}),
    "other anchors": lambda known: (replace(known, anchors=known.anchors[::-1]), {}),
    "fewer anchors": lambda known: (replace(known, anchors=known.anchors[1:]), {}),
    "other dtype": lambda known: (known, {"dtype": "float16"}),
}
OTHER_CARDS = [{"name": "b"}, {"weights": "0"}, {"dtype": "int8"}, {"max_tokens": 9}, {"max_item_tokens": 9}]


@pytest.mark.parametrize("change", [*CHANGES, *OTHER_CARDS, {"backend": "onnx"}], ids=str)
@pytest.mark.parametrize("complete", [False, True])
def test_a_build_is_not_continued_with_anything_else(known, tmp_path, change, complete) -> None:
    if complete:
        known.build(tmp_path / "index")
    else:
        begin(known, tmp_path / "index")
    before = content(tmp_path)
    other_card = isinstance(change, dict)
    changed, options = (known, {"scorer": Carded(known.scorer, **change)}) if other_card else CHANGES[change](known)
    with pytest.raises(IndexMismatch):
        changed.build(tmp_path / "index", **({"scorer": known.scorer} | options))
    assert content(tmp_path) == before
    assert known.build(tmp_path / "index").matrix.tolist() == known.scores.T.tolist()


def test_a_file_that_is_not_whole_is_scored_again(known, tmp_path) -> None:
    begin(known, tmp_path / "index", blocks=5)
    scores = tmp_path / "index/parts/built/scores"
    (scores / "5.npy.partial").write_bytes(b"\0" * 17)
    resumed = Carded(known.scorer)
    folder = known.build(tmp_path / "index", scorer=resumed)
    assert resumed.grids == ["i50"]
    assert folder.matrix.tolist() == known.scores.T.tolist()
    assert {file.name for file in scores.iterdir()} == {f"{block}.npy" for block in range(6)}


def test_a_crash_before_the_items_are_in_starts_them_over(known, tmp_path) -> None:
    folder = tmp_path / "index"
    (folder / "parts/built").mkdir(parents=True)
    (folder / "build.lock").touch()
    database = sqlite3.connect(folder / "parts/built/items.sqlite")
    database.execute("CREATE TABLE items (half)")
    database.close()
    (folder / "parts/built/items.sqlite-journal").write_bytes(b"rubbish")
    with pytest.raises(IndexFolderError):
        IndexFolder.open(folder)
    assert known.build(folder).matrix.tolist() == known.scores.T.tolist()


# --- a full disk


TINY_DISK = """
import json, os, subprocess, sys
import numpy as np
from adacur.errors import StorageFull
from adacur.records import Item, Query
from adacur.store import (build_scores, verify)
from adacur.scorers.function import FunctionScorer

disk = sys.argv[1]
def mount(option):
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "none", disk], check=True)

items = [Item(f"i{number}", "word " * 50 + str(number)) for number in range(1500)]
anchors = [Query(f"a{number}", f"anchor {number}") for number in range(50)]
def build(path, items=items):
    calls = []
    def score(pairs):
        calls.append(len(pairs))
        return [float(len(query) * int(text.split()[-1])) for query, text in pairs]
    scorer = FunctionScorer(score, name="f")
    folder = build_scores(items, anchors, scorer=scorer, path=path, block_items=50)
    return folder.matrix, sum(calls)

whole, pairs = build(sys.argv[2])
seen = []
# Sizes at which the disk fills while items come in, while the log is set up, in a chunk, in a record.
for size in sys.argv[3:]:
    mount(f"size={size}k")
    try:
        build(disk + "/index")
        seen.append("fits")
    except StorageFull as error:
        seen.append(str(error).split("full; ")[1].split(" safely")[0].split(" stored")[0])
        mount("remount,size=8m")
        matrix, again = build(disk + "/index")
        safe = 0 if seen[-1] == "nothing is" else int(seen[-1].split()[0])
        # A function is recognised by eight calls before its scores are mixed with stored ones.
        assert again == pairs - safe * 50 * 50 + (8 if safe else 0)
        assert matrix.tobytes() == whole.tobytes()
        assert verify(disk + "/index").ok
    subprocess.run(["umount", disk], check=True)
# Where the texts fit, and not all of the keys beside them.
short = [Item(f"i{number}", str(number)) for number in range(20000)]
for size in (780, 840):
    mount(f"size={size}k")
    try:
        build(disk + "/index", short)
    except StorageFull:
        pass
    else:
        raise AssertionError("it fits")
    assert not os.path.exists(disk + "/index")
    subprocess.run(["umount", disk], check=True)
print(json.dumps(seen))
"""


@pytest.mark.skipif(shutil.which("unshare") is None or shutil.which("mount") is None, reason="needs unshare and mount")
def test_a_disk_that_really_is_full_loses_nothing_wherever_it_fills(tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "--map-root-user", "--mount"]
    probe = subprocess.run([*own, "mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True)
    if probe.returncode:
        pytest.skip(f"this system lets nobody mount a disk of their own: {probe.stderr.decode().strip()}")
    sizes = ["200", "496", "512", "528", "544", "560", "600", "660"]
    script = [sys.executable, "-W", "error", "-c", TINY_DISK, str(disk), str(tmp_path / "whole"), *sizes]
    ran = subprocess.run([*own, *script], capture_output=True, text=True, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen[0] == "nothing is"
    assert "fits" not in seen
    assert len(set(seen)) >= 3
