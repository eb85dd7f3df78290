"""Where work runs and where vectors live. What a block of work or a vector means is not known here.

- `engine.py`, `ray.py`: blocks of work, in this process or on a Ray cluster;
- `vector_store.py`: the contract of an engine that holds item vectors; `memory_store.py`: its plainest form;
- `lancedb.py`, `postgres.py`: LanceDB, and Postgres with pgvector; `tables.py`: what both share.
"""

from __future__ import annotations

from adacur.engines.engine import Engine, InThisProcess, WorkersLost
from adacur.engines.memory_store import MemoryStore
from adacur.engines.ray import Ray, RayActors
from adacur.engines.vector_store import Found, Nearest, VectorStore

__all__ = [
    "Engine",
    "Found",
    "InThisProcess",
    "MemoryStore",
    "Nearest",
    "Ray",
    "RayActors",
    "VectorStore",
    "WorkersLost",
]
