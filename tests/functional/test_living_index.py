"""Commands that change an index, and processes that die while they do."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import adacur
from adacur.errors import InputError
from adacur.extras.server import refresh
from adacur.replay import compress, tune
from adacur.store import IndexFolder, home_of
from tests import living_world as world
from tests.editing import Edited
from tests.functional.commands import here
from tests.living_world import Counted, build, found, item, query

BENCHMARK = Path(__file__).parents[2] / "lab" / "benchmarks" / "killed_updates.py"
SCORER = ("--scorer", "tests.living_world:score")


def run(*arguments: object) -> str:
    ran = here(*arguments)
    assert ran.code == 0, ran
    return ran.out + ran.err


def run_json(*arguments: object) -> dict:
    (row,) = here(*arguments, "--json").json()
    return row


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
    assert killed_updates.run(tmp_path / "index.adacur", kills=6, seed=7) == []


def test_the_commands_change_an_index_as_the_methods_do(tmp_path) -> None:
    items, anchors = [item(n) for n in range(12)], [query(n) for n in range(4)]
    path = tmp_path / "a.adacur"
    build(path, items, anchors, scorer="tests.living_world:score").close()
    said = run("index", "add", path, write(tmp_path / "new.jsonl", [item(20), item(21)]), *SCORER)
    assert "8 scorer calls" in said
    assert "version 2, 14 items × 4 anchor queries" in said
    (tmp_path / "ids.txt").write_text("i3\n\ni20\n")
    told = run_json("index", "remove", path, "i4", "--file", tmp_path / "ids.txt")
    assert told == {"index": str(path), "version": 3, "items": 11, "anchors": 4, "calls": 0} | {
        "recognising": 0,
        "lost": [],
        "tuned_for": [],
    }
    run("index", "add", path, write(tmp_path / "changed.jsonl", [item(5, edition=2)]), "--replace", "--allow-code")
    asked = write(tmp_path / "asked.jsonl", [query(8)])
    assert "11 scorer calls" in run("index", "add", path, "--anchors", asked, "--allow-code")
    run("index", "remove", path, "--anchor", "q0")
    assert [line.split("\t")[0] for line in here("inspect", path, "--anchors").out.splitlines()] == [
        "q1",
        "q2",
        "q3",
        "q8",
    ]
    assert run_json("inspect", path, "--anchors")[3] == {"id": "q8", "text": query(8).text}
    facts = run_json("inspect", path)
    assert facts["exact_scores"] == 11 * 4
    assert (facts["version"], facts["parts"], facts["items"], facts["anchors"]) == (6, 4, 11, 4)
    assert "version 7" in run("index", "compact", path)
    assert "nothing is damaged" in run("inspect", path, "--verify")
    assert run_json("inspect", path)["parts"] == 1
    left = [item(n) for n in (0, 1, 2, *range(6, 12), 21)] + [item(5, edition=2)]
    rebuilt = build(tmp_path / "b.adacur", left, [*anchors[1:], query(8)])
    changed = adacur.load(path, scorer=world.score)
    assert found(changed, ["red thing"], method="gaussian") == found(rebuilt, ["red thing"], method="gaussian")


def test_inspect_tells_what_is_predicted_and_which_queries_came_from_a_log(tmp_path) -> None:
    path, log = tmp_path / "a.adacur", tmp_path / "log"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], scorer="tests.living_world:score").close()
    with adacur.load(path, allow_code=True, log=log) as index:
        index.search("what is\n\tred?", 2, budget=5)
    assert refresh(path, log, fewest_scored=5).added == 1
    (new,) = IndexFolder.open(path).anchor_queries[4:]
    assert run("inspect", path, "--anchors").splitlines()[4] == f"{new.id}\twhat is red?"
    assert run_json("inspect", path)["exact_scores"] == 53


def test_items_that_are_added_are_scored_once(tmp_path) -> None:
    path, new = tmp_path / "a.adacur", [item(n) for n in range(20, 60)]
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], scorer="tests.living_world:score").close()
    write(tmp_path / "new.jsonl", new)
    assert "160 scorer calls" in run("index", "add", path, tmp_path / "new.jsonl", "--allow-code")
    expected = build(tmp_path / "b.adacur", [*(item(n) for n in range(12)), *new], [query(n) for n in range(4)])
    assert adacur.load(path, scorer=world.score).matrix.tobytes() == expected.matrix.tobytes()
    # What was scored before is not scored again.
    run("index", "remove", path, "i20")
    run("index", "add", path, write(tmp_path / "one.jsonl", [item(20)]), "--allow-code")
    again = run_json("index", "add", path, write(tmp_path / "one.jsonl", [item(20)]), "--replace", "--allow-code")
    assert again["calls"] == 0


def test_the_calls_that_recognise_the_scorer_are_told(tmp_path) -> None:
    path = tmp_path / "a.adacur"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], scorer="tests.living_world:score").close()
    for n, scorer in ((20, SCORER), (21, ["--allow-code"])):
        new = write(tmp_path / "new.jsonl", [item(n)])
        told = run_json("index", "add", path, new, *scorer)
        assert (told["calls"], told["recognising"]) == (4, 32)
    said = run("index", "add", path, write(tmp_path / "new.jsonl", [item(20, edition=1)]), "--replace", "--allow-code")
    assert "4 scorer calls for new scores, 32 to recognise the scorer" in said


def test_what_is_refused_is_neither_announced_nor_asked_of_the_scorer(tmp_path, monkeypatch) -> None:
    path, new = tmp_path / "a.adacur", write(tmp_path / "new.jsonl", [item(3)])
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], scorer="tests.living_world:score").close()
    monkeypatch.setattr(world, "score", scorer := Counted())
    unknown = write(tmp_path / "unknown.jsonl", [item(77)])
    asked = write(tmp_path / "asked.jsonl", [query(0)])
    for wrong in ((path, new), (path, unknown, "--replace"), (path, "--anchors", asked)):
        ran = here("index", "add", *wrong, *SCORER)
        ran.refused()
        assert "=" not in ran.err
    cached = ("--cache", tmp_path / "cache.sqlite", "--workers", 2)
    ran = here("build", new, tmp_path / "b", *cached, *SCORER, "-n", 1)
    ran.refused()
    assert "estimated" not in ran.err
    assert scorer.calls == 0


def test_a_build_that_is_repeated_or_continued_tells_what_recognising_the_scorer_cost(tmp_path, monkeypatch) -> None:
    items = write(tmp_path / "items.jsonl", [item(n) for n in range(40)])
    asked = write(tmp_path / "asked.jsonl", [query(n) for n in range(4)])
    command = ("build", items, tmp_path / "a.adacur", "--anchors", asked, *SCORER, "--block-items", 8)
    asleep, awake = Counted(fail_at=16 + 80), world.score

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        with monkeypatch.context() as nested:
            nested.setattr(world, "score", awake)
            return asleep(pairs)

    score.__qualname__ = "score"
    with monkeypatch.context() as patched:
        patched.setattr(world, "score", score)
        here(*command).refused("asleep", "Finished blocks are kept")
    said = run(*command)
    assert "Continuing the build in" in said
    assert "8 calls went into recognising the scorer" in said
    assert run_json(*command)["recognising"] == 32


def test_a_file_is_not_taken_for_an_index(tmp_path) -> None:
    file = write(tmp_path / "new.jsonl", [item(3)])
    for path, says in ((file, "it is a file"), (file / "deeper", "it would lie in a file")):
        here("index", "add", path, file).refused(str(path), says)


def test_bad_requests_are_refused_in_words(tmp_path) -> None:
    path = tmp_path / "a.adacur"
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)]).close()
    here("index", "remove", path).refused("--file")
    here("index", "add", path).refused("--anchors")
    here("index", "add", path, write(tmp_path / "new.jsonl", [item(3)]), *SCORER).refused("'i3'", "replace")
    (tmp_path / "ids.txt").write_bytes(b"\xff\xfe\x00")
    here("index", "remove", path, "--file", tmp_path / "ids.txt").refused("ids.txt")


def test_what_belonged_to_the_version_before_is_told_and_compacting_keeps_it(tmp_path) -> None:
    path = tmp_path / "a.adacur"
    anchors = [query(n) for n in range(24)]
    index = build(path, [item(n) for n in range(150)], anchors, first=["bm25", "dense"], encoder=world.Encoder())
    compress(index, rank=8, k=3, budget=20)
    tune(index, k=3, budget=20, quick=True, queries=20)
    before = found(index, ["red thing"], method="gaussian", first="bm25")
    Edited(index).compact()
    assert (home_of(path) / "model/compression.json").exists()
    assert index.tunings
    assert found(index, ["red thing"], method="gaussian", first="bm25") == before
    assert adacur.store.verify(path).ok
    said = run("index", "remove", path, "i3")
    assert "adacur index compress" in said
    assert "adacur tune" in said
    index = adacur.load(path, scorer=world.score, encoder=world.Encoder())
    assert not index.tunings
    assert compress(index, rank=8, k=3, budget=20).rank == 8
    tune(index, k=3, budget=20, quick=True, queries=20)
    facts = run_json("inspect", path)
    assert facts["compressed_bytes"] > 0
    assert [tuning["k"] for tuning in facts["tuned"]] == [3]


def test_an_encoder_that_is_missing_is_told_before_a_call_is_spent(tmp_path) -> None:
    path, scorer = tmp_path / "a.adacur", world.Counted()
    build(path, [item(n) for n in range(12)], [query(n) for n in range(4)], first=["dense"], encoder=world.Encoder())
    index = adacur.load(path, scorer=scorer, check=False)
    with pytest.raises(InputError):
        Edited(index).add([item(20)])
    assert scorer.calls == 0
    # Nothing is encoded to remove an item.
    Edited(index).remove(["i3"])
    encoder = world.Encoder()
    index = adacur.load(path, scorer=scorer, check=False, encoder=encoder)
    Edited(index).add([item(20)])
    assert encoder.encoded == [item(20).text]
    assert index.first_stage("dense").vectors().shape[1] == 6
