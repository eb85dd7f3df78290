"""`adacur tune` as its users meet it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import adacur
from adacur import Item, Query
from adacur.replay import tune
from tests.functional.commands import here

WORDS = ("river", "harbour", "comet", "violin", "glacier", "lantern", "orchid")


def score(pairs):
    return [len(set(query) & set(text)) + len(set(query.split()) & set(text.split())) for query, text in pairs]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose scorer nobody could open again: tuning must not need it."""
    path = tmp_path_factory.mktemp("tune") / "words.adacur"
    items = [Item(f"d{n}", f"the {WORDS[n % 7]} and the {WORDS[n % 5]} of town {n}") for n in range(80)]
    anchors = [Query(f"q{n}", f"a {WORDS[n % 7]} near {WORDS[n % 3]} {n}") for n in range(24)]
    adacur.build(items, anchors, scorer=score, path=path, progress=False)
    return path


def test_tune_prints_predictions_and_a_verdict_and_keeps_what_it_chose(index: Path) -> None:
    done = here("tune", index, "--k", 5, "--budget", 20, "--queries", 22)
    assert done.code == 0, done
    for word in ("gaussian", "adacur", "anncur", "rerank", "95 % interval", "Settings: ", "22 anchor queries"):
        assert word in done.out
    assert "Re-ranking bm25's best 20 finds" in done.out
    assert "tuned.json" in done.err
    assert "k 3–10 and budget 10–40" in done.err
    assert [(one.k, one.budget) for one in adacur.load(index).tunings] == [(5, 20)]
    assert "k = 5, 20 calls (bm25)" in here("inspect", index).out
    here("tune", index, "--k", 5, "--budget", 20, "--queries", 19).refused("at least 20")


def test_judgements_choose_and_searches_use_what_they_chose(index: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(index, tmp_path / "index")
    judged = [f"q{n}\td{n}\t1" for n in range(24)] + ["q0\tnowhere\t1", "stranger\td1\t1"]
    (tmp_path / "qrels.tsv").write_text("\n".join(judged) + "\n")
    done = here("tune", copied, "-k", 5, "--budget", 20, "--qrels", tmp_path / "qrels.tsv")
    assert done.code == 0, done
    for word in ("nDCG@5", "as chosen", "not tuned", "first stage alone", "top-5 recall", "By 24 judged queries"):
        assert word in done.out
    told = " ".join(done.err.split())
    assert "1 judgements name items" in told
    assert "no scorer call" in told
    (tuning,) = (one for one in adacur.load(copied).tunings if one.judged)
    assert f"name no budget spend {tuning.budget} calls" in told
    hits = adacur.load(copied, scorer=score, check=False).search("a comet near town", 5)
    assert hits.trace.settings["budget"] == tuning.budget
    here("tune", copied, "--queries", "some.jsonl").refused("--qrels")
    asked = "\n".join(f'{{"id": "q{n}", "text": "of a {WORDS[n % 7]} {n}"}}' for n in range(24))
    (tmp_path / "asked.jsonl").write_text(asked)
    new = ("tune", copied, "-k", 5, "--budget", 20, "--qrels", tmp_path / "qrels.tsv", "--queries")
    done = here(*new, tmp_path / "asked.jsonl", "--scorer", "tests.functional.test_tune:score", "--json")
    assert done.code == 0, done
    assert 0 < done.json()[0]["judged"]["calls"] <= 24 * (3 * 20 + 10 + 5)
    assert "24 of them no anchor queries: at most 1,800 scorer calls" in " ".join(done.err.split())
    here("tune", copied, "--qrels", tmp_path / "none.tsv").refused("none.tsv")


def test_a_budget_above_the_number_of_items_is_taken_as_that_number_and_said_so(index: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(index, tmp_path / "index")
    (copied / "versions/1/tuned.json").unlink(missing_ok=True)
    done = here("tune", copied, "--k", 5, "--budget", 5000)
    assert done.code == 0, done
    n_items = len(adacur.load(index))
    assert f"taken as {n_items}" in done.err
    assert "1.000 … 1.000" in done.out
    assert "random" not in done.out
    assert "Stored in" not in done.err
    assert adacur.load(copied).tunings == ()


def test_after_a_change_the_command_that_tunes_again_names_every_k_and_budget(index: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(index, tmp_path / "my index")
    (copied / "versions/1/tuned.json").unlink(missing_ok=True)
    opened = adacur.load(copied, check=False)
    for k, budget in ((5, 20), (5, 30), (10, 30)):
        tune(opened, k=k, budget=budget, queries=22, quick=True)
    with opened.edit(progress=False) as edit:
        edit.remove([opened.items[0].id])
    change = edit.change
    assert (change.lost, change.tuned_for) == (("tunings",), ((5, 20), (5, 30), (10, 30)))
    for k, budget in change.tuned_for:
        tune(opened, k=k, budget=budget, queries=22, quick=True)
    done = here("index", "remove", copied, opened.items[0].id)
    for command in ("-k 5 --budget 20", "-k 5 --budget 30", "-k 10 --budget 30"):
        assert f"adacur tune '{copied}' {command}" in done.err


def test_too_few_anchor_queries_are_refused_once_with_how_to_add_more_and_a_build_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    items = [Item(f"d{n}", f"the {WORDS[n % 7]} of town {n}") for n in range(120)]
    anchors = [Query(f"q{n}", f"a {WORDS[n % 7]} {n}") for n in range(5)]
    with caplog.at_level("INFO", logger="adacur"):
        adacur.build(items, anchors, scorer=score, path=tmp_path / "few", progress=False).close()
    assert "Not tuned: 5 anchor queries" in caplog.text
    refused = here("tune", tmp_path / "few", "--k", 5, "--budget", 20)
    assert refused.code == 1
    assert refused.out == ""
    assert "at least 20; this index has 5" in " ".join(refused.err.split())
