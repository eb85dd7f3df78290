"""The command line as its users meet it: real folders, real exit codes.

Processes are real where one is killed, interrupted or turned away, and where its streams or what it imports is the
point; elsewhere the command runs in this one, since importing takes longer than most of what is tested.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import adacur
from adacur.cli import messages
from adacur.cli.app import app
from adacur.search import METHODS
from tests.functional.commands import ADACUR, Ran, environment, here, run, write_lines

N_ITEMS = 60
BLOCK_ITEMS = 6
N_ANCHORS = 7
N_BLOCKS = N_ITEMS // BLOCK_ITEMS
BUILD_OPTIONS = ("-n", str(N_ANCHORS), "--block-items", str(BLOCK_ITEMS))
# A scorer whose mood is set from outside, so that the same command fails today and continues tomorrow. Only whole
# blocks suffer from it: what is timed before a build is never of that size.
SCORED = ("--scorer", "my_scorers:score")
DRY = ("build", "items.jsonl", "--dry-run", "-n", "2", *SCORED)
SCORERS = f"""
import os, time, zlib

def score(pairs):
    scores = [len(set(query.lower().split()) & set(text.lower().split())) + zlib.crc32((query + text).encode()) / 2**32
              for query, text in pairs]
    if len(pairs) == {N_ANCHORS * BLOCK_ITEMS}:
        if "LOG" in os.environ:
            with open(os.environ["LOG"], "a") as log:
                log.write(pairs[0][1] + "\\n")
        mood = os.environ.get("MOOD")
        if mood == "slow":
            time.sleep(0.25)
        elif mood and "number {BLOCK_ITEMS * 4} " in pairs[0][1]:
            raise RuntimeError("the model server is down")
    return scores

def another(pairs):
    return [-len(text) for query, text in pairs]
"""


def texts() -> list[dict[str, str]]:
    things = ("river", "harbour", "comet", "violin", "glacier", "lantern", "orchid")
    return [
        {
            "_id": f"d{i}",
            "title": f"The {things[i % 7]} number {i} of {things[i % 5]}",
            "text": f"It lies by the {things[i % 3]}. Nobody has ever seen the {things[(i + 3) % 7]} of town {i}.",
        }
        for i in range(N_ITEMS)
    ]


def case(options: list[Any], *says: str) -> Any:
    """Arguments that cannot work, and what the message must say; named after the arguments."""
    return pytest.param(options, says, id=" ".join(map(str, options)) or "nothing")


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with items in every format, a scorer, and a finished index; nobody may change it."""
    folder = tmp_path_factory.mktemp("shop")
    rows = texts()
    (folder / "my_scorers.py").write_text(SCORERS)
    # A user's file that happens to be called like a library must not be taken for it.
    (folder / "numpy.py").write_text("raise RuntimeError('this is not numpy')\n")
    write_lines(folder / "items.jsonl", rows)
    (folder / "beir").mkdir()
    write_lines(folder / "beir" / "corpus.jsonl", rows)
    write_lines(folder / "beir" / "queries.jsonl", [{"_id": f"q{i}", "text": f"a comet of town {i}"} for i in range(3)])
    # In a process that has yet to import numpy.
    built = run("build", "items.jsonl", "whole.adacur", *BUILD_OPTIONS, "--scorer", "my_scorers:score", cwd=folder)
    assert built.code == 0, built
    return folder


def build(folder: Path, index: str, *options: object, scorer: str = "my_scorers:score", **extra: str) -> Ran:
    return here("build", "items.jsonl", index, *BUILD_OPTIONS, "--scorer", scorer, *options, cwd=folder, **extra)


@pytest.fixture
def folder(shop: Path, tmp_path: Path) -> Path:
    """A folder of one's own, with the same items and scorers."""
    for name in ("items.jsonl", "my_scorers.py"):
        shutil.copy(shop / name, tmp_path / name)
    return tmp_path


def fingerprint(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def same_index(one: Path, other: Path) -> bool:
    ours, theirs = adacur.load(one), adacur.load(other)
    return (
        adacur.store.verify(one).ok
        and list(ours.items.ids) == list(theirs.items.ids)
        and ours.anchor_queries == theirs.anchor_queries
        and np.array_equal(ours.matrix, theirs.matrix)
        and ours.first_stages == theirs.first_stages
    )


@contextlib.contextmanager
def building(folder: Path, index: str, *, blocks: int, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A slow build in a process of its own, with so many blocks done."""
    process = subprocess.Popen(
        [ADACUR, "build", "items.jsonl", index, *BUILD_OPTIONS, "--scorer", "my_scorers:score"],
        cwd=folder,
        env=environment(MOOD="slow", **extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # Whoever runs the tests may have told its children to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    try:
        give_up = time.monotonic() + 60
        while len(list((folder / index).glob("parts/built/scores/*.npy"))) < blocks:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up, "the build does not get on"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate()


# ── help, version, usage ──────────────────────────────────────────────────────────────────────────────────────────


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with the parser that typer made of it."""

    def inside(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for part, inner in getattr(command, "commands", {}).items():
            yield from inside(inner, f"{name} {part}".strip())

    return inside(get_command(app), "")


@pytest.mark.parametrize("command", [name for name, _ in commands()])
def test_every_command_explains_itself_with_an_example(command: str, tmp_path: Path) -> None:
    ran = here(*command.split(), "--help", cwd=tmp_path)

    assert ran.code == 0
    assert f"Example: adacur {command} " in ran.out
    assert "--json" in ran.out or command in ("serve", "demo")


def test_there_are_few_commands_and_few_options() -> None:
    parameters = {name: [one for one in command.params if one.name != "help"] for name, command in commands()}

    assert len(parameters) <= 16
    assert sum(map(len, parameters.values())) <= 190


def test_the_help_fits_one_screen(tmp_path: Path) -> None:
    assert len(here("--help", cwd=tmp_path, width=80).out.splitlines()) <= 24


def test_the_script_and_the_module_are_the_same_program(tmp_path: Path) -> None:
    by_module = subprocess.run(
        [sys.executable, "-m", "adacur", "--version"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True
    )

    assert run("--version", cwd=tmp_path).out == by_module.stdout == f"adacur {adacur.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("search", "x", "y", "-k", "many"), ("build", "x")],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ran = here(*arguments, cwd=tmp_path)

    assert ran.code == 2
    assert "Usage: adacur" in ran.err
    assert "Traceback" not in ran.err


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_json_nothing_but_json_is_on_stdout(folder: Path) -> None:
    dry = ("build", "items.jsonl", "--dry-run", "-n", 3, "--queries", "anchors.jsonl", *SCORED, "--json")
    (cost,) = run(*dry, cwd=folder).json()
    assert (cost["n_anchors"], cost["pairs"], cost["bytes"]) == (3, 3 * N_ITEMS, 12 * N_ITEMS)
    assert cost["low"] <= cost["seconds"] <= cost["high"]
    assert len((folder / "anchors.jsonl").read_text().splitlines()) == 3
    (built,) = build(folder, "i.adacur", "--anchors", "anchors.jsonl", "--json").json()
    names = ["bm25", "random"]
    assert built == {"index": "i.adacur", "items": N_ITEMS, "anchors": 3, "first": names, "recognising": 0}
    found = here(
        "search", "i.adacur", *SCORED, "a comet", "a river", "-k", 3, "--budget", 20, "--json", cwd=folder
    ).json()
    assert [answer["query"]["text"] for answer in found] == ["a comet", "a river"]
    assert all(answer["calls"] == 20 and len(answer["hits"]) == 3 for answer in found)
    assert {"id", "score", "rank", "round", "text"} <= found[0]["hits"][0].keys()
    (facts,) = here("inspect", "i.adacur", "--json", cwd=folder).json()
    assert (facts["items"], facts["anchors"], facts["scorer"]["source"]) == (N_ITEMS, 3, "my_scorers:score")
    (verified,) = here("inspect", "i.adacur", "--verify", "--json", cwd=folder).json()
    assert verified == {"ok": True, "complete": True, "problems": [], "blocks": N_BLOCKS}


def test_results_for_people_are_on_stdout_and_all_else_on_stderr(shop: Path, folder: Path) -> None:
    built = build(folder, "my index")
    assert f"{N_ITEMS} items × {N_ANCHORS} anchor queries" in built.out
    assert f"{N_ITEMS * N_ANCHORS} pairs" in built.err
    assert "pairs/s" in built.err
    assert "Scorer: score · function" in built.err
    assert "Scorer:" not in built.out
    assert "Next: adacur search 'my index'" in built.err

    # Square brackets and colons mean something to the library that draws the tables.
    question = "is [/] this [b]bold[/b] :snake: comet?"
    found = here("search", "whole.adacur", *SCORED, question, "-k", 2, "--budget", 12, cwd=shop)
    assert found.code == 0, found
    assert question in found.out
    assert "score" in found.out
    assert "round" in found.out
    assert "12 scorer calls" in found.err
    assert "12 scorer calls" not in found.out

    shown = here("inspect", "whole.adacur", cwd=shop)
    assert "float32" in shown.out
    assert "my_scorers:score" in shown.out
    checked = here("inspect", "whole.adacur", "--verify", cwd=shop)
    assert checked.out == "whole.adacur: nothing is damaged (complete).\n"
    costs = here("build", "items.jsonl", "--dry-run", "-n", 9, *SCORED, cwd=shop)
    assert f"{N_ITEMS} items × 9 anchor queries = {9 * N_ITEMS} pairs" in costs.out


def test_an_index_without_anchor_queries_has_every_command(folder: Path) -> None:
    built = build(folder, "bare.adacur", "-n", 0)
    assert f"{N_ITEMS} items × 0 anchor queries; first stages bm25, random" in built.out
    assert "nothing is scored" in built.err
    (found,) = here("search", "bare.adacur", *SCORED, "a comet", "-k", 2, "--budget", 9, "--json", cwd=folder).json()
    assert (found["calls"], found["settings"]["method"], found["settings"]["first"]) == (9, "rerank", "bm25")
    (facts,) = here("inspect", "bare.adacur", "--json", cwd=folder).json()
    assert (facts["items"], facts["anchors"], facts["blocks"], facts["probes"]) == (N_ITEMS, 0, 0, [])
    assert here("inspect", "bare.adacur", "--verify", cwd=folder).code == 0
    here("tune", "bare.adacur", cwd=folder).refused("anchor queries", "bare.adacur")
    write_lines(folder / "more.jsonl", [{"_id": "new", "text": "a comet over the harbour"}])
    assert here("index", "add", "bare.adacur", "more.jsonl", cwd=folder).code == 0
    assert here("index", "remove", "bare.adacur", "new", cwd=folder).code == 0
    write_lines(folder / "questions.jsonl", [{"_id": "q1", "text": "a comet"}, {"_id": "q2", "text": "a river"}])
    grown = here("index", "add", "bare.adacur", "--anchors", "questions.jsonl", *SCORED, cwd=folder)
    assert f"{N_ITEMS} items × 2 anchor queries" in grown.out
    here(
        "build", "items.jsonl", "r.adacur", "-n", 0, "--first", ",", "--scorer", "my_scorers:score", cwd=folder
    ).refused("random")


def test_a_cache_keeps_scores_from_run_to_run(shop: Path, tmp_path: Path) -> None:
    built = ("build", "items.jsonl", tmp_path / "named.adacur", "-n", 4, *SCORED)
    assert here(*built, "--scorer-set", "name=lengths-1", cwd=shop).code == 0
    asked = ("search", tmp_path / "named.adacur", *SCORED, "a comet", "a river", "-k", 3, "--budget", 20)
    plain = here(*asked, "--json", cwd=shop).json()
    for known in (0, 40):
        ran = here(*asked, "--cache", tmp_path / "scores.sqlite", "--json", cwd=shop)
        found = ran.json()
        assert f"Cache: {known} of 40 scores were known; {40 - known} were paid for." in ran.err
        assert [(answer["calls"], answer["hits"]) for answer in found] == [(20, answer["hits"]) for answer in plain]
    unnamed = ("search", "whole.adacur", *SCORED, "a comet", "--cache", tmp_path / "other.sqlite")
    here(*unnamed, cwd=shop).refused("--scorer-set name=")


def test_the_reader_may_leave_early(shop: Path) -> None:
    with subprocess.Popen(
        [ADACUR, "inspect", "whole.adacur"],
        cwd=shop,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_items_that_cannot_be_read_are_refused_and_nothing_is_begun(folder: Path) -> None:
    (folder / "twice.jsonl").write_bytes(b'{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n')
    for name, says in (("twice.jsonl", "line 2"), ("", "corpus.jsonl"), ("nowhere.csv", "nowhere.csv")):
        here("build", folder / name, "i.adacur", *SCORED, cwd=folder).refused(says)
        assert not (folder / "i.adacur").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        case(["--anchors", "nowhere.jsonl"], "There is no file nowhere.jsonl"),
        case(["--first", "bm52"], "no first stage 'bm52'", "bm25"),
        case(["--scorer", "broken_scorer:score"], "no_such_library"),
        case(["--max-item-tokens", 9], "max_item_tokens"),
    ],
)
def test_a_build_that_cannot_work_is_refused_and_nothing_is_begun(
    options: list[Any], says: tuple[str, ...], folder: Path
) -> None:
    (folder / "broken_scorer.py").write_text("import no_such_library\n")

    build(folder, "i.adacur", *options).refused(*says)
    assert not (folder / "i.adacur").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        case(["  "], "has no text", "at least one word"),
        case([], "--queries"),
        case(["--queries", "nowhere.jsonl"], "There is no file nowhere.jsonl"),
        case(["x", "--set", "rounds"], "NAME=VALUE", "'rounds'"),
        case(["x", "--set", "round=3"], "gaussian", "rounds", "seed"),
        case(["x", "-k", 30, "--budget", 20], "k=30, budget=20", "lower k"),
        case(["x", "--method", "magic"], "no method 'magic'"),
        case(["x", "--scorer", "my_scorers:another"], "not the one that built", "'another'", "correlation"),
    ],
)
def test_a_search_that_cannot_work_is_refused_and_the_index_stays_as_it_was(
    options: list[Any], says: tuple[str, ...], shop: Path
) -> None:
    before = fingerprint(shop / "whole.adacur")

    here("search", "whole.adacur", *(() if "--scorer" in options else SCORED), *options, cwd=shop).refused(*says)
    assert fingerprint(shop / "whole.adacur") == before


@pytest.mark.parametrize("command", ["search", "build", "inspect --verify"])
def test_a_folder_that_is_no_index_is_refused_and_left_alone(command: str, shop: Path, folder: Path) -> None:
    (folder / "foreign").mkdir()
    (folder / "foreign" / "manifest.json").write_text('{"name": "an extension of a browser"}')
    (folder / "other").mkdir()
    (folder / "other" / "letter.txt").write_text("Dear John,")
    shutil.copytree(shop / "whole.adacur", folder / "unreadable")
    (folder / "unreadable" / "manifest.json").write_bytes(b"\xff\xfe\x00{")
    shutil.copytree(shop / "whole.adacur", folder / "newer")
    manifest = json.loads((folder / "newer" / "manifest.json").read_text())
    (folder / "newer" / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    before = fingerprint(folder)

    for name, says in (
        ("foreign", "not an index"),
        ("other", "not an index"),
        ("unreadable", "not an index"),
        ("newer", "format 99"),
        ("items.jsonl", "items.jsonl is"),
        ("nowhere", "does not exist"),
    ):
        if command == "build":
            if name == "nowhere":
                continue
            ran = build(folder, name)
        else:
            ran = here(*command.split(), name, *(["x"] if command == "search" else []), cwd=folder)
        if command == "inspect --verify" and name in ("foreign", "other", "unreadable"):
            # What is wrong with a folder is the very thing that was asked for.
            assert (ran.code, ran.err) == (1, "")
            assert says in ran.out
        else:
            ran.refused(says)
    assert fingerprint(folder) == before


def test_a_damaged_index_is_named_block_by_block(shop: Path, folder: Path) -> None:
    shutil.copytree(shop / "whole.adacur", folder / "i.adacur")
    chunk = folder / "i.adacur" / "parts/built/scores" / "3.npy"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.write_bytes(content)
    (folder / "i.adacur" / "parts/built/scores" / "7.npy").unlink()

    verified = here("inspect", "i.adacur", "--verify", cwd=folder)
    assert verified.code == 1
    assert [line.split(":")[0] for line in verified.out.splitlines()] == [
        "parts/built/scores/3.npy",
        "parts/built/scores/7.npy",
    ]
    (report,) = here("inspect", "i.adacur", "--verify", "--json", cwd=folder).json()
    assert not report["ok"]
    assert [problem["block"] for problem in report["problems"]] == [3, 7]
    # The default reads the model at rest, and the paper's method the scores.
    here("search", "i.adacur", *SCORED, "--method", "adacur", "x", cwd=folder).refused("Block 7", "Restore it")


def test_a_build_whose_scorer_failed_is_continued_by_the_same_command(shop: Path, folder: Path) -> None:
    build(folder, "i.adacur", MOOD="raise").refused("the model server is down", "Finished blocks are kept")
    here("search", "i.adacur", "x", cwd=folder).refused("4 of 10 blocks are done", "same build")

    log = folder / "log"
    again = build(folder, "i.adacur", LOG=str(log))
    assert again.code == 0, again
    assert "Continuing the build in i.adacur" in again.err
    assert len(log.read_text().splitlines()) == N_BLOCKS - 4
    assert same_index(folder / "i.adacur", shop / "whole.adacur")
    finished = build(folder, "i.adacur", LOG=str(log))
    assert "no block was scored again" in finished.err
    assert len(log.read_text().splitlines()) == N_BLOCKS - 4


def test_options_of_the_scorer_are_given_by_name(folder: Path) -> None:
    built = build(folder, "i.adacur", "--scorer-set", "name=mine")
    assert built.code == 0, built
    (facts,) = here("inspect", "i.adacur", "--json", cwd=folder).json()
    assert "mine" in str(facts["scorer"])
    build(folder, "j.adacur", "--scorer-set", "instructions=x").refused("instructions")


def test_a_killed_build_is_continued_and_ends_like_one_that_was_not(shop: Path, folder: Path) -> None:
    log = folder / "log"
    with building(folder, "i.adacur", blocks=4, LOG=str(log)) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    here("inspect", "i.adacur", cwd=folder).refused("has not finished")
    assert here("inspect", "i.adacur", "--verify", cwd=folder).code == 0

    assert build(folder, "i.adacur", LOG=str(log)).code == 0
    assert same_index(folder / "i.adacur", shop / "whole.adacur")
    # At most the blocks in flight were scored twice: the one being scored, and the one being written.
    assert N_BLOCKS <= len(log.read_text().splitlines()) <= N_BLOCKS + 2


def test_ctrl_c_is_exit_code_130_and_the_same_command_continues(shop: Path, folder: Path) -> None:
    with building(folder, "i.adacur", blocks=2) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.endswith("Interrupted. What is finished is kept: run the same command again to continue.\n")

    assert build(folder, "i.adacur").code == 0
    assert same_index(folder / "i.adacur", shop / "whole.adacur")


def test_a_second_builder_is_turned_away_and_the_first_is_not_disturbed(shop: Path, folder: Path) -> None:
    with building(folder, "i.adacur", blocks=1) as process:
        # Held, lest it finish while the other starts on a busy machine.
        process.send_signal(signal.SIGSTOP)
        second = build(folder, "i.adacur")
        second.refused("Another process", "i.adacur")
        assert "Continuing" not in second.err
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=120)

    assert process.returncode == 0
    assert same_index(folder / "i.adacur", shop / "whole.adacur")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*DRY, "--queries", "beir"), "beir: Is a directory."),
        ((*DRY, "--queries", "nowhere/q.jsonl"), "nowhere/q.jsonl: No such file or directory."),
        (("build", "items.jsonl", "items.jsonl/i", *BUILD_OPTIONS, "--scorer", "my_scorers:score"), "Not a directory."),
    ],
    ids=["a directory", "no such folder", "a file on the way"],
)
def test_a_path_that_cannot_be_written_is_one_message(arguments: tuple[Any, ...], says: str, shop: Path) -> None:
    here(*arguments, cwd=shop).refused(says, "Check the path")


def test_debug_shows_where_an_error_came_from(shop: Path) -> None:
    for arguments in (("inspect", "nowhere", "--debug"), ("--debug", *DRY, "--queries", "beir")):
        ran = run(*arguments, cwd=shop)
        assert ran.code == 1
        assert "Traceback" in ran.err
        assert "Error: " in ran.err.splitlines()[-1]
    # Behind a lone -- it is a question like any other.
    (asked,) = run("search", "whole.adacur", *SCORED, "--json", "--", "--debug", cwd=shop).json()
    assert asked["query"]["text"] == "--debug"


def test_the_real_model_searches_and_refuses_a_query_longer_than_itself(folder: Path) -> None:
    write_lines(folder / "few.jsonl", texts()[:6])
    # In a process: what only the real model imports and says is part of it.
    built = run("build", "few.jsonl", "real.adacur", "-n", 2, "--json", cwd=folder)
    assert built.code == 0, built
    (found,) = here("search", "real.adacur", "a comet", "-k", 2, "--budget", 4, "--json", cwd=folder).json()
    assert found["calls"] == 4
    assert found["settings"]["scorer"] == "ms-marco-MiniLM-L-12-v2"

    (folder / "long.txt").write_text("comet " * 700 + "\n")
    before = fingerprint(folder / "real.adacur")
    too_long = "Shorten the query"
    here("search", "real.adacur", "--queries", "long.txt", "-k", 2, "--budget", 4, cwd=folder).refused(too_long, "512")
    assert fingerprint(folder / "real.adacur") == before
    here("build", "few.jsonl", "long.adacur", "--anchors", "long.txt", cwd=folder).refused(too_long)
    here("search", "real.adacur", "x", "--scorer", "my_scorers:score", cwd=folder).refused("not the one that built")


# ── files of others ───────────────────────────────────────────────────────────────────────────────────────────────


def test_items_without_text_are_left_out_by_every_command_and_told_once(folder: Path) -> None:
    rows = texts()
    rows[3] |= {"title": "", "text": " "}
    (folder / "mine" / "qrels").mkdir(parents=True)
    write_lines(folder / "mine" / "corpus.jsonl", rows)
    write_lines(folder / "mine" / "queries.jsonl", [{"_id": f"q{i}", "text": f"a comet of town {i}"} for i in range(8)])
    judged = "".join(f"q{i}\t{rows[i]['_id']}\t1\n" for i in range(8))
    (folder / "mine" / "qrels" / "test.tsv").write_text(f"{judged}q1\tnobody\t1\n")
    scorer = ("--scorer", "my_scorers:score")
    for command in (
        ("build", "mine", "--dry-run", *scorer),
        ("build", "mine", "mine.adacur", *BUILD_OPTIONS, *scorer),
        ("evaluate", "mine", *scorer, "--methods", "rerank", "--budgets", 5, "--queries", 3),
    ):
        ran = here(*command, cwd=folder)
        assert ran.code == 0, ran
        assert ran.err.count(f"1 item without text was left out: {rows[3]['_id']}") == 1, ran.err
    assert "judged items are not in corpus.jsonl" in ran.err
    write_lines(folder / "more.jsonl", [{"_id": "new", "text": "a comet"}, {"_id": "hollow", "text": ""}])
    ran = here("index", "add", "mine.adacur", "more.jsonl", *scorer, cwd=folder)
    assert ran.code == 0, ran
    assert ran.err.count("1 item without text was left out: hollow") == 1
    assert f"{N_ITEMS} items" in ran.out


def test_an_unfinished_build_says_how_to_go_on_wherever_it_is_met(folder: Path) -> None:
    options = ("--text-field", "title", "--no-tune")
    build(folder, "half way.adacur", *options, MOOD="raise")
    for command in ("search", "half way.adacur", "comet"), ("inspect", "half way.adacur"):
        here(*command, cwd=folder).refused("Run the same build again")
    assert "Run the same build again" in here("inspect", "half way.adacur", "--verify", cwd=folder).err
    # Without its options: where the texts part.
    build(folder, "half way.adacur").refused("of river' in the folder", "of river. It lies by")
    assert build(folder, "half way.adacur", *options).code == 0
    manifest = json.loads((folder / "half way.adacur" / "versions/1/manifest.json").read_text())
    assert manifest["origin"] == {"id_field": None, "text_fields": ["title"], "passages": None}


# ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_small_budget_lowers_the_k_that_nobody_asked_for(shop: Path) -> None:
    (answer,) = here("search", "whole.adacur", *SCORED, "a comet", "--budget", 5, "--json", cwd=shop).json()
    assert len(answer["hits"]) == answer["calls"] == 5
    here("search", "whole.adacur", *SCORED, "a comet", "--budget", 5, "-k", 10, cwd=shop).refused("k=10", "budget=5")


def test_questions_of_a_file_are_answered_in_groups(shop: Path, tmp_path: Path) -> None:
    questions = tmp_path / "many.txt"
    questions.write_text("".join(f"a comet of town {n}\n" for n in range(20)))
    asked = ("search", "whole.adacur", *SCORED, "--queries", questions, "-k", 2, "--budget", 7, "--json")
    ran = here(*asked, cwd=shop)
    assert [answer["query"]["id"] for answer in ran.json()] == [str(n) for n in range(1, 21)]
    alone = here(
        "search", "whole.adacur", *SCORED, "a comet of town 19", "-k", 2, "--budget", 7, "--json", cwd=shop
    ).json()
    assert [hit["id"] for hit in ran.json()[19]["hits"]] == [hit["id"] for hit in alone[0]["hits"]]
    assert ran.err.count("Scorer: ") == 1


def test_a_first_stage_that_is_missing_is_added_by_the_same_build_without_scoring(folder: Path) -> None:
    assert build(folder, "a.adacur", "--first", "bm25").code == 0
    here("search", "a.adacur", "comet", "--first", "dense", *SCORED, cwd=folder).refused("dense", "adacur build")
    again = build(folder, "a.adacur", "--first", "bm25,dense", MOOD="raise")
    assert (again.code, "no block was scored again" in again.out + again.err) == (0, True)
    assert here("search", "a.adacur", "comet", "--first", "dense", *SCORED, cwd=folder).code == 0


def test_an_order_that_blends_the_first_stage_in_is_said_below_the_table(shop: Path, folder: Path) -> None:
    options = ("comet", *SCORED, "--first", "bm25")
    assert "fuse=2" in here("search", "whole.adacur", *options, "--fuse", "2", cwd=shop).err
    # A function is the truth: its own order needs no words.
    assert "fuse" not in here("search", "whole.adacur", *options, cwd=shop).err
    # A weight that was given to the build is that of searches that name none.
    assert build(folder, "a.adacur", "--fuse", "0.5").code == 0
    assert "fuse=0.5" in here("search", "a.adacur", *options, cwd=folder).err


def test_the_first_stage_alone_is_searched_without_opening_a_scorer(shop: Path) -> None:
    asked = ("search", "whole.adacur", "a comet", "-k", 3, "--method", "first")
    for more in ((), ("--budget", "0")):
        ran = here(*asked, "--json", *more, cwd=shop)
        assert ran.code == 0
        (answer,) = ran.json()
        assert (answer["calls"], len(answer["hits"])) == (0, 3)
    shown = here(*asked, cwd=shop)
    assert (shown.code, "0 scorer calls" in shown.err, "Scorer:" in shown.err) == (0, True, False)


def test_only_warnings_meant_for_users_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    with messages.warnings_as_notes():
        for kind in (ResourceWarning, DeprecationWarning, UserWarning):
            warnings.warn(kind.__name__, kind, stacklevel=1)
    err = capsys.readouterr().err
    assert "Note: UserWarning" in err
    assert "Resource" not in err
    assert "Deprecation" not in err


def test_the_help_of_search_names_every_method() -> None:
    helped = here("search", "--help").out
    assert [name for name in METHODS if name not in helped] == []


def test_a_budget_may_be_tokens_and_money(shop: Path) -> None:
    asked = ("search", "whole.adacur", "a comet", "-k", 2, *SCORED)
    (answer,) = here(*asked, "--budget", "9, 300 tokens", "--price", "1 USD / 1k tokens", "--json", cwd=shop).json()

    assert 0 < answer["tokens"] <= 300
    assert answer["cost"] == f"{answer['tokens'] / 1000:g} USD"
    here(*asked, "--budget", "1 EUR", "--price", "1 USD / call", cwd=shop).refused("1 EUR", "1 USD / call")
    here(*asked, "--budget", "many", cwd=shop).refused("many")


def test_long_items_become_passages_of_documents(folder: Path) -> None:
    texts = [f"item {at} " + " ".join(f"word{at} number{n}." for n in range(60)) for at in range(6)]
    write_lines(folder / "long.jsonl", [{"_id": f"d{at}", "text": text} for at, text in enumerate(texts)])
    built = ("build", "long.jsonl", "long.adacur", "-n", 3, "--passages", 40, *SCORED)

    assert here(*built, cwd=folder).code == 0
    (facts,) = here("inspect", "long.adacur", "--json", cwd=folder).json()
    (answer,) = here("search", "long.adacur", "word3", "-k", 6, "--budget", 100, *SCORED, "--json", cwd=folder).json()
    assert (facts["documents"], facts["items"] > 12) == (6, True)
    assert sorted(hit["document"] for hit in answer["hits"]) == [f"d{at}" for at in range(6)]


def test_items_longer_than_the_scorer_takes_are_told_at_the_build_and_by_inspect(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "long.jsonl", [{"_id": f"d{at}", "text": "many words " * (3 + 30 * (at % 2))} for at in range(6)]
    )
    built = here("build", "long.jsonl", "long.adacur", "-n", 2, "--max-item-tokens", 32, cwd=tmp_path)
    said = "3 of 6 items are longer than the scorer takes (32 tokens)"

    assert said in built.err
    assert said in " ".join(here("inspect", "long.adacur", cwd=tmp_path).out.split())
    assert here("inspect", "long.adacur", "--json", cwd=tmp_path).json()[0]["cut"] == 3


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_found_before_an_error_is_printed_before_it(folder: Path, as_json: bool) -> None:
    # Only a pair on its own, which tells how fast the scorer is, succeeds.
    (folder / "tired.py").write_text(
        "def score(pairs):\n    if len(pairs) > 1:\n        raise OSError('too tired')\n    return [1.0]\n"
    )
    assert build(folder, "bare.adacur", "-n", 0, scorer="tired:score").code == 0
    asked = ("bare.adacur", "a comet", "-k", 3, "--budget", 9, "--deadline", 600, *["--json"] * as_json)
    ran = here("search", *asked, "--scorer", "tired:score", cwd=folder)

    assert ran.code == 1
    assert sum(line.startswith("Error: ") for line in ran.err.splitlines()) == 1
    assert "too tired" in ran.err.splitlines()[-1]
    if as_json:
        (found,) = ran.json()
        assert (found["calls"], found["stopped"], len(found["hits"])) == (1, "error", 1)
    else:
        assert "a comet" in ran.out
        assert ran.err.index("1 scorer calls") < ran.err.index("too tired")


def test_two_tables_are_matched_and_an_index_brings_its_scorer(shop: Path, folder: Path) -> None:
    (folder / "left.csv").write_text("what,colour\na comet,red\na violin,blue\n")
    options = ("--above", 1.5, "--left-text", "{what}", "-o", "pairs.csv", "--force")
    named = (*SCORED, "--scorer-set", "name=words-1")
    ran = here("match", "left.csv", "items.jsonl", *options, *named, "--json", cwd=folder)
    (done,) = ran.json()
    assert (done["bill"]["rows_done"], done["learned"], done["order"]) == (2, True, "as given")
    assert done["certificate"]["basis"] == "estimate"
    assert "rows are numbered from 0" in ran.err
    assert "'what', 'colour'" in ran.err
    assert len((folder / "pairs.csv").read_text().splitlines()) == 1 + done["bill"]["pairs"]
    best = (folder / "pairs.csv").read_text().splitlines()[1].split(",")
    people = here("match", "left.csv", "items.jsonl", *options, "--above", best[2], *named, cwd=folder)
    assert f"near each other: {best[0]}." in " ".join(people.err.split())
    here("match", "left.csv", shop / "whole.adacur", *options, cwd=folder).refused("my_scorers:score", "--scorer")


@pytest.mark.parametrize(
    "command", [("try", "nowhere"), ("evaluate", "nowhere"), ("match", "items.jsonl", "nowhere.csv")]
)
def test_a_path_that_is_not_there_is_refused_before_the_scorer_is_opened(
    folder: Path, command: tuple[str, ...]
) -> None:
    options = ("--above", 1, "-o", "pairs.csv") if command[0] == "match" else ()
    done = here(*command, *options, *SCORED, cwd=folder)
    done.refused("There is no", "nowhere")
    assert "Scorer:" not in done.err
