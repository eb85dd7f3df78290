"""Engines with an index that may miss items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.core.records import Item
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import Nearest, VectorStore

N, SIZE = 1200, 8
ROWS = np.random.default_rng(0).normal(size=(N, SIZE)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


def filled(store: VectorStore) -> VectorStore:
    store.create({"features": SIZE})
    store.put(range(N), [Item(f"i{at}", f"text {at}") for at in range(N)], {"features": ROWS})
    return store


def check_named_items_are_found(store: VectorStore) -> None:
    within = np.argsort(ROWS @ WEIGHTS)[:300].tolist()
    questions = [Nearest(WEIGHTS, 10), Nearest(WEIGHTS, len(within), within=within)]
    best, named = store.best("features", questions, exact=False)
    assert len(best.keys) == 10
    assert sorted(named.keys) == sorted(within)
    np.testing.assert_allclose(named.values, (ROWS @ WEIGHTS)[list(named.keys)], rtol=1e-4, atol=1e-4)


def test_the_items_that_a_question_names_are_found_beside_an_index_of_qdrant_edge(tmp_path: Path) -> None:
    edge = pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    (tmp_path / "items").mkdir()
    config = edge.EdgeConfig(
        vectors={"features": edge.EdgeVectorParams(SIZE, edge.Distance.Dot)},
        # An index that is as bad as it can be, and is always used.
        hnsw_config=edge.HnswIndexConfig(m=4, ef_construct=4, full_scan_threshold=1),
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=1),
    )
    shard = edge.EdgeShard.create(str(tmp_path / "items"), config)
    points = [edge.Point(at, {"features": row.tolist()}, {}) for at, row in enumerate(ROWS)]
    shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.close()
    store = open_store(f"qdrant-edge://{tmp_path}/items")
    check_named_items_are_found(store)
    store.close()


def test_the_items_that_a_question_names_are_found_beside_an_index_of_lancedb(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    store = filled(open_store(f"lancedb://{tmp_path}/items"))
    table = lancedb.connect(str(tmp_path)).open_table("items")
    table.create_index("features", config=lancedb.index.IvfFlat(distance_type="dot", num_partitions=64))
    check_named_items_are_found(store)


def test_the_items_that_a_question_names_are_found_beside_an_index_of_postgres() -> None:
    from tests.postgres_servers import running_postgres

    server = running_postgres()
    url = server.new_database()
    store = filled(open_store(f"{url}&table=items"))
    server.run("CREATE INDEX ON items USING hnsw (features vector_ip_ops)", url)
    check_named_items_are_found(store)
