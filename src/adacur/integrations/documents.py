"""What the hosts share: hits as documents, documents as items, exact scores for documents given, checks at the door."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import EmptyInput, InputError
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Pair, as_query
from adacur.core.results import Hit
from adacur.core.scores import score_pairs
from adacur.scorers.calling import ascore
from adacur.search import AnchorIndex, load, search_options

__all__ = [
    "arerank",
    "as_item",
    "asearch",
    "check_index",
    "checked_filter",
    "item_of",
    "known_of",
    "load_with",
    "metadata_filter",
    "metadata_of",
    "rerank",
    "score_of",
    "search",
]


def load_with(path: str | Path, options: Mapping[str, Any]) -> tuple[AnchorIndex, dict[str, Any]]:
    """Open an index with those of the options that `adacur.load` takes, and hand back the others."""
    loading = inspect.signature(load).parameters.keys() & options.keys()
    return load(path, **{name: options[name] for name in loading}), {
        name: value for name, value in options.items() if name not in loading
    }


def check_index(index: object) -> None:
    """Refuse what is no index, a path above all."""
    if not isinstance(index, AnchorIndex):
        raise InputError(
            f"Expected an index, as adacur.load and adacur.build return; got {index!r}. "
            "A folder is opened with AdacurRetriever.from_path(path)."
        )


def search(index: AnchorIndex, query: str, k: int, **options: Any) -> Sequence[Hit]:
    """Like `index.search`, but a filter that no item passes finds nothing: to a pipeline that is an answer."""
    try:
        return index.search(query, k, **search_options(index, **options))
    except EmptyInput:
        if _may_find_nothing(query, options):
            return []
        raise


async def asearch(index: AnchorIndex, query: str, k: int, **options: Any) -> Sequence[Hit]:
    """Like `search`, without holding up the event loop."""
    try:
        return await index.asearch(query, k, **search_options(index, **options))
    except EmptyInput:
        if _may_find_nothing(query, options):
            return []
        raise


def _may_find_nothing(query: str, options: Mapping[str, Any]) -> bool:
    # A query without a word is refused with the same error, and before any filter is looked at.
    return options.get("filter") is not None and bool(query.strip())


def item_of(hit: Hit) -> Item:
    """The item that was found."""
    if hit.item is None:
        raise InputError(f"The index knows no text of {hit.id!r}.")
    return hit.item


def score_of(hit: Hit) -> float:
    """What the hit was ranked by: hosts that merge lists sort them by score, which must not undo the order."""
    return hit.score if hit.fused is None else hit.fused


def metadata_of(hit: Hit) -> dict[str, Any]:
    """The item's own metadata, and what the search knows of it, which wins where both use a name."""
    return dict(item_of(hit).metadata) | known_of(hit)


def known_of(hit: Hit) -> dict[str, Any]:
    """What the search knows of a hit beside its score: rank, round and, where that was fused, the exact score."""
    return {"rank": hit.rank, "round": hit.round} | ({} if hit.fused is None else {"exact": hit.score})


def as_item(id_: str | None, text: str, metadata: Mapping[str, Any]) -> Item:
    """An item from a document; one without an id gets one that follows from its content."""
    if id_ is None:
        content = json.dumps([text, dict(metadata)], sort_keys=True, default=str)
        id_ = hashlib.blake2b(content.encode(errors="replace"), digest_size=12).hexdigest()
    return Item(id_, text, dict(metadata))


def metadata_filter(wanted: Mapping[str, Any]) -> Callable[[Item], bool]:
    """Items whose metadata hold all these values."""
    return lambda item: all(name in item.metadata and item.metadata[name] == value for name, value in wanted.items())


def checked_filter(matches: Callable[[Item], bool]) -> Callable[[Item], bool]:
    """A host's filter, which names the item that it cannot be applied to."""

    def allowed(item: Item) -> bool:
        try:
            return matches(item)
        except Exception as error:
            raise InputError(
                f"The filter cannot be applied to item {item.id!r} with the metadata {dict(item.metadata)}. {error}"
            ) from error

    return allowed


def rerank(scorer: Scorer, query: str, texts: Sequence[str], *, k: int) -> list[tuple[int, float]]:
    """Positions and exact scores of the best k of these texts, best first; equal scores keep their order."""
    if not texts:
        return []
    return _best(score_pairs(scorer, _pairs(query, texts)), k)


async def arerank(scorer: Scorer, query: str, texts: Sequence[str], *, k: int) -> list[tuple[int, float]]:
    """Like `rerank`, without holding up the event loop; calls that are awaited together are made together."""
    if not texts:
        return []
    return _best(await ascore(scorer, _pairs(query, texts)), k)


def _pairs(query: str, texts: Sequence[str]) -> list[Pair]:
    asked = as_query(query)
    return [(asked, Item(str(position), text)) for position, text in enumerate(texts)]


def _best(scores: FloatArray, k: int) -> list[tuple[int, float]]:
    order = np.argsort(-np.asarray(scores), kind="stable")[:k]
    return [(position, float(scores[position])) for position in order.tolist()]
