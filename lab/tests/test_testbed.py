from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from adacur import Item, Query
from adacur.errors import FileFormatError, InputError, UnknownName, WrongScorer
from adacur.scorers import FunctionScorer
from adacur_lab.experiments import Testbed
from adacur_lab.experiments.methods import METHODS, Asked
from adacur_lab.experiments.testbed import Embeddings


def test_a_score_folder_is_read_as_it_decodes(score_folder) -> None:
    testbed = Testbed.from_score_folder(score_folder)
    assert testbed.name == "halves"
    assert testbed.anchor_scores.tolist() == (np.arange(12).reshape(3, 4) / 2 - 3).tolist()
    assert testbed.exact_scores.tolist() == (np.arange(12, 20).reshape(2, 4) / 2 - 3).tolist()
    assert [query.id for query in testbed.test_queries] == ["t0", "t1"]
    assert testbed.first_stages == ("dense", "random")


def test_held_out_anchor_queries_take_the_place_of_the_test_queries(score_folder) -> None:
    testbed = Testbed.from_score_folder(score_folder, held_out=2)
    assert [query.id for query in testbed.anchor_queries] == ["a0"]
    assert [query.id for query in testbed.test_queries] == ["a1", "a2"]
    assert testbed.exact_scores[0].tolist() == [-1.0, -0.5, 0.0, 0.5]
    with pytest.raises(InputError, match="out 3"):
        Testbed.from_score_folder(score_folder, held_out=3)


def test_texts_bring_the_first_stages_that_need_them(score_folder) -> None:
    items = [Item(f"i{n}", text) for n, text in enumerate(["red apple", "green pear", "red cherry", "plum"])]
    queries = [Query(id_, "red fruit") for id_ in ("a0", "a1", "a2", "t0", "t1")]
    testbed = Testbed.from_score_folder(score_folder, items=items, queries=queries, n_queries=1)
    assert testbed.first_stages == ("dense", "bm25", "tfidf", "random")
    for name in ("bm25", "tfidf"):
        assert set(testbed.first_hits(name, 4)[0].ids) == {"i0", "i2"}
    with pytest.raises(InputError, match="'i3'"):
        Testbed.from_score_folder(score_folder, items=items[:3], queries=queries)


def test_a_folder_that_cannot_be_read_is_told_apart(score_folder) -> None:
    meta = json.loads((score_folder / "meta.json").read_text())
    for change, message in (
        ({"decode": "logit = value"}, "decoding rule"),
        ({"item_ids": ["i0"]}, "names 5 queries and 1 items"),
    ):
        (score_folder / "meta.json").write_text(json.dumps(meta | change))
        with pytest.raises(FileFormatError, match=message):
            Testbed.from_score_folder(score_folder)
    (score_folder / "meta.json").unlink()
    with pytest.raises(FileFormatError, match="meta"):
        Testbed.from_score_folder(score_folder)


def test_a_first_stage_that_is_not_there_says_what_it_needs(score_folder) -> None:
    testbed = Testbed.from_score_folder(score_folder)
    with pytest.raises(UnknownName, match="needs texts"):
        testbed.first_stage("bm25")
    with pytest.raises(UnknownName, match="'dense'"):
        testbed.first_stage("dens")


def test_a_further_dual_encoder_is_a_first_stage_of_its_own_and_what_methods_regress_on(testbed) -> None:
    rng = np.random.default_rng(9)
    vectors = Embeddings(rng.normal(size=(120, 4)), rng.normal(size=(8, 4)), rng.normal(size=(30, 4)))
    both = replace(testbed, others={"tuned": vectors})
    assert both.first_stages == ("dense", "bm25", "tfidf", "dense-tuned", "random")
    wanted = vectors.test_queries @ vectors.items.T
    found = both.first_stage("dense-tuned").search(both.test_queries, 3)
    assert [answer.positions.tolist() for answer in found] == [np.argsort(-row)[:3].tolist() for row in wanted]
    alone = replace(
        testbed,
        item_embeddings=vectors.items,
        query_embeddings=vectors.test_queries,
        anchor_embeddings=vectors.anchor_queries,
    )
    for name in ("gaussian", "axn", "adacur", "rerank"):
        settings = {"anchors": 20, "budget": 30, "rounds": 3, "seed": 0, "k_max": 10}
        asked = Asked((10,))
        one = METHODS[name].search(both, settings | {"first": "dense-tuned"}, asked).deepest
        other = METHODS[name].search(alone, settings | {"first": "dense"}, asked).deepest
        assert [hits.ids for hits in one] == [hits.ids for hits in other], name
    assert both.fingerprint != testbed.fingerprint
    assert both.of_anchors().first_stage("dense-tuned").search(both.anchor_queries, 1)
    with pytest.raises(InputError, match="embedding"):
        replace(testbed, others={"tuned": replace(vectors, test_queries=vectors.items)})


def test_a_score_folder_may_hold_further_dual_encoders(score_folder) -> None:
    np.save(score_folder / "dense-tuned_items.npy", np.ones((4, 2), np.float16))
    with pytest.raises(FileFormatError, match=r"dense-tuned_queries\.npy"):
        Testbed.from_score_folder(score_folder)
    np.save(score_folder / "dense-tuned_queries.npy", np.arange(10, dtype=np.float16).reshape(5, 2))
    own = Testbed.from_score_folder(score_folder).others["tuned"]
    assert own.test_queries.tolist() == [[6, 7], [8, 9]]
    assert own.anchor_queries.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_an_index_holds_the_first_anchors_and_searches(testbed) -> None:
    index = testbed.index(10)
    assert [query.id for query in index.anchor_queries] == [f"a{n}" for n in range(10)]
    assert np.array_equal(index.matrix, testbed.anchor_scores[:10].T)
    best = index.search(testbed.test_queries[0], 3, method="exact")
    assert list(best.scores) == sorted(testbed.exact_scores[0], reverse=True)[:3]
    with pytest.raises(InputError, match="31"):
        testbed.index(31)


def test_the_fingerprint_follows_whatever_a_result_depends_on(testbed) -> None:
    changed = testbed.exact_scores.copy()
    changed[0, 0] += 1e-6
    others = [
        replace(testbed, exact_scores=changed),
        replace(testbed, anchor_scores=testbed.anchor_scores * 2),
        replace(testbed, item_embeddings=None, query_embeddings=None),
        replace(testbed, qrels=None),
        replace(testbed, items=[Item(item.id, item.text + ".") for item in testbed.items]),
    ]
    assert len({testbed.fingerprint, *(other.fingerprint for other in others)}) == 6
    # Another name is no other result, nor are judgements of queries that are not asked.
    assert replace(testbed, name="x", qrels={**testbed.qrels, "z": {"i1": 1}}).fingerprint == testbed.fingerprint


def test_live_scores_are_paid_for_once_and_refused_from_another_scorer(tmp_path) -> None:
    items = [Item(f"i{n}", f"text {n}") for n in range(20)]
    anchors, tests = [Query(f"a{n}", f"a{n}") for n in range(3)], [Query(f"t{n}", f"t{n}") for n in range(2)]
    calls: list[tuple[str, str]] = []

    def score(pairs):
        calls.extend(pairs)
        return [float(len(query) * int(text.split()[1]) % 7) for query, text in pairs]

    options = {"folder": tmp_path / "live", "name": "live", "progress": False}
    testbed = Testbed.from_live(items, anchors, tests, scorer=FunctionScorer(score), **options)
    assert len(calls) == 20 * 5
    assert testbed.exact_scores.tolist() == [[float(2 * n % 7) for n in range(20)]] * 2
    again = Testbed.from_live(items, anchors, tests, scorer=FunctionScorer(score), **options)
    assert again.fingerprint == testbed.fingerprint
    # A function has no weights to compare: it is recognised by a few pairs.
    assert len(calls) < 20 * 5 * 2

    def other(pairs):
        return [-1.5 * float(text.split()[1]) for _, text in pairs]

    other.__qualname__, other.__module__ = score.__qualname__, score.__module__
    with pytest.raises(WrongScorer):
        Testbed.from_live(items, anchors, tests, scorer=FunctionScorer(other), **options)
