"""`adacur evaluate` as its users meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adacur.core.extras import install_command

ADACUR = Path(sys.executable).with_name("adacur")
SCORER = """
import os, time, zlib

def score(pairs):
    with open(os.environ.get("LOG", os.devnull), "a") as log:
        log.write("x" * len(pairs))
    time.sleep(float(os.environ.get("SECONDS_PER_PAIR", "0")) * len(pairs))
    return [len(set(a.split()) & set(b.split())) + zlib.crc32((a + b).encode()) / 2**32 for a, b in pairs]
"""
PLACES = ("harbour", "mill", "orchard", "quarry", "station", "tower", "valley")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "words.py").write_text(SCORER)
    beir = tmp_path / "places"
    (beir / "qrels").mkdir(parents=True)
    items = [{"_id": f"d{n}", "text": f"the {PLACES[n % 7]} by the {PLACES[n * 3 % 7]}, plot {n}"} for n in range(60)]
    queries = [{"_id": f"q{n}", "text": f"who lives near the {PLACES[n % 7]} and plot {n}"} for n in range(40)]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (beir / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (beir / "qrels" / "test.tsv").write_text("".join(f"q{n}\td{n % 7}\t1\n" for n in range(12)))
    return tmp_path


def run(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | extra
    return subprocess.run([ADACUR, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


START = ("evaluate", "places", "--scorer", "words:score", "--anchors", "15", "--queries", "6", "--budgets", "10,20")


def test_one_command_leads_from_a_folder_to_results(folder) -> None:
    done = run(*START, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Scorer: " in done.stderr
    assert "places: 6 test queries, 15 anchor queries.\n" in done.stderr
    assert "cannot pass budget / k" not in done.stderr
    assert "60 items × 21 queries = 1,260 pairs to score; estimated time" in done.stderr
    assert "places, 60 items, 6 test queries" in done.stdout
    for method in ("gaussian", "adacur", "anncur", "rerank", "exact"):
        assert method in done.stdout
    assert "Next: adacur report places-results" in done.stderr
    assert len(list((folder / "places-results" / "runs" / "places").glob("*.json"))) == 9
    again = run("evaluate", "places-results/spec.toml", "--json", cwd=folder)
    rows = json.loads(again.stdout)
    assert rows["found"] == 9
    exact = next(row for row in rows["runs"] if row["method"] == "exact")
    assert exact["measures"]["recall@10"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "queries": 6}


def test_a_sample_is_said_to_be_one_and_the_end_says_in_words_what_came_out(folder) -> None:
    done = run(*START, "--items", "30", "-k", "1,5", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "a sample of 30 of the 60 items" in done.stderr
    assert "places-30-items, 30 items, 6 test queries" in done.stdout
    assert "30 items × 21 queries = 630 pairs to score" in done.stderr
    assert "of the scorer's top 5" in done.stderr
    assert "is ahead of rerank in" in done.stderr
    assert "Is an index worth it?" in done.stderr


def test_what_takes_longer_than_the_minutes_is_said_before_scoring_with_what_to_do(folder) -> None:
    done = run(*START, "--minutes", "0.0000001", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = done.stderr.partition("scoring:")[0]
    for option in ("--max-item-tokens", "--queries", "--anchors", "--scorer"):
        assert option in said


def test_a_killed_evaluation_goes_on_where_it_was(folder) -> None:
    slow = subprocess.Popen(
        [ADACUR, *START],
        cwd=folder,
        env=os.environ | {"SECONDS_PER_PAIR": "0.005"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    # The test queries are scored by then, the anchor queries are not.
    while not list(folder.glob("places-results/scores/*/anchors-*/manifest.json")):
        assert slow.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    slow.send_signal(signal.SIGKILL)
    slow.wait()
    assert not (folder / "places-results" / "runs").exists()
    done = run(*START, "--trec", cwd=folder, LOG=str(folder / "calls"))
    assert done.returncode == 0, done.stderr
    # Of 60 × 21 pairs those of the six test queries are not paid again; timing and recognising take a few.
    assert len((folder / "calls").read_text()) < 60 * 18
    assert len(list((folder / "places-results" / "runs" / "places").glob("*.json"))) == 9
    assert len(list((folder / "places-results" / "trec" / "places").glob("*.run"))) == 9


def test_a_run_that_fails_is_told_and_the_others_are_there(folder) -> None:
    run(*START, cwd=folder)
    spec = folder / "places-results" / "spec.toml"
    spec.write_text(spec.read_text() + '\n[[method]]\nname = "anncur"\nsplit = 2.0\n\n[[method]]\nname = "rerank"\n')
    done = run("evaluate", str(spec), cwd=folder)
    assert done.returncode == 1
    assert done.stderr.count("Error: places, method anncur") == 2
    assert "Traceback" not in done.stderr
    assert "rerank" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("evaluate", "nowhere"), "neither a folder nor a spec nowhere"),
        (("evaluate", "places/corpus.jsonl"), "is a file, and not a spec"),
        (("evaluate", "places", "--scorer", "words:score", "--first", "dnse"), "Did you mean 'dense'"),
        (("evaluate", "spec.toml", "--budgets", "5"), "leave out --budgets"),
        (("evaluate", "spec.toml"), "Did you mean 'scores'"),
        (
            ("evaluate", "places", "--scorer", "words:score", "--budgets", "many"),
            "--budgets is a list of whole numbers",
        ),
        (("evaluate", "places", "--scorer", "words:score", "--methods", "gausian"), "Did you mean 'gaussian'"),
    ],
)
def test_a_mistake_is_one_message(folder, arguments, words) -> None:
    (folder / "spec.toml").write_text('[collection]\nscore = "x"\n')
    done = run(*arguments, cwd=folder)
    assert done.returncode == 1
    (message,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert words in message


def test_a_spec_changed_by_hand_is_used_as_it_is_and_options_do_not_overwrite_it(folder) -> None:
    assert run(*START, cwd=folder).returncode == 0
    spec = folder / "places-results" / "spec.toml"
    edited = spec.read_text().replace("budgets = [10, 20]", "budgets = [5]")
    spec.write_text(edited)
    refused = run(*START, cwd=folder)
    assert refused.returncode == 1
    assert "places-results/spec.toml was changed by hand and is not overwritten" in refused.stderr
    used = run("evaluate", "places", cwd=folder)
    assert used.returncode == 0, used.stderr
    assert "The spec is places-results/spec.toml, as it was changed by hand." in used.stderr
    assert "budget 5" in used.stdout
    assert "Where the budget is smaller than k, recall@k cannot pass budget / k." in used.stderr
    assert spec.read_text() == edited


def test_pseudo_anchors_are_told_on_the_console_and_in_the_report(folder) -> None:
    done = run(*START[:-6], "--anchors", "50", "--queries", "6", "--methods", "adacur,rerank", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "places: 6 test queries, 50 anchor queries: pseudo-queries, cut from the items." in done.stderr
    drawn = run("report", "places-results", cwd=folder)
    assert drawn.returncode == 0, drawn.stderr
    # The folders of scores hold JSON files of their own.
    assert list((folder / "places-results" / "scores").rglob("*.json"))
    assert "no stored runs" not in drawn.stderr
    page = (folder / "places-results" / "report" / "report.html").read_text()
    assert "The anchor queries of places are pseudo-queries" in page
    assert "50 (pseudo-queries)" in page


def test_a_report_is_offered_only_where_runs_are_stored_and_with_what_it_needs(folder) -> None:
    spec = folder / "fails.toml"
    spec.write_text(
        '[collection]\nfolder = "places"\n[scorer]\nsource = "words:score"\n[search]\nn_queries = 3\nbudgets = 10\n'
        '[[method]]\nname = "anncur"\nsplit = 2.0\n'
    )
    failing = run("evaluate", "fails.toml", cwd=folder)
    assert failing.returncode == 1
    assert "0 runs" in failing.stderr
    assert "Next:" not in failing.stderr

    (folder / "sitecustomize.py").write_text(
        "import sys\nfor name in ('ir_measures', 'matplotlib'):\n    sys.modules[name] = None\n"
    )
    bare = run(*START, cwd=folder, PYTHONPATH=str(folder))
    assert bare.returncode == 0, bare.stderr
    assert bare.stderr.count("nDCG@10 is left out") == 1
    assert bare.stderr.index("left out") < bare.stderr.index("pairs to score")
    assert install_command("evaluation") in bare.stderr
    assert f"Next: {install_command('report')} && adacur report places-results" in bare.stderr
    assert "recall@10" in bare.stdout


def test_a_folder_without_judgements_and_a_second_search_for_trec_files_are_told(folder) -> None:
    (folder / "places" / "qrels" / "test.tsv").unlink()
    (folder / "places" / "qrels").rmdir()
    done = run(*START, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "places: no judgements (qrels/test.tsv), so judged quality is left out." in done.stderr
    assert "Budgets above" not in done.stderr
    again = run(*START, "--trec", cwd=folder)
    assert "none reused, 9 searched again for their TREC files." in again.stderr


def test_budgets_above_the_number_of_items_are_told_and_taken_as_that_number(folder) -> None:
    done = run(*START[:-1], "10,500", "--methods", "rerank", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Budgets above the number of items are taken as 60.") == 1
    assert "budgets = [10, 60]" in (folder / "places-results" / "spec.toml").read_text()


def test_the_experiments_of_the_paper_are_listed(folder) -> None:
    listed = run("reproduce", cwd=folder)
    assert listed.returncode == 0, listed.stderr
    assert "recall-vs-rounds. The paper: " in listed.stdout


def test_results_of_another_scorer_of_the_same_name_need_another_folder(folder) -> None:
    (folder / "words2.py").write_text("def score(pairs):\n    return [-float(len(text)) for _, text in pairs]\n")
    options = ("--methods", "rerank", "--budgets", "5", "--queries", "3")
    assert run("evaluate", "places", "--scorer", "words:score", *options, cwd=folder).returncode == 0
    done = run("evaluate", "places", "--scorer", "words2:score", *options, cwd=folder)
    assert done.returncode == 1
    for words in ("words2:score", "words:score", "-o"):
        assert words in done.stderr
