"""Items, queries and judgements from files; splits; pseudo-queries; models and collections by name.

Where to change what: `rows` reads files of every format, and `files` makes records of their rows; `collections` has
what BEIR folders and mondo become; `catalogue` fetches models and collections by name; `stored` reads JSON and arrays
of folders that may be damaged.
"""

from __future__ import annotations

from adacur.data.catalogue import Asset, cache_folder, describe, fetch, names
from adacur.data.collections import JudgedCollection, mondo, read_beir, wikivital
from adacur.data.file_rows import DataWarning
from adacur.data.files import ItemFile, as_items, read_items, read_qrels, read_queries, write_queries
from adacur.data.passages import Passages
from adacur.data.pseudo_queries import pseudo_queries
from adacur.data.splits import QuerySplit, split_queries

__all__ = [
    "Asset",
    "DataWarning",
    "ItemFile",
    "JudgedCollection",
    "Passages",
    "QuerySplit",
    "as_items",
    "cache_folder",
    "describe",
    "fetch",
    "mondo",
    "names",
    "pseudo_queries",
    "read_beir",
    "read_items",
    "read_qrels",
    "read_queries",
    "split_queries",
    "wikivital",
    "write_queries",
]
