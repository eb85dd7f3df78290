"""One byte or digit of a file of an index is changed: the index is refused, answers as before, or `verify` says so.

`ADACUR_FUZZ=1400 pytest --log-cli-level=INFO …` tries so many changes instead of a few, and counts what came of them.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacur
from adacur import AdacurError
from adacur.replay import compress, tune
from adacur.store import IndexFolder, verify
from tests.editing import Edited
from tests.living_world import Encoder, item, query, score

TRIES = int(os.environ.get("ADACUR_FUZZ", "60"))
ASKED = ["which red thing is number7", "a heavy old thing"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An index as it was built, and one that was changed; tuned, and one of them compressed."""
    made = []
    for name in ("built", "changed"):
        path = tmp_path_factory.mktemp("indexes") / f"{name}.adacur"
        items, anchors = [item(n) for n in range(40)], [query(n) for n in range(24)]
        options: dict[str, Any] = {"first": ["bm25", "dense"], "encoder": Encoder(), "block_items": 16}
        with adacur.build(items, anchors, scorer=score, path=path, progress=False, **options) as index:
            if name == "changed":
                Edited(index).add([item(n) for n in range(40, 46)])
                Edited(index).remove(["i3"])
                Edited(index).add_anchors([query(30)])
            tune(index, k=2, budget=12, queries=20, quick=True)
            if name == "changed":
                compress(index, rank=8, k=2, budget=12)
        assert verify(path).ok
        made.append(path)
    return made


def answers(path: Path) -> list[Any]:
    """What searches find, whatever they read: scores, texts, metadata, first stages, tunings, relevance."""
    told: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with adacur.load(path, scorer=score, encoder=Encoder()) as index:
            for options in ({"first": "bm25"}, {"first": "dense"}, {"k": 2, "budget": 12}, {"method": "adacur"}):
                for hits in index.search(ASKED, **{"k": 3, "budget": 9} | options):
                    told += [(hit.id, hit.score, hit.item, hit.relevance) for hit in hits]
        folder = IndexFolder.open(path)
        told += [folder.matrix.tobytes(), folder.items.at(range(len(folder.items))), folder.anchor_queries]
        folder.release()
    return told


def changed(content: bytes, rng: np.random.Generator, *, text: bool) -> bytes:
    """The content with another digit, where it is text that has one, or another byte."""
    places = [found.start() for found in re.finditer(rb"[0-9]", content)] if text and rng.random() < 0.7 else []
    at = places[int(rng.integers(len(places)))] if places else int(rng.integers(len(content)))
    others = [byte for byte in (b"0123456789" if places else range(256)) if byte != content[at]]
    return content[:at] + bytes([others[int(rng.integers(len(others)))]]) + content[at + 1 :]


def test_no_changed_byte_changes_an_answer_unseen(folders: list[Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(TRIES)
    came: Counter[str] = Counter()
    unseen, raw = [], []
    for original in folders:
        expected = answers(original)
        files = sorted(file for file in original.rglob("*") if file.is_file() and file.stat().st_size)
        # The files that no checksum of their folder covers, and all others.
        few = [one for one in files if one.suffix in (".json", ".sqlite") or one.parent.name == "scores"]
        for number in range(TRIES // len(folders)):
            pool = few if number % 2 else files
            file = pool[int(rng.integers(len(pool)))].relative_to(original)
            path = shutil.copytree(original, tmp_path / "changed.adacur")
            before = (path / file).read_bytes()
            now = changed(before, rng, text=file.suffix == ".json")
            (path / file).write_bytes(now)
            at = next(place for place, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)
            what = f"{original.stem}/{file}: {before[max(0, at - 30) : at + 10]!r} to {now[at : at + 1]!r}"
            try:
                found = not verify(path).ok
                same = answers(path) == expected
            except AdacurError:
                came["refused"] += 1
            except Exception as error:
                raw.append(f"{what}: {type(error).__name__}: {error}")
            else:
                came["the same answers" if same else "found by verify"] += 1
                if not (same or found):
                    unseen.append(what)
            shutil.rmtree(path)
    logging.getLogger("changed").info("%s", dict(came))
    assert not raw, "\n".join(raw)
    assert not unseen, "\n".join(unseen)
    assert came["refused"] > 0
    assert TRIES < 300 or came["found by verify"] > 0


@pytest.mark.parametrize("name", ["relevance.json", "tuned.json", "manifest.json"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_cut_short_is_found(folders: list[Path], tmp_path: Path, name: str, which: int) -> None:
    path = shutil.copytree(folders[which], tmp_path / "cut.adacur")
    file = max(path.rglob(name), key=lambda one: len(one.parts))
    file.write_bytes(file.read_bytes()[:-20])
    assert name in {Path(problem.file).name for problem in verify(path).problems}


@pytest.mark.parametrize(("name", "old", "new"), [("relevance.json", "0.", "1."), ("tuned.json", '"k": 2', '"k": 3')])
def test_a_changed_digit_of_what_a_tuning_stored_is_found(folders, tmp_path, name: str, old: str, new: str) -> None:
    path = shutil.copytree(folders[0], tmp_path / "changed.adacur")
    file = path / "versions/1" / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert [problem.file for problem in verify(path).problems] == [f"versions/1/{name}"]


def test_a_changed_metadatum_is_found(folders, tmp_path: Path) -> None:
    path = shutil.copytree(folders[0], tmp_path / "changed.adacur")
    content = (path / "parts/built/items.sqlite").read_bytes()
    assert b'{"edition": 0}' in content
    (path / "parts/built/items.sqlite").write_bytes(content.replace(b'{"edition": 0}', b'{"edition": 7}', 1))
    assert [problem.file for problem in verify(path).problems] == ["parts/built/items.sqlite"]


@pytest.mark.parametrize("count", ['"n_items": 40', '"n_anchors": 24', '"n_items": 6', '"n_anchors": 1'])
def test_a_part_that_brings_another_number_is_refused_and_found(folders, tmp_path: Path, count: str) -> None:
    path = shutil.copytree(folders[1], tmp_path / "changed.adacur")
    file = next(file for file in path.glob("parts/*/manifest.json") if f"{count}," in file.read_text())
    file.write_text(file.read_text().replace(count, f"{count}1", 1))
    assert not verify(path).ok
    with pytest.raises(adacur.AdacurError):
        IndexFolder.open(path)
