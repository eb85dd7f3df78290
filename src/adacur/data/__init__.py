"""Items, queries and judgements from files; splits; pseudo-queries; models and collections by name."""

from __future__ import annotations

from adacur.data.catalogue import describe, fetch, is_fetched, names
from adacur.data.collections import mondo, wikivital
from adacur.data.files import read_beir, read_items, read_qrels, read_queries
from adacur.data.from_ir_datasets import from_ir_datasets
from adacur.data.item_file import ItemFile, as_items
from adacur.data.judged_collection import JudgedCollection
from adacur.data.left_out import DataWarning
from adacur.data.pseudo_queries import PseudoQueryKind, pseudo_queries
from adacur.data.splits import QuerySplit, split_queries
from adacur.data.wheels import Asset, cache_folder
from adacur.data.zeshel import ZeshelTags, read_zeshel, zeshel_split, zeshel_worlds

__all__ = [
    "Asset",
    "DataWarning",
    "ItemFile",
    "JudgedCollection",
    "PseudoQueryKind",
    "QuerySplit",
    "ZeshelTags",
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
    "read_zeshel",
    "split_queries",
    "wikivital",
    "zeshel_split",
    "zeshel_worlds",
]
