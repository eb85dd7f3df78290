"""One collection with every score known, and the methods that search it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.first_stages import BM25, Dense
from adacur.protocols import FirstStage
from adacur.records import ItemList, Query
from adacur.replay import top_k_recall
from adacur.results import Hits
from adacur.search import ANNCUR, AdaCUR, AnchorIndex, Gaussian, Rerank
from adacur.store import AnchorTable
from adacur_lab.axn import AXN
from adacur_lab.experiments import Testbed
from adacur_lab.experiments.held_out_splits import held_out_splits
from adacur_lab.known_vectors import KnownVectors
from adacur_lab.rivals.questions import Question, Rival

__all__ = ["FIRST", "METHODS", "ROUNDS", "TUNED_ON", "Contest", "Contestant"]

FIRST = ("dense", "bm25", "bm25+dense")
ROUNDS = 5
# Rivals with settings choose them on the first 60 anchor queries, by the recall of the top 10.
TUNED_ON = 60
_DEEPEST = 1000
_SHARES = (0.2, 0.5, 0.8)


@dataclass(eq=False)
class Contest:
    """A collection, its test questions, and what methods prepared for it.

    `folder` keeps neighbour graphs. `chosen` says what rivals with settings chose on anchor queries.
    """

    testbed: Testbed
    folder: Path
    chosen: dict[str, Any] = field(default_factory=dict)
    _ranked: dict[tuple[str, bool], list[tuple[IntArray, FloatArray]]] = field(default_factory=dict, repr=False)
    _indexes: dict[int, AnchorIndex] = field(default_factory=dict, repr=False)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def ids(self) -> list[str]:
        """The items' ids, by position."""
        return [item.id for item in self.testbed.items]

    @cached_property
    def vectors(self) -> FloatArray:
        """The dual encoder's item vectors."""
        assert self.testbed.item_embeddings is not None
        return np.ascontiguousarray(self.testbed.item_embeddings)

    @cached_property
    def stages(self) -> Mapping[str, FirstStage]:
        """Dense and BM25."""
        bed = self.testbed
        assert bed.anchor_embeddings is not None
        assert bed.query_embeddings is not None
        known = KnownVectors(
            [*bed.anchor_queries, *bed.test_queries], np.concatenate([bed.anchor_embeddings, bed.query_embeddings])
        )
        return {
            "dense": Dense.from_embeddings(self.ids, self.vectors, encoder=known),
            "bm25": BM25.build(bed.items),
        }

    def index(self, n_anchors: int) -> AnchorIndex:
        """An index of the first `n_anchors` anchor queries, as a user has it, with the look-up scorer."""
        if n_anchors not in self._indexes:
            bed = self.testbed
            matrix = np.ascontiguousarray(bed.anchor_scores[:n_anchors].T, dtype=np.float32)
            anchors = tuple(bed.anchor_queries[:n_anchors])
            items = ItemList(bed.items)
            table = AnchorTable(items, anchors, matrix) if n_anchors else AnchorTable.of_items(items)
            self._indexes[n_anchors] = AnchorIndex(table, scorer=bed.scorer, first=self.stages, card=bed.scorer.card)
        return self._indexes[n_anchors]

    def questions(self, first: str, budget: int, *, anchors: bool = False) -> list[Question]:
        """The test questions, or the anchor queries that settings are chosen on, with nothing spent yet."""
        bed = self.testbed
        queries = list(bed.anchor_queries[:TUNED_ON]) if anchors else list(bed.test_queries)
        exact, vectors = (
            (bed.anchor_scores, bed.anchor_embeddings) if anchors else (bed.exact_scores, bed.query_embeddings)
        )
        assert vectors is not None
        return [
            Question(query, exact[row], *ranking, vectors[row], budget)
            for row, (query, ranking) in enumerate(zip(queries, self._rankings(first, queries, anchors), strict=True))
        ]

    def search(self, rival: Rival, first: str, budget: int, k: int) -> list[Hits]:
        """What a rival finds for the test questions."""
        questions = self.questions(first, budget)
        rival.search(questions)
        return [question.hits(self.ids, k) for question in questions]

    def tuning_recall(self, rival: Rival, first: str, budget: int) -> float:
        """Top-10-recall on the anchor queries that settings are chosen on."""
        questions = self.questions(first, budget, anchors=True)
        rival.search(questions)
        hits = [question.hits(self.ids, 10) for question in questions]
        return float(top_k_recall(hits, self.testbed.anchor_scores[: len(questions)], k=10).mean())

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What several runs share, made when first asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _rankings(self, first: str, queries: list[Query], anchors: bool) -> list[tuple[IntArray, FloatArray]]:
        if (first, anchors) not in self._ranked:
            depth = min(_DEEPEST, len(self.ids))
            rankings = self.index(0).first_stage(first).search(queries, depth)
            self._ranked[first, anchors] = [
                _topped_up(ranking.positions, ranking.scores, depth, len(self.ids), seed)
                for seed, ranking in enumerate(rankings)
            ]
        return self._ranked[first, anchors]


def _topped_up(positions: IntArray, scores: FloatArray, n: int, n_items: int, seed: int) -> tuple[IntArray, FloatArray]:
    """A ranking of n items: BM25 finds fewer, or none, where few share a word with the query.

    The rest is drawn at random, as re-ranking does here, so that every method can spend its budget.
    """
    rest = np.setdiff1d(np.arange(n_items), positions)
    drawn = np.random.default_rng(seed).permutation(rest)[: n - len(positions)]
    lowest = float(scores[-1]) if len(scores) else 0.0
    below = lowest - 1 - np.arange(len(drawn), dtype=np.float32)
    return np.concatenate([positions, drawn]), np.concatenate([scores, below])


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method of the contest: its name in tables, whose code it is, what is paid before the first question.

    `search(contest, first, budget, k)` answers the test questions; `per_k` says that its settings depend on k, so that
    one search does not serve every k.
    """

    title: str
    code: str
    paid: str
    search: Callable[[Contest, str, int, int], list[Hits]]
    per_k: bool = False


def _ours(n_anchors: int) -> Callable[[Contest, str, int, int], list[Hits]]:
    return lambda contest, first, budget, k: _with_index(contest, n_anchors, first, budget, k, Gaussian(rounds=ROUNDS))


def _with_index(contest: Contest, n_anchors: int, first: str, budget: int, k: int, method: Any) -> list[Hits]:
    queries = list(contest.testbed.test_queries)
    return contest.index(n_anchors).search(queries, k, budget=budget, method=method, first=first)


def _rerank(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    return _with_index(contest, 0, first, budget, k, Rerank())


def _axn(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    return _with_index(contest, 0, first, budget, k, AXN(rounds=ROUNDS))


def _adacur(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    return _with_index(contest, len(contest.testbed.anchor_queries), first, budget, k, AdaCUR(rounds=ROUNDS))


def _anncur(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    n_anchors = len(contest.testbed.anchor_queries)

    def choose() -> float:
        index = contest.index(n_anchors)
        stage = index.first_stage(first)
        return held_out_splits(index, budget=budget, ks=[10], first=stage, n_held_out=TUNED_ON)[10]

    split = contest.once(("split", first, budget), choose)
    contest.chosen[f"anncur, {first}, {budget} calls"] = {"split": split}
    return _with_index(contest, n_anchors, first, budget, k, ANNCUR(split=split))


def _graph(contest: Contest) -> Any:
    from adacur_lab.rivals.graphs import neighbour_graph

    return contest.once("graph", lambda: neighbour_graph(contest.ids, contest.vectors, folder=contest.folder))


def _gar(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    from adacur_lab.rivals.graphs import GraphAdaptive

    return contest.search(GraphAdaptive(_graph(contest), contest.ids), first, budget, k)


def _greedy(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    from adacur_lab.rivals.graphs import GreedyWalk

    edges = contest.once("edges", lambda: np.array(_graph(contest).edges_data))
    walks = [GreedyWalk(edges, share) for share in _SHARES]
    best = contest.once(
        ("greedy", first, budget), lambda: max(walks, key=lambda walk: contest.tuning_recall(walk, first, budget))
    )
    contest.chosen[f"greedy, {first}, {budget} calls"] = {"share": best.share}
    return contest.search(best, first, budget, k)


def _qdrant(contest: Contest, first: str, budget: int, k: int) -> list[Hits]:
    from adacur_lab.rivals.feedback import Checked, Engine, FeedbackSearch, LinearForm, train_weights, tune_feedback

    form = LinearForm(contest.vectors)
    engine = contest.once("engine", lambda: Engine(contest.vectors))
    trained = contest.once("trained", lambda: train_weights(engine, contest.questions("dense", budget, anchors=True)))
    # Chosen at 100 calls for every budget: what a user would do once.
    settings = contest.once(
        ("qdrant", first),
        lambda: tune_feedback(form, lambda search: contest.tuning_recall(search, first, 100), trained=trained),
    )
    contest.chosen["qdrant, trained"] = trained._asdict()
    contest.chosen[f"qdrant, {first}"] = {
        "weights": settings.weights._asdict(),
        "n_examples": settings.n_examples,
        "examples": settings.examples,
    }
    return contest.search(FeedbackSearch(Checked(form, engine), settings, ROUNDS), first, budget, k)


_HERE = "this library"
_VECTORS = "embeddings"
_START = f"{_VECTORS} or BM25"
_GRAPH = f"{_VECTORS}, 16 neighbours an item"
_TUNED = f"{TUNED_ON} anchors × items"
METHODS: Mapping[str, Contestant] = {
    "rerank": Contestant("re-ranking", _HERE, _START, _rerank),
    "gar": Contestant("GAR", "pyterrier-adaptive", _GRAPH, _gar),
    "greedy": Contestant("greedy graph walk", "written here", f"{_GRAPH}, {_TUNED}", _greedy),
    "qdrant": Contestant("Qdrant's relevance feedback", "qdrant-edge-py", f"{_VECTORS}, {_TUNED}", _qdrant),
    "axn": Contestant("AXN", "written here", _VECTORS, _axn),
    "anncur": Contestant("ANNCUR", _HERE, f"{_START}, 500 anchors × items", _anncur),
    "adacur": Contestant("the paper's ADACUR", _HERE, f"{_START}, 500 anchors × items", _adacur),
    "default-0": Contestant("adacur's default, no anchors", _HERE, _VECTORS, _ours(0), per_k=True),
    "default-50": Contestant(
        "adacur's default, 50 anchors", _HERE, f"{_VECTORS}, 50 anchors × items", _ours(50), per_k=True
    ),
    "default-500": Contestant(
        "adacur's default, 500 anchors", _HERE, f"{_VECTORS}, 500 anchors × items", _ours(500), per_k=True
    ),
}
