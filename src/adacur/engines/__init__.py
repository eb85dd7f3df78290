"""Where work runs and where vectors live. What a block of work or a vector means is not known here.

- `engine.py`, `ray.py`: blocks of work, in this process or on a Ray cluster;
- `vector_store.py`: the contract of an engine that holds items and their vectors; `qdrant.py`, `qdrant_edge.py`,
  `lancedb.py` and `postgres.py` fulfil it; `store_urls.py` opens one by its URL.
"""

from __future__ import annotations

from adacur.engines.engine import Engine, InThisProcess, WorkersLost
from adacur.engines.lancedb import LanceStore
from adacur.engines.postgres import PostgresStore
from adacur.engines.qdrant import QdrantStore
from adacur.engines.qdrant_edge import QdrantEdgeStore
from adacur.engines.ray import Ray, RayActors
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import Found, Nearest, VectorStore

__all__ = [
    "Engine",
    "Found",
    "InThisProcess",
    "LanceStore",
    "Nearest",
    "PostgresStore",
    "QdrantEdgeStore",
    "QdrantStore",
    "Ray",
    "RayActors",
    "VectorStore",
    "WorkersLost",
    "open_store",
]
