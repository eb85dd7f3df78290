"""Documents of passages in an index: which items belong together, and that they come and go together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from adacur.errors import InputError
from adacur.records import Item


def items_of_documents(items: Iterable[Item]) -> dict[str, list[str]]:
    """The ids of the items of every document."""
    ids: dict[str, list[str]] = {}
    for item in items:
        ids.setdefault(item.document, []).append(item.id)
    return ids


def whole_documents(names: Sequence[str], documents: Mapping[str, Collection[str]]) -> list[str]:
    """The ids of these items, and of the items of these documents; refuses a part of a document."""
    ids = list(dict.fromkeys(id_ for name in names for id_ in documents.get(name, (name,))))
    going = set(ids)
    for document, passages in documents.items():
        if going.isdisjoint(passages) or going.issuperset(passages):
            continue
        part = next(id_ for id_ in passages if id_ in going)
        raise InputError(
            f"A document is changed or removed as a whole; {part!r} is one of {len(passages)} passages of "
            f"{document!r}. Name the document."
        )
    return ids


def check_all_passages(given: Iterable[Item], documents: Mapping[str, Collection[str]]) -> None:
    """Refuse some of the passages that a document has, and no others: the rest would go without a word."""
    passages = items_of_documents(item for item in given if item.document != item.id)
    for document, ids in passages.items():
        there = documents.get(document, ())
        if set(ids) < set(there):
            raise InputError(
                f"A document is replaced as a whole, and of the {len(there)} passages of {document!r} only {len(ids)} "
                f"came, such as {ids[0]!r}. Give all of them, or the whole text under the id of the document."
            )
