"""Every first stage in every role: alone, re-ranked, as ANNCUR's anchors, as ADACUR's first batch, and as a pool."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, First, Item, Query
from adacur.core.errors import InputError, MissingExtra, UnknownName
from adacur.core.protocols import Retriever
from adacur.core.results import Hits
from adacur.first_stages import BM25, Dense, EncoderCard, MultiVector, TfIdf

STAGES = {"bm25": BM25, "tfidf": TfIdf, "dense": Dense, "multi-vector": MultiVector}
METHODS = ("gaussian", "adacur", "anncur", "rerank")
THINGS = ("river", "harbour", "comet", "violin", "glacier", "lantern", "orchid", "meadow", "anvil", "thimble")
# Every item shares a word with every query, so that stages that match words return as many as they are asked for.
ITEMS = [
    Item(f"d{i}", f"the {THINGS[i % 10]} beside the {THINGS[i // 7 % 10]} and {THINGS[i * i % 9]}") for i in range(90)
]
ANCHORS = [Query(f"a{i}", f"the {thing} and the {THINGS[i * 3 % 10]}") for i, thing in enumerate(THINGS)]
QUERIES = [Query("q1", "the violin beside a glacier"), Query("q2", "the comet and the thimble")]


class WordEncoder:
    """A random vector per word; the text's vector is their mean."""

    dimension = 16
    card = EncoderCard(kind="words", dimension=16, weights="v1")

    def encode_item_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([self.vector(word) for word in text.split()]) for text in texts]

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([tokens.mean(axis=0) for tokens in self.encode_item_tokens(texts)])

    encode_query_tokens = encode_item_tokens
    encode_queries = encode_items

    @staticmethod
    def vector(word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=16).astype(np.float32)


def shared_words(pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [
        len(set(query.split()) & set(text.split())) + zlib.crc32((query + text).encode()) / 2**32
        for query, text in pairs
    ]


def build(path: Path, *, first: Sequence[str], encoder: object = None) -> AnchorIndex:
    return adacur.build(
        ITEMS, ANCHORS, scorer=shared_words, path=path, first=first, encoder=encoder or WordEncoder(), progress=False
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> AnchorIndex:
    """Built with all first stages by their names, and opened again from its folder."""
    path = tmp_path_factory.mktemp("roles") / "i.adacur"
    build(path, first=[*STAGES])
    assert adacur.verify(path).ok
    return adacur.load(path, scorer=shared_words, encoder=WordEncoder())


@pytest.fixture(params=STAGES)
def stage(request) -> str:
    return request.param


def scored(hits: Hits) -> list[str]:
    assert hits.trace is not None
    return [ITEMS[position].id for round_ in hits.trace.rounds for position in round_.positions]


def test_a_stage_kept_with_an_index_opens_again_and_answers_alone(index, stage) -> None:
    retriever = index.first_stage(stage)
    assert isinstance(retriever, Retriever)
    assert isinstance(retriever, STAGES[stage])
    needs_encoder = stage in ("dense", "multi-vector")
    fresh = STAGES[stage].build(ITEMS, **({"encoder": WordEncoder()} if needs_encoder else {}))
    for one, other in zip(retriever.search(QUERIES, 20), fresh.search(QUERIES, 20), strict=True):
        assert one.ids == other.ids
        assert one.scores.tolist() == other.scores.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_the_first_round_is_the_stage_s_best(index, stage, method) -> None:
    best = index.first_stage(stage).search(QUERIES, 30)
    found = index.search(QUERIES, 3, budget=30, method=method, first=stage)
    for first, hits in zip(best, found, strict=True):
        size = len(hits.trace.rounds[0].positions)
        assert size == {"rerank": 30, "anncur": 15, "gaussian": 9}.get(method, 6)
        assert scored(hits)[:size] == list(first.ids[:size])
        assert hits.trace.calls == 30
        assert hits.trace.settings["first"] == stage


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("budget", "pool"), [(12, 25), (25, 12)])
def test_a_pool_confines_every_method_to_the_stage_s_best(index, stage, method, budget, pool) -> None:
    best = index.first_stage(stage).search(QUERIES, pool)
    found = index.search(QUERIES, 3, budget=budget, method=method, first=First(stage, pool=pool))
    for first, hits in zip(best, found, strict=True):
        assert len(first.ids) == pool
        assert set(scored(hits)) <= set(first.ids)
        assert hits.trace.calls == min(budget, pool)
        assert hits.trace.settings["pool"] == pool


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_that_the_budget_covers_has_the_same_answer_for_every_method(index, stage, method) -> None:
    (found,) = index.search(QUERIES[:1], 5, budget=40, method=method, first=First(stage, pool=20))
    (first,) = index.first_stage(stage).search(QUERIES[:1], 20)
    (exact,) = index.search(QUERIES[:1], 5, filter=set(first.ids), method="exact")
    assert found.ids == exact.ids


def test_stages_that_cannot_be_built_are_refused_before_anything_is_scored(tmp_path, monkeypatch) -> None:
    class Pooled:
        dimension, card = 16, WordEncoder.card
        encode_items = encode_queries = WordEncoder.encode_items

    with pytest.raises(InputError, match="A multi-vector first stage needs an encoder; give encoder="):
        adacur.build(ITEMS, ANCHORS, scorer=shared_words, path=tmp_path / "i", first=["multi-vector"])
    with pytest.raises(InputError, match="encode_query_tokens and encode_item_tokens; Pooled has not"):
        build(tmp_path / "i", first=["multi-vector"], encoder=Pooled())
    with pytest.raises(UnknownName, match="Did you mean 'multi-vector'"):
        build(tmp_path / "i", first=["multi_vector"])
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"\[tfidf\]"):
        build(tmp_path / "i", first=["tfidf"])
    assert not (tmp_path / "i").exists()
