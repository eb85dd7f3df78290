from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adacur_lab.experiments import Spec, Testbed
from tests.conftest import make_world_fixture, shared_folder, world

__all__ = ["make_world_fixture", "shared_folder", "world"]

# Forty small lessons on nine subjects; who asks about a subject means its lessons.
SUBJECTS = ("tides", "bees", "bridges", "clouds", "glass", "rivers", "salt", "trains", "wool")


@pytest.fixture
def testbed(make_world) -> Testbed:
    world = make_world(n_items=120, n_anchors=30, n_test=8, rank=8, noise=0.3)
    rng = np.random.default_rng(3)
    # A first stage that knows half of what the scorer knows.
    queries, items = rng.normal(size=(8, 8)), world.item_embeddings
    return Testbed(
        name="world",
        items=world.items,
        anchor_queries=world.anchors,
        test_queries=world.test,
        anchor_scores=world.anchor_scores,
        exact_scores=world.test_scores,
        item_embeddings=items,
        query_embeddings=queries,
        anchor_embeddings=rng.normal(size=(30, 8)),
        qrels={
            query.id: {world.items[int(np.argmax(row))].id: 1}
            for query, row in zip(world.test[:5], world.test_scores[:5], strict=True)
        },
    )


@pytest.fixture
def beir_folder(tmp_path) -> Path:
    folder = tmp_path / "lessons"
    (folder / "qrels").mkdir(parents=True)
    items = [
        {"_id": f"d{n}", "title": f"Lesson {n}", "text": f"What {SUBJECTS[n % 9]} do to {SUBJECTS[(n * 2 + 1) % 9]}."}
        for n in range(40)
    ]
    queries = [{"_id": f"q{n}", "text": f"how do {SUBJECTS[n % 9]} and {SUBJECTS[n // 9]} meet?"} for n in range(30)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    judged = "".join(f"q{n}\td{n % 9}\t1\n" for n in range(0, 30, 2))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


@pytest.fixture
def score_folder(tmp_path) -> Path:
    """Three anchor queries, two test queries and four items, as whole numbers that decode to halves."""
    folder = tmp_path / "scores"
    folder.mkdir()
    values = np.arange(20, dtype=np.uint16).reshape(5, 4)
    np.savez_compressed(folder / "scores.npz", scores=values)
    np.save(folder / "dense_items.npy", np.eye(4, 2, dtype=np.float16))
    np.save(folder / "dense_queries.npy", np.ones((5, 2), dtype=np.float16))
    meta = {
        "domain": "halves",
        "decode": "logit = value / 2 - 3",
        "anchor_query_ids": ["a0", "a1", "a2"],
        "test_query_ids": ["t0", "t1"],
        "item_ids": ["i0", "i1", "i2", "i3"],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture
def token_spec(score_folder, tmp_path) -> Spec:
    """Re-ranking by token vectors, on a folder that scores four of the five items that there are texts of."""
    texts = ["old river", "old city", "water", "city water", "river"]
    items = [{"_id": f"i{n}", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": id_, "text": "river"} for id_ in ("a0", "a1", "a2", "t0", "t1")]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    files = {"scores": "scores", "items": "items.jsonl", "queries": "queries.jsonl"}
    search = {"methods": ["rerank"], "first": ["bm25", "multi-vector"], "budgets": 2, "k": 1}
    return Spec.from_tables({"collection": files, "search": search}, relative_to=tmp_path)


@pytest.fixture
def word_scorer(tmp_path, monkeypatch) -> str:
    """A function that counts shared words, by the name under which a spec opens it."""
    (tmp_path / "shared_words.py").write_text(
        "import zlib\n"
        "calls = []\n"
        "def score(pairs):\n"
        "    calls.extend(pairs)\n"
        "    return [len(set(a.split()) & set(b.split())) + zlib.crc32((a + b).encode()) / 2**32 for a, b in pairs]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "shared_words", raising=False)
    return "shared_words:score"
