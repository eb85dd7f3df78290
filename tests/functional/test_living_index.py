"""Commands that change an index, and processes that die while they do."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import adacur
from adacur.cli.app import app
from adacur.core.errors import DuplicateId, InputError
from adacur.index import home_of
from tests import living_world as world
from tests.living_world import build, found, item, query

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "killed_updates.py"
SCORER = ("--scorer", "tests.living_world:score")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def write(path: Path, records: list) -> Path:
    rows = [{"_id": one.id, "text": one.text, "metadata": dict(getattr(one, "metadata", {}))} for one in records]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(name="killed_updates")
def killed_updates_fixture() -> ModuleType:
    if not BENCHMARK.exists():
        pytest.skip("benchmarks are in the repository, not in the source distribution")
    if not hasattr(os, "fork"):
        pytest.skip("the process that is killed is a fork")
    spec = importlib.util.spec_from_file_location("killed_updates", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_no_kill_leaves_an_index_that_is_neither_the_old_nor_the_new_one(killed_updates, tmp_path) -> None:
    assert killed_updates.run(tmp_path / "index.adacur", kills=25, seed=7) == []


def test_the_commands_change_an_index_as_the_methods_do(tmp_path) -> None:
    items, anchors = [item(n) for n in range(12)], [query(n) for n in range(4)]
    path = tmp_path / "a.adacur"
    build(path, items, anchors, scorer="tests.living_world:score").close()
    said = run("add", path, write(tmp_path / "new.jsonl", [item(20), item(21)]), *SCORER)
    assert "2 items × 4 anchor queries = 8 scorer calls" in said
    assert "version 2, 14 items × 4 anchor queries" in said
    (tmp_path / "ids.txt").write_text("i3\n\ni20\n")
    told = json.loads(run("remove", path, "i4", "--file", tmp_path / "ids.txt", "--json"))
    assert told == {"index": str(path), "version": 3, "items": 11, "anchors": 4, "calls": 0, "lost": []}
    run("replace", path, write(tmp_path / "changed.jsonl", [item(5, edition=2)]))
    assert "1 anchor query × 11 items = 11" in run("add-anchors", path, write(tmp_path / "asked.jsonl", [query(8)]))
    run("drop-anchors", path, "q0")
    facts = json.loads(run("inspect", path, "--json"))
    assert (facts["version"], facts["parts"], facts["items"], facts["anchors"]) == (6, 4, 11, 4)
    assert "version 7" in run("compact", path)
    assert "nothing is damaged" in run("verify", path)
    assert json.loads(run("inspect", path, "--json"))["parts"] == 1
    left = [item(n) for n in (0, 1, 2, *range(6, 12), 21)] + [item(5, edition=2)]
    rebuilt = build(tmp_path / "b.adacur", left, [*anchors[1:], query(8)])
    changed = adacur.load(path, scorer=world.score)
    assert found(changed, ["red thing"], method="gaussian") == found(rebuilt, ["red thing"], method="gaussian")


def test_several_processes_score_what_is_added(tmp_path) -> None:
    path, new = tmp_path / "a.adacur", [item(n) for n in range(20, 60)]
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], scorer="tests.living_world:score").close()
    with pytest.raises(InputError, match="engine is one of"):
        run("add", path, write(tmp_path / "new.jsonl", new), "--engine", "horses")
    with pytest.raises(InputError, match="score cache"):
        run("add", path, tmp_path / "new.jsonl", "--cache", tmp_path / "cache.sqlite", "--workers", 2)
    assert "160 scorer calls were paid" in run("add", path, tmp_path / "new.jsonl", "--workers", 2)
    expected = build(tmp_path / "b.adacur", [*(item(n) for n in range(12)), *new], [query(n) for n in range(4)])
    assert adacur.load(path, scorer=world.score).matrix.tobytes() == expected.matrix.tobytes()
    # What is asked for again is found, and told.
    run("remove", path, "i20")
    run("add", path, write(tmp_path / "one.jsonl", [item(20)]))
    said = run("replace", path, write(tmp_path / "one.jsonl", [item(20)]))
    assert "None was paid" in said


def test_bad_requests_are_refused_in_words(tmp_path) -> None:
    path = tmp_path / "a.adacur"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)]).close()
    with pytest.raises(InputError, match="Nothing was named"):
        run("remove", path)
    with pytest.raises(DuplicateId, match="Use replace"):
        run("add", path, write(tmp_path / "new.jsonl", [item(3)]), *SCORER)
    (tmp_path / "ids.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="an id per line"):
        run("remove", path, "--file", tmp_path / "ids.txt")


def test_what_belonged_to_the_version_before_is_told_and_compacting_keeps_it(tmp_path) -> None:
    path = tmp_path / "a.adacur"
    anchors = [query(n) for n in range(24)]
    index = build(path, [item(n) for n in range(150)], anchors, first=["bm25", "dense"], encoder=world.Encoder())
    index.compress(rank=8, k=3, budget=20)
    index.tune(k=3, budget=20, quick=True, queries=20)
    before = found(index, ["red thing"], method="gaussian", first="bm25")
    index.compact()
    assert (home_of(path) / "gaussian").exists()
    assert index.tunings
    assert found(index, ["red thing"], method="gaussian", first="bm25") == before
    assert adacur.verify(path).ok
    said = run("remove", path, "i3")
    assert "adacur compress" in said
    assert "adacur tune" in said
    index = adacur.load(path, scorer=world.score, encoder=world.Encoder())
    assert not index.tunings
    assert index.compress(rank=8, k=3, budget=20).rank == 8
    index.tune(k=3, budget=20, quick=True, queries=20)
    facts = json.loads(run("inspect", path, "--json"))
    assert facts["compressed_bytes"] > 0
    assert [tuning["k"] for tuning in facts["tuned"]] == [3]


def test_an_encoder_that_is_missing_is_told_before_a_call_is_spent(tmp_path) -> None:
    path, scorer = tmp_path / "a.adacur", world.Counted()
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], first=["dense"], encoder=world.Encoder())
    index = adacur.load(path, scorer=scorer, check=False)
    with pytest.raises(InputError, match="encoder="):
        index.add([item(20)], progress=False)
    assert scorer.calls == 0
    # Nothing is encoded to remove an item.
    index.remove(["i3"])
    encoder = world.Encoder()
    index = adacur.load(path, scorer=scorer, check=False, encoder=encoder)
    index.add([item(20)], progress=False)
    assert encoder.encoded == [item(20).text]
    assert index.first_stage("dense").embeddings_of(["i0"]).shape == (1, 6)
