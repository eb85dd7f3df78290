from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from adacur.errors import InputError, MissingExtra, UnknownName
from adacur.first_stages import OnnxEncoder
from adacur.records import Query
from adacur.replay import Run
from adacur_lab.experiments import METHODS, Asked, Spec, evaluate, measured_run
from adacur_lab.experiments.runner import run_settings
from adacur_lab.experiments.sources import live_split, open_testbed, read_records
from adacur_lab.experiments.spec import AnchorsSpec, CollectionSpec, MethodSpec
from adacur_lab.experiments.trec import write_trec
from adacur_lab.report import read_runs
from tests.unit.first_stages.conftest import tiny_model


def spec(tmp_path, **changes) -> Spec:
    return Spec(collections=(CollectionSpec("world"),), output=tmp_path, **changes)


def settings(method: str, testbed, **changes):
    made = {"budgets": (20,), "methods": (MethodSpec(method, changes),)}
    return next(run_settings(Spec(collections=(), output=None, **made), testbed))


def test_settings_that_do_not_matter_to_a_method_make_no_further_runs(testbed, tmp_path) -> None:
    made = spec(
        tmp_path,
        methods=tuple(map(MethodSpec, ("rerank", "exact", "adacur", "anncur"))),
        anchors=AnchorsSpec(numbers=(10, 20, 500)),
        budgets=(20, 40),
        rounds=(2, 5),
    )
    by_method: dict[str, list] = {}
    for own in run_settings(made, testbed):
        by_method.setdefault(own["method"], []).append(own)
    assert {name: len(runs) for name, runs in by_method.items()} == {"rerank": 2, "exact": 1, "adacur": 12, "anncur": 6}
    # More anchors than there are mean all.
    assert {own["anchors"] for own in by_method["adacur"]} == {10, 20, 30}
    assert by_method["exact"] == [{"method": "exact", "k_max": 10}]
    assert {own["first"] for own in by_method["anncur"]} == {"random"}


def test_a_list_stands_for_a_run_with_each_of_its_values(testbed, tmp_path) -> None:
    made = spec(tmp_path, methods=(MethodSpec("anncur", {"split": [0.2, 0.8], "first": "dense"}),), budgets=(20,))
    assert [(own["split"], own["first"]) for own in run_settings(made, testbed)] == [(0.2, "dense"), (0.8, "dense")]


def test_fewer_calls_than_rounds_take_fewer_rounds(testbed, tmp_path) -> None:
    (own,) = run_settings(spec(tmp_path, methods=(MethodSpec("adacur"),), budgets=(3,)), testbed)
    assert (own["rounds"], own["k_max"]) == (3, 3)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "multi-vector"])
def test_every_method_can_be_run_by_its_name(name, testbed) -> None:
    run, answers = measured_run(testbed, settings(name, testbed), asked=Asked((1, 10)))
    assert len(answers.deepest) == 8
    assert run.measures["nDCG@10"].shape == (8,)
    assert np.isnan(run.measures["nDCG@10"]).tolist() == [False] * 5 + [True] * 3
    if name in ("dense", "bm25", "tfidf"):
        assert "recall@10" not in run.measures
        assert (run.measures["calls"] == 0).all()
    else:
        assert 0 <= run.values("recall@10").mean() <= 1
        assert set(run.measures["calls"]) == ({120.0} if name == "exact" else {20.0})
        assert (run.values("strict_recall@10") <= run.values("recall@10")).all()


def test_a_run_says_what_was_found_with_what(testbed) -> None:
    run, _ = measured_run(testbed, settings("gaussian", testbed, first="dense"), asked=Asked((1, 10), predictions=True))
    assert run.settings == {
        "method": "gaussian",
        "budget": 20,
        "rounds": 5,
        "anchors": 30,
        "first": "dense",
        "first_weight": 0.0,
        "seed": 0,
        "k_max": 10,
    }
    assert {"ceiling@1", "phantom@10", "seconds.predict", "error.all", "error.top@10"} <= run.measures.keys()
    assert set(run.measures["index_calls"]) == {30.0 * 120}
    assert run.made["items"] == 120


def test_the_best_split_is_the_best_of_all_splits_for_each_k(testbed) -> None:
    asked = Asked((1, 10))
    best, answers = measured_run(testbed, settings("anncur_best_split", testbed), asked=asked)
    each = {
        tenth / 10: measured_run(testbed, settings("anncur", testbed, split=tenth / 10), asked=asked)[0]
        for tenth in range(1, 10)
    }
    for k in (1, 10):
        recalls = {split: run.values(f"recall@{k}").mean() for split, run in each.items()}
        assert best.values(f"recall@{k}").mean() == max(recalls.values())
        assert recalls[answers.chosen["split"][str(k)]] == max(recalls.values())


def test_an_oracle_that_masks_the_top_k_masks_as_many_as_are_measured(testbed) -> None:
    _, answers = measured_run(testbed, settings("topk_oracle", testbed, k_masked="k", split=0.5), asked=Asked((1, 10)))
    for k, hits in answers.by_k.items():
        for own, exact in zip(hits, testbed.exact_scores, strict=True):
            best = set(np.argsort(-exact)[:k].tolist())
            assert not best & set(own.trace.rounds[0].positions.tolist())


def test_a_first_stage_alone_is_measured_by_judgements_only(testbed) -> None:
    with pytest.raises(InputError, match="measured by judgements"):
        measured_run(replace(testbed, qrels=None), settings("dense", testbed), asked=Asked((1,)))


@pytest.fixture
def live_spec(beir_folder, word_scorer, tmp_path) -> Spec:
    return Spec.from_tables(
        {
            "collection": {"folder": str(beir_folder)},
            "scorer": {"source": word_scorer},
            "anchors": {"numbers": [6, 12]},
            "search": {"methods": ["adacur", "rerank"], "budgets": [10, 20], "n_queries": 5, "first": "bm25"},
            "output": {"folder": str(tmp_path / "out")},
        }
    )


def test_test_queries_are_judged_ones_and_share_no_text_with_anchors(live_spec) -> None:
    records = read_records(live_spec.collections[0])
    split = live_split(records, live_spec)
    anchors, tests = split.anchors, split.test
    assert (len(anchors), len(tests), split.pseudo) == (12, 5, False)
    assert all(records.qrels[query.id] for query in tests)
    assert not {query.text for query in anchors} & {query.text for query in tests}
    more = replace(live_spec, n_queries=4, anchors=AnchorsSpec(numbers=(20,), seed=1))
    assert live_split(records, more).test != tests[:4]


def test_queries_that_leave_no_anchor_are_refused_and_pseudo_queries_serve(live_spec) -> None:
    records = read_records(live_spec.collections[0])
    alone = replace(records, queries=records.queries[:1])
    with pytest.raises(InputError, match="pseudo = true"):
        live_split(alone, replace(live_spec, anchors=AnchorsSpec(numbers=(7,), pseudo=False)))
    split = live_split(alone, replace(live_spec, anchors=AnchorsSpec(numbers=(7,), pseudo=True)))
    assert (len(split.anchors), len(split.test), split.pseudo) == (7, 1, True)


def test_pseudo_anchors_are_never_the_texts_of_test_queries(live_spec) -> None:
    records = read_records(live_spec.collections[0])
    asked = replace(live_spec, anchors=AnchorsSpec(numbers=(7,), pseudo=True))
    given_away = live_split(records, asked).anchors[:2]
    queries = [Query(f"t{n}", query.text) for n, query in enumerate(given_away)]
    split = live_split(replace(records, queries=queries, qrels=None), asked)
    assert len(split.anchors) == 7
    assert not {query.text for query in split.anchors} & {query.text for query in split.test}


def test_where_too_few_queries_are_left_the_anchors_are_pseudo_queries_unless_ruled_out(live_spec) -> None:
    records = read_records(live_spec.collections[0])

    def split(pseudo: bool | None, *numbers: int):
        return live_split(records, replace(live_spec, anchors=AnchorsSpec(numbers=numbers, pseudo=pseudo)))

    # Thirty queries less five test queries leave 25; fifty is the number where none is given.
    few = split(None, 30)
    assert (len(few.anchors), few.pseudo) == (30, True)
    assert not {query.id for query in few.anchors} & {query.id for query in records.queries}
    assert (len(split(None, 25).anchors), split(None, 25).pseudo) == (25, False)
    assert (len(split(False).anchors), split(False).pseudo) == (25, False)
    # Forty items yield no five hundred different queries: then all real ones serve.
    assert (len(split(None, 500).anchors), split(None, 500).pseudo) == (25, False)


def test_a_run_and_its_start_tell_pseudo_anchors(live_spec) -> None:
    starts = []
    few = replace(live_spec, anchors=AnchorsSpec(numbers=(30,)), methods=(MethodSpec("adacur"), MethodSpec("rerank")))
    outcome = evaluate(few, progress=False, on_start=starts.append)
    assert [(one.n_test, one.n_anchors, one.pseudo_anchors) for one in starts] == [(5, 30, True)]
    assert {one.run.method: one.run.made.get("pseudo_anchors") for one in outcome.runs} == {
        "adacur": True,
        "rerank": None,
    }


def test_methods_without_anchors_have_no_anchor_query_scored(live_spec) -> None:
    costs = []
    alone = replace(live_spec, methods=(MethodSpec("rerank"), MethodSpec("exact")))
    outcome = evaluate(alone, progress=False, on_cost=lambda name, cost: costs.append(cost.pairs))
    assert costs == [40 * 5]
    assert (len(outcome.runs), outcome.failed) == (3, ())
    assert evaluate(alone, progress=False).found == 3


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"first": ("dnse",)}, UnknownName, "Did you mean 'dense'"),
        ({"methods": (MethodSpec("rerank", {"first": ["bm25", "tfdif"]}),)}, UnknownName, "Did you mean 'tfidf'"),
        ({"methods": (MethodSpec("bm25"),), "without": "qrels"}, InputError, "measured by judgements"),
        ({"ks": (1, 41)}, InputError, "k is at most the number of items: 'lessons' has 40, and k is 41"),
        ({"judged": "x{}"}, InputError, r"None of the 9 judged items is in the corpus of 'lessons' \(e.g. 'x0'"),
        ({"methods": (MethodSpec("bm25"),), "without": "ir_measures"}, MissingExtra, r"\[evaluation\]"),
        ({"first": ("dense",), "without": "onnxruntime"}, MissingExtra, r"\[onnx\]"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_scored(
    changes, error, words, live_spec, beir_folder, monkeypatch
) -> None:
    changes = dict(changes)
    missing = changes.pop("without", None)
    if item := changes.pop("judged", None):
        judge(beir_folder, item)
    if missing == "qrels":
        shutil.rmtree(beir_folder / "qrels")
    elif missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error, match=words):
        evaluate(replace(live_spec, **changes), progress=False)
    assert "shared_words" not in sys.modules or not sys.modules["shared_words"].calls


def judge(folder, item: str, *, query: str = "q{}") -> None:
    rows = "".join(f"{query.format(n)}\t{item.format(n)}\t1\n" for n in range(9))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)


def test_judgements_and_budgets_that_do_not_fit_the_collection_are_told(live_spec, beir_folder) -> None:
    def notes(**changes):
        starts = []
        made = replace(live_spec, methods=(MethodSpec("rerank"),), **changes)
        outcome = evaluate(made, progress=False, on_start=starts.append)
        return " ".join(starts[0].notes), [one.run.settings["budget"] for one in outcome.runs]

    assert notes() == ("", [10, 20])
    told, budgets = notes(budgets=(20, 50, 90))
    assert told == "lessons: budgets above its 40 items are taken as 40."
    assert budgets == [20, 40]
    judge(beir_folder, "d{}5")
    assert "6 of the 9 judged items" in notes()[0]
    judge(beir_folder, "d{}", query="x{}")
    assert "none of the test queries is judged, so judged quality is left out" in notes()[0]
    shutil.rmtree(beir_folder / "qrels")
    assert notes()[0] == "lessons: no judgements (qrels/test.tsv), so judged quality is left out."


def test_no_first_stage_is_offered_that_cannot_run(live_spec, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnknownName, match="random"):
        evaluate(replace(live_spec, first=("nobody",)), progress=False)


def test_without_ir_measures_recall_is_measured_and_judged_quality_made_up_for_later(live_spec, monkeypatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "ir_measures", None)
        with pytest.warns(UserWarning, match=r"10 is.*\[evaluation\]") as told:
            outcome = evaluate(live_spec, progress=False)
        assert len(told) == 1
        assert (len(outcome.runs), outcome.failed) == (6, ())
        assert all({"recall@10"} == {"recall@10", "nDCG@10"} & set(one.run.measures) for one in outcome.runs)
        with pytest.warns(UserWarning, match="left out"):
            assert evaluate(live_spec, progress=False).found == 6
    again = evaluate(live_spec, progress=False)
    assert again.found == 0
    assert [one.file for one in again.runs] == [one.file for one in outcome.runs]
    assert all("nDCG@10" in one.run.measures for one in again.runs)
    assert evaluate(live_spec, progress=False).found == 6


def test_stored_runs_are_found_again_and_nothing_is_scored_twice(live_spec) -> None:
    costs = []
    outcome = evaluate(live_spec, progress=False, on_cost=lambda name, cost: costs.append((name, cost.pairs)))
    assert costs == [("lessons", 40 * 17)]
    assert (len(outcome.runs), outcome.failed, outcome.found) == (6, (), 0)
    calls = sys.modules["shared_words"].calls
    before = len(calls)
    again = evaluate(live_spec, progress=False, on_cost=lambda *_: pytest.fail("all is scored"))
    assert again.found == 6
    # Two finished folders, and a scorer without weights is recognised by 32 pairs of each.
    assert len(calls) - before <= 64
    assert [one.file for one in again.runs] == [one.file for one in outcome.runs]
    for one, other in zip(outcome.runs, again.runs, strict=True):
        for name in one.run.measures:
            np.testing.assert_array_equal(one.run.measures[name], other.run.measures[name])
    assert len(read_runs(live_spec.output)[0]) == 6


def test_other_settings_add_runs_and_other_judgements_replace_none(live_spec, beir_folder) -> None:
    evaluate(live_spec, progress=False)
    more = evaluate(replace(live_spec, budgets=(10, 20, 30)), progress=False)
    assert (len(more.runs), more.found) == (9, 6)
    with (beir_folder / "qrels" / "test.tsv").open("a") as file:
        file.writelines(f"q{n}\td30\t1\n" for n in range(0, 30, 2))
    assert evaluate(live_spec, progress=False).found == 0
    assert len(read_runs(live_spec.output)[0]) == 15


def test_another_encoder_of_token_vectors_makes_its_own_runs_anew_and_no_other(token_spec, tmp_path) -> None:
    one, other = (OnnxEncoder(tiny_model(tmp_path / f"model{seed}", seed=seed)) for seed in (0, 1))

    first = evaluate(replace(token_spec, encoder=one), progress=False)
    assert (len(first.runs), first.failed) == (2, ())
    assert evaluate(replace(token_spec, encoder=one), progress=False).found == 2

    again = evaluate(replace(token_spec, encoder=other), progress=False)
    by_words = next(stored for stored in first.runs if stored.run.settings["first"] == "bm25")
    assert {stored.file for stored in again.runs} & {stored.file for stored in first.runs} == {by_words.file}
    assert (again.found, again.failed) == (1, ())


def test_token_vectors_are_made_of_the_scored_items_alone(token_spec, tmp_path) -> None:
    spec = replace(token_spec, encoder=OnnxEncoder(tiny_model(tmp_path / "model")))

    testbed = open_testbed(spec.collections[0], spec, progress=False)

    # The fifth item has a text and no scores; it is the query to the letter.
    assert sorted(testbed.first_hits("multi-vector", 5)[0].ids) == ["i0", "i1", "i2", "i3"]


def test_a_failing_run_is_told_at_the_end_and_stops_no_other(live_spec) -> None:
    failing = replace(live_spec, methods=(MethodSpec("anncur", {"split": 1.5}), MethodSpec("rerank")))
    outcome = evaluate(failing, progress=False)
    assert [one.run.method for one in outcome.runs] == ["rerank", "rerank"]
    assert len(outcome.failed) == 4
    assert "split" in str(outcome.failed[0].error)
    assert outcome.failed[0].settings["split"] == 1.5


def test_a_half_written_run_is_made_again(live_spec) -> None:
    first = evaluate(live_spec, progress=False).runs[0].file
    first.rename(first.with_name(f".{first.name}.partial"))
    again = evaluate(live_spec, progress=False)
    assert again.found == 5
    assert Run.load(first).settings == again.runs[0].run.settings


def test_trec_files_hold_the_hits_of_every_run(live_spec) -> None:
    evaluate(live_spec, progress=False)
    outcome = evaluate(live_spec, trec=True, progress=False)
    # The hits of a stored run are not stored, so it is made again.
    assert (outcome.found, outcome.searched_again) == (0, 6)
    again = evaluate(live_spec, trec=True, progress=False)
    assert (again.found, again.searched_again) == (6, 0)
    for stored in outcome.runs:
        lines = (live_spec.output / "trec" / "lessons" / f"{stored.file.stem}.run").read_text().splitlines()
        columns = [line.split(" ") for line in lines]
        assert [row[0] for row in columns[::10]] == list(stored.run.query_ids)
        assert [int(row[3]) for row in columns[:10]] == list(range(1, 11))
        assert {(row[1], row[5]) for row in columns} == {("Q0", stored.file.stem)}
        scores = [float(row[4]) for row in columns[:10]]
        assert scores == sorted(scores, reverse=True)


def test_an_id_with_a_space_cannot_stand_in_a_trec_file(testbed, tmp_path) -> None:
    _, answers = measured_run(testbed, settings("rerank", testbed), asked=Asked((1,)))
    with pytest.raises(InputError, match="hold"):
        write_trec(tmp_path / "x.run", answers.deepest, tag="two words")
    assert not (tmp_path / "x.run").exists()


def test_a_stored_run_is_plain_json(live_spec) -> None:
    stored = evaluate(live_spec, progress=False).runs[-1]
    content = json.loads(stored.file.read_text())
    assert content["settings"]["method"] == stored.run.method
    assert stored.file.name.startswith(f"{stored.run.method}-B")
