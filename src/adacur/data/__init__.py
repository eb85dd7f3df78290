"""Items, queries and judgements from files; splits; pseudo-queries; models and collections by name.

Where to change what: `files` reads records of every format and `lines` the lines of a file; `collections` has what BEIR
folders, ir_datasets and mondo become; `catalogue` fetches models and collections by name; `stored`
reads JSON and arrays of folders that may be damaged.
"""

from __future__ import annotations

from adacur.data.cache_folder import cache_folder
from adacur.data.catalogue import Asset, describe, fetch, is_fetched, names
from adacur.data.collections import JudgedCollection, from_ir_datasets, mondo, read_beir, wikivital
from adacur.data.files import ItemFile, as_items, read_items, read_qrels, read_queries
from adacur.data.lines import DataWarning
from adacur.data.passages import Passages
from adacur.data.pseudo_queries import PseudoQueryKind, pseudo_queries
from adacur.data.splits import QuerySplit, split_queries

__all__ = [
    "Asset",
    "DataWarning",
    "ItemFile",
    "JudgedCollection",
    "Passages",
    "PseudoQueryKind",
    "QuerySplit",
    "as_items",
    "cache_folder",
    "describe",
    "fetch",
    "from_ir_datasets",
    "is_fetched",
    "mondo",
    "names",
    "pseudo_queries",
    "read_beir",
    "read_items",
    "read_qrels",
    "read_queries",
    "split_queries",
    "wikivital",
]
