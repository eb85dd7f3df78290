"""Recorded forward passes. Without a GPU, what a graph would repeat is run anew, over the same filled-up buckets."""

from __future__ import annotations

import contextlib
import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacur.errors import ScorerFailed
from adacur.extras.kernels import recorded
from adacur.extras.kernels.cuda_graphs import cuda_graphs
from adacur.extras.kernels.recorded import Bucket, RecordedForward, two_types
from adacur.records import Item, ItemList, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers.cross_encoders.pair_tokens import PairTemplate
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_emb, tiny_transformer

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["bert", "roberta", "emb"])
def architecture(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    return tiny_emb(path) if request.param == "emb" else tiny_transformer(path, request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("tiny"))


class Recording:
    """Takes the place of CUDA graphs; counts what was recorded and repeated, and fails when told to."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.fails: Exception | None = None
        self.replay_fails: Exception | None = None

    def __call__(self, run):
        if self.fails is not None:
            raise self.fails
        self.recorded += 1

        def replay() -> None:
            if self.replay_fails is not None:
                raise self.replay_fails
            self.replayed += 1
            run()

        return replay


def with_recording(scorer: TorchCrossEncoder, **options) -> Recording:
    recording = Recording()
    scorer._recorded = RecordedForward(
        torch,
        scorer._forward.of_packed,
        device=scorer._device,
        pad_id=scorer._pad_id,
        capture=recording,
        **options,
    )
    return recording


@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=512))
def test_a_bucket_holds_its_pairs_with_little_filler(lengths: list[int]) -> None:
    own = np.array(lengths)
    bucket = Bucket.of(own)
    assert bucket is not None
    assert len(own) <= bucket.pairs <= 8 * len(own)
    assert max(own) <= bucket.longest <= max(64, 2 * max(own))
    assert sum(own) <= bucket.tokens <= max(sum(own) + 127, 1.25 * sum(own))
    assert bucket.holds(bucket)


def test_more_pairs_than_the_largest_bucket_has_have_none() -> None:
    assert Bucket.of(np.ones(513, np.intp)) is None
    assert Bucket.of(np.ones(0, np.intp)) is None


def test_few_buckets_serve_the_calls_of_a_search() -> None:
    rng = np.random.default_rng(0)
    buckets = {Bucket.of(rng.integers(60, 180, 20)) for _ in range(500)}
    assert len(buckets) <= 4


def test_a_filled_up_bucket_scores_as_the_pairs_alone(architecture) -> None:
    options = {"device": "cpu", "max_tokens": 36}
    with TorchCrossEncoder(architecture, **options) as plain, TorchCrossEncoder(architecture, **options) as scorer:
        for n_pairs in (1, 2, 8, 9, 33, len(PAIRS)):
            pairs = PAIRS[-n_pairs:]
            expected = plain.score(pairs)
            recording = with_recording(scorer)
            for _ in range(2):
                np.testing.assert_allclose(scorer.score(pairs), expected, atol=1e-4, rtol=1e-5)
            assert (recording.recorded, recording.replayed) == (1, 2)
            # What the last call left in its bucket must not show.
            np.testing.assert_allclose(scorer.score(PAIRS[:1]), plain.score(PAIRS[:1]), atol=1e-4, rtol=1e-5)


def test_pairs_by_position_are_recorded_too(architecture) -> None:
    items = ItemList(ITEMS)
    query_of, positions = np.divmod(np.arange(len(PAIRS))[::-1], len(ITEMS))
    with TorchCrossEncoder(architecture, device="cpu") as scorer:
        expected = scorer.score_at(items, QUERIES, query_of, positions)
        recording = with_recording(scorer)
        np.testing.assert_allclose(scorer.score_at(items, QUERIES, query_of, positions), expected, atol=1e-4, rtol=1e-5)
        assert recording.replayed == 1


def test_texts_that_spell_the_padding_token_and_tags_behind_the_cut_score_as_ever(architecture) -> None:
    items = [Item(f"i{n}", f"{'w2 ' * (9 * n)}[unused2] {'[PAD] <pad> ' * n}w2 w3") for n in range(4)]
    pairs = [(query, item) for query in (Query("q", "w4"), Query("p", "w4 <pad> [PAD] w5")) for item in items]
    with TorchCrossEncoder(architecture, device="cpu", max_tokens=34) as scorer:
        expected = scorer.score(pairs)
        recording = with_recording(scorer)
        np.testing.assert_allclose(scorer.score(pairs), expected, atol=1e-4, rtol=1e-5)
        assert recording.replayed == 1


def test_a_long_query_among_short_ones_has_a_bucket_of_its_own(tmp_path) -> None:
    long = (Query("long", "w1 " * 400), ITEMS[3])
    with TorchCrossEncoder(tiny_transformer(tmp_path, positions=512), device="cpu") as scorer:
        expected = scorer.score([long, *PAIRS[:7]])
        recording = with_recording(scorer)
        scorer.score(PAIRS[:8])
        np.testing.assert_allclose(scorer.score([long, *PAIRS[:7]]), expected, atol=1e-4, rtol=1e-5)
        scorer.score(PAIRS[:8])
        assert sorted(bucket.longest for bucket in scorer._recorded._recorded) == [64, 512]
        assert (recording.recorded, recording.replayed) == (2, 3)


def test_grids_and_calls_beyond_the_largest_bucket_are_not_recorded(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        many = PAIRS * 8
        expected, grid = scorer.score(many), scorer.score_grid(QUERIES, ITEMS)
        recording = with_recording(scorer)
        np.testing.assert_array_equal(scorer.score(many), expected)
        np.testing.assert_array_equal(scorer.score_grid(QUERIES, ITEMS), grid)
        assert recording.recorded == 0
    with TorchCrossEncoder(folder, device="cpu", batch_tokens=100) as scorer:
        recording = with_recording(scorer)
        scorer.score(PAIRS)
        assert recording.recorded == 0, "batch_tokens bounds a forward pass, recorded or not"


def test_behind_the_last_recorded_pass_a_larger_one_serves(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        sizes = (40, 8, 20)
        expected = [scorer.score(PAIRS[:size]) for size in sizes]
        recording = with_recording(scorer, most=1)
        for size, scores in zip(sizes, expected, strict=True):
            np.testing.assert_allclose(scorer.score(PAIRS[:size]), scores, atol=1e-4, rtol=1e-5)
        assert recording.recorded == 1
        # 8 pairs would have been mostly filler.
        assert recording.replayed == 2


@pytest.mark.parametrize("when", ["fails", "replay_fails"])
def test_memory_lacking_for_graphs_costs_speed_and_one_warning_and_no_score(folder, when, caplog, monkeypatch) -> None:
    monkeypatch.setattr(recorded, "_CALLS_BEFORE_TRYING_AGAIN", 3)
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        expected = scorer.score(PAIRS)
        recording = with_recording(scorer)
        for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory\nhint")):
            scorer._recorded.drop()
            scorer.score(PAIRS[:1])
            setattr(recording, when, error)
            np.testing.assert_array_equal(scorer.score(PAIRS), expected)
            assert not scorer._recorded._recorded, "all that was recorded is dropped"
            setattr(recording, when, None)
            before = recording.replayed
            for _ in range(3):
                np.testing.assert_array_equal(scorer.score(PAIRS), expected)
            assert recording.replayed == before
            np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=1e-4)
            assert recording.replayed == before + 1
    assert caplog.text.count("too little memory") == 1


def test_a_device_that_cannot_record_is_told_once_and_done_without(folder, caplog) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        expected = scorer.score(PAIRS)
        recording = with_recording(scorer)
        recording.fails = ValueError("operation not permitted when stream is capturing")
        for _ in range(3):
            np.testing.assert_array_equal(scorer.score(PAIRS), expected)
        assert caplog.text.count("refuses CUDA graphs") == 1


def test_a_forward_pass_that_lacks_memory_gets_that_of_the_graphs_first(folder, caplog) -> None:
    with TorchCrossEncoder(folder, device="cpu", batch_tokens=100_000) as scorer:
        with_recording(scorer)
        scorer.score(PAIRS)
        logits, refused = scorer._forward.logits, []

        def first_refused(*arguments, **options):
            if not refused:
                refused.append(len(scorer._recorded._recorded))
                raise torch.OutOfMemoryError("CUDA out of memory")
            return logits(*arguments, **options)

        scorer._forward.logits = first_refused
        scorer.score_grid(QUERIES, ITEMS)
        assert refused == [1]
        assert not scorer._recorded._recorded
        assert scorer._batch_tokens == 100_000
        assert "ran out of memory" not in caplog.text


def test_threads_have_their_own_scores(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        expected = scorer.score(PAIRS)
        with_recording(scorer)
        with ThreadPoolExecutor(4) as threads:
            found = threads.map(lambda at: scorer.score(PAIRS[at : at + 6])[0], range(40))
        np.testing.assert_allclose(list(found), expected[:40], atol=1e-4, rtol=1e-5)


def test_closing_frees_what_was_recorded(folder) -> None:
    scorer = TorchCrossEncoder(folder, device="cpu")
    with_recording(scorer)
    scorer.score(PAIRS)
    scorer.close()
    assert scorer._recorded is None
    with pytest.raises(ScorerFailed):
        scorer.score(PAIRS)


def test_nothing_is_recorded_on_a_cpu(folder) -> None:
    with TorchCrossEncoder(folder, device="cpu", dtype="float16") as scorer:
        assert scorer._recorded is None


def test_types_that_change_within_a_head_are_left_to_the_other_way() -> None:
    row, none = np.array([[2], [0]]), np.empty((2, 0), np.int64)
    template = PairTemplate(prefix=row, middle=row, suffix=np.array([[2], [1]]), query_type=0, item_type=1)
    assert two_types(template) == (0, 1, 0)
    assert two_types(PairTemplate(prefix=none, middle=none, suffix=none, query_type=0, item_type=0)) == (0, 0, 0)
    assert two_types(PairTemplate(prefix=row, middle=row, suffix=row, query_type=0, item_type=1)) is None


def test_a_graph_is_recorded_behind_a_warm_up_beside_other_threads(monkeypatch) -> None:
    """What only a GPU can do is replaced; the calls must be those that torch has."""
    done: list[object] = []
    real = torch.cuda.graph
    stream = SimpleNamespace(wait_stream=lambda other: done.append("waits"))

    @contextlib.contextmanager
    def graph(*arguments, **options):
        inspect.signature(real).bind(*arguments, **options)
        done.append(options)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="replays"))
    replay = cuda_graphs(torch, torch.device("cuda:1"))(lambda: done.append("runs"))
    recording = {"pool": (0, 1), "stream": stream, "capture_error_mode": "thread_local"}
    assert done == ["waits", "runs", "runs", "waits", recording, "runs"]
    assert replay == "replays"


def test_a_recorded_pass_that_scores_otherwise_than_a_plain_one_is_not_used(folder, caplog, monkeypatch) -> None:
    # The logits of a tiny model are tiny.
    monkeypatch.setattr("adacur.extras.kernels.recorded._ROUNDING", 1e-6)
    with TorchCrossEncoder(folder, device="cpu") as scorer:
        expected = scorer.score(PAIRS[:5])
        recording = with_recording(scorer)
        scorer._recorded._given_capture = lambda run: lambda: None
        for _ in range(2):
            assert scorer.score(PAIRS[:5]) == pytest.approx(expected, abs=1e-5)
        assert caplog.text.count("plain one") == 1
        assert recording.replayed == 0
