"""Wherever a search starts, it predicts from the ranks of all first stages of the index."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.first_stages import BM25, Dense, Matrix
from adacur.first_stages.encoders import EncoderCard
from adacur.replay import top_k_recall
from adacur.scorers import MatrixScorer

N_ITEMS, N_QUERIES, N_ANCHORS = 300, 24, 8
RANDOM = np.random.default_rng(3)
ITEMS = [Item(f"i{at}", f"common word{at % 7} thing{at}") for at in range(N_ITEMS)]
QUERIES = [Query(f"q{at}", f"common question{at}") for at in range(N_QUERIES)]
TOPICS = RANDOM.normal(size=(N_QUERIES, 16))
VECTORS = RANDOM.normal(size=(N_ITEMS, 16))
SCORES = TOPICS @ VECTORS.T


class Encoder:
    """Knows the topics of the queries, and nothing of the items."""

    dimension = 16
    card = EncoderCard(kind="test", dimension=16)

    def encode_queries(self, texts):
        known = {query.text: topic for query, topic in zip(QUERIES, TOPICS, strict=True)}
        return np.array([known[text] for text in texts], dtype=np.float32)

    encode_items = encode_queries


def dense(encoder: Encoder | None = None) -> Dense:
    return Dense.from_embeddings([item.id for item in ITEMS], VECTORS.astype(np.float32), encoder=encoder)


def made(n_anchors: int, **first) -> AnchorIndex:
    given = {"items": ITEMS, "scorer": MatrixScorer(QUERIES, ITEMS, SCORES), "first": first}
    if not n_anchors:
        return AnchorIndex.from_items(**given)
    return AnchorIndex.from_arrays(anchor_queries=QUERIES[:n_anchors], scores=SCORES[:n_anchors], **given)


@pytest.mark.parametrize("n_anchors", [0, N_ANCHORS])
def test_a_search_from_words_learns_from_the_ranks_of_vectors(n_anchors) -> None:
    test = QUERIES[N_ANCHORS:]
    found = {}
    for name, other in (("both", dense(Encoder())), ("alone", None)):
        index = made(n_anchors, bm25=BM25.build(ITEMS), **({"dense": other} if other else {}))
        hits = index.search(test, 10, budget=30, first="bm25", method="gaussian")
        reranked = index.search(test, 10, budget=30, first="bm25", method="rerank")
        # It starts from words all the same, and says so.
        first = hits[0].trace.rounds[0].positions
        assert sorted(first.tolist()) == sorted(reranked[0].trace.rounds[0].positions[: len(first)].tolist())
        assert hits[0].trace.settings["first"] == "bm25"
        assert hits[0].trace.settings["ranks"] == (("bm25", "dense") if other else ("bm25",))
        found[name] = float(top_k_recall(hits, SCORES[N_ANCHORS:], k=10).mean())
    assert found["both"] > found["alone"] + 0.2


def test_what_ranks_are_worth_is_learned_once_for_all_starts_and_stored(tmp_path) -> None:
    index = made(N_ANCHORS, bm25=BM25.build(ITEMS), dense=dense(Encoder()))
    index.save(tmp_path / "index")
    snapshot = adacur.load(tmp_path / "index", scorer=index.scorer, encoder=Encoder()).snapshot
    slopes = [
        snapshot.rank_slopes(snapshot.ranked_by_all(snapshot.first_stage(name)))
        for name in ("bm25", "dense", "bm25+dense")
    ]
    assert slopes[0] is slopes[1] is slopes[2]
    assert len(slopes[0].means) == 2
    stored = snapshot._stored_model()
    assert stored is not None
    assert list(stored.slopes) == ["bm25+dense"]


@pytest.mark.parametrize("unusable", ["no encoder", "another's scores"])
def test_a_stage_that_cannot_answer_is_left_out(unusable, caplog) -> None:
    other = dense() if unusable == "no encoder" else Matrix(queries=QUERIES[:1], items=ITEMS, scores=SCORES[:1])
    index = made(0, bm25=BM25.build(ITEMS), dense=other)
    alone = made(0, bm25=BM25.build(ITEMS))
    with caplog.at_level(logging.WARNING):
        found = index.search(QUERIES[1], 5, budget=20, first="bm25", method="gaussian" if other.vectors() else "rerank")
    assert found.trace.calls == 20
    # What it was predicted from can be read of the answer.
    assert found.trace.settings.get("ranks") == (("bm25",) if other.vectors() else None)
    ranked = index.snapshot.ranked_by_all(index.snapshot.first_stage("bm25"))
    assert ranked.n_stages == alone.snapshot.ranked_by_all(alone.snapshot.first_stage("bm25")).n_stages == 1
    assert ("dense" in caplog.text) == (unusable == "no encoder")


def test_while_an_encoder_opens_searches_of_other_stages_go_on() -> None:
    opening, opened = threading.Event(), threading.Event()

    class Slow(Matrix):
        @property
        def answers_anything(self) -> bool:
            opening.set()
            assert opened.wait(60)
            return False

    slow = Slow(queries=QUERIES, items=ITEMS, scores=SCORES)
    index = made(N_ANCHORS, bm25=BM25.build(ITEMS), dense=dense(Encoder()), slow=slow)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(index.search, QUERIES[9], 5, budget=20, first="dense")
        assert opening.wait(60)
        with ThreadPoolExecutor(1) as meanwhile:
            search = meanwhile.submit(index.search, QUERIES[9], 5, budget=20, first="bm25", method="rerank")
            try:
                assert search.result(timeout=30).trace.calls == 20
            finally:
                opened.set()
        assert waiting.result().trace.calls == 20


def test_a_stage_of_the_same_name_stands_in_for_the_index_s_own() -> None:
    index = made(0, bm25=BM25.build(ITEMS), dense=dense(Encoder()))
    given = index.snapshot.ranked_by_all(index.snapshot.stage(BM25.build(ITEMS)))
    assert given.n_stages == 2
    named, passed = (index.search(QUERIES[0], 5, budget=30, first=one) for one in ("bm25", BM25.build(ITEMS)))
    assert passed.ids == named.ids
