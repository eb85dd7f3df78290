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
    told = here(*arguments, "--k", 5, "--k", 10, "--k", 90, "--budget", 60)
    assert f"{2 * N_ANCHORS * 60:,} scorer calls" in told.err
    refused = here(*arguments, "--k", 90, "--budget", 60)
    assert refused.code == 1
    assert "at least k" in refused.err


def test_queries_without_judgements_are_no_use(folder: Path) -> None:
    refused = here("tune", folder / "lamps.adacur", "--judged", folder / "qrels.tsv")
    assert refused.code == 1
    assert "--qrels" in refused.err


def test_judged_queries_that_are_no_anchors_are_asked_for(folder: Path) -> None:
    (folder / "others.tsv").write_text("query-id\tcorpus-id\tscore\nx1\ti1\t1\nx2\ti2\t1\n")
    refused = here("tune", folder / "lamps.adacur", "--qrels", folder / "others.tsv", "--budget", 60)
    assert refused.code == 1
    assert "None of the 2 judged queries" in refused.err
    assert "is an anchor query" in refused.err
    assert "Give their texts with --judged FILE." in refused.err


def test_judgements_of_items_that_are_not_in_the_index_are_counted(folder: Path) -> None:
    rows = [f"q{place}\ti{place}\t1" for place in range(N_ANCHORS - 2)]
    rows += [f"q{place}\tgone{place}\t1" for place in range(N_ANCHORS - 3, N_ANCHORS)]
    (folder / "some.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    told = here("tune", folder / "lamps.adacur", "--qrels", folder / "some.tsv", "--budget", 5000)
    assert told.code == 0, told.err
    assert f"3 of {len(rows)} judgements" in told.err
    assert "'gone27'" in told.err
    assert f"any other relevant item: 2 of {N_ANCHORS}" in told.err
    assert f"a budget of 5,000 is taken as {N_ITEMS}" in told.err


def test_an_index_without_anchor_queries_is_refused_before_any_call_with_the_way_to_get_some(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(
        "def score(pairs):\n"
        "    with open('calls.txt', 'a') as calls:\n"
        "        calls.write('x' * len(pairs))\n"
        "    return [0.0 for _ in pairs]\n"
    )
    items = "".join(json.dumps({"id": f"i{n}", "text": f"lamp w{n}"}) + "\n" for n in range(60))
    (tmp_path / "items.jsonl").write_text(items)
    (tmp_path / "judged.jsonl").write_text(items.replace('"i', '"q'))
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
