"""Shards in Ray actors: the same answers, also where an actor dies, and never a wrong one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import adacur
from adacur import Item, Query
from adacur.core.errors import IndexMismatch, ShardLost
from adacur.engines.standing import StandingActors
from tests.living_world import Encoder, vector

pytestmark = [
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ITEMS = [Item(f"i{number}", f"item {number}") for number in range(700)]
QUERIES = [Query(f"q{number}", f"question {number}") for number in range(5)]
VECTORS = {text: vector(text) for text in (*(item.text for item in ITEMS), *(query.text for query in QUERIES))}


def score(pairs):
    return [float(_vector(query) @ _vector(item)) for query, item in pairs]


def _vector(text: str) -> np.ndarray:
    return VECTORS[text] if text in VECTORS else vector(text)


def build(path):
    anchors = [Query(f"a{number}", f"anchor {number}") for number in range(30)]
    VECTORS.update({query.text: vector(query.text) for query in anchors})
    adacur.build(
        ITEMS, anchors, scorer=score, path=path, first=["dense"], encoder=Encoder(), progress=False, tune=False
    ).close()
    return path


def opened(path, **options):
    return adacur.load(path, scorer=options.pop("scorer", score), encoder=Encoder(), check=False, **options)


def assert_same(ours, theirs) -> None:
    for own, other in zip(ours, theirs, strict=True):
        assert own.ids == other.ids
        assert own.scores.tolist() == other.scores.tolist()
        assert own.rounds == other.rounds


def kill(index, shard: int) -> None:
    """Kill an actor as if its machine had failed; Ray starts it again."""
    import ray

    ray.kill(index._shards._workers._actors[shard], no_restart=False)


def test_actors_find_the_same_go_on_where_one_dies_and_are_refused_on_a_changed_index(tmp_path) -> None:
    path = build(tmp_path / "index")
    with opened(path) as local:
        theirs = {method: local.search_batch(QUERIES, 5, budget=40, method=method) for method in ("gaussian", "axn")}

    calls = 0

    def murderous(pairs):
        nonlocal calls
        calls += 1
        if calls == 3:
            kill(spread, 0)
        return score(pairs)

    with opened(path, shards=2, scorer=murderous) as spread:
        # Amid a search, and before one.
        assert_same(spread.search_batch(QUERIES, 5, budget=40), theirs["gaussian"])
        assert calls > 3
        kill(spread, 1)
        for method, found in theirs.items():
            assert_same(spread.search_batch(QUERIES, 5, budget=40, method=method), found)

        with opened(path) as changed:
            changed.remove(["i3"])
        # Until then all shards answer from the version they opened.
        assert_same(spread.search_batch(QUERIES, 5, budget=40), theirs["gaussian"])
        kill(spread, 1)
        with pytest.raises(IndexMismatch, match="Shard 1 of 2 has version 2"):
            spread.search(QUERIES[1], 5, budget=40)


class _Mortal:
    def die(self) -> None:
        os._exit(1)


def test_an_actor_that_dies_of_every_call_is_one_clear_error() -> None:
    workers = StandingActors([_Mortal])
    try:
        with pytest.raises(ShardLost, match="died again when it was asked again"):
            workers.call("die", [()])
    finally:
        workers.close()
    with pytest.raises(ShardLost, match="dismissed"):
        workers.share(1)


def test_actors_that_find_no_room_are_told_as_such() -> None:
    with pytest.raises(ShardLost, match=r"room for 0 of 2 workers of 1 GPU each, after 0 s.*fewer shards"):
        StandingActors([_Mortal] * 2, gpus=1, patience=0.2)


def test_the_cluster_that_an_index_starts_ends_with_the_last_that_uses_it(tmp_path) -> None:
    (tmp_path / "lengths.py").write_text(
        "def score(pairs):\n    return [float(len(query) * len(text) % 97) for query, text in pairs]\n"
    )
    script = """
import json, threading
import adacur, lengths, ray
from adacur.cli.app import app
from typer.testing import CliRunner

items = [adacur.Item(f"i{n}", "x" * (n % 83 + 1)) for n in range(300)]
anchors = ["one anchor", "another one"]
adacur.build(items, anchors, scorer=lengths.score, path="index", progress=False, tune=False).close()
command = ["search", "index", "what now", "--json", "-k", "3", "--budget", "20", "--trust"]
with adacur.load("index", scorer=lengths.score) as local:
    expected = local.search("what now", 3, budget=20).ids

first = adacur.load("index", scorer=lengths.score, shards=1)
told = json.loads(CliRunner().invoke(app, [*command, "--shards", "2"], catch_exceptions=False).stdout)
assert tuple(hit["id"] for hit in told["hits"]) == expected
assert first.search("what now", 3, budget=20).ids == expected
second = adacur.load("index", scorer=lengths.score, shards=1)
# No other thread may say what a signal does.
closing = threading.Thread(target=lambda: (first.close(), first.close()))
closing.start()
closing.join()
assert second.search("what now", 3, budget=20).ids == expected
closed = []
closing = threading.Thread(target=lambda: closed.append(second.close()))
closing.start()
closing.join()
assert closed == [None]
assert not ray.is_initialized()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
