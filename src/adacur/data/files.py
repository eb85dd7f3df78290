"""Items, queries and judgements from files: JSON lines, CSV, TSV, plain text, BEIR folders; each also gzipped."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from adacur.core.errors import DuplicateId, EmptyInput, FileFormatError
from adacur.core.records import Item, Query
from adacur.data.judged_collection import JudgedCollection
from adacur.data.lines import existing, json_lines, open_text, reading

__all__ = ["read_beir", "read_items", "read_qrels", "read_queries"]

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

    def of_items(self, option: str, flag: str) -> str:
        """An option by its name, and by that which commands have for it; those have none for queries."""
        return f"{option} ({flag})" if self.titled else option


def read_items(
    path: str | Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    skip_empty: bool = False,
) -> Iterator[Item]:
    """Items one by one; a folder is a BEIR folder, of which `corpus.jsonl` is read.

    The text is the title and the text joined by ". ", or the `text_fields` joined so; a plain text file has
    an item per line, whose id is the line number. The title and all fields not used become metadata. A record
    without a word is an error, unless `skip_empty` leaves it out.
    """
    fields = _Fields(
        ids=("_id", "id", "doc_id", "docno", "docid", "document_id", "item_id", "pid"),
        texts=("text", "contents", "content", "body", "passage", "abstract", "document", "description"),
        titled=True,
        id_field=id_field,
        text_fields=None if text_fields is None else tuple(text_fields),
    )
    records = _records(_find(path, "corpus"), fields, skip_empty=skip_empty)
    return (Item(id=id_, text=text, metadata=rest) for id_, text, rest in records)


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


def read_qrels(path: str | Path, *, split: str | None = None) -> dict[str, dict[str, int]]:
    """Judgements by query id and item id: BEIR (query, item, grade; with or without a header) or TREC (four columns).

    In a folder, that is `qrels/SPLIT.tsv` or `qrels.SPLIT.tsv`; without a split, the one file called qrels*.tsv (the
    test split, if there are several).
    """
    file = _find_qrels(Path(path), split) if Path(path).is_dir() else existing(Path(path))
    qrels: dict[str, dict[str, int]] = {}
    with reading(file), open_text(file) as lines:
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


def read_beir(folder: str | Path, *, split: str | None = None) -> JudgedCollection:
    """A BEIR folder, in memory: corpus.jsonl, queries.jsonl and the judgements of one split, each also gzipped.

    All queries are kept, whichever split they belong to: `judged` are those of the split, and the others can serve as
    anchor queries. The split is looked for as in `read_qrels`. Items without a word, which BEIR's own collections
    have here and there, are left out.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"There is no folder {folder}. Check the path.")
    return JudgedCollection(
        name=folder.resolve().name,
        items=list(read_items(folder, skip_empty=True)),
        queries=list(read_queries(folder)),
        qrels=read_qrels(folder, split=split),
    )


def _records(file: Path, fields: _Fields, *, skip_empty: bool = False) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Id, text and remaining fields of every record; each checked."""
    first_seen: dict[str, int] = {}
    with reading(file):
        for line, row in _rows(file, fields):
            where = f"{file}, line {line}"
            id_, id_field = _id(row, fields, where)
            if id_ in first_seen:
                raise DuplicateId(
                    f"{where}: the id {id_!r} is already on line {first_seen[id_]}. Ids must be unique; "
                    f"remove one of the two, or choose another {fields.of_items('id_field', '--id-field')}."
                )
            first_seen[id_] = line
            text, used = _text(row, fields, where)
            if not text:
                if skip_empty:
                    continue
                raise EmptyInput(f"{where}: the record has no text in {_list(used)}. Give it a word, or leave it out.")
            yield id_, text, {name: row[name] for name in row if name == "title" or name not in (id_field, *used)}
    if not first_seen:
        raise EmptyInput(f"{file} is empty. Give at least one record.")


def _id(row: dict[str, Any], fields: _Fields, where: str) -> tuple[str, str]:
    names = (fields.id_field,) if fields.id_field else fields.ids
    name = next((name for name in names if name in row), None)
    if name is None:
        raise FileFormatError(
            f"{where}: no id. Expected one of the fields {_list(names)}; found {_list(row)}. "
            f"Name the right one with {fields.of_items('id_field', '--id-field')}."
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
            f"Name the right ones with {fields.of_items('text_fields', '--text-field')}."
        )
    parts = []
    for name in used:
        value = "" if row[name] is None else row[name]
        if not isinstance(value, str):
            raise FileFormatError(f"{where}: field {name!r} should be a text; it is a {type(value).__name__}.")
        parts.append(value)
    return ". ".join(part for part in parts if part.strip()), used


def _rows(file: Path, fields: _Fields) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every record."""
    suffix = _suffix(file)
    with open_text(file) as lines:
        if suffix in (".csv", ".tsv"):
            yield from _table_rows(lines, file, fields, tabs=suffix == ".tsv")
        elif suffix == ".txt":
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, {"id": str(number), "text": line.strip()}
        else:
            yield from json_lines(lines, file)


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
    existing(path)
    if _suffix(path) not in _FORMATS:
        raise FileFormatError(f"{path}: the name ends in none of {', '.join(_FORMATS)} (with or without .gz).")
    return path


def _find_qrels(folder: Path, split: str | None) -> Path:
    found = sorted({*folder.glob("qrels/*.tsv"), *folder.glob("qrels*.tsv")})
    names = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
    if split is not None:
        named = [path for path in found if path.stem in (split, f"qrels.{split}")]
        if len(named) != 1:
            raise FileFormatError(f"Expected qrels/{split}.tsv or qrels.{split}.tsv in {folder}; found {names}.")
        return named[0]
    tests = [path for path in found if "test" in path.name]
    if len(found) != 1 and len(tests) != 1:
        raise FileFormatError(
            f"Expected qrels/test.tsv or one file called qrels*.tsv in {folder}; found {names}. Or name the split."
        )
    return (tests or found)[0]


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _list(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
