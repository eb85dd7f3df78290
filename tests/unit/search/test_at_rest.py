"""What no query changes is stored with a version: searches read it, and find what they would find without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import adacur
from adacur.errors import InputError
from adacur.store import IndexFolder, verify
from adacur.store.model_file import has_model
from tests.editing import Edited
from tests.living_world import Encoder, item, query, score

ASKED = ["which red thing is number7", "a heavy old thing"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("at-rest") / "built.adacur"
    build(path, range(60))
    return path


@pytest.fixture
def path(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "index.adacur")


def build(path: Path, numbers: Any, n_anchors: int = 24) -> None:
    options: dict[str, Any] = {"first": ["bm25", "dense"], "encoder": Encoder(), "block_items": 16, "tune": False}
    items, anchors = [item(number) for number in numbers], [query(number) for number in range(n_anchors)]
    adacur.build(items, anchors or 0, scorer=score, path=path, progress=False, **options).close()


def answers(path: Path) -> list[Any]:
    with adacur.load(path, scorer=score, encoder=Encoder()) as index:
        told = []
        for first in ("bm25", "dense", "bm25+dense"):
            for hits in index.search(ASKED, 3, budget=12, first=first):
                told += [(hit.id, hit.score, hit.relevance) for hit in hits]
        return told


def home_of(path: Path) -> Path:
    folder = IndexFolder.open(path)
    folder.release()
    return folder.home


def stored(path: Path) -> bool:
    folder = IndexFolder.open(path)
    folder.release()
    return has_model(folder)


@pytest.mark.parametrize("n_anchors", [24, 0])
def test_searches_find_the_same_with_and_without_a_stored_model(tmp_path: Path, n_anchors: int) -> None:
    build(tmp_path / "index.adacur", range(60), n_anchors)
    before = answers(tmp_path / "index.adacur")
    shutil.rmtree(home_of(tmp_path / "index.adacur") / "model")
    assert answers(tmp_path / "index.adacur") == before


def test_a_stored_model_is_searched_without_the_scores(path: Path) -> None:
    before = answers(path)
    shutil.rmtree(path / "parts/built/scores")
    assert answers(path) == before


def test_the_model_of_another_index_is_not_used(path: Path, tmp_path: Path) -> None:
    before = answers(path)
    build(tmp_path / "other.adacur", range(100, 160))
    shutil.rmtree(path / "versions/1/model")
    shutil.copytree(tmp_path / "other.adacur/versions/1/model", path / "versions/1/model")
    assert not stored(path)
    assert answers(path) == before


def test_the_same_build_again_stores_a_model_that_is_not_there(path: Path) -> None:
    before = {file.name: file.read_bytes() for file in (path / "versions/1/model").glob("*")}
    shutil.rmtree(path / "versions/1/model")
    build(path, range(60))
    assert {file.name: file.read_bytes() for file in (path / "versions/1/model").glob("*")} == before


def test_every_edit_stores_the_model_of_an_index_built_as_it_is_then(path: Path, tmp_path: Path) -> None:
    with adacur.load(path, scorer=score, encoder=Encoder()) as index:
        Edited(index).add([item(number) for number in range(60, 64)])
        Edited(index).remove(["i3"])
        Edited(index).add_anchors([query(24)])
        Edited(index).drop_anchors(["q1"])
        assert stored(path)
        Edited(index).compact()
    assert stored(path)
    assert verify(path).ok
    build(tmp_path / "rebuilt.adacur", [number for number in range(64) if number != 3], 25)
    with adacur.load(tmp_path / "rebuilt.adacur", scorer=score, encoder=Encoder()) as rebuilt:
        Edited(rebuilt).drop_anchors(["q1"])
    for name in ("means", "part0", "centre", "precisions", "scale_scores"):
        one, other = (home_of(of) / "model" / f"{name}.npy" for of in (path, tmp_path / "rebuilt.adacur"))
        assert one.read_bytes() == other.read_bytes(), name
    assert answers(path) == answers(tmp_path / "rebuilt.adacur")


def test_an_edit_without_the_encoder_leaves_the_model_to_searches(path: Path) -> None:
    with adacur.load(path, scorer=score) as index:
        Edited(index).remove(["i3"])
    assert not stored(path)
    assert answers(path)
    with pytest.raises(InputError), adacur.load(path, scorer=score) as index:
        index.search(ASKED[0], 3, budget=12, first="bm25")
