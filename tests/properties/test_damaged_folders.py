"""Whatever is written into the JSON files of an index folder, what comes of it is an answer or an AdacurError.

`ADACUR_FUZZ=2000` tries so many changes of each kind instead of the usual few.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacur
from adacur import AdacurError
from adacur.errors import DamagedIndex
from adacur.first_stages import FIRST_STAGES
from adacur.replay import compress, decompress, tune
from adacur.store import verify
from tests.editing import Edited
from tests.living_world import Encoder, item, query, score

TRIES = int(os.environ.get("ADACUR_FUZZ", "120"))
DEEP = "nested deeply"
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 10**12, 2**63, 10**30, -(10**12), 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", ".", "..", "../..", "/", "\ud800", "os:system", "http://127.0.0.1:9/", "numba", "float16", "complete"),
    *([], {}, [1], ["a", "b"], {"a": 1}, [None], [[0]], {"name": "gzip"}, DEEP),
)


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON document."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(place for key, value in inside for place in places(value, (*path, key)))]


def mutated(content: Any, rng: np.random.Generator) -> bytes:
    """The document with one or two values deleted, exchanged or renamed; or broken as a file is."""
    text = json.dumps(content).encode()
    if rng.random() < 0.1:
        at = int(rng.integers(len(text)))
        flipped = text[:at] + bytes([int(rng.integers(256))]) + text[at + 1 :]
        return (text[:at], flipped, b"", b"\xff\xfe")[rng.integers(4)]
    for _ in range(int(rng.integers(1, 3))):
        there = [place for place in places(content) if place]
        if not there:
            break
        # Lists of thousands of ids would hide the few settings.
        *way, last = there[int(rng.integers(min(len(there), 60)))]
        around = content
        for key in way:
            around = around[key]
        chance = rng.random()
        if chance < 0.2:
            del around[last]
        elif chance < 0.3 and isinstance(around, list):
            around.append(around[last])
        elif chance < 0.3:
            around[f"{last}_"] = around.pop(last)
        else:
            around[last] = copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
    return json.dumps(content).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000).encode()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index as it was built, compressed and tuned; and one that was changed since."""
    made = {}
    for name in ("built", "changed"):
        path = tmp_path_factory.mktemp("indexes") / f"{name}.adacur"
        stages = [*FIRST_STAGES]
        items, anchors = [item(n) for n in range(40)], [query(n) for n in range(24)]
        index = adacur.build(
            items, anchors, scorer=score, path=path, first=stages, encoder=Encoder(), progress=False, block_items=16
        )
        if name == "changed":
            Edited(index).add([item(n) for n in range(40, 46)])
            Edited(index).remove(["i3"])
            Edited(index).add_anchors([query(30)])
        tune(index, k=2, budget=12, queries=20, quick=True)
        compress(index, rank=8, k=2, budget=12)
        index.close()
        made[name] = path
    return made


def use(path: Path, *, change: bool) -> None:
    """What people do with an index folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verify(path)
        with adacur.load(path, scorer=score, encoder=Encoder()) as index:
            for first in FIRST_STAGES:
                index.search("which red thing number7", k=2, budget=12, first=first)
            index.search("which odd thing", k=2, budget=12, method="adacur")
            if change:
                Edited(index).remove(["i1"])


def json_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*.json") if file.is_file())


@pytest.mark.parametrize("name", ["built", "changed"])
def test_a_mutated_file_gives_an_answer_or_an_error_of_ours(folders, name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    original = folders[name]
    files = json_files(original)
    expected = {"manifest.json", "retriever.json", "params.index.json", "vocab.index.json", "tuned.json"}
    assert expected | {"relevance.json"} <= {file.name for file in files}
    raw: list[str] = []
    refused = 0
    for number in range(TRIES):
        file = files[number % len(files)]
        before = file.read_bytes()
        changed = mutated(copy.deepcopy(json.loads(before)), rng)
        change = number % 7 == 0
        target = original
        if change:
            target = tmp_path / f"{number}.adacur"
            shutil.copytree(original, target)
        place = target / file.relative_to(original)
        try:
            place.write_bytes(changed)
            use(target, change=change)
        except AdacurError:
            refused += 1
        except BaseException as error:
            raw.append(f"{file.relative_to(original)}: {type(error).__name__}: {error} <- {changed[:300]!r}")
        finally:
            file.write_bytes(before)
            if change:
                shutil.rmtree(target)
    assert not raw, f"{len(raw)} of {TRIES}:\n" + "\n".join(raw[:10])
    assert refused > TRIES / 10
    use(original, change=False)


@pytest.mark.parametrize(
    ("name", "value"), [("n_parts", 0), ("n_parts", -1), ("n_parts", 1), ("leading", "x"), ("variance", -1)]
)
def test_compressed_features_that_do_not_fit_together_are_damage(
    folders, tmp_path: Path, name: str, value: Any
) -> None:
    path = shutil.copytree(folders["built"], tmp_path / "copied.adacur")
    file = path / "versions/1/model" / "model.json"
    settings = json.loads(file.read_bytes())
    changed = settings[name] != value and (name != "leading" or settings["n_parts"] != 2)
    file.write_text(json.dumps(settings | {name: value}))
    if changed:
        with pytest.raises(DamagedIndex), adacur.load(path, scorer=score, encoder=Encoder()) as index:
            index.search("which red thing", k=2, budget=12, first="bm25")


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows[..., None], lambda rows: rows[:0]])
@pytest.mark.parametrize("compressed", [True, False])
def test_an_array_of_another_shape_in_a_stored_model_is_damage(folders, tmp_path: Path, compressed, change) -> None:
    path = shutil.copytree(folders["built"], tmp_path / "copied.adacur")
    if not compressed:
        with adacur.load(path, scorer=score, encoder=Encoder()) as index:
            decompress(index)
    files = sorted((path / "versions/1/model").glob("*.npy"))
    assert {"means.npy", "precisions.npy", "scale_scores.npy", "scale_rarities.npy"} <= {file.name for file in files}
    for file in files:
        before = file.read_bytes()
        np.save(file, change(np.load(file)))
        with pytest.raises(DamagedIndex), adacur.load(path, scorer=score, encoder=Encoder()) as index:
            index.search("which red thing", k=2, budget=12, first="bm25")
        file.write_bytes(before)
