"""Every first stage in every role: alone, re-ranked, as ANNCUR's anchors, and as ADACUR's first batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.errors import InputError, UnknownName
from adacur.first_stages import BM25, FIRST_STAGES, EncoderCard, as_hits
from adacur.results import Hits

STAGES = FIRST_STAGES
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

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([np.mean([self.vector(word) for word in text.split()], axis=0) for text in texts])

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
    assert adacur.store.verify(path).ok
    return adacur.load(path, scorer=shared_words, encoder=WordEncoder())


@pytest.fixture(params=STAGES)
def stage(request) -> str:
    return request.param


def hits_of(index: AnchorIndex, stage: str, k: int) -> list[Hits]:
    return as_hits(QUERIES, index.first_stage(stage).search(QUERIES, k), index.items.ids)


def scored(hits: Hits) -> list[str]:
    assert hits.trace is not None
    return [ITEMS[position].id for round_ in hits.trace.rounds for position in round_.positions]


def test_a_stage_kept_with_an_index_opens_again_and_answers_alone(index, stage) -> None:
    opened = index.first_stage(stage)
    assert isinstance(opened.stage, STAGES[stage])
    fresh = STAGES[stage].build(ITEMS, encoder=WordEncoder())
    for one, other in zip(opened.search(QUERIES, 20), fresh.search(QUERIES, 20), strict=True):
        assert one.positions.tolist() == other.positions.tolist()
        assert one.scores.tolist() == other.scores.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_the_first_round_is_the_stage_s_best(index, stage, method) -> None:
    best = hits_of(index, stage, 30)
    found = index.search(QUERIES, 3, budget=30, method=method, first=stage)
    for first, hits in zip(best, found, strict=True):
        size = len(hits.trace.rounds[0].positions)
        assert size == {"rerank": 30, "anncur": 15, "gaussian": 9}.get(method, 6)
        assert scored(hits)[:size] == list(first.ids[:size])
        assert hits.trace.calls == 30
        assert hits.trace.settings["first"] == stage


def test_stages_that_cannot_be_built_are_refused_before_anything_is_scored(tmp_path) -> None:
    with pytest.raises(InputError):
        adacur.build(ITEMS, ANCHORS, scorer=shared_words, path=tmp_path / "i", first=["dense"])
    for name in ("bm52", "matrix"):
        with pytest.raises(UnknownName):
            build(tmp_path / "i", first=[name])
    assert not (tmp_path / "i").exists()


def test_a_search_takes_an_engine_that_answers_by_id(index) -> None:
    class Engine:
        def search(self, queries, k):
            return hits_of(index, "bm25", k)[: len(queries)]

    by_id = index.search(QUERIES[0], 3, budget=30, first=Engine())
    by_name = index.search(QUERIES[0], 3, budget=30, first="bm25")
    assert by_id.trace.settings["first"] == "Engine"
    # Later rounds may differ: what an engine's ranks are worth is assumed, since it is not asked about anchor queries.
    assert by_id.trace.rounds[0].positions.tolist() == by_name.trace.rounds[0].positions.tolist()
    reranked = [index.search(QUERIES[0], 3, budget=30, first=first, method="rerank") for first in (Engine(), "bm25")]
    assert scored(reranked[0]) == scored(reranked[1])


def test_a_first_stage_of_other_items_is_refused(index) -> None:
    with pytest.raises(UnknownName):
        index.search(QUERIES[0], 3, budget=30, first=BM25.build([*ITEMS, Item("elsewhere", "the river")]))


def test_a_first_stage_that_cannot_be_hashed_serves_too(index) -> None:
    class Unhashable(BM25):
        __hash__ = None

    built = BM25.build(ITEMS[::-1])
    stage = Unhashable(built.ids, built._model, stemmer="english", stopwords="english")
    found = index.search(QUERIES[0], 3, budget=30, first=stage)
    assert scored(found) == scored(index.search(QUERIES[0], 3, budget=30, first="bm25"))
