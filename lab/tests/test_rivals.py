from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from adacur import Query
from adacur.errors import BudgetError
from adacur.replay import top_k_recall
from adacur_lab.rivals import METHODS, Contest, Question, round_sizes

LAB = Path(__file__).parents[1]
RESULTS = LAB / "benchmarks" / "results" / "rivals.json"
THEIR_CODE = ("gar", "greedy", "qdrant")
HAS_THEIR_CODE = all(
    importlib.util.find_spec(name) for name in ("pyterrier_adaptive", "qdrant_edge", "qdrant_relevance_feedback")
)
needs_their_code = pytest.mark.skipif(not HAS_THEIR_CODE, reason="the extra 'rivals' of lab/ is not installed")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, LAB / "benchmarks" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def question(exact: list[float], ranked: list[int], *, budget: int, vector: tuple[float, ...] = (1.0, 0.0)) -> Question:
    return Question(
        query=Query("q", "a question"),
        exact=np.array(exact, dtype=np.float32),
        ranked=np.array(ranked),
        first_scores=-np.arange(len(ranked), dtype=np.float32),
        vector=np.array(vector, dtype=np.float32),
        budget=budget,
    )


@pytest.fixture
def contest(testbed, tmp_path) -> Contest:
    return Contest(testbed, tmp_path)


def test_a_question_gives_out_each_score_once_and_no_more_than_its_budget() -> None:
    asked = question([0.5, 3.0, 2.0, 1.0], [0, 1, 2, 3], budget=3)
    assert asked.score([0, 2]) == [0.5, 2.0]
    with pytest.raises(BudgetError, match="once"):
        asked.score([2])
    with pytest.raises(BudgetError, match="of 3 calls 1"):
        asked.score([1, 3])
    assert asked.score(asked.unscored(1)) == [3.0]
    assert asked.hits(["a", "b", "c", "d"], 2).ids == ("b", "c")


def test_rounds_differ_by_at_most_one_call_and_spend_the_budget() -> None:
    assert round_sizes(102, 5) == [21, 21, 20, 20, 20]
    assert round_sizes(3, 5) == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param(name, first, marks=needs_their_code if name in THEIR_CODE else ())
        for name in METHODS
        for first in ("dense", "bm25")  # BM25 finds nothing in this world, and every method must go on
    ],
)
def test_every_method_answers_with_exact_scores_within_the_budget(contest, name, first) -> None:
    bed = contest.testbed
    if name == "qdrant":
        from adacur_lab.rivals.feedback import Weights

        contest.once("trained", lambda: Weights(1.0, 0.5, 0.02))  # training takes seconds, and has a test of its own
    found = METHODS[name].search(contest, first, 25, 25)
    positions = {id_: position for position, id_ in enumerate(contest.ids)}
    for hits, exact in zip(found, bed.exact_scores, strict=True):
        assert len(set(hits.ids)) == len(hits.ids) == 25
        assert np.allclose(hits.scores, [exact[positions[id_]] for id_ in hits.ids], atol=1e-5)
        assert list(hits.scores) == sorted(hits.scores, reverse=True)


@needs_their_code
def test_the_graph_holds_the_nearest_neighbours_and_is_made_once(contest) -> None:
    from adacur_lab.rivals.graphs import N_NEIGHBOURS, neighbour_graph

    vectors = contest.vectors
    graph = neighbour_graph(contest.ids, vectors, folder=contest.folder)
    similar = vectors @ vectors.T
    for position in (0, 57, 119):
        best = [other for other in np.argsort(-similar[position]) if other != position][:N_NEIGHBOURS]
        assert set(graph.edges_data[position]) == set(best)
    made = {file: file.stat().st_mtime_ns for file in contest.folder.rglob("*")}
    neighbour_graph(contest.ids, vectors, folder=contest.folder)
    assert {file: file.stat().st_mtime_ns for file in contest.folder.rglob("*")} == made


@needs_their_code
def test_a_greedy_walk_climbs_to_what_the_first_stage_does_not_have() -> None:
    from adacur_lab.rivals.graphs import GreedyWalk

    # A path 0 – 1 – … – 9, the better the further; the first stage knows only its beginning.
    edges = [[max(0, n - 1), min(9, n + 1)] for n in range(10)]
    asked = question([float(n) for n in range(10)], [0, 1, 2, 3], budget=8)
    GreedyWalk(edges, share=0.25).search([asked])
    assert list(asked.calls) == [0, 1, 2, 3, 4, 5, 6, 7]


@needs_their_code
def test_where_the_graph_ends_a_greedy_walk_goes_on_with_the_first_stage() -> None:
    from adacur_lab.rivals.graphs import GreedyWalk

    asked = question([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3], budget=3)
    GreedyWalk([[0], [1], [2], [3]], share=0.4).search([asked])
    assert list(asked.calls) == [0, 1, 2]


@needs_their_code
@pytest.mark.parametrize("b", [0.0, 0.5, 1.0])
def test_one_matrix_product_ranks_as_qdrants_engine_does_and_is_checked_by_it(b) -> None:
    from adacur_lab.rivals.feedback import Asked, Checked, Engine, LinearForm, Weights

    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(300, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = [
        Asked(vectors[n] + 0.1, [(n, 2.5), (n + 50, -1.0), (n + 90, 0.5)], {n, n + 50, n + 90}, 12) for n in range(6)
    ]
    engine = Engine(vectors)
    weights = Weights(0.9, b, 0.2)
    form = LinearForm(vectors)
    assert form.best(asked, weights) == engine.best(asked, weights) == Checked(form, engine).best(asked, weights)
    with pytest.raises(ArithmeticError, match="same items"):
        Checked(LinearForm(-vectors), engine).best(asked, weights)
    engine.close()


@needs_their_code
def test_feedback_moves_the_query_towards_what_scored_best() -> None:
    from adacur_lab.rivals.feedback import FeedbackSearch, FeedbackSettings, LinearForm, Weights

    angles = np.linspace(0, np.pi / 2, 40)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    exact = np.sin(angles)  # the scorer likes what is furthest from the query
    recalls = {}
    for c in (0.0, 1.0):
        asked = question(list(exact), list(range(40)), budget=20)
        FeedbackSearch(LinearForm(vectors), FeedbackSettings(Weights(1.0, 0.0, c))).search([asked])
        assert len(asked.calls) == 20
        recalls[c] = top_k_recall([asked.hits([str(n) for n in range(40)], 5)], asked.exact[None], k=5)[0]
    assert recalls == {0.0: 0.0, 1.0: 1.0}


@needs_their_code
def test_weights_are_trained_with_fifty_calls_a_question(contest) -> None:
    from adacur_lab.rivals.feedback import TRAINED_ON, Engine, train_weights

    questions = contest.questions("dense", 25, anchors=True)
    weights = train_weights(Engine(contest.vectors), questions)
    assert np.isfinite(weights).all()
    assert weights.b >= 0
    assert TRAINED_ON == 50
    assert not any(one.calls for one in questions)  # a budget of its own


def test_a_method_can_be_measured_again_alone(tmp_path) -> None:
    save = script("rivals").save
    file = tmp_path / "rivals.json"

    def cell(method: str, value: float) -> dict[str, object]:
        return {"collection": "c", "method": method, "first": "dense", "budget": 50, "10": [value, 0, 1]}

    save(file, [cell("rerank", 0.5), cell("axn", 0.6)], {"c": {"greedy": {"share": 0.5}}})
    save(file, [cell("axn", 0.7)], {"c": {}})
    stored = json.loads(file.read_text())
    assert [(row["method"], row["10"][0]) for row in stored["rows"]] == [("rerank", 0.5), ("axn", 0.7)]
    assert stored["chosen"] == {"c": {"greedy": {"share": 0.5}}}


def test_cells_that_are_known_are_not_measured_again(contest) -> None:
    measure = script("rivals").measure
    known = {("world", "rerank", "dense", 20)}
    rows = [row for part in measure(contest, ["rerank"], ["dense"], [10, 20], known=known) for row in part]
    assert [(row["method"], row.get("budget")) for row in rows] == [("exact", None), ("rerank", 10)]
    assert rows[1]["judged"] == 5
    assert set(rows[1]["over"]) == {"axn"}


def test_without_folders_of_scores_the_benchmark_is_skipped_with_the_reason(tmp_path) -> None:
    command = [sys.executable, LAB / "benchmarks" / "rivals.py", "--scores", tmp_path, "--json", tmp_path / "out.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "skipped" in run.stderr
    assert str(tmp_path / "scifact") in run.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/rivals.md"])
def test_the_tables_in_the_documents_are_those_of_the_stored_results(page, tmp_path) -> None:
    copy = tmp_path / "page.md"
    text = (LAB.parent / page).read_text()
    copy.write_text(text)
    script("rivals_table").write(copy, json.loads(RESULTS.read_text()))
    assert copy.read_text() == text
