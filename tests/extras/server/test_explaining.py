from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacur import AnchorIndex, Gaussian, Item, Query
from adacur.as_json import as_json
from adacur.errors import InputError
from adacur.first_stages import Matrix
from adacur.results import Trace
from adacur.scorers import MatrixScorer

N_ITEMS = 80


def world() -> tuple[AnchorIndex, Query, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    items = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]
    anchors = [Query(f"a{at}", f"anchor {at}") for at in range(30)]
    query = Query("q", "new")
    scores = rng.normal(size=(30, 6)) @ rng.normal(size=(6, N_ITEMS))
    # The new query is anchor 7, all but its noise.
    mine = scores[7] + 0.01 * rng.normal(size=N_ITEMS)
    seen = mine + rng.normal(size=N_ITEMS)
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=anchors,
        scores=scores,
        scorer=MatrixScorer([query], items, mine[None]),
        first={"words": Matrix(queries=[query], items=items, scores=seen[None])},
    )
    return index, query, scores, seen


def test_a_hit_is_explained_by_first_stage_prediction_and_nearest_anchor_queries() -> None:
    index, query, scores, seen = world()
    hits = index.search(query, 5, budget=30, method=Gaussian(rounds=3), first="words")
    told = index.explain(hits)
    assert [one.id for one in told] == list(hits.ids)
    predicted = {
        int(place): None if round_.predicted is None else float(round_.predicted[at])
        for round_ in hits.trace.rounds
        for at, place in enumerate(round_.positions)
    }
    for hit, one in zip(hits, told, strict=True):
        place = int(hit.id[1:])
        assert one.predicted == predicted[place]
        (first,) = one.first
        assert (first.name, first.rank) == ("words", 1 + int((seen > seen[place]).sum()))
        assert first.score == pytest.approx(seen[place])
        nearest = one.anchors[0]
        assert nearest.query.id == "a7"
        assert nearest.likeness > 0.99
        assert nearest.score == pytest.approx(scores[7, place])
        assert nearest.rank == 1 + int((scores[7] > scores[7, place]).sum())
    assert as_json(told[0])["anchors"][0]["query"]["text"] == "anchor 7"


def test_what_was_not_searched_here_cannot_be_explained() -> None:
    index, query, *_ = world()
    hits = index.search(query, 5, budget=30, first="words")
    with pytest.raises(InputError, match="trace"):
        index.explain(replace(hits, trace=Trace()))
    assert index.explain(index.search(query, 5, budget=30, first="words", min_score=1e9)) == []
