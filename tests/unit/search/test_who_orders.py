"""Whose order hits come in: the scorer's own where it is the truth, blended with the first stage where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Hits, Item
from adacur.errors import InputError
from adacur.first_stages import Matrix
from adacur.protocols import ScorerCard
from adacur.replay import replay


class Scored:
    """The world's scores, under a card of this backend."""

    def __init__(self, world, backend: str) -> None:
        self.card = ScorerCard(name="a scorer", backend=backend)
        self.score = world.scorer.score


def over(world, backend: str) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=Scored(world, backend), first={"noisy": world.noisy_first(3.0)})


def weight(hits: Hits) -> float:
    assert (hits.fused is not None) == bool(hits.trace.settings["fuse"])
    return hits.trace.settings["fuse"]


@pytest.mark.parametrize("backend", ["onnx", "torch", "sentence-transformers", "http"])
def test_a_reranker_is_one_witness_and_its_order_is_blended(world, backend) -> None:
    index = over(world, backend)
    for method in ("gaussian", "adacur", "rerank"):
        hits = index.search(world.test[0], 5, budget=40, method=method)
        assert weight(hits) == 1.0
        assert hits.ids == index.search(world.test[0], 5, budget=40, method=method, fuse=1.0).ids
        own = index.search(world.test[0], 5, budget=40, method=method, fuse=0)
        assert (weight(own), own.ids) == (
            0.0,
            over(world, "matrix").search(world.test[0], 5, budget=40, method=method).ids,
        )


def test_beside_words_alone_a_reranker_counts_for_twice_as_much(world) -> None:
    stages = {"bm25": world.noisy_first(3.0), "dense": world.noisy_first(1.0)}
    index = AnchorIndex(world.index, scorer=Scored(world, "onnx"), first=stages)
    weights = {
        first: weight(index.search(world.test[0], 5, budget=40, method="rerank", first=first)) for first in stages
    }
    assert weights == {"bm25": 0.5, "dense": 1.0}
    assert weight(index.search(world.test[0], 5, budget=40, method="rerank", first="bm25+dense")) == 1.0


@pytest.mark.parametrize("backend", ["function", "matrix", "judge", "none"])
def test_a_function_known_scores_and_a_judge_are_the_truth_in_their_own_order(world, backend) -> None:
    for row, query in enumerate(world.test):
        # A budget that covers all items finds the exact top k.
        hits = over(world, backend).search(query, 10, budget=len(world.items))
        assert weight(hits) == 0.0
        assert np.array_equal(hits.scores, np.sort(world.test_scores[row])[::-1][:10])


def test_what_has_no_first_stage_or_scores_everything_is_never_blended_by_default(world) -> None:
    index = over(world, "onnx")
    assert weight(index.search(world.test[0], 5, budget=40, first="random")) == 0.0
    assert weight(index.search(world.test[0], 5, method="exact")) == 0.0
    assert weight(index.search(world.test[0], 5, method="first")) == 0.0
    with pytest.raises(InputError):
        index.search(world.test[0], 5, first="random", fuse=1.0)


def test_recall_is_measured_by_the_scorers_own_order(world) -> None:
    known = Matrix(queries=world.anchors, items=world.items, scores=-world.anchor_scores)
    index = AnchorIndex(world.index, scorer=Scored(world, "onnx"), first={"known": known})
    options = {"budget": 60, "first": "known"}
    plain = replay(AnchorIndex(world.index, first={"known": known}), world.anchors[:5], 10, **options)
    assert [hits.ids for hits in replay(index, world.anchors[:5], 10, **options)] == [hits.ids for hits in plain]
    assert all(hits.fused is None for hits in replay(index, world.anchors[:5], 10, **options, fuse=2.0))


def test_an_index_remembers_the_weight_that_it_was_built_with_through_edits_and_saving(tmp_path) -> None:
    def shared_words(pairs):
        return [float(len(set(query.split()) & set(text.split()))) for query, text in pairs]

    texts = [f"word{at % 7} word{at % 5} word{at % 3} item{at}" for at in range(60)]
    build = {"scorer": shared_words, "path": tmp_path / "index", "progress": False}
    assert weight(adacur.build(texts, 6, **build).search("word1 word2", 5, budget=20)) == 0.0
    # Asked for again, with another weight: nothing is scored, and it is remembered.
    index = adacur.build(texts, 6, **build, fuse=0.5)
    assert weight(index.search("word1 word2", 5, budget=20)) == 0.5
    with index.edit(progress=False) as edit:
        edit.add([Item("new", "word1 word9 something new")])
    index.save(tmp_path / "copy")
    for path in ("index", "copy"):
        opened = adacur.load(tmp_path / path, scorer=shared_words)
        assert weight(opened.search("word1 word2", 5, budget=20)) == 0.5
        assert weight(opened.search("word1 word2", 5, budget=20, fuse=0)) == 0.0
    with pytest.raises(InputError):
        adacur.build(texts, 6, **build | {"path": tmp_path / "other"}, fuse=-1.0)
    assert not (tmp_path / "other").exists()


def test_judgements_that_left_the_order_to_the_scorer_are_not_overruled_by_what_rerankers_do(world) -> None:
    from adacur.search.tuned import GaussianSettings, Judged, Mean, Tuning

    index, mean = over(world, "onnx"), Mean(0.5, 0.4, 0.6)
    judged = Judged("nDCG@10", 40, 40, 0.0, chosen=mean, plain=mean, gain=mean, rerank=mean, alone=mean)
    tuning = Tuning(k=5, budget=40, settings=GaussianSettings(), first="noisy", n_queries=40, judged=judged)
    index.snapshot.tunings = (tuning,)
    assert weight(index.search(world.test[0], 5, budget=40)) == 0.0
    index.snapshot.tunings = (replace(tuning, judged=replace(judged, fuse=2.0)),)
    assert weight(index.search(world.test[0], 5, budget=40)) == 2.0
