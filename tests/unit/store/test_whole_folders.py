"""Folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from adacur.store.writing import made_whole


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "old").touch()
    return tmp_path / "features"


def write(folder: Path, *, fails: bool = False) -> None:
    with made_whole(folder, replacing=True) as unfinished:
        unfinished.mkdir()
        (unfinished / "new").touch()
        if fails:
            raise RuntimeError("full")


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_an_interrupted_deletion_of_the_earlier_folder_leaves_the_new_one(folder, monkeypatch) -> None:
    delete = shutil.rmtree

    def interrupted(path: Path, **options: bool) -> None:
        if (path / "old").exists():
            raise KeyboardInterrupt
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(folder)
    assert names(folder) == ["new"]


def test_a_folder_that_cannot_be_finished_leaves_the_earlier_one_as_it_was(folder) -> None:
    with pytest.raises(RuntimeError):
        write(folder, fails=True)
    assert names(folder.parent) == ["features"]
    assert names(folder) == ["old"]
    write(folder)
    assert names(folder.parent) == ["features"]
    assert names(folder) == ["new"]


def test_all_of_a_folder_is_on_the_disk_before_it_has_its_name(folder, monkeypatch) -> None:
    synced, unsynced, replace, sync = set(), [], os.replace, os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        unsynced.extend(path for path in (source, *source.rglob("*")) if path.stat().st_ino not in synced)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", renamed)
    with made_whole(folder, replacing=True) as unfinished:
        (unfinished / "inner").mkdir(parents=True)
        (unfinished / "inner" / "new").write_bytes(b"new")
    assert names(folder) == ["inner"]
    assert unsynced == []
