"""The items, queries and judgements of a folder, which `try` and `evaluate` read; of large ones a sample."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.data import ItemFile, JudgedCollection, pseudo_queries, read_qrels, read_queries, split_queries
from adacur.data.file_rows import FORMATS
from adacur.errors import FileFormatError, InputError
from adacur.records import Item, ItemList, Query
from adacur.replay.measures import Qrels, can_judge, telling_queries
from adacur.requirements import install_command
from adacur.seeds import item_keys, stream_key, uniform

MOST_QUERIES, MOST_PSEUDO = 200, 100
# The most items held in memory; of more, a random sample is.
_HELD_ITEMS = 50_000


@dataclass(frozen=True, slots=True)
class Material:
    """Items and queries to try on, each in an order of which any first part is a random sample.

    `source` is what `adacur build` reads, with these fields, `queries_file` what its --anchors does. `n_items` counts
    all items, of which `items` may be a sample that has everything judged relevant. Judged queries come first;
    `n_judged` counts all.
    """

    name: str
    source: Path
    queries_file: Path | None
    n_items: int
    items: ItemList
    queries: tuple[Query, ...]
    qrels: Qrels
    n_judged: int
    notes: tuple[str, ...]
    id_field: str | None = None
    text_fields: tuple[str, ...] | None = None

    def cut(self, n: int, *, n_queries: int) -> Material:
        """With the first n items, everything judged relevant to any query, and the first `n_queries` queries."""
        needed = {id_ for grades in self.qrels.values() for id_, grade in grades.items() if grade > 0}
        drawn = (item for at, item in enumerate(self.items) if at < n or item.id in needed)
        return replace(self, items=ItemList(drawn), queries=self.queries[:n_queries])


def read_material(
    folder: str | Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    most: int = MOST_QUERIES,
    seed: int = 0,
) -> Material:
    """The items of a folder or file, judgements if any, and at most `most` queries: pseudo-queries if it has none."""
    folder = Path(folder)
    source, queries_file = _files(folder)
    asked = list(read_queries(queries_file)) if queries_file else []
    qrels = read_qrels(folder) if folder.is_dir() and any(folder.glob("qrels*")) else {}
    if qrels and not asked:
        raise FileFormatError(f"{folder} has judgements and no queries.jsonl that they could refer to. Add it.")
    judged = [query for query in asked if qrels.get(query.id)]
    first = _drawn(judged, most, seed=seed)
    taken = {plain_text(query.text) for query in first}
    rest = [query for query in asked if query.id not in qrels and plain_text(query.text) not in taken]
    candidates = [*first, *_drawn(rest, most, seed=seed)][:most]
    wanted = {id_ for query in candidates for id_ in qrels.get(query.id, ())}
    fields = None if text_fields is None else tuple(text_fields)
    items, n_items = _held(ItemFile(source, id_field=id_field, text_fields=fields), wanted, seed=seed)
    notes = []
    if not candidates:
        notes.append("There are no queries, so sentences and titles of the items stand in: real ones may differ.")
        candidates = _pseudo(items, min(most, MOST_PSEUDO), seed=seed)
    grades = {query.id: qrels[query.id] for query in candidates if query.id in qrels}
    # Refuses repeated ids, and judgements of other queries.
    name = JudgedCollection(folder.resolve().name, items, asked or candidates, qrels).name
    held = ItemList(items)
    usable = telling_queries(candidates, held, grades)
    if grades and not usable:
        raise InputError(
            f"None of the {len(wanted):,} judged items of {len(grades)} queries is in {source} (e.g. "
            f"{min(wanted)!r}; its items have ids such as {held.ids[0]!r}). Check the ids of the judgements."
        )
    known = set(held.ids)
    if lost := sum(id_ not in known for id_ in wanted) if grades else 0:
        notes.append(f"{lost:,} of {len(wanted):,} judged items are not in {source.name}, or have no text.")
    if grades and not can_judge():
        notes.append(
            "The judgements are left out: ir_measures is not installed. Install it, and run this again (what is scored "
            f"now is kept): {install_command('evaluation')}"
        )
    judged_first = [query for query in candidates if query in usable]
    others = [query for query in candidates if query.id not in grades]
    return Material(
        name=name,
        source=folder if queries_file and source.name.startswith("corpus.jsonl") else source,
        queries_file=queries_file,
        n_items=n_items,
        items=held,
        queries=(*judged_first, *others),
        qrels={query.id: grades[query.id] for query in judged_first},
        n_judged=len(judged),
        notes=tuple(notes),
        id_field=id_field,
        text_fields=fields,
    )


def _files(folder: Path) -> tuple[Path, Path | None]:
    """The file of items and that of queries."""
    if not folder.is_dir():
        if not folder.is_file():
            raise FileFormatError(f"There is no folder or file {folder}. Give a folder that holds corpus.jsonl.")
        return folder, None
    known = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and Path(file.name.removesuffix(".gz")).suffix.lower() in FORMATS
    ]
    queries = [file for file in known if file.name.startswith("queries.")]
    others = [file for file in known if not file.name.startswith(("queries.", "qrels"))]
    corpus = [file for file in others if file.name.startswith("corpus.")] or others
    if len(corpus) != 1 or len(queries) > 1:
        found = ", ".join(file.name for file in known) or "none"
        raise FileFormatError(
            f"Expected one file of items in {folder}, called corpus.jsonl (also {', '.join(FORMATS[1:])}, .gz) or "
            f"alone in it, and at most one called queries.jsonl; found {found}. Name the file of items instead."
        )
    return corpus[0], queries[0] if queries else None


def _drawn(queries: list[Query], most: int, *, seed: int) -> list[Query]:
    """Queries in random order, each text once."""
    n = min(most, len({plain_text(query.text) for query in queries}))
    return list(split_queries(queries, anchors=n, test=0, seed=seed).anchors)


def _held(source: ItemFile, wanted: set[str], *, seed: int) -> tuple[list[Item], int]:
    """Items in random order, and how many the file has; of large files a sample, and all whose ids are `wanted`."""
    draw, n_items = random.Random(seed), 0
    kept: list[Item] = []
    needed: list[Item] = []
    for n_items, item in enumerate(source, 1):
        if len(kept) < _HELD_ITEMS:
            kept.append(item)
        elif (place := draw.randrange(n_items)) < _HELD_ITEMS:
            item, kept[place] = kept[place], item
        if n_items > _HELD_ITEMS and item.id in wanted:
            needed.append(item)
    here = {item.id for item in kept}
    draws = uniform(stream_key(seed, "try"), item_keys(item.id for item in kept))
    order = [kept[at] for at in np.argsort(draws, kind="stable").tolist()]
    return [*order, *(item for item in needed if item.id not in here)], n_items


def _pseudo(items: list[Item], n: int, *, seed: int) -> list[Query]:
    n = min(n, len(items))
    while True:
        try:
            return pseudo_queries(items, n, seed=seed)
        except InputError:
            if (n := n // 2) < 1:
                raise


def plain_text(text: str) -> str:
    """A text without what does not tell questions apart: upper case and spacing."""
    return " ".join(text.casefold().split())


def digest_of(records: Iterable[Query | Item]) -> str:
    """The number of records, and a hash of their ids and texts."""
    digest, n = hashlib.blake2b(digest_size=6), 0
    for record in records:
        n += 1
        digest.update(f"{record.id}\0{record.text}\0".encode(errors="surrogatepass"))
    return f"{n}-{digest.hexdigest()}"
