"""What the adapters share: hits as documents, documents as items, filters, and checks.

An adapter turns its host's query into `search`, and the hits into the host's documents. All take the options of
`AnchorIndex.search`, as objects or in single values, as `adacur.search.search_options` reads them; with `above`, those
of `AnchorIndex.find`, and k does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adacur.errors import EmptyInput, InputError
from adacur.records import Item
from adacur.results import Hit
from adacur.search import AnchorIndex, load, search_options
from adacur.search.filters import Filter
from adacur.search.finding import find_options


def load_with(path: str | Path, options: Mapping[str, Any]) -> tuple[AnchorIndex, dict[str, Any]]:
    """Open an index with those of the options that `adacur.load` takes, and return the others."""
    loading = inspect.signature(load).parameters.keys() & options.keys()
    others = {name: value for name, value in options.items() if name not in loading}
    return load(path, **{name: options[name] for name in loading}), others


def search(index: AnchorIndex, query: str, k: int, **options: Any) -> Sequence[Hit]:
    """The hits for a query, but a filter that no item passes gives none: an empty answer to a pipeline."""
    with _empty_if_filtered(query, options):
        if options.get("above") is not None:
            return index.find(query, **find_options(**options))
        return index.search(query, k, **search_options(index, **options))
    return []


async def asearch(index: AnchorIndex, query: str, k: int, **options: Any) -> Sequence[Hit]:
    """Like `search`, without blocking the event loop."""
    with _empty_if_filtered(query, options):
        if options.get("above") is not None:
            return await index.afind(query, **find_options(**options))
        return await index.asearch(query, k, **search_options(index, **options))
    return []


def _empty_if_filtered(query: str, options: Mapping[str, Any]) -> contextlib.suppress:
    # An empty query is refused with the same error, before the filter is looked at.
    is_filtered = options.get("filter") is not None and bool(query.strip())
    return contextlib.suppress(*([EmptyInput] if is_filtered else []))


def text_of(hit: Hit) -> str:
    """The item's text."""
    if hit.item is None:
        raise InputError(f"The index has no text of {hit.id!r}.")
    return hit.item.text


def score_of(hit: Hit) -> float:
    """What the hit was ranked by: hosts that merge lists sort them by score, which must not undo the order."""
    return hit.score if hit.fused is None else hit.fused


def ranking_of(hit: Hit) -> dict[str, Any]:
    """What the search knows of a hit besides its score: rank, round and, where that was fused, the exact score."""
    return {"rank": hit.rank, "round": hit.round} | ({} if hit.fused is None else {"exact": hit.score})


def metadata_of(hit: Hit) -> dict[str, Any]:
    """The item's metadata and `ranking_of`, which wins where both use a name."""
    return (dict(hit.item.metadata) if hit.item else {}) | ranking_of(hit)


def as_item(id_: str | None, text: str, metadata: Mapping[str, Any]) -> Item:
    """An item from a document; without an id, it gets one that follows from its content."""
    if id_ is None:
        content = json.dumps([text, dict(metadata)], sort_keys=True, default=str)
        id_ = hashlib.blake2b(content.encode(errors="replace"), digest_size=12).hexdigest()
    return Item(id_, text, dict(metadata))


def filter_for(index: AnchorIndex, matches: Callable[[Item], bool]) -> Filter:
    """A host's filter, whose errors name the item that it cannot be applied to."""
    if not index.snapshot.in_memory:
        raise InputError(
            "The items of this index are in an engine, which runs no filter of a host's. Give one by metadata, or in "
            "the engine's own language: filter=."
        )

    def allowed(item: Item) -> bool:
        try:
            return matches(item)
        except Exception as error:
            raise InputError(
                f"The filter cannot be applied to item {item.id!r} with the metadata {dict(item.metadata)}. {error}"
            ) from error

    return allowed
