"""`adacur index compress` as its users meet it."""

from __future__ import annotations

import json

import pytest

from tests.conftest import make_world
from tests.functional.commands import here

WORLD = make_world(n_items=300, n_anchors=60, rank=12, noise=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("compress")
    WORLD.index.save(path / "my.adacur")
    return path


def compress(folder, *arguments):
    return here("index", "compress", "my.adacur", *arguments, cwd=folder)


def test_sizes_and_recall_before_and_after_are_told(folder) -> None:
    ran = compress(folder, "--rank", 20, "-k", 5, "--budget", 40)
    assert ran.code == 0, ran.err
    assert "rank 20, int8" in ran.out
    assert "Recall of the best 5 in 40 calls" in " ".join(ran.out.split())
    assert "30 held-out anchor queries" in " ".join(ran.out.split())
    assert (folder / "my.adacur" / "versions/1/model/compression.json").is_file()


def test_a_compression_is_a_line_of_json_and_can_be_undone(folder) -> None:
    ran = compress(folder, "--rank", 20, "-k", 5, "--budget", 40, "--storage", "float16", "--json")
    told = json.loads(ran.out)
    assert told["storage"] == "float16"
    assert told["bytes_after"] < told["bytes_before"]
    assert told["low"] <= told["lost"] <= told["high"]
    assert json.loads(compress(folder, "--drop", "--json").out) == {"index": "my.adacur", "dropped": True}
    assert not (folder / "my.adacur" / "versions/1/model/compression.json").exists()
    assert "as before" in compress(folder, "--drop").out


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--storage", "int4"], "int8"), (["--budget", 3, "-k", 5], "budget"), (["--rank", 0], "rank")],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(folder, options, says) -> None:
    compress(folder, "--drop")
    ran = compress(folder, *options)
    assert ran.code in (1, 2)
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert not (folder / "my.adacur" / "versions/1/model/compression.json").exists()
