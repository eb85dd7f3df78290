"""Items, queries and judgements from files; pseudo-queries; models and collections by name."""

from __future__ import annotations

from adacur.data.catalogue import describe, fetch, names
from adacur.data.collections import wikivital
from adacur.data.files import read_items, read_qrels, read_queries
from adacur.data.pseudo_queries import PseudoQueryKind, pseudo_queries
from adacur.data.wheels import Asset, cache_folder

__all__ = [
    "Asset",
    "PseudoQueryKind",
    "cache_folder",
    "describe",
    "fetch",
    "names",
    "pseudo_queries",
    "read_items",
    "read_qrels",
    "read_queries",
    "wikivital",
]
