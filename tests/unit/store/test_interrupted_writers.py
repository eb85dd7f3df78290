"""Builds that stopped: who looks at one, and goes on with one; and a folder that cannot be read here."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import filelock
import numpy as np
import pytest

from adacur.errors import DamagedIndex, IncompleteIndex, IndexFolderError, ScorerFailed, StorageFull
from adacur.scorers.known import MatrixScorer
from adacur.store import IndexFolder, prune, verify
from adacur.store.folder import pairs_done


class Tires(MatrixScorer):
    """Scores so many grids."""

    grids = 2

    def score_grid(self, queries, items):
        if not self.grids:
            raise ValueError("tired")
        self.grids -= 1
        return super().score_grid(queries, items)


@pytest.fixture
def begun(known, tmp_path) -> Path:
    """A build of which two blocks of six are done."""
    with pytest.raises(ScorerFailed):
        known.build(tmp_path / "index", scorer=Tires(known.anchors, known.items, known.scores))
    return tmp_path / "index"


def test_a_build_goes_on_and_pays_for_no_block_twice(known, begun) -> None:
    rest = Tires(known.anchors, known.items, known.scores)
    rest.grids = 4
    assert known.build(begun, scorer=rest).matrix.tolist() == known.scores.T.tolist()
    assert rest.grids == 0
    assert verify(begun).ok


@pytest.mark.parametrize("look", [verify, IndexFolder.open, pairs_done])
def test_who_only_looks_sees_the_folder_as_it_was_before(known, begun, look) -> None:
    if look == IndexFolder.open:
        with pytest.raises(IncompleteIndex):
            look(begun)
    else:
        seen = look(begun)
        assert seen == 2 * 10 * 7 if look is pairs_done else (seen.ok, seen.blocks_checked) == (True, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs users and their permissions")
def test_what_nobody_here_may_read_is_not_called_damaged(known) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = known.build(Path(place) / "index").path
        for path in (Path(place), *folder.rglob("*"), folder):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (folder / "parts/built/items.sqlite").chmod(0)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(OSError):
                os.setuid(65534)
            try:
                IndexFolder.open(folder)
            except IndexFolderError as error:
                os.write(writing, type(error).__name__.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert os.read(reading, 100) == b"IndexFolderError"
        os.close(reading)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_to_is_told_as_such_and_stays(known, begun, monkeypatch, number: int) -> None:
    def refused(*given, **options):
        raise OSError(number, os.strerror(number))

    before = {file: file.read_bytes() for file in begun.rglob("*") if file.is_file()}
    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    for change in (known.build, prune):
        with pytest.raises(StorageFull if number == errno.ENOSPC else IndexFolderError):
            change(begun)
    assert {file: file.read_bytes() for file in begun.rglob("*") if file.is_file()} == before


def test_a_damaged_block_of_an_unfinished_build_is_scored_again_and_no_other(known, begun) -> None:
    chunk = begun / "parts/built/scores" / "0.npy"
    chunk.write_bytes(chunk.read_bytes()[:-9] + bytes(9))
    rest = Tires(known.anchors, known.items, known.scores)
    # Four that were not yet scored, and this one.
    rest.grids = 5
    with pytest.raises(DamagedIndex):
        known.build(begun, scorer=rest)
    assert np.array_equal(known.build(begun, scorer=rest).matrix, known.scores.T)
    assert rest.grids == 0


def test_a_block_that_cannot_be_opened_just_now_is_kept(known, begun, monkeypatch) -> None:
    blocks = {file: file.read_bytes() for file in (begun / "parts/built/scores").iterdir()}
    load = np.load

    def too_many_files(*given, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(np, "load", too_many_files)
    with pytest.raises(DamagedIndex):
        known.build(begun)
    monkeypatch.setattr(np, "load", load)
    assert all(file.read_bytes() == content for file, content in blocks.items())
    rest = Tires(known.anchors, known.items, known.scores)
    rest.grids = 4
    assert np.array_equal(known.build(begun, scorer=rest).matrix, known.scores.T)


@pytest.mark.parametrize("name", ["00.npy", "٠.npy", "6.npy", "x.npy"])
def test_a_file_that_is_named_like_no_block_is_none(known, begun, name: str) -> None:
    scores = begun / "parts/built/scores"
    (scores / "0.npy").rename(scores / name)
    rest = Tires(known.anchors, known.items, known.scores)
    rest.grids = 5
    assert np.array_equal(known.build(begun, scorer=rest).matrix, known.scores.T)


def test_a_folder_that_lost_its_manifest_keeps_its_scores(known, begun) -> None:
    manifest = (begun / "manifest.json").read_bytes()
    (begun / "manifest.json").unlink()
    before = {file: file.read_bytes() for file in begun.rglob("*.npy")}
    with pytest.raises(DamagedIndex):
        known.build(begun)
    with pytest.raises(DamagedIndex):
        IndexFolder.open(begun)
    assert {file: file.read_bytes() for file in begun.rglob("*.npy")} == before
    (begun / "manifest.json").write_bytes(manifest)
    assert np.array_equal(known.build(begun).matrix, known.scores.T)
