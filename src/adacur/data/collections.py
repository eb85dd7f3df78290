"""Collections with queries and judgements: BEIR folders, and two that every machine can fetch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adacur.data.catalogue import fetch
from adacur.data.files import read_items, read_qrels, read_queries
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, InputError
from adacur.records import Item, Query, repeats

_MONDO = "MONDO-ontology-v2026-05-05.json.zst"


@dataclass(frozen=True, slots=True, eq=False)
class JudgedCollection:
    """Items, queries and grades by query id and item id, which tell what is relevant to whom.

    Not every query need be judged, and `qrels` is empty where none is. Judgements of absent queries or items, which
    real collections have, are kept.
    """

    name: str
    items: Sequence[Item] = field(repr=False)
    queries: Sequence[Query] = field(repr=False)
    qrels: Mapping[str, Mapping[str, int]] = field(repr=False)

    def __post_init__(self) -> None:
        for kind, records in (("item", self.items), ("query", self.queries)):
            ids = [record.id for record in records]
            if not ids:
                raise EmptyInput(f"The collection {self.name!r} has no {kind}. Give at least one.")
            if len(set(ids)) < len(ids):
                raise DuplicateId(f"Ids must be unique; in {self.name!r} the {kind} {repeats(ids)} more than once.")
        if self.qrels and not self.judged:
            raise InputError(
                f"None of the {len(self.qrels)} judged query ids of {self.name!r} is among its {len(self.queries)} "
                "queries. Check that both come from the same collection."
            )

    @property
    def judged(self) -> list[Query]:
        """The queries with judgements, in their order."""
        return [query for query in self.queries if self.qrels.get(query.id)]


def read_beir(folder: str | Path, *, split: str | None = None) -> JudgedCollection:
    """A BEIR folder, in memory: corpus.jsonl, queries.jsonl and the judgements of one split, each also gzipped.

    All queries are kept, whichever split they belong to: `judged` are those of the split, and the others can serve as
    anchor queries. The split is looked for as in `read_qrels`; a folder without qrels has no judgements. Items without
    a word, which BEIR's own collections have here and there, are left out with a `DataWarning`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"There is no folder {folder}. Give a BEIR folder: corpus.jsonl, queries.jsonl, qrels/.")
    has_qrels = split is not None or any(folder.glob("qrels*"))
    return JudgedCollection(
        name=folder.resolve().name,
        items=list(read_items(folder)),
        queries=list(read_queries(folder)),
        qrels=read_qrels(folder, split=split) if has_qrels else {},
    )


def wikivital(*, cache: str | Path | None = None) -> list[Item]:
    """Introductions of 10,033 Wikipedia articles (CC BY-SA 4.0), fetched once; metadata: title, description, topic."""
    path = fetch("wikivital", cache=cache) / "summaries_en-us.json"
    articles = json.loads(path.read_text(encoding="utf-8"))
    # Ids are row numbers in the order of titles, which the published scores and judgements refer to.
    return [
        Item(
            id=f"w{row}",
            text=f"{title}. {article['extract']}",
            metadata={"title": title, "description": article["description"], "topic": article["topic"]},
        )
        for row, (title, article) in enumerate(sorted(articles.items()))
    ]


def mondo(*, cache: str | Path | None = None) -> JudgedCollection:
    """27,990 diseases (name and definition) and 60,025 synonyms that ask for them (CC BY 4.0), fetched once.

    The queries of a disease are its synonyms, less those that differ from its name in upper and lower case alone.
    """
    diseases = {
        id_: disease
        for id_, disease in sorted(_unpacked(fetch("mondo", cache=cache) / _MONDO).items())
        if not disease["deprecated"]
    }
    synonyms = {
        Query(f"{id_}#{place}", synonym): id_
        for id_, disease in diseases.items()
        for place, synonym in enumerate(disease.get("synonyms", ()))
        if synonym.casefold() != disease["label"].casefold()
    }
    return JudgedCollection(
        name="mondo",
        items=[
            Item(
                id=id_,
                text=". ".join(filter(None, (disease["label"], disease.get("description")))),
                metadata={"title": disease["label"]},
            )
            for id_, disease in diseases.items()
        ],
        queries=list(synonyms),
        qrels={query.id: {id_: 1} for query, id_ in synonyms.items()},
    )


def _unpacked(file: Path) -> dict[str, Any]:
    # Zstandard is in the standard library from Python 3.14 on.
    from numcodecs import Zstd  # type: ignore[import-untyped]

    try:
        content: dict[str, Any] = json.loads(bytes(Zstd().decode(file.read_bytes())))
    except (RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"{file} is damaged ({error}). Remove the folder {file.parent}, and it is fetched anew."
        ) from error
    return content
