"""Text files line by line: UTF-8, gzipped or not, with errors that name the file and the line."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adacur.core.errors import FileFormatError

__all__ = ["existing", "json_lines", "open_text", "reading"]


def existing(path: Path) -> Path:
    """The path itself, if there is such a file."""
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Check the path.")
    return path


def open_text(file: Path) -> IO[str]:
    """A file to read; one called .gz is unpacked on the way."""
    # csv wants line ends as they are; a byte order mark is no part of the first field.
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Report what goes wrong while a file is read as a fault of that file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{file} is not UTF-8 ({error}). Convert it first.") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(f"{file} cannot be read: {error}") from error


def json_lines(lines: IO[str], file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every JSON object; blank lines are passed over."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileFormatError(f"{file}, line {number}: not JSON ({error}). Each line is one object.") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{file}, line {number}: each line is a JSON object; got {type(row).__name__}.")
        yield number, row
