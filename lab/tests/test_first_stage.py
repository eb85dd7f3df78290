from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex, Exact, Hits, Query, Rerank
from adacur.errors import InputError, UnknownName
from adacur.first_stages import as_hits
from adacur.replay import judged_quality, top_k_recall
from adacur_lab.measures import first_stage_ceiling, phantom_share


def hits(query: str, *ids: str) -> Hits:
    return Hits(query=Query(query, query), ids=ids, scores=np.arange(len(ids), 0, -1.0))


EXACT = np.array([[5.0, 4.0, 4.0, 1.0]])
IDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("found", "k", "n", "share"),
    [
        (("d", "a", "c"), 2, 3, 1.0),
        (("d", "a", "c"), 2, 2, 0.5),
        (("d", "b", "c"), 1, 3, 0.0),
        (("b", "b", "d"), 2, 3, 0.5),
        (("a", "b", "c"), 2, 3, 1.0),
        (("a", "b"), 100, 100, 0.5),
        ((), 2, 3, 0.0),
    ],
)
def test_the_ceiling_is_the_share_of_the_scorers_best_within_reach(found, k, n, share) -> None:
    assert first_stage_ceiling([hits("q", *found)], EXACT, item_ids=IDS, k=k, n=n).tolist() == [share]


@pytest.mark.parametrize("n", [10, 40, 200])
def test_the_ceiling_is_what_re_ranking_reaches(world, n) -> None:
    first = world.noisy_first(noise=5.0)
    exact = world.test_scores.round()
    ids = [item.id for item in world.items]
    scorer = type(world.scorer)(queries=world.test, items=world.items, scores=exact)
    reranked = AnchorIndex(world.index, scorer=scorer).search(world.test, k=10, budget=n, method=Rerank(), first=first)
    ceiling = first_stage_ceiling(as_hits(world.test, first.search(world.test, n), ids), exact, item_ids=ids, k=10, n=n)
    assert ceiling.tolist() == top_k_recall(reranked, exact, k=10).tolist()


def test_the_ceiling_of_judged_relevance_is_the_first_stages_own_recall() -> None:
    first = [hits("q", "a", "x", "b", "c")]
    assert judged_quality(first, {"q": {"a": 1, "b": 2, "c": 0, "z": 1}}, measures=["R@3"])["R@3"] == [2 / 3]


def test_an_item_of_the_first_stage_without_exact_scores_is_refused() -> None:
    with pytest.raises(UnknownName, match="'z'"):
        first_stage_ceiling([hits("q", "z")], EXACT, item_ids=IDS, k=1, n=1)


def test_a_phantom_is_neither_judged_relevant_nor_within_the_first_stages_reach() -> None:
    found = [hits("q", "relevant", "reached", "judged worthless", "out of reach", "beyond k")]
    first = [hits("q", "reached", "out of reach")]
    qrels = {"q": {"relevant": 2, "judged worthless": 0}}
    assert phantom_share(found, first, qrels, k=4, n=1).tolist() == [0.5]
    assert phantom_share(found, first, qrels, k=4, n=2).tolist() == [0.25]
    assert phantom_share(found, first, qrels, k=100, n=2).tolist() == [0.4]


def test_unjudged_queries_and_queries_without_hits_have_no_share_of_phantoms() -> None:
    found = [hits("unjudged", "a"), hits("empty"), hits("judged", "a")]
    first = [hits("unjudged"), hits("empty"), hits("judged")]
    qrels = {"empty": {"a": 1}, "judged": {"b": 1}}
    assert phantom_share(found, first, qrels, k=1, n=1) == pytest.approx([np.nan, np.nan, 1.0], nan_ok=True)


def test_re_ranking_has_no_phantoms_and_exact_search_has_them(world) -> None:
    first = world.noisy_first(noise=10.0)
    qrels = {query.id: {"i0": 1} for query in world.test}
    reach = as_hits(world.test, first.search(world.test, 20), [item.id for item in world.items])
    index = AnchorIndex(world.index, scorer=world.scorer)
    reranked = index.search(world.test, k=5, budget=20, method=Rerank(), first=first)
    assert phantom_share(reranked, reach, qrels, k=5, n=20).tolist() == [0] * len(world.test)
    exact = AnchorIndex(world.index, scorer=world.scorer).search(world.test, k=5, method=Exact())
    assert phantom_share(exact, reach, qrels, k=5, n=20).mean() > 0


def test_hits_of_different_queries_are_refused() -> None:
    with pytest.raises(InputError, match="order"):
        phantom_share([hits("p", "a")], [hits("q", "a")], {}, k=1, n=1)
