"""What adacur says, in one place: `wording.txt` is a transcript, and every other test checks types and values only.

A line that begins with `>>> ` is run as Python in a small world, one with `$ ` as a command; what follows is the error
or the output. To pin another message, write its line there, and

    python -m tests.functional.test_wording

writes down what is said now. Read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacur
from adacur import Item, Query
from adacur.errors import AdacurError
from tests.functional.commands import here, write_lines
from tests.functional.test_cli import commands

TRANSCRIPT = Path(__file__).with_name("wording.txt")
SCORERS = """
import zlib

def score(pairs):
    return [zlib.crc32((query + text).encode()) / 2**32 for query, text in pairs]

def few(pairs):
    return score(pairs)[1:]

def nan(pairs):
    return [float("nan") for _ in pairs]

def broken(pairs):
    raise RuntimeError("the model server is down")

def other(pairs):
    return [-score for score in score(pairs)]
"""
COLOURS = ("red", "green", "blue", "black")


@contextlib.contextmanager
def small_world(folder: Path) -> Iterator[dict[str, Any]]:
    """The names that the calls of the transcript know, in a folder with items, scorers and indexes."""
    items = [Item(f"d{n}", f"a {COLOURS[n % 4]} thing of number {n}") for n in range(12)]
    queries = [Query(f"q{n}", f"which {COLOURS[n % 4]} thing is number {n}?") for n in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr("adacur.requirements.install_command", lambda extra: f"pip install 'adacur[{extra}]'")
        Path("shop_scorers.py").write_text(SCORERS)
        import shop_scorers

        write_lines(Path("items.jsonl"), [{"_id": item.id, "text": item.text} for item in items])
        Path("bad.jsonl").write_text('{"_id": "a", "text": "a lamp"}\n{"_id": "b", "text":\n')
        Path("twice.jsonl").write_text('{"_id": "a", "text": "a lamp"}\n' * 2)
        Path("notes").mkdir()
        Path("notes/todo.txt").write_text("milk\n")
        with adacur.build(
            items, queries, scorer=shop_scorers.score, path="shop.adacur", tune=False, progress=False
        ) as index:
            with contextlib.suppress(AdacurError):
                adacur.build(
                    items, queries, scorer=fails_late(shop_scorers.score), path="half", block_items=4, progress=False
                )
            for name, damage in (("newer", {"format": 99}), ("stranger", {"scorer": None})):
                shutil.copytree("shop.adacur", name)
                manifest = Path(name, "manifest.json" if name == "newer" else "versions/1/manifest.json")
                manifest.write_text(json.dumps(json.loads(manifest.read_text()) | damage))
            shutil.copytree("shop.adacur", "damaged")
            for block in Path("damaged").glob("parts/built/scores/*.npy"):
                block.write_bytes(b"")
            yield {
                "adacur": adacur,
                "np": np,
                "Item": Item,
                "Query": Query,
                "items": items,
                "queries": queries,
                "index": index,
                **{name: getattr(shop_scorers, name) for name in ("score", "few", "nan", "broken", "other")},
            }
        sys.modules.pop("shop_scorers")


def fails_late(score: Any) -> Any:
    """A scorer that fails in the second block."""

    def scored(pairs: list[tuple[str, str]]) -> Any:
        if any("number 7" in text for _, text in pairs):
            raise RuntimeError("the model server is down")
        return score(pairs)

    return scored


def prompts(transcript: str) -> list[str]:
    """The calls and commands of a transcript; those that ask every command for its help are not written by hand."""
    asked = [line for line in transcript.splitlines() if line.startswith((">>> ", "$ ", "# "))]
    return [line for line in asked if "--help" not in line] + [
        "$ adacur --help",
        *(f"$ adacur {name} --help" for name, _ in commands()),
    ]


def answer(prompt: str, names: dict[str, Any]) -> str:
    """What is said to one line, without what belongs to this machine."""
    if prompt.startswith("# "):
        return ""
    if prompt.startswith("$ "):
        ran = here(*shlex.split(prompt)[2:])
        # A progress bar depends on how fast the machine is.
        said = ran.out + re.sub(r".*\d%\|.*", "", ran.err)
    else:
        try:
            exec(prompt.removeprefix(">>> "), dict(names))
            said = "(nothing)"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    said = said.replace(str(Path.cwd()), "FOLDER").replace(str(Path.home()), "~")
    return "".join(f"{line.rstrip()}\n" for line in said.splitlines() if line.strip())


def transcript_now() -> str:
    """The transcript with what is said now."""
    asked = prompts(TRANSCRIPT.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, small_world(Path(folder).resolve()) as names:
        return "\n".join(f"{prompt}\n{answer(prompt, names)}" for prompt in asked)


def test_what_is_said_is_what_is_written_down() -> None:
    said, written = transcript_now().split("\n\n"), TRANSCRIPT.read_text(encoding="utf-8").split("\n\n")
    changed = [f"{old}\n→\n{new}" for old, new in zip(written, said, strict=False) if old != new]
    assert (changed, len(said)) == ([], len(written)), "see `python -m tests.functional.test_wording`"


def test_every_call_of_the_transcript_meets_an_error_of_ours() -> None:
    ours = {kind.__name__ for kind in kinds_of(AdacurError)}
    written = TRANSCRIPT.read_text(encoding="utf-8")
    named = re.findall(r"^>>> .*\n(\w*)", written, re.MULTILINE)
    assert len(named) >= 60
    assert set(named) <= ours
    assert not re.search(r"^Traceback", written, re.MULTILINE)


def kinds_of(kind: type) -> set[type]:
    return {kind}.union(*map(kinds_of, kind.__subclasses__()))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    TRANSCRIPT.write_text(transcript_now(), encoding="utf-8")
