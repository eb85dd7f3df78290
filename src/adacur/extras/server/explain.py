"""Why an item is a hit: its rank in the first stage, its predicted score, and its scores for similar anchor queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.features import rows_at, unit_vectors
from adacur.model.rank_slopes import RANKS_THAT_COUNT
from adacur.records import Query
from adacur.results import Hits
from adacur.search.snapshot import Snapshot
from adacur.store import IndexFolder

_FEWEST_SCORES = 3


@dataclass(frozen=True, slots=True)
class FirstStageEvidence:
    """An item's rank in a first stage, from 1, and its score there; None beyond the best thousand."""

    name: str
    rank: int | None
    score: float | None


@dataclass(frozen=True, slots=True)
class AnchorEvidence:
    """An item's score for an anchor query, and its rank there among all items.

    `likeness` of the two queries is the cosine of their vectors where the index has a dual encoder, else the
    correlation of their scores over the items that the search scored.
    """

    query: Query
    likeness: float
    score: float
    rank: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an item is a hit.

    `predicted` is its predicted score before its round scored it; None in a round without predictions, such as the
    first. `anchors` are the anchor queries most like this one.
    """

    id: str
    predicted: float | None
    first: tuple[FirstStageEvidence, ...]
    anchors: tuple[AnchorEvidence, ...]


def explain(snapshot: Snapshot, hits: Hits, *, n_anchors: int = 3) -> list[Explanation]:
    """An explanation of each hit of a search of this snapshot; asks the first stage once, and no scorer."""
    rounds = hits.trace.rounds
    if not snapshot.in_memory or (hits.ids and not rounds):
        raise InputError(
            "Only hits of a search of this index, with their trace, can be explained, and not where its items live in "
            "a vector engine."
        )
    if not hits.ids:
        return []
    places = snapshot.anchors.items.positions(hits.ids)
    if not np.isin(places, np.concatenate([round_.positions for round_ in rounds])).all():
        raise InputError("The index has been changed since this search. Search again, and explain those hits.")
    predicted = {
        place: value
        for round_ in rounds
        if round_.predicted is not None
        for place, value in zip(round_.positions.tolist(), np.asarray(round_.predicted).tolist(), strict=True)
    }
    first = _first_stages(snapshot, hits, places)
    anchors = _nearest_anchors(snapshot, hits, places, n=n_anchors)
    return [
        Explanation(
            id=id_,
            predicted=predicted.get(place),
            first=tuple(said[at] for said in first),
            anchors=tuple(said[at] for said in anchors),
        )
        for at, (id_, place) in enumerate(zip(hits.ids, places.tolist(), strict=True))
    ]


def _first_stages(snapshot: Snapshot, hits: Hits, places: IntArray) -> list[list[FirstStageEvidence]]:
    """What the search's first stage, and each part of a joined one, says of each hit."""
    name = hits.trace.settings.get("first")
    if name is None or name not in snapshot.first_stages:
        return []
    stages = [name, *(part for part in snapshot.named_stages if part != name and part in name.split("+"))]
    said = []
    for stage in stages:
        positions, scores = snapshot.first_stage(stage).search([hits.query], RANKS_THAT_COUNT)[0]
        ranks = {place: rank for rank, place in enumerate(positions.tolist(), start=1)}
        values = np.asarray(scores).tolist()
        of_hits = [ranks.get(place) for place in places.tolist()]
        said.append([FirstStageEvidence(stage, rank, None if rank is None else values[rank - 1]) for rank in of_hits])
    return said


def _nearest_anchors(snapshot: Snapshot, hits: Hits, places: IntArray, *, n: int) -> list[list[AnchorEvidence]]:
    """The scores of each hit for the anchor queries most like this query, best first."""
    anchors, rounds = snapshot.anchors, hits.trace.rounds
    positions = np.concatenate([round_.positions for round_ in rounds])
    exact = np.concatenate([round_.exact for round_ in rounds])
    known = anchors.exact_anchors() if isinstance(anchors, IndexFolder) else np.ones(len(anchors.anchor_queries), bool)
    if not known.any() or len(positions) < _FEWEST_SCORES:
        return []
    order = np.argsort(positions)
    scores = rows_at(anchors, positions[order]) if snapshot.is_compressed else anchors.matrix[positions[order]]
    likeness = _cosines(snapshot, hits.query)
    if likeness is None:
        likeness = _correlations(np.asarray(scores, dtype=np.float64), exact[order])
    likeness = np.where(known, likeness, -np.inf)
    nearest = [at for at in np.argsort(-likeness, kind="stable")[:n].tolist() if known[at]]
    rows = dict(zip(positions[order].tolist(), range(len(order)), strict=True))
    said = []
    for at in nearest:
        query, column, like = anchors.anchor_queries[at], anchors.matrix[:, at], float(likeness[at])
        of_hits = [float(scores[rows[place], at]) for place in places.tolist()]
        said.append([AnchorEvidence(query, like, one, 1 + int(np.count_nonzero(column > one))) for one in of_hits])
    return said


def _cosines(snapshot: Snapshot, query: Query) -> FloatArray | None:
    """The cosines of the anchor queries' vectors with this query's; None without a dual encoder."""
    model = snapshot.gaussian_model()
    known = model.features_of(snapshot.anchors).anchor_vectors
    vectors = None if known is None else unit_vectors(model.embed_queries, [query])
    return None if known is None or vectors is None else np.asarray(known @ vectors[0])


def _correlations(scores: FloatArray, exact: FloatArray) -> FloatArray:
    """The correlations of each column with these scores; 0 where one does not vary."""
    ours, theirs = exact - exact.mean(), scores - scores.mean(axis=0)
    spreads = np.sqrt((ours**2).sum() * (theirs**2).sum(axis=0))
    return np.asarray(np.where(spreads > 0, ours @ theirs / np.where(spreads > 0, spreads, 1.0), 0.0))
