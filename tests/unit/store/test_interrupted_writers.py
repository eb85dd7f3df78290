"""A database whose writer was killed: its journal is rolled back, whoever opens the folder next."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import DamagedIndex, IncompleteIndex, IndexFolderError, IndexLocked, ScorerFailed
from adacur.scorers.known import MatrixScorer
from adacur.store import IndexFolder, verify
from adacur.store.folder import pairs_done


class Tires(MatrixScorer):
    """Scores so many grids."""

    grids = 2

    def score_grid(self, queries, items):
        if not self.grids:
            raise ValueError("tired")
        self.grids -= 1
        return super().score_grid(queries, items)


def leave_journal(folder: Path) -> None:
    """Put the database into the state in which SIGKILL leaves it before its journal is deleted."""
    whole = folder / "parts/built/items.sqlite"
    with contextlib.closing(sqlite3.connect(whole, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    working = folder.parent / "working.sqlite"
    shutil.copy(whole, working)
    with contextlib.closing(sqlite3.connect(working, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE items SET text = text || hex(randomblob(2000))")
        shutil.copy(working, whole)
        shutil.copy(f"{working}-journal", f"{whole}-journal")
    assert b"item number 17" not in whole.read_bytes() or whole.stat().st_size > 50_000


@pytest.fixture
def begun(known, tmp_path) -> Path:
    """A build of which two blocks of six are done, and whose writer was killed in a transaction."""
    with pytest.raises(ScorerFailed):
        known.build(tmp_path / "index", scorer=Tires(known.anchors, known.items, known.scores))
    leave_journal(tmp_path / "index")
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
    assert not (begun / "parts/built/items.sqlite-journal").exists()


def test_a_finished_folder_opens_too(known, tmp_path) -> None:
    folder = known.build(tmp_path / "index").path
    leave_journal(folder)
    assert IndexFolder.open(folder).items.at([17]) == [known.items[17]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs users and their permissions")
def test_where_nothing_can_be_written_it_is_said_so_and_not_that_the_index_is_damaged(known) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = known.build(Path(place) / "index").path
        leave_journal(folder)
        for path in (Path(place), folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        error = as_another_user(lambda: IndexFolder.open(folder))
        assert error == (IndexFolderError, False)
        assert (folder / "parts/built/items.sqlite-journal").exists()
        for path in (Path(place), folder, *folder.rglob("*")):
            path.chmod(0o755)


def as_another_user(work: Callable[[], object]) -> tuple[type, bool]:
    """The error that work raises where this user may write nothing, and whether it tells to build again."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            os.setuid(65534)
        try:
            work()
        except IndexFolderError as error:
            again = isinstance(error, DamagedIndex) or "build the index again" in str(error)
            os.write(writing, b"yes" if again else b"no")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    said = os.read(reading, 10)
    os.close(reading)
    return (IndexFolderError if said else object), said == b"yes"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(folder / "parts/built/items.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield


def test_a_database_that_is_written_to_is_not_called_damaged(known, tmp_path, monkeypatch) -> None:
    folder = known.build(tmp_path / "index").path
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **options | {"timeout": 0.1}))
    with held(folder), pytest.raises(IndexLocked):
        IndexFolder.open(folder)
    assert IndexFolder.open(folder).items.at([17]) == [known.items[17]]


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
