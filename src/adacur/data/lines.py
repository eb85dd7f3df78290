"""Text files line by line: UTF-8, gzipped or not; errors name the file and the line, and warnings what is left out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adacur.errors import FileFormatError

_GZIP = b"\x1f\x8b"
_IDS_NAMED = 5
# Characters. A file without line ends, of zeros for example, would fill the memory.
LONGEST_LINE = 2**28
_LONGEST_ARRAY = 2**31
_REMEDY = "An array, or objects over several lines, can be read from a file called .json, or made lines by jq -c."


class DataWarning(UserWarning):
    """Records were left out because they have no text, or line numbers became ids because there are no others."""


def warn_left_out(source: str | Path, ids: Sequence[str], *, kind: str = "item", stacklevel: int = 2) -> None:
    """Warn that the records with these ids have no text and were left out; nothing where there are none.

    `stacklevel` counts from the function that calls this one: 2 is its caller.
    """
    if ids:
        named = ", ".join(ids[:_IDS_NAMED]) + (", …" if len(ids) > _IDS_NAMED else "")
        kinds = {"item": "items", "query": "queries"}[kind]
        what = f"1 {kind} without text was" if len(ids) == 1 else f"{len(ids):,} {kinds} without text were"
        warnings.warn(f"{source}: {what} left out: {named}.", DataWarning, stacklevel=stacklevel + 1)


def existing(path: Path) -> Path:
    """The path itself, if there is such a file."""
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Check the path.")
    return path


def open_text(file: Path) -> IO[str]:
    """A file to read; gzip data are unpacked on the way, whatever the file is called."""
    # csv wants line ends as they are; a byte order mark is no part of the first field.
    return _Lines(_open_bytes(file), encoding="utf-8-sig", newline="")


class _Lines(io.TextIOWrapper):
    number = 0

    def __next__(self) -> str:  # type: ignore[override]
        self.number += 1
        line = self.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise FileFormatError(
                f"{self.name}, line {self.number}: longer than {LONGEST_LINE:,} characters. Is it a text file?"
            )
        if not line:
            raise StopIteration
        return line


def _open_bytes(file: Path) -> gzip.GzipFile | io.BufferedReader:
    with file.open("rb") as start:
        is_gzip = file.suffix == ".gz" or start.read(len(_GZIP)) == _GZIP
    return gzip.open(file) if is_gzip else file.open("rb")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Report what goes wrong while a file is read as a fault of that file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{file} is not UTF-8 (byte 0x{error.object[error.start]:02x}). Convert it: iconv -f latin1 -t utf8, or "
            "from whatever it is, such as utf-16."
        ) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(f"{file} cannot be read: {error}") from error


def json_lines(lines: IO[str], file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every JSON object; blank lines are passed over."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        where = f"{file}, line {number}"
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise FileFormatError(
                f"{where}: not JSON ({error.msg}, column {error.pos + 1}). Each line must be one object. {_REMEDY}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{where}: not JSON ({error}).") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{where}: each line must be a JSON object; got {type(row).__name__}. {_REMEDY}")
        yield number, row


def json_rows(lines: IO[str], file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and fields of every object of a .json file: one array of objects, or an object per line."""
    for start in lines:
        if start.strip():
            break
    else:
        return
    lines.seek(0)
    if not start.lstrip().startswith("["):
        yield from json_lines(lines, file)
        return
    try:
        text = lines.read(_LONGEST_ARRAY + 1)
        if len(text) > _LONGEST_ARRAY:
            raise ValueError(f"an array of more than {_LONGEST_ARRAY:,} characters. Make it lines: jq -c '.[]'")
        rows = json.loads(text)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file}: not JSON ({error}).") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise FileFormatError(f"{file}, record {number}: must be a JSON object; got {type(row).__name__}.")
        yield number, row
