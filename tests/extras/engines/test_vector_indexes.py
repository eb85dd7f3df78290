"""Engines with an index that may miss items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item
from tests.engine_tables import InLanceDB, InPostgres, Tables

N, SIZE = 1200, 8
ROWS = np.random.default_rng(0).normal(size=(N, SIZE)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


def filled(engine: Tables) -> CheckedStore:
    return engine.filled("items", [Item(str(at), f"text {at}", {"at": at}) for at in range(N)], {"features": ROWS})


def check_named_items_are_found(store: CheckedStore) -> None:
    within = np.argsort(ROWS @ WEIGHTS)[:300].tolist()
    questions = [Nearest(WEIGHTS, 10), Nearest(WEIGHTS, len(within), within=within)]
    best, named = store.best("features", questions, exact=False)
    assert len(best.keys) == 10
    assert sorted(named.keys) == sorted(within)
    np.testing.assert_allclose(named.values, (ROWS @ WEIGHTS)[list(named.keys)], rtol=1e-4, atol=1e-4)


def test_the_items_that_a_question_names_are_found_next_to_an_index_of_lancedb(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    store = filled(InLanceDB(tmp_path))
    table = lancedb.connect(str(tmp_path)).open_table("items")
    table.create_index("features", config=lancedb.index.IvfFlat(distance_type="dot", num_partitions=64))
    check_named_items_are_found(store)


def test_the_items_that_a_question_names_are_found_next_to_an_index_of_postgres(tmp_path: Path) -> None:
    engine = InPostgres(tmp_path)
    store = filled(engine)
    engine.run("CREATE INDEX ON items USING hnsw (features vector_ip_ops)")
    check_named_items_are_found(store)
