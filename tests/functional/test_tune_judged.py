"""`adacur tune --qrels` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adacur import BM25, AnchorIndex, Item, Query
from tests.functional.commands import here

N_ITEMS, N_ANCHORS = 150, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The scorer has no idea and the first stage knows every answer."""
    folder = tmp_path_factory.mktemp("judged")
    items = [Item(f"i{place}", f"lamp w{place} by v{place % 7}") for place in range(N_ITEMS)]
    queries = [Query(f"q{place}", f"lamp w{place} v{place % 7}") for place in range(N_ANCHORS)]
    scores = np.random.default_rng(0).normal(size=(N_ANCHORS, N_ITEMS))
    AnchorIndex.from_arrays(items=items, anchor_queries=queries, scores=scores, first={"bm25": BM25.build(items)}).save(
        folder / "lamps.adacur"
    )
    rows = [f"q{place}\ti{place}\t1" for place in range(N_ANCHORS)]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def test_judged_anchor_queries_choose_the_weight_without_a_scorer(folder: Path) -> None:
    shown = here("tune", folder / "lamps.adacur", "--qrels", folder / "qrels.tsv", "--budget", 60)
    assert shown.code == 0, shown.err
    assert "nDCG@10" in shown.out
    assert "To use it: adacur search … --fuse" in shown.err
    assert "cost 0 scorer calls" in shown.err
    (line,) = here(
        "tune", folder / "lamps.adacur", "--qrels", folder / "qrels.tsv", "--budget", 60, "--json"
    ).out.splitlines()
    told = json.loads(line)
    assert told["chosen"]["fuse"] > 1
    assert told["chosen"]["quality"] > told["tried"][0]["quality"] + 0.3
    assert told["calls"] == 0
    assert told["first_alone"] > 0.9


def test_the_price_is_that_of_every_k_and_only_of_those_within_the_budget(folder: Path) -> None:
    judged = folder / "new.jsonl"
    judged.write_text("".join(json.dumps({"id": f"q{n}", "text": f"lamp w{n}"}) + "\n" for n in range(N_ANCHORS)))
    arguments = ("tune", folder / "lamps.adacur", "--qrels", folder / "qrels.tsv", "--judged", judged)
    # The index has no scorer, so what it would have cost is all that is told.
    told = here(*arguments, "--k", "5,10,90", "--budget", 60)
    assert f"{2 * N_ANCHORS * 60:,} scorer calls" in told.err
    refused = here(*arguments, "--k", 90, "--budget", 60)
    assert refused.code == 1
    assert "at least k" in refused.err


def test_queries_without_judgements_are_no_use(folder: Path) -> None:
    refused = here("tune", folder / "lamps.adacur", "--judged", folder / "qrels.tsv")
    assert refused.code == 1
    assert "--qrels" in refused.err


def test_too_few_judged_queries_are_refused(folder: Path) -> None:
    (folder / "others.tsv").write_text("query-id\tcorpus-id\tscore\nx1\ti1\t1\nx2\ti2\t1\n")
    here("tune", folder / "lamps.adacur", "--qrels", folder / "others.tsv", "--budget", 60).refused("20", "0")


def test_an_index_without_anchor_queries_is_refused_before_any_call_with_the_way_to_get_some(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(
        "def score(pairs):\n"
        "    with open('calls.txt', 'a') as calls:\n"
        "        calls.write('x' * len(pairs))\n"
        "    return [0.0 for _ in pairs]\n"
    )
    items = "".join(json.dumps({"id": f"i{n}", "text": f"lamp w{n}"}) + "\n" for n in range(60))
    (tmp_path / "items.jsonl").write_text(items)
    (tmp_path / "judged.jsonl").write_text(items.replace(': "i', ': "q'))
    (tmp_path / "qrels.tsv").write_text("".join(f"q{n}\ti{n}\t1\n" for n in range(60)))

    built = here(
        "build", "items.jsonl", "bare.adacur", "-n", 0, "--first", "bm25", "--scorer", "counted:score", cwd=tmp_path
    )
    assert built.code == 0, built.err
    (tmp_path / "calls.txt").unlink(missing_ok=True)
    for judged in ((), ("--judged", "judged.jsonl")):
        refused = here(
            "tune",
            "bare.adacur",
            "--qrels",
            "qrels.tsv",
            *judged,
            "--budget",
            20,
            "--scorer",
            "counted:score",
            cwd=tmp_path,
        )
        assert refused.code == 1
        assert "bare.adacur" in refused.err
        assert "None" not in refused.err
    assert not (tmp_path / "calls.txt").exists()
