"""Items, queries and judgements from files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from adacur.data.file_rows import DataWarning, existing, find_file, listed, open_text, reading, rows, warn_left_out
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, InputError, UnknownOption
from adacur.records import Item, Query, check_texts
from adacur.spelling import did_you_mean

_QRELS = (".tsv", ".txt", ".qrels", ".tsv.gz", ".txt.gz")
_LINE = "line"
_REPEATS_NAMED = 5
_ENDS_OF_SENTENCES = tuple(".!?…:;。！？")

Repeated = Literal["refuse", "first"]
"""What becomes of records whose id another one has: refused, or only the first is kept."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Which fields hold id and text: those that the caller named, else the first known name that is there."""

    kind: Literal["item", "query"]
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    id_field: str | None
    text_fields: tuple[str, ...] | None

    @property
    def known(self) -> tuple[str, ...]:
        named = (self.id_field, *(self.text_fields or ()))
        return (*(name for name in named if name), *self.ids, *self.texts, "title")

    @property
    def named(self) -> bool:
        """Whether the caller named any."""
        return self.id_field is not None or self.text_fields is not None

    @property
    def remedy(self) -> str:
        """How the right fields are named; commands have options for items alone."""
        if self.kind == "item":
            return "Name the text with text_fields (--text-field) and the id with id_field (--id-field)."
        return "Call them 'id' and 'text' in the file, or name them: read_queries(id_field=…, text_fields=…)."

    def id_in(self, row: Mapping[str, Any], where: str, *, first: bool) -> str | None:
        """The field of the id; None where lines are to be numbered."""
        if self.id_field == _LINE and _LINE not in row:
            return None
        names = (self.id_field,) if self.id_field else self.ids
        name = next((name for name in names if name in row), None)
        others = row.keys() - {*self.texts, "title"}
        if name is None and (not first or self.id_field or (self.text_fields is None and others)):
            near = did_you_mean(self.id_field, row) if self.id_field else ""
            raise FileFormatError(
                f"{where}: no id. Expected {' or '.join(map(repr, names))}; found {listed(row)}.{near} {self.remedy}"
            )
        return name

    def text_in(self, row: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
        """The text, and the fields that it was made of."""
        used = self.text_fields
        if used is None:
            body = next((name for name in self.texts if name in row), None)
            title = "title" if self.kind == "item" and "title" in row else None
            used = tuple(dict.fromkeys(name for name in (title, body) if name))
        absent = [name for name in used or self.texts if name not in row]
        if absent or not used:
            near = did_you_mean(absent[0], row) if self.text_fields else ""
            raise FileFormatError(
                f"{where}: no text. Expected {' or '.join(map(repr, absent))}; found {listed(row)}.{near} {self.remedy}"
            )
        for name in used:
            if not isinstance(row[name], str | None):
                raise FileFormatError(f"{where}: field {name!r} must be a text; it is a {type(row[name]).__name__}.")
        return joined(row[name] or "" for name in used), used


def read_items(
    path: str | Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    limit: int | None = None,
    repeated: Repeated = "refuse",
) -> Iterator[Item]:
    """Items one by one; a folder is a BEIR folder, of which `corpus.jsonl` is read.

    The text is the title and the text joined as sentences, or the `text_fields` joined so. The title and all fields
    not used become metadata. A file without ids (plain text, or `text_fields` named and no `id_field`) has the line
    numbers as ids, and so has one with `id_field="line"` and no such field. At most `limit` items are read.

    Items without a word are left out, and a `DataWarning` at the end names them; with `repeated="first"` so are items
    whose id was there before.
    """
    if repeated not in get_args(Repeated):
        raise UnknownOption(f"repeated is one of {', '.join(map(repr, get_args(Repeated)))}; got {repeated!r}.")
    fields = _Fields(
        kind="item",
        ids=("_id", "id", "doc_id", "docno", "docid", "document_id", "item_id", "pid"),
        texts=("text", "contents", "content", "body", "passage", "abstract", "document", "description"),
        id_field=id_field,
        text_fields=None if text_fields is None else tuple(text_fields),
    )
    records = _records(find_file(path, "corpus"), fields, limit=limit, repeated=repeated)
    return (Item(id=id_, text=text, metadata=rest) for id_, text, rest in records)


def read_queries(
    path: str | Path, *, id_field: str | None = None, text_fields: Sequence[str] | None = None
) -> Iterator[Query]:
    """Queries one by one, as `read_items` reads items; a folder is a BEIR folder with `queries.jsonl`."""
    fields = _Fields(
        kind="query",
        ids=("_id", "id", "query_id", "query-id", "qid"),
        texts=("text", "query", "question", "contents", "content", "title"),
        id_field=id_field,
        text_fields=None if text_fields is None else tuple(text_fields),
    )
    return (Query(id=id_, text=text) for id_, text, _ in _records(find_file(path, "queries"), fields))


def write_queries(path: Path, queries: Iterable[Query]) -> None:
    """Write queries as `read_queries` reads them, in BEIR's form."""
    rows = (json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False) for query in queries)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ItemFile:
    """The items of a file, read anew by `read_items` each time, so that they need not fit in memory."""

    path: str | Path
    id_field: str | None = None
    text_fields: tuple[str, ...] | None = None
    limit: int | None = None
    repeated: Repeated = "refuse"

    def __iter__(self) -> Iterator[Item]:
        options: dict[str, Any] = {"limit": self.limit, "repeated": self.repeated}
        return read_items(self.path, id_field=self.id_field, text_fields=self.text_fields, **options)


def as_items(
    items: Iterable[Item | str] | str | Path, *, id_field: str | None = None, text_fields: tuple[str, ...] | None = None
) -> Iterable[Item]:
    """Items from a path (read with these fields), from a list of texts (their ids are 0, 1, 2 …), or as they are."""
    if isinstance(items, str | Path):
        return ItemFile(items, id_field=id_field, text_fields=text_fields)
    if not isinstance(items, Sequence) or not any(isinstance(item, str) for item in items):
        # Each is checked where it is stored.
        return cast(Iterable[Item], items)
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise InputError("Items must be all texts or all Item(id, text) records; got both in one list.")
    return [Item(id=str(number), text=text) for number, text in enumerate(texts)]


def read_rows(path: str | Path, *, fields: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row of a table is, and its fields as they are; `fields` are names that a header is known by."""
    file = find_file(path, "corpus")
    known = (*fields, "id", "_id", "name", "title", "text", "description", "brand", "price")
    with reading(file):
        yield from ((f"{file}, line {line}", row) for line, row in rows(file, known))


def joined(parts: Iterable[str]) -> str:
    """Title and text as one: ". " stands between them, or a space where the title ends as a sentence does."""
    text = ""
    for part in parts:
        if part.strip():
            before = text.rstrip()
            text = f"{before}{' ' if before.endswith(_ENDS_OF_SENTENCES) else '. '}{part}" if text else part
    return text


def read_qrels(path: str | Path, *, split: str | None = None) -> dict[str, dict[str, int]]:
    """Judgements by query id and item id: BEIR (query, item, grade; with or without a header) or TREC (four columns).

    In a folder, that is `qrels/SPLIT.tsv` or `qrels.SPLIT.tsv`; without a split, the one file called qrels* (the test
    split, if there are several). Their names may also end in .txt or .qrels.
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


def _records(
    file: Path, fields: _Fields, *, limit: int | None = None, repeated: Repeated = "refuse"
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Id, text and remaining fields of every record; each checked."""
    line_of: dict[str, int] = {}
    without_text: list[str] = []
    left_out: list[str] = []
    numbered, n_given = False, 0
    used: tuple[str, ...] = ()
    with reading(file):
        for line, row in rows(file, fields.known, unknown=None if fields.named else fields.remedy):
            where = f"{file}, line {line}"
            id_field = fields.id_in(row, where, first=numbered or not line_of)
            if not line_of:
                numbered = id_field is None
                if numbered and len(row) > 1 and fields.id_field != _LINE:
                    message = f"{file} has no id field, so line numbers are the ids; found {listed(row)}."
                    warnings.warn(message, DataWarning, stacklevel=3)
            id_ = str(line) if id_field is None else _id(row[id_field], id_field, where)
            if numbered != (id_field is None):
                raise FileFormatError(f"{where}: id {id_!r}, and the records before have none. Give all one, or none.")
            if id_ in line_of:
                repeat = f"the id {id_!r} is that of line {line_of[id_]}"
                if repeated == "refuse":
                    keep = " Keep the first of each by repeated='first' (adacur build --repeated first)."
                    raise DuplicateId(f"{where}: {repeat}. Ids must be unique.{keep if fields.kind == 'item' else ''}")
                left_out.append(f"{id_!r} on line {line}")
                continue
            line_of[id_] = line
            text, used = fields.text_in(row, where)
            try:
                check_texts(fields.kind.capitalize(), id_, text)
            except InputError as error:
                raise FileFormatError(f"{where}: {error}") from None
            if not text:
                without_text.append(id_)
                continue
            yield id_, text, {name: row[name] for name in row if name == "title" or name not in (id_field, *used)}
            n_given += 1
            if n_given == limit:
                break
    if not line_of:
        raise EmptyInput(f"{file} is empty. Give at least one record.")
    if not n_given:
        raise EmptyInput(f"{file}: none of its {len(line_of):,} records has text in {listed(used)}. {fields.remedy}")
    if left_out:
        some = ", ".join(left_out[:_REPEATS_NAMED]) + (", …" if len(left_out) > _REPEATS_NAMED else "")
        message = f"{file}: {len(left_out):,} records with a repeated id were left out: {some}."
        warnings.warn(message, DataWarning, stacklevel=2)
    warn_left_out(file, without_text, kind=fields.kind, stacklevel=3)


def _id(value: Any, name: str, where: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise FileFormatError(f"{where}: the id field {name!r} is empty. Give all records an id, or none.")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise FileFormatError(f"{where}: an id must be a text or a whole number; field {name!r} holds {value!r}.")
    return str(value)


def _find_qrels(folder: Path, split: str | None) -> Path:
    found = (file for place in ("qrels/*", "qrels*") for file in folder.glob(place) if file.name.endswith(_QRELS))
    # A pipe would be waited for until somebody writes to it.
    files = sorted(file for file in found if file.is_file())
    if split is not None:
        names = {f"{start}{split}{end}" for start in ("", "qrels.", "qrels_", "qrels-") for end in _QRELS}
        chosen = [file for file in files if file.name in names]
    else:
        chosen = files if len(files) == 1 else [file for file in files if "test" in file.name]
    if len(chosen) != 1:
        raise FileFormatError(
            f"Expected one of qrels/{split or 'test'}.tsv and qrels.{split or 'test'}.tsv in {folder} (also .txt or "
            f".qrels); found {', '.join(str(file.relative_to(folder)) for file in files) or 'none'}. Name the split."
        )
    return chosen[0]
