"""No part of the library outgrows its reader: tests/size.toml has a budget of lines for each room (VISION.md)."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

import adacur

ROOT = Path(adacur.__file__).parent
LINES = {file.relative_to(ROOT): len(file.read_text(encoding="utf-8").splitlines()) for file in ROOT.rglob("*.py")}
BUDGETS = tomllib.loads(Path(__file__).parents[1].joinpath("size.toml").read_text(encoding="utf-8"))


def room_of(file: Path) -> str:
    """The room of a file: a folder, "top" for what lies beside them, or "extras/server" and the like."""
    parts = file.parts
    if parts[0] == "extras":
        return "extras/hosts" if len(parts) == 2 else f"extras/{parts[1]}"
    return "top" if len(parts) == 1 else parts[0]


ROOMS = Counter[str]()
for file, n_lines in LINES.items():
    ROOMS[room_of(file)] += n_lines


@pytest.mark.parametrize("room", sorted(ROOMS.keys() | BUDGETS["rooms"].keys()))
def test_a_room_keeps_to_its_budget(room: str) -> None:
    assert ROOMS[room] <= BUDGETS["rooms"].get(room, 0), "Raising one budget lowers another in the same commit."


def test_budgets_only_fall() -> None:
    """A budget far above what is there would be no wall."""
    assert all(budget - ROOMS[room] <= BUDGETS["slack"] for room, budget in BUDGETS["rooms"].items())
    assert sum(BUDGETS["rooms"].values()) <= BUDGETS["total"]


def test_no_file_is_longer_than_its_reader_likes() -> None:
    assert {str(file): n for file, n in LINES.items() if n > BUDGETS["file"]} == {}


def test_no_two_files_have_one_name() -> None:
    """Whoever reads a name in an error, or looks for a file, finds one."""
    names = Counter(file.name for file in LINES if not file.name.startswith("__"))
    assert [name for name, n in names.items() if n > 1] == []


def test_the_names_at_the_top_can_be_counted() -> None:
    assert len(adacur.__all__) <= BUDGETS["names"]
