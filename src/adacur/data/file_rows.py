"""Rows of files, one by one: JSON, CSV, TSV, Parquet, plain text; each also gzipped. Errors name the file and line."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adacur.errors import FileFormatError, MissingExtra

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Line number and fields of each."""

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet")
_GZIP = b"\x1f\x8b"
_NAMED = 5
# Characters. A file without line ends, of zeros for example, would fill the memory.
LONGEST_LINE = 2**28
# The csv module's own limit of 131,072 characters is less than some texts have.
_LONGEST_CELL = LONGEST_LINE
_LONGEST_ARRAY = 2**31
_DELIMITERS = (",", ";", "\t", "|")
_REMEDY = "An array, or objects over several lines, can be read from a file called .json, or made lines by jq -c."


class DataWarning(UserWarning):
    """Records were left out because they have no text, or line numbers became ids because there are no others."""


def warn_left_out(source: str | Path, ids: Sequence[str], *, kind: str = "item", stacklevel: int = 2) -> None:
    """Warn that the records with these ids have no text and were left out; nothing where there are none.

    `stacklevel` counts from the function that calls this one: 2 is its caller.
    """
    if ids:
        named = ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
        kinds = {"item": "items", "query": "queries"}[kind]
        what = f"1 {kind} without text was" if len(ids) == 1 else f"{len(ids):,} {kinds} without text were"
        warnings.warn(f"{source}: {what} left out: {named}.", DataWarning, stacklevel=stacklevel + 1)


def find_file(path: str | Path, stem: str) -> Path:
    """A file of a known format: the one at this path, or in a BEIR folder the one of this name."""
    path = Path(path)
    if path.is_dir():
        found = next((path / name for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz") if (path / name).is_file()), None)
        if found is None:
            raise FileFormatError(f"The folder {path} holds no {stem}.jsonl or {stem}.jsonl.gz, as a BEIR folder does.")
        return found
    if _suffix(existing(path)) not in FORMATS:
        raise FileFormatError(f"{path}: the name ends in none of {', '.join(FORMATS)} (with or without .gz).")
    return path


def existing(path: Path) -> Path:
    """The path itself, if there is such a file."""
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Check the path.")
    return path


def rows(file: Path, known: Sequence[str], *, unknown: str | None = None) -> Rows:
    """Line number and fields of every record.

    Columns are `known` whatever their case. A table without a known column is refused, and this says what to do;
    without it any is taken.
    """
    suffix = _suffix(file)
    if suffix == ".parquet":
        yield from _parquet_rows(file)
        return
    with open_text(file) as lines:
        if suffix in (".csv", ".tsv"):
            yield from _table_rows(lines, file, known, unknown, tabs=suffix == ".tsv")
        elif suffix == ".txt":
            texts = ((number, line.strip()) for number, line in enumerate(lines, 1))
            yield from ((number, {"id": str(number), "text": text}) for number, text in texts if text)
        else:
            yield from (_json_rows if suffix == ".json" else json_lines)(lines, file)


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def open_text(file: Path) -> IO[str]:
    """A file to read; gzip data are unpacked on the way, whatever the file is called."""
    with file.open("rb") as start:
        is_gzip = file.suffix == ".gz" or start.read(len(_GZIP)) == _GZIP
    # csv wants line ends as they are; a byte order mark is no part of the first field.
    return _Lines(gzip.open(file) if is_gzip else file.open("rb"), encoding="utf-8-sig", newline="")


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


def json_lines(lines: Iterable[str], file: Path) -> Rows:
    """Of every JSON object; blank lines are passed over."""
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            yield number, _object(_json(text, f"{file}, line {number}"), f"{file}, line {number}")


def _json_rows(lines: IO[str], file: Path) -> Rows:
    """Of every object of a .json file: one array of objects, or an object per line."""
    start = next((line for line in lines if line.strip()), "")
    lines.seek(0)
    if not start.lstrip().startswith("["):
        yield from json_lines(lines, file)
        return
    text = lines.read(_LONGEST_ARRAY + 1)
    if len(text) > _LONGEST_ARRAY:
        raise FileFormatError(
            f"{file}: an array of more than {_LONGEST_ARRAY:,} characters. Make it lines: jq -c '.[]'"
        )
    for number, row in enumerate(_json(text, str(file)), 1):
        yield number, _object(row, f"{file}, record {number}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg}, character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        raise FileFormatError(f"{where}: not JSON ({why}). {_REMEDY}") from error


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise FileFormatError(f"{where}: must be a JSON object; got {type(row).__name__}. {_REMEDY}")
    return row


def _parquet_rows(file: Path) -> Rows:
    try:
        from pyarrow import ArrowInvalid  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra(
            f"{file}: reading Parquet needs pyarrow, which is not installed. Install it (pip install pyarrow), or save "
            "the table as .jsonl or .csv."
        ) from None
    try:
        with ParquetFile(file) as table:
            records = (row for batch in table.iter_batches() for row in batch.to_pylist())
            # Dates and the like have no JSON of their own, and metadata are JSON.
            yield from ((n, json.loads(json.dumps(row, default=str))) for n, row in enumerate(records, 1))
    except ArrowInvalid as error:
        raise FileFormatError(f"{file} cannot be read as Parquet: {error}") from error


def _table_rows(lines: IO[str], file: Path, known: Sequence[str], unknown: str | None, *, tabs: bool) -> Rows:
    csv.field_size_limit(_LONGEST_CELL)
    n_blank, first_line = 0, ""
    for first_line in lines:
        if first_line.strip():
            break
        n_blank += 1
    # Spreadsheets of many countries export "comma-separated" values with semicolons or tabs.
    delimiter = max(("\t" if tabs else ",", *_DELIMITERS), key=first_line.count)
    reader = csv.reader(
        itertools.chain(itertools.repeat("\n", n_blank), [first_line], lines),
        delimiter=delimiter,
        # TSV files in the wild (MS MARCO, BEIR) carry bare quotation marks.
        quoting=csv.QUOTE_NONE if tabs and delimiter == "\t" else csv.QUOTE_MINIMAL,
        strict=True,
    )
    filled = (row for row in reader if any(cell.strip() for cell in row))
    header = _header(next(filled, []), known)
    if header and unknown is not None and not set(known) & set(header):
        raise FileFormatError(
            f"{file}, line {reader.line_num}: a table must begin with the names of its columns, and none of "
            f"{listed(header)} is known. {unknown} If this line is a record, put a line of names above it."
        )
    for row in filled:
        if len(row) != len(header):
            raise FileFormatError(
                f"{file}, line {reader.line_num}: {len(row)} columns; expected {len(header)} ({listed(header)})."
            )
        yield reader.line_num, dict(zip(header, row, strict=True))


def _header(row: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of the columns; those that are known but for upper case as they are known."""
    cells = [cell.strip() for cell in row]
    usual = {name.lower(): name for name in reversed(known)}
    return [cell if (name := usual.get(cell.lower(), cell)) in cells else name for cell in cells]


def listed(names: Iterable[str] | Mapping[str, Any]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names) or "none"
