"""ZeShEL folders: worlds of entity documents, and mentions of these entities in context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adacur.data.collections import JudgedCollection
from adacur.data.file_rows import existing, json_lines, open_text, reading, warn_left_out
from adacur.data.files import joined
from adacur.data.splits import QuerySplit, split_queries
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, UnknownName
from adacur.records import Item, Query
from adacur.spelling import did_you_mean

__all__ = ["ZeshelTags", "read_zeshel", "zeshel_split", "zeshel_worlds"]

_MENTION_FILES = ("train", "val", "test")
# The paper's table has 2,400 queries for Military, whichever split; for the other worlds, all there are.
_PAPER_QUERIES = {"military": 2400}

_T = TypeVar("_T", str, int)


@dataclass(frozen=True, slots=True)
class ZeshelTags:
    """Words that mark where a mention begins and ends and where a title ends: those of the paper's checkpoint."""

    mention_start: str = "[unused0]"
    mention_end: str = "[unused1]"
    title_end: str = "[unused2]"


_PAPER_TAGS = ZeshelTags()


@dataclass(frozen=True, slots=True)
class _Document:
    title: str
    text: str


def zeshel_worlds(folder: str | Path) -> list[str]:
    """The worlds of a folder, by name."""
    documents = Path(folder) / "documents"
    worlds = sorted(path.stem for path in documents.glob("*.json"))
    if not worlds:
        raise FileFormatError(
            f"A ZeShEL folder has documents/WORLD.json and mentions/{{train,val,test}}.json; {documents} has no .json."
        )
    return worlds


def read_zeshel(
    folder: str | Path, world: str, *, context: int = 40, tags: ZeshelTags | None = _PAPER_TAGS
) -> JudgedCollection:
    """A world, in memory: its entity documents as items, all mentions of them as queries, judged by their label.

    A query is the mention between its tags, with `context` words on either side (40 and 40 fill about the 128 tokens
    of the paper's scorer); an item is "title [tag] text". Without tags, for scorers that were not trained with
    them, nothing marks the mention, and title and text are joined as `read_items` does. Documents without a word are
    left out, as `read_beir` leaves them out.
    """
    worlds = zeshel_worlds(folder)
    if world not in worlds:
        raise UnknownName(f"{folder} has no world {world!r}.{did_you_mean(world, worlds)} It has: {', '.join(worlds)}.")
    documents = _documents(Path(folder) / "documents" / f"{world}.json")
    items = [
        Item(id_, _item_text(document, tags), {"title": document.title})
        for id_, document in documents.items()
        if document.title.strip() or document.text.strip()
    ]
    with_text = {item.id for item in items}
    warn_left_out(Path(folder) / "documents" / f"{world}.json", [id_ for id_ in documents if id_ not in with_text])
    queries, qrels = _mentions(Path(folder) / "mentions", world, documents, context=context, tags=tags)
    return JudgedCollection(name=world, items=items, queries=queries, qrels=qrels)


def zeshel_split(world: JudgedCollection, n_train: int, *, seed: int = 0) -> QuerySplit:
    """The paper's kind of split: `n_train` (100, 500 or 2000) mentions at random are anchors, the rest are tests.

    As in the paper, Military is cut to 2,400 mentions. Which mentions the authors drew is not published; ours depend on
    the seed and the mentions alone.
    """
    total = _PAPER_QUERIES.get(world.name)
    n_test = max(total - n_train, 0) if total is not None and total <= len(world.queries) else None
    return split_queries(world.queries, anchors=n_train, test=n_test, seed=seed)


def _item_text(document: _Document, tags: ZeshelTags | None) -> str:
    if tags is None:
        return joined((document.title, document.text))
    return f"{document.title} {tags.title_end} {document.text}"


def _documents(file: Path) -> dict[str, _Document]:
    documents: dict[str, _Document] = {}
    for where, row in _rows(file):
        id_ = _value(row, "document_id", str, where)
        if id_ in documents:
            raise DuplicateId(f"{where}: the document {id_!r} occurs a second time. Remove one of the two.")
        documents[id_] = _Document(title=_value(row, "title", str, where), text=_value(row, "text", str, where))
    if not documents:
        raise EmptyInput(f"{file} holds no document.")
    return documents


def _mentions(
    folder: Path, world: str, documents: dict[str, _Document], *, context: int, tags: ZeshelTags | None
) -> tuple[list[Query], dict[str, dict[str, int]]]:
    files = [file for name in _MENTION_FILES if (file := folder / f"{name}.json").is_file()]
    if not files:
        raise FileFormatError(f"{folder} holds none of {', '.join(f'{name}.json' for name in _MENTION_FILES)}.")
    queries: list[Query] = []
    qrels: dict[str, dict[str, int]] = {}
    for file in files:
        for where, row in _rows(file):
            if _value(row, "corpus", str, where) != world:
                continue
            id_ = _value(row, "mention_id", str, where)
            if id_ in qrels:
                raise DuplicateId(f"{where}: the mention {id_!r} occurs a second time. Remove one of the two.")
            label = _value(row, "label_document_id", str, where)
            for name in ("context_document_id", "label_document_id"):
                if _value(row, name, str, where) not in documents:
                    raise FileFormatError(
                        f"{where}: {name} is {row[name]!r}, which documents/{world}.json does not hold. "
                        "Mentions and documents must come from the same release."
                    )
            queries.append(Query(id_, _in_context(row, where, documents, context=context, tags=tags)))
            qrels[id_] = {label: 1}
    if not queries:
        raise EmptyInput(f"No mention of the world {world!r} in {', '.join(map(str, files))}.")
    return queries, qrels


def _in_context(
    row: dict[str, Any], where: str, documents: dict[str, _Document], *, context: int, tags: ZeshelTags | None
) -> str:
    words = documents[row["context_document_id"]].text.split()
    start, stop = _value(row, "start_index", int, where), _value(row, "end_index", int, where) + 1
    mention = words[start:stop]
    if start < 0 or " ".join(mention) != _value(row, "text", str, where):
        raise FileFormatError(
            f"{where}: words {start} to {stop - 1} of document {row['context_document_id']!r} are "
            f"{' '.join(mention)!r}; the mention says {row['text']!r}. Mentions and documents must come from the same "
            "release."
        )
    if tags is not None:
        mention = [tags.mention_start, *mention, tags.mention_end]
    return " ".join((*words[max(start - context, 0) : start], *mention, *words[stop : stop + context]))


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with reading(file), open_text(existing(file)) as lines:
        for number, row in json_lines(lines, file):
            yield f"{file}, line {number}", row


def _value(row: dict[str, Any], name: str, kind: type[_T], where: str) -> _T:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        found = f"it is {value!r}" if name in row else f"found only {', '.join(map(repr, row)) or 'none'}"
        raise FileFormatError(f"{where}: expected the field {name!r} to be a {kind.__name__}; {found}.")
    return value
