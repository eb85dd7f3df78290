"""`adacur report` as its users meet it: a folder of runs in, a page that stands alone out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from stored_runs import contest, run

ADACUR = Path(sys.executable).with_name("adacur")


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADACUR, "report", *map(str, arguments)], capture_output=True, encoding="utf-8", timeout=300, check=False
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for place, one in enumerate([*contest("town"), *contest("town", anchors=200), *contest("village & <b>moor</b>")]):
        one.save(folder / one.method / f"{place}.json")
    (folder / "spec.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def written(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    output = tmp_path_factory.mktemp("out") / "report"
    return output, report(stored, "-o", output)


class _Page(HTMLParser):
    """What a browser would fetch, run and read aloud."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.fetched: list[str] = []
        self.alts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in {"script", "link", "iframe"}
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        if tag == "img":
            self.alts.append(given["alt"] or "")
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.headings.append(data)


def test_a_folder_of_runs_becomes_a_page_with_figures_and_tables(written) -> None:
    output, done = written

    assert done.returncode == 0, done.stderr
    assert "1 JSON files are no stored runs" in done.stderr
    assert str(output / "report.html") in done.stdout.replace("\n", "")
    pictures = {file.stem for file in (output / "figures").glob("*.png")}
    assert pictures == {"recall-by-budget", "recall-by-rounds", "ndcg-by-budget", "error", "latency", "index-cost"}
    assert {file.stem for file in (output / "figures").glob("*.svg")} == pictures
    tables = {file.name for file in (output / "tables").iterdir()}
    assert {"all-measures.csv", "town-50-anchors-recall.md", "town-50-anchors-difference.csv"} <= tables


def test_the_page_needs_nothing_but_itself_and_every_picture_has_words(written) -> None:
    output, _ = written
    text = (output / "report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)

    assert page.open == []
    assert len(page.fetched) == 6
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.fetched)
    assert all(len(alt) > 30 for alt in page.alts)
    assert re.search(r"url\(|@import|https?:", re.sub(r"base64,[^\"]*", "", text)) is None
    assert "prefers-color-scheme:dark" in text
    assert "<b>moor</b>" not in text
    for heading in ("In words", "Figures", "Tables", "How it was measured"):
        assert heading in page.headings


def test_the_page_says_in_words_what_the_tables_hold(written) -> None:
    output, _ = written
    text = (output / "report.html").read_text(encoding="utf-8")

    assert "At 100 calls gaussian finds .800 of the scorer&#x27;s top 10, rerank .600 (difference .200" in text
    assert "30 queries" in text
    assert "1 other JSON files were left out" in text


def test_the_same_runs_give_the_same_report(stored: Path, written, tmp_path: Path) -> None:
    output, _ = written
    report(stored, "-o", tmp_path)

    files = sorted(file.relative_to(output) for file in output.rglob("*") if file.is_file())
    assert files
    assert [file for file in files if (tmp_path / file).read_bytes() != (output / file).read_bytes()] == []


def test_json_lists_what_was_written_and_the_default_output_is_beside_the_runs(tmp_path: Path) -> None:
    run(budget=50).save(tmp_path / "only.json")

    done = report(tmp_path, "--json")
    told = json.loads(done.stdout)

    assert told["page"] == str(tmp_path / "report" / "report.html")
    assert told["runs"] == 1
    assert all(Path(file).is_file() for file in told["files"])


def test_runs_without_recall_still_make_a_report(tmp_path: Path) -> None:
    errors = {"error.all": np.full(30, 0.4), "recall@10": np.full(30, np.nan)}
    run(budget=50, ndcg=None, measures=errors).save(tmp_path / "only.json")

    done = report(tmp_path, "--json")

    assert done.returncode == 0, done.stderr
    assert {Path(file).name for file in json.loads(done.stdout)["files"]} >= {"town-other.md", "error.png"}


def test_collections_of_nearly_one_name_keep_their_own_tables(tmp_path: Path) -> None:
    for place, name in enumerate(("Town", "town", "town?")):
        run(collection=name, recall=place / 10, budget=50).save(tmp_path / f"{place}.json")

    files = [Path(file) for file in json.loads(report(tmp_path, "--json").stdout)["files"]]

    assert len(set(files)) == len(files)
    tables = [file.read_text(encoding="utf-8") for file in files if file.name.endswith("recall.md")]
    assert [text.splitlines()[0] for text in tables] == [
        f"**{name}.** 30 queries." for name in ("Town", "town", "town?")
    ]


def test_two_scorers_in_a_folder_are_never_compared(tmp_path: Path) -> None:
    for scorer, method, recall in (("A", "gaussian", 0.9), ("B", "rerank", 0.1), ("B", "adacur", 0.4)):
        one = replace(run(method, recall=recall, budget=50), made={"scorer": scorer})
        one.save(tmp_path / "runs" / f"{scorer}-{method}.json")

    files = {Path(file).name for file in json.loads(report(tmp_path, "--json").stdout)["files"]}
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")

    assert {"town-a-recall.md", "town-b-recall.md", "town-b-difference.md"} <= files
    assert "town-a-difference.md" not in files
    assert "town · A (30 queries), town · B (30 queries)" in text
    assert "At 50 calls gaussian finds .900 of the scorer&#x27;s top 10: the best of 1 here." in text
    assert "At 50 calls adacur finds .400 of the scorer&#x27;s top 10, rerank .100" in text
    table = (tmp_path / "report" / "tables" / "all-measures.csv").read_text(encoding="utf-8")
    assert {line.partition(",")[0] for line in table.splitlines()[1:]} == {"town · A", "town · B"}


def test_real_and_pseudo_anchors_have_a_row_each(tmp_path: Path) -> None:
    for recall, pseudo in ((0.9, False), (0.6, True)):
        one = replace(run(recall=recall, budget=50, anchors=20), made={"pseudo_anchors": pseudo})
        one.save(tmp_path / f"{pseudo}.json")

    report(tmp_path)

    rows = (tmp_path / "report" / "tables" / "town-recall.md").read_text(encoding="utf-8")
    assert re.findall(r"\| (gaussian[^|]*) \| \**(\.\d+)", rows) == [
        ("gaussian, real anchors", ".900"),
        ("gaussian, pseudo anchors", ".600"),
    ]
    assert "20 (in part pseudo-queries)" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_runs_that_are_not_shown_are_counted_on_the_page(tmp_path: Path) -> None:
    for year, recall in ((2026, 0.1), (2027, 0.9)):
        replace(run(recall=recall, budget=50), made={"at": str(year)}).save(tmp_path / f"{year}.json")

    report(tmp_path)

    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "1 stored run is not shown: newer runs of the same settings" in text


def test_a_new_report_removes_the_files_of_the_former_one_and_no_others(tmp_path: Path) -> None:
    runs, output = tmp_path / "runs", tmp_path / "report"
    (output / "tables").mkdir(parents=True)
    not_ours = output / "tables" / "my-cost.md"
    not_ours.write_text("before any report")
    for place, one in enumerate(contest("town")):
        one.save(runs / f"{place}.json")
    report(runs, "-o", output)
    assert not_ours.exists()
    notes = [output / "tables" / "notes.md", output / "figures" / "mine.png", output / "town-recall.md"]
    for note in notes:
        note.write_text("mine")
    not_ours.unlink()

    for file in runs.iterdir():
        file.unlink()
    run(collection="village", budget=50).save(runs / "only.json")
    told = json.loads(report(runs, "-o", output, "--json").stdout)

    kept = {file for file in output.rglob("*") if file.is_file()}
    assert kept == {*map(Path, told["files"]), *notes}


def test_mistakes_are_told_in_words(tmp_path: Path) -> None:
    empty = report(tmp_path)
    assert empty.returncode == 1
    assert "No stored run was found" in empty.stderr.replace("\n", " ")

    run(budget=50).save(tmp_path / "only.json")
    stranger = report(tmp_path, "--rival", "gausian")
    assert stranger.returncode == 1
    assert "Did you mean 'gaussian'?" in stranger.stderr
