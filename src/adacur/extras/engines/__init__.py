"""Items that live in a vector engine, searched where they are.

`vector_store.py` is the contract, which a file fulfils for each engine; `store_urls.py` opens one by its URL, and
`checked_store.py` checks what it answers.
"""

from __future__ import annotations

from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.engine_index import search_in
from adacur.extras.engines.engine_items import EngineWarning
from adacur.extras.engines.lancedb import LanceStore
from adacur.extras.engines.postgres import PostgresStore
from adacur.extras.engines.qdrant import QdrantStore
from adacur.extras.engines.store_urls import open_store
from adacur.extras.engines.vector_store import Found, Nearest, VectorStore

__all__ = [
    "CheckedStore",
    "EngineWarning",
    "Found",
    "LanceStore",
    "Nearest",
    "PostgresStore",
    "QdrantStore",
    "VectorStore",
    "open_store",
    "search_in",
]
