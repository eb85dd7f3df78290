"""Many threads and tasks on one index: the answers of one, models opened once, and a clear end when it is closed."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Gaussian, Hits, Item, Query
from adacur.data import fetch, wikivital
from adacur.errors import AdacurError, InputError, ScorerFailed
from adacur.first_stages import SentenceTransformerEncoder
from adacur.scorers import MatrixScorer, OnnxCrossEncoder, TorchCrossEncoder
from adacur.store import blocks
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_onnx, tiny_transformer

THREADS = 8
TWO_ROUNDS = Gaussian(rounds=2)
QUESTIONS = [f"who or what is {name}?" for name in ("the sun", "a king", "honey", "Rome", "music", "the sea", "war")]


def answer(hits: Hits) -> tuple[object, ...]:
    """Everything of an answer but the seconds it took."""
    rounds = [(round_.positions.tolist(), round_.exact.tolist()) for round_ in hits.trace.rounds]
    return hits.query, hits.ids, hits.scores.tolist(), hits.rounds, rounds, hits.trace.stopped


def in_threads(work: Callable[[int], object]) -> list[object]:
    """What eight threads make of a job that they begin at the same moment."""
    together = threading.Barrier(THREADS)

    def begin(thread: int) -> object:
        together.wait(60)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(begin, range(THREADS)))


def check_threads_agree(index: AnchorIndex, searches: list[dict[str, object]]) -> None:
    """Eight threads make all these searches, each in another order, and find what one thread finds."""
    expected = [answer(index.search(**search)) for search in searches]

    def work(thread: int) -> list[bool]:
        order = np.random.default_rng(thread).permutation(len(searches))
        return [answer(index.search(**searches[at])) == expected[at] for at in order]

    for agreed in in_threads(work):
        assert agreed == [True] * len(searches)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty articles, scored by the real model, with both kinds of first stage."""
    path = tmp_path_factory.mktemp("threads") / "articles.adacur"
    with adacur.scorer("ms-marco-MiniLM-L-12-v2", max_item_tokens=12) as scorer:
        adacur.build(
            wikivital()[:60],
            3,
            scorer=scorer,
            path=path,
            first=("bm25", "dense"),
            encoder="bge-small-en-v1.5",
            progress=False,
        )
    return path


def test_eight_threads_search_a_folder_with_the_real_model_like_one_and_open_everything_once(
    folder, monkeypatch
) -> None:
    opened: list[str] = []

    def counting(name: str, function):
        def called(*args, **options):
            opened.append(name)
            return function(*args, **options)

        return called

    for module, function in (
        ("adacur.search.opening", "open_scorer"),
        ("adacur.search.index_stages", "load_first_stage"),
        ("adacur.first_stages.dense", "reopen_encoder"),
        ("adacur.search.snapshot", "read_model"),
    ):
        target = importlib.import_module(module)
        monkeypatch.setattr(target, function, counting(function, getattr(target, function)))
    # The model at rest is all that the default takes of the scores.
    monkeypatch.setattr(blocks.ScoreBlocks, "__iter__", counting("ScoreBlocks", blocks.ScoreBlocks.__iter__))

    with adacur.load(folder) as index:
        first = in_threads(lambda _: answer(index.search(QUESTIONS[0], k=2, budget=3, first="dense")))
        assert all(found == first[0] for found in first)
        assert sorted(opened) == ["load_first_stage"] * 2 + ["open_scorer", "read_model", "reopen_encoder"]
        searches = [
            {
                "query": f"{QUESTIONS[n % 7]} {n}",
                "k": 2,
                "budget": 3,
                "method": TWO_ROUNDS,
                "first": ("bm25", "dense")[n % 2],
            }
            for n in range(14)
        ]
        check_threads_agree(index, searches)


def test_awaited_searches_with_the_real_model_answer_like_search(folder) -> None:
    with adacur.load(folder) as index:
        expected = [answer(index.search(question, k=2, budget=5)) for question in QUESTIONS]

        async def together() -> list[Hits]:
            return await asyncio.gather(*(index.asearch(question, k=2, budget=5) for question in QUESTIONS))

        assert [answer(hits) for hits in asyncio.run(together())] == expected


def small_index(scorer, n_items: int = 40) -> AnchorIndex:
    texts = [" ".join(np.random.default_rng(n).choice(WORDS, 3 + n % 9)) for n in range(n_items)]
    scores = np.random.default_rng(0).normal(size=(6, n_items))
    items = [Item(f"i{n}", text) for n, text in enumerate(texts)]
    anchors = [Query(f"a{n}", f"w{n}") for n in range(6)]
    return AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=scores, scorer=scorer)


SMALL_SEARCHES = [{"query": f"w{n % 40} w{n * 7 % 40}", "k": 3, "budget": 8, "method": TWO_ROUNDS} for n in range(50)]


@pytest.mark.parametrize("kind", ["torch", "int8 onnx", "float onnx"])
def test_eight_threads_share_a_model_like_one(tmp_path, kind) -> None:
    scorer = (
        TorchCrossEncoder(tiny_transformer(tmp_path), device="cpu")
        if kind == "torch"
        else OnnxCrossEncoder(tiny_onnx(tmp_path, dynamic=kind == "int8 onnx"), threads=2)
    )
    with small_index(scorer) as index:
        check_threads_agree(index, SMALL_SEARCHES)


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur"])
def test_eight_threads_make_hundreds_of_searches_in_known_scores_like_one(make_world, method) -> None:
    world = make_world(n_items=500, n_test=100, noise=0.3)
    scorer = MatrixScorer(queries=world.test, items=world.items, scores=world.test_scores)
    index = AnchorIndex(world.index, scorer=scorer, first={"noisy": world.noisy_first()})
    searches = [{"query": query, "k": 5, "budget": 30, "method": method, "first": "noisy"} for query in world.test]
    check_threads_agree(index, searches)


def test_a_sentence_transformers_encoder_may_be_shared_by_threads() -> None:
    encoder = SentenceTransformerEncoder(str(fetch("all-MiniLM-L6-v2")))
    texts = [["short"], ["a rather longer text " * 9, "x"], ["middle of the road"]]
    expected = [encoder.encode_queries(some) for some in texts]

    def work(thread: int) -> bool:
        return all(
            np.allclose(encoder.encode_queries(texts[turn % 3]), expected[turn % 3], atol=1e-5)
            for turn in range(thread, thread + 6)
        )

    assert all(in_threads(work))


def test_a_closed_index_frees_its_scorer_and_says_that_it_is_closed(folder) -> None:
    index = adacur.load(folder)
    index.search(QUESTIONS[0], k=1, budget=2)
    scorer = index.scorer
    index.close()
    index.close()
    with pytest.raises(ScorerFailed):
        scorer.score([(Query("q", "question"), Item("i", "item"))])
    for search in (
        lambda: index.search(QUESTIONS[0]),
        lambda: list(index.search_iter(QUESTIONS[0])),
        lambda: asyncio.run(index.asearch(QUESTIONS[0])),
        lambda: index.first_stage("bm25"),
        lambda: index.save(folder.parent / "again.adacur"),
    ):
        with pytest.raises(InputError):
            search()
    assert index.items.at([0])[0].id == wikivital()[0].id


@pytest.mark.parametrize("kind", ["torch", "int8 onnx", "float onnx"])
def test_closing_under_searches_ends_them_with_a_clear_error(tmp_path, kind) -> None:
    scorer = (
        TorchCrossEncoder(tiny_transformer(tmp_path), device="cpu")
        if kind == "torch"
        else OnnxCrossEncoder(tiny_onnx(tmp_path, dynamic=kind == "int8 onnx"), threads=2)
    )
    index = small_index(scorer)
    under_way = threading.Semaphore(0)

    def work(thread: int) -> AdacurError | None:
        if not thread:
            for _ in range(3 * THREADS):
                assert under_way.acquire(timeout=60)
            index.close()
            return None
        for turn in range(100_000):
            try:
                if thread % 2:
                    index.search(f"w{turn % 40}", k=1, budget=20)
                else:
                    asyncio.run(index.asearch(f"w{turn % 40}", k=1, budget=20))
            except AdacurError as error:
                return error
            under_way.release()
        return None

    for error in in_threads(work)[1:]:
        assert isinstance(error, InputError | ScorerFailed)
        assert "closed" in str(error)
