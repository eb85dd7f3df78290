"""An evaluation of a BEIR folder, and its runs."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from adacur import AdaCUR
from adacur.data import read_beir
from adacur.errors import AdacurError, InputError, UnknownName, WrongScorer
from adacur.first_stages import BM25, FIRST_STAGES
from adacur.replay import Run, Start, evaluate
from adacur.replay.comparison import OWN_ORDER, verdict
from adacur.scorers import FunctionScorer
from adacur.search.tuned import usual_rounds

PLACES = ("harbour", "mill", "orchard", "quarry", "station", "tower", "valley")
SIZES = {"anchors": 15, "queries": 6, "budgets": (10, 20), "progress": False}


def score(pairs):
    return [len(set(a.split()) & set(b.split())) + zlib.crc32((a + b).encode()) / 2**32 for a, b in pairs]


@pytest.fixture
def places(tmp_path: Path) -> Path:
    folder = tmp_path / "places"
    (folder / "qrels").mkdir(parents=True)
    items = [{"_id": f"d{n}", "text": f"the {PLACES[n % 7]} by the {PLACES[n * 3 % 7]}, plot {n}"} for n in range(60)]
    queries = [{"_id": f"q{n}", "text": f"who lives near the {PLACES[n % 7]} and plot {n}"} for n in range(40)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (folder / "qrels" / "test.tsv").write_text("".join(f"q{n}\td{n % 7}\t1\n" for n in range(12)))
    return folder


@pytest.fixture
def run_it(places, tmp_path):
    def run_it(**options):
        return evaluate(places, scorer=score, output=tmp_path / "out", **(SIZES | options))

    return run_it


def test_every_combination_is_a_stored_run_with_recall_judged_quality_and_prices(run_it, tmp_path) -> None:
    done = run_it()
    assert not done.failed
    assert [(run.method, run.settings.get("budget")) for run in done.runs] == [
        ("first", 0),
        *((method, budget) for budget in (10, 20) for method in ("gaussian", "adacur", "anncur", "rerank")),
        ("exact", None),
    ]
    for run, file in zip(done.runs, done.files, strict=True):
        assert file.is_relative_to(tmp_path / "out" / "runs" / "places")
        stored = Run.load(file)
        assert stored.settings == run.settings
        assert {"recall@1", "recall@10", "nDCG@10", "calls", "index_calls"} <= set(run.measures)
        assert run.measures["calls"].max() <= run.settings.get("budget", 60)
        uses_anchors = run.method in ("gaussian", "adacur", "anncur")
        assert set(run.measures["index_calls"]) == {900.0 if uses_anchors else 0.0}
    assert set(done.runs[-1].measures["recall@10"]) == {1.0}


def test_what_is_scored_is_not_scored_again(places, tmp_path) -> None:
    pairs_scored = []

    def counting(pairs):
        pairs_scored.extend(pairs)
        return score(pairs)

    def run_it(**options):
        return evaluate(places, scorer=counting, output=tmp_path / "out", **(SIZES | options))

    first = run_it()
    # A handful are scored again to see that it is the same scorer.
    n, pairs_scored[:] = len(pairs_scored), []
    again = run_it(budgets=(10, 20, 30))
    assert len(pairs_scored) < n / 4
    assert len(again.runs) == len(first.runs) + 4


def test_before_scoring_it_says_what_will_be_evaluated_and_what_it_costs(run_it) -> None:
    seen: list[Start] = []
    run_it(on_start=seen.append, budgets=(10, 500), methods=["gaussian", "rerank"])
    (start,) = seen
    assert (start.collection, start.n_items, start.n_test, start.n_anchors) == ("places", 60, 6, 15)
    assert start.cost is not None
    assert start.cost.pairs == 60 * 21
    assert any("60" in note for note in start.notes)
    run_it(on_start=seen.append, budgets=(5,), methods=["gaussian"])
    assert seen[1].cost is None


def test_a_model_here_is_evaluated_in_the_rounds_that_its_searches_take(places, tmp_path) -> None:
    model = FunctionScorer(score, name="model")
    model.card = replace(model.card, backend="onnx")
    sizes = SIZES | {"budgets": (20,)}
    done = evaluate(places, scorer=model, output=tmp_path / "out", methods=("gaussian",), **sizes)
    (run,) = (run for run in done.runs if run.method == "gaussian")

    assert run.settings["rounds"] == usual_rounds(model.card) > usual_rounds(FunctionScorer(score).card)


def test_several_first_stages_are_also_compared_joined(run_it, monkeypatch) -> None:
    monkeypatch.setitem(FIRST_STAGES, "again", BM25)
    done = run_it(methods=["rerank"], budgets=(10,), first=["bm25", "again"])
    assert [(run.method, run.settings["first"]) for run in done.runs] == [
        (method, first) for method in ("first", "rerank") for first in ("bm25", "again", "bm25+again")
    ]
    assert "alone, 0 calls" in verdict(done.runs)
    named = run_it(methods=["rerank"], budgets=(10,), first=["bm25", "again", "again+bm25", "random"])
    assert {run.settings["first"] for run in named.runs} == {"bm25", "again", "again+bm25", "random"}


def test_the_first_stage_alone_is_a_run_without_calls_and_recall_is_by_the_scorer(run_it, places) -> None:
    done = run_it(methods=["rerank", "exact"], budgets=(10, 60))
    alone, _, exact, _ = done.runs
    assert (alone.method, alone.settings["budget"], alone.settings["rounds"]) == ("first", 0, 0)
    assert set(alone.measures["calls"]) == {0.0}
    collection = read_beir(places)
    asked = [next(query for query in collection.queries if query.id == id_) for id_ in alone.query_ids]
    stage = BM25.build(collection.items)
    ids = [[stage.ids[at] for at in positions] for positions, _ in stage.search(asked, 10)]
    for row, query in enumerate(asked):
        best = sorted(score([(query.text, item.text) for item in collection.items]))[-10]
        text = {item.id: item.text for item in collection.items}
        found = sum(value >= best for value in score([(query.text, text[id_]) for id_ in ids[row]]))
        assert alone.measures["recall@10"][row] == found / 10
    assert set(exact.measures["recall@10"]) == {1.0}


def test_judged_quality_is_of_the_order_that_searches_have_and_recall_of_the_scorers_own(run_it) -> None:
    own, fused = (run_it(methods=["rerank", "exact"], budgets=(20,), fuse=fuse).runs for fuse in (None, 1.0))
    assert [run.settings["fuse"] for run in own] == [0.0, 0.0, 0.0]
    assert [run.settings["fuse"] for run in fused] == [0.0, 1.0, 0.0]
    assert own[1].measures["recall@10"].tolist() == fused[1].measures["recall@10"].tolist()
    assert own[1].values("nDCG@10").tolist() != fused[1].values("nDCG@10").tolist()
    assert own[1].values("nDCG@10").tolist() == fused[1].values(OWN_ORDER).tolist()


def test_pseudo_queries_are_anchors_where_too_few_queries_are_left(run_it) -> None:
    seen: list[Start] = []
    done = run_it(anchors=50, methods=["adacur", "rerank"], on_start=seen.append)
    assert any("pseudo-queries" in note for note in seen[0].notes)
    assert [run.made.get("pseudo_anchors") for run in done.runs] == [None, True, None, True, None]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"methods": ["gausian"]}, UnknownName),
        ({"first": ["dnse"]}, UnknownName),
        ({"ks": [61]}, InputError),
        ({"methods": []}, AdacurError),
        ({"anchors": 0}, InputError),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_scored(run_it, tmp_path, options, error) -> None:
    with pytest.raises(error):
        run_it(**options)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_and_judgements_of_other_items_are_refused(places, tmp_path) -> None:
    with pytest.raises(InputError):
        evaluate(tmp_path / "nowhere", scorer=score, output=tmp_path / "out")
    (places / "qrels" / "test.tsv").write_text("q1\tx7\t1\n")
    with pytest.raises(InputError):
        evaluate(places, scorer=score, output=tmp_path / "out")


def test_a_run_that_fails_stops_no_other(run_it, monkeypatch) -> None:
    def failing(*given, **options):
        raise InputError("no")

    monkeypatch.setattr(AdaCUR, "plan", failing)
    done = run_it(methods=["adacur", "rerank"])
    assert [settings["method"] for settings, _ in done.failed] == ["adacur", "adacur"]
    assert [run.method for run in done.runs] == ["first", "rerank", "rerank"]


def test_a_sample_keeps_every_item_that_is_judged_relevant_and_has_a_name_with_its_size(places, run_it) -> None:
    done = run_it(items=20, ks=[1, 5], methods=["rerank", "exact"])
    (name,) = {run.collection for run in done.runs}
    n_items = done.runs[0].made["items"]
    assert name == f"places-{n_items}-items"
    assert 20 <= n_items < 60
    # Every item that is judged relevant can be found.
    assert (done.runs[-1].measures["calls"] == n_items).all()
    assert run_it(items=4000).runs[0].collection == "places"


def test_without_judgements_recall_is_measured_and_a_note_says_so(places, run_it) -> None:
    (places / "qrels" / "test.tsv").unlink()
    (places / "qrels").rmdir()
    seen: list[Start] = []
    done = run_it(on_start=seen.append)
    assert all("nDCG@10" not in run.measures for run in done.runs)
    assert any("nDCG@10" in note for note in seen[0].notes)


def test_another_scorer_of_the_same_name_needs_another_folder(places, tmp_path) -> None:
    options = {"output": tmp_path / "out", "methods": ["rerank"], "queries": 3, "anchors": 5, "progress": False}
    evaluate(places, scorer=score, **options)

    def other(pairs):
        return [-float(len(text)) for _, text in pairs]

    other.__name__ = other.__qualname__ = "score"
    with pytest.raises(WrongScorer):
        evaluate(places, scorer=other, **options)
