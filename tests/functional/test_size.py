"""The library must not outgrow its reader (VISION.md)."""

from __future__ import annotations

from pathlib import Path

import adacur

FILES = Path(adacur.__file__).parent.rglob("*.py")
LINES = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}


def test_the_library_grows_no_further() -> None:
    assert 10_000 < sum(LINES.values()) <= 44_100, "Delete what the new lines make needless; the aim is 25,000."


def test_no_file_is_longer_than_500_lines() -> None:
    assert {str(file): n for file, n in LINES.items() if n > 500} == {}
