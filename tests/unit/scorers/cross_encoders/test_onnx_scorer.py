from __future__ import annotations

import multiprocessing
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from adacur.data import fetch
from adacur.errors import InputError, ScorerFailed
from adacur.records import Item, Query
from adacur.scorers import OnnxCrossEncoder
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_onnx, tiny_tokenizer


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory) -> Path:
    return tiny_onnx(tmp_path_factory.mktemp("int8"), dynamic=True)


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory) -> Path:
    return tiny_onnx(tmp_path_factory.mktemp("float"))


def alone(scorer: OnnxCrossEncoder, pairs) -> np.ndarray:
    return np.concatenate([scorer.score([pair]) for pair in pairs])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_dynamic_int8_score_does_not_depend_on_its_batch(int8_folder, threads) -> None:
    with OnnxCrossEncoder(int8_folder, threads=threads) as scorer:
        together = scorer.score(PAIRS)
        np.testing.assert_array_equal(together, alone(scorer, PAIRS))
        np.testing.assert_array_equal(together[::-1], scorer.score(PAIRS[::-1]))


def test_a_real_int8_score_does_not_depend_on_its_batch() -> None:
    folder = fetch("ms-marco-MiniLM-L-12-v2")
    texts = ["Penicillin was discovered by Alexander Fleming.", "Paris is in France. " * 12, "", "bananas"]
    pairs = [(Query(q, q), Item(i, i)) for q in ("who discovered penicillin?", "capital of france") for i in texts]
    with OnnxCrossEncoder(folder) as scorer, OnnxCrossEncoder(folder, threads=1) as other:
        together = scorer.score(pairs)
        np.testing.assert_array_equal(together, alone(other, pairs))
        assert together.dtype == np.float32
        assert together[0] > 5 > -5 > together[3]
        assert scorer.card.dtype == "int8"
        assert scorer.card.max_tokens == 512


class CountingSession:
    """A session that remembers the shape of every run."""

    def __init__(self, session) -> None:
        self.session = session
        self.shapes: list[tuple[int, int]] = []

    def run(self, outputs, fed):
        self.shapes.append(fed["input_ids"].shape)
        assert fed["attention_mask"].all()
        return self.session.run(outputs, fed)


@pytest.mark.parametrize("folder", ["int8_folder", "float_folder"])
def test_every_pair_is_one_run_without_padding(folder, request) -> None:
    with OnnxCrossEncoder(request.getfixturevalue(folder), threads=64) as scorer:
        scorer._session = CountingSession(scorer._session)
        scorer.score_grid(QUERIES, ITEMS)
        assert [pairs for pairs, _ in scorer._session.shapes] == [1] * len(QUERIES) * len(ITEMS)


def score_in_child(scorer: OnnxCrossEncoder, answers) -> None:
    answers.put(scorer.score(PAIRS))
    scorer.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_and_its_parent_both_score(int8_folder) -> None:
    with OnnxCrossEncoder(int8_folder, threads=2) as scorer:
        expected = scorer.score(PAIRS)
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        child = fork.Process(target=score_in_child, args=(scorer, answers), daemon=True)
        child.start()
        np.testing.assert_array_equal(answers.get(timeout=30), expected)
        child.join(30)
        assert child.exitcode == 0
        np.testing.assert_array_equal(scorer.score(PAIRS), expected)


def test_closing_ends_calls_under_way_in_other_threads_with_a_clear_error(int8_folder) -> None:
    scorer = OnnxCrossEncoder(int8_folder, threads=2)
    first_run, go_on = threading.Event(), threading.Event()

    class WaitingSession:
        def __init__(self, session) -> None:
            self.session = session

        def run(self, outputs, fed):
            first_run.set()
            assert go_on.wait(30)
            return self.session.run(outputs, fed)

    scorer._session = WaitingSession(scorer._session)
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(scorer.score, PAIRS) for _ in range(3)]
        assert first_run.wait(30)
        closing = callers.submit(scorer.close)
        while scorer._session is not None:
            pass
        go_on.set()
        closing.result(30)
        for call in calls:
            with pytest.raises(ScorerFailed):
                call.result(30)
    scorer.close()


def test_an_input_the_graph_lacks_is_not_fed(tmp_path) -> None:
    with OnnxCrossEncoder(tiny_onnx(tmp_path, "roberta", types=False)) as scorer:
        assert scorer.score_grid(QUERIES, ITEMS).shape == (len(QUERIES), len(ITEMS))


def test_a_graph_below_its_tokenizer_is_opened_by_file(float_folder, tmp_path) -> None:
    (tmp_path / "onnx").mkdir()
    shutil.copy(float_folder / "model.onnx", tmp_path / "onnx" / "graph.onnx")
    shutil.copy(float_folder / "tokenizer.json", tmp_path)
    with (
        OnnxCrossEncoder(tmp_path / "onnx" / "graph.onnx", name="mine") as scorer,
        OnnxCrossEncoder(float_folder) as same,
    ):
        assert scorer.card.name == "mine"
        assert scorer.card.weights == same.card.weights
        np.testing.assert_array_equal(scorer.score(PAIRS), same.score(PAIRS))


def test_weights_beside_the_graph_count(float_folder, tmp_path) -> None:
    shutil.copytree(float_folder, tmp_path / "other")
    (tmp_path / "other" / "model.onnx_data").write_bytes(b"weights")
    with OnnxCrossEncoder(tmp_path / "other") as other, OnnxCrossEncoder(float_folder) as scorer:
        assert other.card.weights != scorer.card.weights


def test_a_graph_without_the_weights_beside_it_is_refused(float_folder, tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    shutil.copy(float_folder / "tokenizer.json", tmp_path)
    onnx.save_model(
        onnx.load(float_folder / "model.onnx"),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=1000,
    )
    with OnnxCrossEncoder(tmp_path) as scorer, OnnxCrossEncoder(float_folder) as same:
        np.testing.assert_array_equal(scorer.score(PAIRS), same.score(PAIRS))
    (tmp_path / "model.onnx_data").unlink()
    with pytest.raises(InputError, match="onnx_data"):
        OnnxCrossEncoder(tmp_path)


def test_what_is_missing_or_damaged_is_said(float_folder, tmp_path) -> None:
    with pytest.raises(InputError):
        OnnxCrossEncoder(tmp_path)
    for name in ("one.onnx", "two.onnx"):
        shutil.copy(float_folder / "model.onnx", tmp_path / name)
    with pytest.raises(InputError, match=r"one\.onnx.*'two\.onnx'"):
        OnnxCrossEncoder(tmp_path)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        OnnxCrossEncoder(tmp_path / "one.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError):
        OnnxCrossEncoder(tmp_path / "one.onnx")
    with pytest.raises(InputError, match="threads"):
        OnnxCrossEncoder(float_folder, threads=0)


def test_a_closed_scorer_says_so_and_keeps_its_card(int8_folder) -> None:
    with OnnxCrossEncoder(int8_folder) as scorer:
        pass
    with pytest.raises(ScorerFailed):
        scorer.score(PAIRS)
    assert scorer.card.backend == "onnx"


def test_a_failing_graph_is_reported_with_its_cause(float_folder, tmp_path) -> None:
    shutil.copy(float_folder / "model.onnx", tmp_path)
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens(["beyond"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with OnnxCrossEncoder(tmp_path) as scorer, pytest.raises(ScorerFailed):
        scorer.score([(QUERIES[0], Item("i", "beyond"))])
