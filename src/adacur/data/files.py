"""Items, queries and judgements from files: JSON lines, CSV, TSV, plain text, BEIR folders; each also gzipped."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from adacur.core.errors import DuplicateId, EmptyInput, FileFormatError
from adacur.core.records import Item, Query

__all__ = ["read_items", "read_qrels", "read_queries"]

_FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".txt")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Which fields hold id and text: the first known name that is there, unless the caller named them."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    titled: bool
    id_field: str | None
    text_fields: tuple[str, ...] | None

    @property
    def known(self) -> set[str]:
        return {*self.ids, *self.texts, "title", self.id_field or "", *(self.text_fields or ())}


def read_items(
    path: str | Path, *, id_field: str | None = None, text_fields: Sequence[str] | None = None
) -> Iterator[Item]:
    """Items one by one; a folder is a BEIR folder, of which `corpus.jsonl` is read.

    The text is the title and the text joined by ". ", or the `text_fields` joined so; a plain text file has
    an item per line, whose id is the line number. The title and all fields not used become metadata.
    """
    fields = _Fields(
        ids=("_id", "id", "doc_id", "docno", "docid", "document_id", "item_id", "pid"),
        texts=("text", "contents", "content", "body", "passage", "abstract", "document", "description"),
        titled=True,
        id_field=id_field,
        text_fields=None if text_fields is None else tuple(text_fields),
    )
    return (Item(id=id_, text=text, metadata=rest) for id_, text, rest in _records(_find(path, "corpus"), fields))


def read_queries(
    path: str | Path, *, id_field: str | None = None, text_fields: Sequence[str] | None = None
) -> Iterator[Query]:
    """Queries one by one, as `read_items` reads items; a folder is a BEIR folder with `queries.jsonl`."""
    fields = _Fields(
        ids=("_id", "id", "query_id", "query-id", "qid"),
        texts=("text", "query", "question", "contents", "content", "title"),
        titled=False,
        id_field=id_field,
        text_fields=None if text_fields is None else tuple(text_fields),
    )
    return (Query(id=id_, text=text) for id_, text, _ in _records(_find(path, "queries"), fields))


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Judgements by query id and item id: BEIR (query, item, grade; with or without a header) or TREC (four columns).

    In a folder, `qrels/test.tsv` is read, or the one file called qrels*.tsv (the test split, if there are several).
    """
    file = _find_qrels(Path(path)) if Path(path).is_dir() else _existing(Path(path))
    qrels: dict[str, dict[str, int]] = {}
    with _reading(file), _open(file) as lines:
        for number, line in enumerate(lines, 1):
            columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
            if not line.strip():
                continue
            if len(columns) not in (3, 4):
                raise FileFormatError(
                    f"{file}, line {number}: judgements have three columns (query, item, grade) or TREC's four; "
                    f"got {len(columns)}: {line.strip()!r}."
                )
            try:
                grade = int(columns[-1])
            except ValueError:
                if number == 1:
                    continue
                raise FileFormatError(
                    f"{file}, line {number}: a grade is a whole number; got {columns[-1]!r}."
                ) from None
            qrels.setdefault(columns[0], {})[columns[-2]] = grade
    if not qrels:
        raise EmptyInput(f"{file} holds no judgements.")
    return qrels


def _records(file: Path, fields: _Fields) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Id, text and remaining fields of every record; each checked."""
    first_seen: dict[str, int] = {}
    with _reading(file):
        for line, row in _rows(file, fields):
            where = f"{file}, line {line}"
            id_, id_field = _id(row, fields, where)
            if id_ in first_seen:
                raise DuplicateId(
                    f"{where}: the id {id_!r} is already on line {first_seen[id_]}. Ids must be unique; "
                    "remove one of the two, or choose another id_field."
                )
            first_seen[id_] = line
            text, used = _text(row, fields, where)
            yield id_, text, {name: row[name] for name in row if name == "title" or name not in (id_field, *used)}
    if not first_seen:
        raise EmptyInput(f"{file} is empty. Give at least one record.")


def _id(row: dict[str, Any], fields: _Fields, where: str) -> tuple[str, str]:
    names = (fields.id_field,) if fields.id_field else fields.ids
    name = next((name for name in names if name in row), None)
    if name is None:
        raise FileFormatError(
            f"{where}: no id. Expected one of the fields {_list(names)}; found {_list(row)}. "
            "Name the right one with id_field."
        )
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise FileFormatError(f"{where}: an id is a text or a whole number; field {name!r} holds {value!r}.")
    return str(value), name


def _text(row: dict[str, Any], fields: _Fields, where: str) -> tuple[str, tuple[str, ...]]:
    if fields.text_fields is not None:
        used = fields.text_fields
        absent = [name for name in used if name not in row]
    else:
        body = next((name for name in fields.texts if name in row), None)
        title = "title" if fields.titled and "title" in row else None
        used = tuple(dict.fromkeys(name for name in (title, body) if name))
        absent = [] if used else list(fields.texts)
    if absent or not used:
        raise FileFormatError(
            f"{where}: no text. Expected one of the fields {_list(absent)}; found {_list(row)}. "
            "Name the right ones with text_fields."
        )
    parts = []
    for name in used:
        value = "" if row[name] is None else row[name]
        if not isinstance(value, str):
            raise FileFormatError(f"{where}: field {name!r} should be a text; it is a {type(value).__name__}.")
        parts.append(value)
    text = ". ".join(part for part in parts if part.strip())
    if not text:
        raise EmptyInput(f"{where}: the record has no text in {_list(used)}. Give it a word, or leave it out.")
    return text, used


def _rows(file: Path, fields: _Fields) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every record."""
    suffix = _suffix(file)
    with _open(file) as lines:
        if suffix in (".csv", ".tsv"):
            yield from _table_rows(lines, file, fields, tabs=suffix == ".tsv")
            return
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if suffix == ".txt":
                yield number, {"id": str(number), "text": line.strip()}
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise FileFormatError(f"{file}, line {number}: not JSON ({error}). Each line is one object.") from error
            if not isinstance(row, dict):
                raise FileFormatError(f"{file}, line {number}: each line is a JSON object; got {type(row).__name__}.")
            yield number, row


def _table_rows(lines: IO[str], file: Path, fields: _Fields, *, tabs: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    # TSV files in the wild (MS MARCO, BEIR) carry bare quotation marks.
    if tabs:
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        blank_and_first: list[str] = []
        for line in lines:
            blank_and_first.append(line)
            if line.strip():
                break
        delimiter = _delimiter(blank_and_first[-1] if blank_and_first else "", fields)
        reader = csv.reader(itertools.chain(blank_and_first, lines), delimiter=delimiter, strict=True)
    header: list[str] = []
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if not header:
            names = {name.strip().lower() for name in fields.known}
            named = len(row) > 2 or any(cell.strip().lower() in names for cell in row)
            header = [cell.strip() for cell in row] if named else ["id", "text"][-len(row) :]
            if named:
                continue
        if len(row) != len(header):
            raise FileFormatError(
                f"{file}, line {reader.line_num}: {len(row)} columns; expected {len(header)} ({_list(header)})."
            )
        record = dict(zip(header, row, strict=True))
        yield reader.line_num, record if header != ["text"] else {"id": str(reader.line_num)} | record


def _delimiter(first_line: str, fields: _Fields) -> str:
    """The comma, unless another sign is what makes a known name appear in the header.

    Spreadsheets of many countries export "comma-separated" values with semicolons or tabs.
    """
    known = {name.strip().lower() for name in fields.known}
    for sign in ",;\t":
        try:
            cells = next(csv.reader([first_line], delimiter=sign), [])
        except csv.Error:
            continue
        if any(cell.strip().lower() in known for cell in cells):
            return sign
    return ","


def _find(path: str | Path, stem: str) -> Path:
    path = Path(path)
    if path.is_dir():
        found = next((path / name for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz") if (path / name).is_file()), None)
        if found is None:
            raise FileFormatError(f"The folder {path} holds no {stem}.jsonl or {stem}.jsonl.gz, as a BEIR folder does.")
        return found
    _existing(path)
    if _suffix(path) not in _FORMATS:
        raise FileFormatError(f"{path}: the name ends in none of {', '.join(_FORMATS)} (with or without .gz).")
    return path


def _find_qrels(folder: Path) -> Path:
    found = sorted({*folder.glob("qrels/*.tsv"), *folder.glob("qrels*.tsv")})
    tests = [path for path in found if "test" in path.name]
    if len(found) != 1 and len(tests) != 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
        raise FileFormatError(f"Expected qrels/test.tsv or one file called qrels*.tsv in {folder}; found {names}.")
    return (tests or found)[0]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Check the path.")
    return path


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _open(file: Path) -> IO[str]:
    # csv wants line ends as they are; a byte order mark is no part of the first field.
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{file} is not UTF-8 ({error}). Convert it first.") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(f"{file} cannot be read: {error}") from error


def _list(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
