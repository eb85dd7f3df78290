"""A query of some 500 tokens among short ones: everyone is scored, and searched, as if alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from adacur import AnchorIndex
from adacur.errors import TextTooLong
from adacur.records import ItemList, Query
from adacur.scorers import TorchCrossEncoder
from tests.stepped_searches import asearch_iter
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, QUERIES, tiny_transformer

pytest.importorskip("torch")

LONG = Query("long", "w1 w2 " * 240)
TOO_LONG = Query("too long", "w1 " * 512)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory) -> TorchCrossEncoder:
    return TorchCrossEncoder(tiny_transformer(tmp_path_factory.mktemp("long"), positions=512), device="cpu")


def test_scores_beside_a_long_query_are_those_without_it(scorer) -> None:
    items, queries = ItemList(ITEMS), [*QUERIES, LONG]
    query_of, positions = np.repeat(np.arange(len(queries)), len(ITEMS)), np.tile(np.arange(len(ITEMS)), len(queries))
    together = scorer.score_at(items, queries, query_of, positions).reshape(len(queries), len(ITEMS))
    for query, scores in zip(queries, together, strict=True):
        alone = scorer.score([(query, item) for item in ITEMS])
        np.testing.assert_allclose(scores, alone, atol=1e-5)
    assert np.ptp(together[-1]) > 0


async def test_a_query_that_leaves_no_room_for_an_item_ends_only_its_own_search(scorer) -> None:
    anchors = np.random.default_rng(0).normal(size=(4, len(ITEMS))).astype(np.float32)
    names = [Query(f"a{at}", f"w{at}") for at in range(4)]
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=names, scores=anchors, scorer=scorer)

    async def search(query: Query) -> list:
        return [hits async for hits in asearch_iter(index, query, 3, budget=8)]

    asked = [*QUERIES, LONG, TOO_LONG]
    *found, refused = await asyncio.gather(*(search(query) for query in asked), return_exceptions=True)
    assert isinstance(refused, TextTooLong)
    for query, hits in zip(asked[:-1], found, strict=True):
        assert hits[-1].trace.calls == 8
        exact = scorer.score([(query, item) for item in hits[-1].items])
        np.testing.assert_allclose(hits[-1].scores, exact, atol=1e-5)
