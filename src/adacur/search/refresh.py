"""Logged searches as further anchor queries: what they scored is exact, the rest is predicted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation.acquisition import best_positions
from adacur.approximation.completion import Completion, ScoredItems
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import InputError, WrongScorer
from adacur.core.protocols import ScorerCard
from adacur.core.records import Query
from adacur.core.seeds import stream_key, uniform
from adacur.index import AnchorTable, IndexFolder
from adacur.index.items import PartItems, StoredItems
from adacur.index.updates import updating
from adacur.search.first_stages import open_first_stages
from adacur.search.planning import Snapshot
from adacur.search.search_log import LOGGED, SearchLog, text_digest

LIMIT = 500
# With fewer scores, nearly all of a query's column would be predicted.
_FEWEST_SCORED = 20
# Unseen items that a search's lowest score is assumed of, per scored item: as many as a sparse build draws.
_ASSUMED = 0.1
# Complete anchor queries that tell more of unseen items than such an assumption.
_ENOUGH = 20
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of a log. Of its `queries`, each counted once, `added` are anchor queries now; `known` were already,
    `updated` of these with other scores than now, `too_few` had too few scores for items that are still as they were,
    `beyond_limit` were left out, and `other_scorer` were scored only by others than that of the index. `new_ids` are
    those of the anchor queries added. `dropped` were made of searches before, and are no anchor queries any more.
    """

    queries: int
    added: int
    known: int
    too_few: int
    beyond_limit: int
    other_scorer: int
    anchors: int
    new_ids: tuple[str, ...]
    updated: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Paid:
    """The scores that were paid for a query, all its searches together, by position."""

    query: Query
    at: float
    scores: dict[int, float]


def refresh(
    path: str | Path,
    log: str | Path | SearchLog,
    *,
    limit: int = LIMIT,
    fewest_scored: int = _FEWEST_SCORED,
    encoder: Any = None,
    trust: bool = False,
    card: ScorerCard | None = None,
    mirror: bool = False,
    first: Callable[[IndexFolder], Mapping[str, Any]] | None = None,
) -> Refreshed:
    """Turn logged searches into anchor queries of the index in a folder; no scorer is called.

    At most `limit` anchor queries come from logs: those with most scores first, then the newest. What others leave
    unscored is predicted anew for all of them. Scores are used only for items whose text is still the one that was
    scored. Searches by another scorer are left out; a log of nothing else is refused. An index without anchor queries
    becomes that of the scorer with this `card`, by default the one of the newest search.

    - `mirror`: drop anchor queries made of searches that the log holds no more;
    - `encoder`, `trust`: those of `load`; `first` gives the first stages of a version in their place.
    """
    if limit < 1 or fewest_scored < 1:
        raise InputError(f"limit and fewest_scored count from 1; got {limit} and {fewest_scored}.")
    if not isinstance(log, SearchLog):
        if not Path(log).is_file():
            raise InputError(f"There is no search log {log}. Searches write one with log=FILE, or --log FILE.")
        log = SearchLog(log)
    with updating(path) as update:
        folder = update.current
        of_index = folder.manifest.scorer
        if not folder.anchor_queries:
            # It holds nobody's scores.
            of_index = card or log.newest_card() or of_index
        paid, others = _paid_for(log, of_index, folder.items)
        if others and not paid:
            other = next(iter(others.values()))
            raise WrongScorer(
                f"{log.path} holds only searches scored by {_described(other, of_index)}; {path} was built with "
                f"{_described(of_index, other)}. Give a log of searches in this index."
            )
        before = _made_before(folder)
        given = [query for query in folder.anchor_queries if query.id not in before]
        there = {query.text for query in given} | {query.id for query in given}
        own = {one.query.id: one for one in paid if one.query.text not in there and one.query.id not in there}
        known = len(paid) - len(own) + len(own.keys() & before.keys())
        if not mirror:
            own = {
                id_: replace(one, scores={**one.scores, **own[id_].scores}, at=own[id_].at) if id_ in own else one
                for id_, one in before.items()
            } | {id_: one for id_, one in own.items() if id_ not in before}
        enough = [one for one in own.values() if len(one.scores) >= fewest_scored or one.query.id in before]
        chosen = sorted(enough, key=lambda one: (-len(one.scores), -one.at, one.query.id))[:limit]
        ids = {one.query.id for one in chosen}
        new_ids = tuple(one.query.id for one in chosen if one.query.id not in before)
        updated = sum(
            one.scores.keys() != before[one.query.id].scores.keys() for one in chosen if one.query.id in before
        )
        dropped = [id_ for id_ in before if id_ not in ids]
        if new_ids or updated or dropped:
            queries = [one.query for one in chosen]
            positions = [np.array(sorted(one.scores), dtype=np.intp) for one in chosen]
            scores = [np.array([one.scores[at] for at in sorted(one.scores)]) for one in chosen]
            stages = open_first_stages(folder.home, encoder=encoder, trust=trust) if first is None else first(folder)
            complete = Snapshot(_complete(folder, before), first=stages)
            if before:
                update.drop_anchors(before, replaced=True)
            if chosen:
                values, exact = complete_searches(complete, queries, positions, scores)
                update.add_anchor_scores(queries, values, exact=exact, card=of_index)
            update.switch()
        return Refreshed(
            queries=len(paid) + len(others),
            added=len(new_ids),
            known=known,
            too_few=len(own) - len(enough),
            beyond_limit=len(enough) - len(chosen),
            other_scorer=len(others),
            anchors=len(given) + len(chosen),
            new_ids=new_ids,
            updated=updated,
            dropped=len(dropped),
        )


def complete_searches(
    complete: Snapshot, queries: Sequence[Query], positions: Sequence[IntArray], scores: Sequence[FloatArray]
) -> tuple[FloatArray, BoolArray]:
    """Scores of every item for queries that were scored at some positions, and which of them are exact.

    Both have shape (queries, items). Where the index has enough anchor queries that are `complete`, the others are what
    a search predicts from these and its scores; else all queries are completed together, from the items' vectors.
    """
    if len(complete.anchors.anchor_queries) >= _ENOUGH:
        values = _as_searches_predict(complete, queries, positions, scores)
    else:
        values = _together(complete, queries, positions, scores)
    exact = np.zeros(values.shape, dtype=np.bool_)
    for row, (where, exact_scores) in enumerate(zip(positions, scores, strict=True)):
        values[row, where] = exact_scores
        exact[row, where] = True
    return values, exact


def _as_searches_predict(
    complete: Snapshot, queries: Sequence[Query], positions: Sequence[IntArray], scores: Sequence[FloatArray]
) -> FloatArray:
    values = np.empty((len(queries), len(complete.anchors.items)), dtype=np.float32)
    for start in range(0, len(queries), _AT_ONCE):
        group = slice(start, start + _AT_ONCE)
        approximation = complete.gaussian_model().begin(complete.anchors, queries[group])
        approximation.tell(positions[group], scores[group])
        values[group] = [approximation.in_scores(np.asarray(row)) for row in approximation.predict()]
    return values


def _together(
    complete: Snapshot, queries: Sequence[Query], positions: Sequence[IntArray], scores: Sequence[FloatArray]
) -> FloatArray:
    """As a sparse index is completed. A search scores the best that it can find, so that nothing it scored stands for
    the rest: some of these, drawn at random, are taken to score as its worst.
    """
    items, scored = complete.anchors.items, []
    for query, where, exact in zip(queries, positions, scores, strict=True):
        n_left = len(items) - len(where)
        n_assumed = min(n_left, max(1, round(_ASSUMED * len(where))))
        draws = uniform(stream_key(0, "logged", query.id), items.keys)
        draws[where] = -np.inf
        drawn = best_positions(draws, n_assumed, keys=items.keys) if n_assumed else np.empty(0, dtype=np.intp)
        weights = np.append(np.ones(len(where)), np.full(n_assumed, n_left / max(1, n_assumed)))
        worst = np.full(n_assumed, exact.min())
        scored.append(ScoredItems(np.append(where, drawn), np.append(exact, worst), weights))
    vectors, embeddings = complete.item_vectors(), np.zeros((len(items), 0), dtype=np.float32)
    query_vectors: FloatArray = np.zeros((len(queries), 1))
    if vectors is not None and vectors.embed_queries is not None:
        embeddings, query_vectors = vectors.all_rows(), vectors.embed_queries(queries)
    completion = Completion(scored, embeddings=embeddings, query_vectors=query_vectors)
    return np.ascontiguousarray(completion[0 : len(items)].T)


def _complete(folder: IndexFolder, logged: Collection[str]) -> AnchorTable:
    """The index without the anchor queries that were made of logged searches."""
    columns = [column for column, query in enumerate(folder.anchor_queries) if query.id not in logged]
    if not columns:
        return AnchorTable.of_items(folder.items)
    queries = tuple(folder.anchor_queries[column] for column in columns)
    # As it is where it can be: the whole matrix is read for the model anyway.
    matrix = folder.matrix if not logged else np.ascontiguousarray(folder.matrix[:, columns])
    return AnchorTable(folder.items, queries, matrix)


def _made_before(folder: IndexFolder) -> dict[str, _Paid]:
    """The anchor queries that were made of logged searches, with their exact scores, by their ids."""
    complete = folder.exact_anchors()
    columns = {
        query.id: column
        for column, query in enumerate(folder.anchor_queries)
        if query.id.startswith(LOGGED) and not complete[column]
    }
    cells = folder.exact_cells() if columns else None
    made = {}
    for id_, column in columns.items():
        assert cells is not None
        rows = np.flatnonzero(cells[:, column])
        scores = dict(zip(rows.tolist(), folder.matrix[rows, column].tolist(), strict=True))
        made[id_] = _Paid(folder.anchor_queries[column], 0.0, scores)
    return made


def _described(card: ScorerCard | None, other: ScorerCard | None) -> str:
    """The name of a scorer, and wherein it differs from another."""
    if card is None:
        return "an unknown scorer"
    others = asdict(other) if other else {}
    compared = {what: value for what, value in asdict(card).items() if what not in ("name", "source")}
    differs = ", ".join(f"{what} {value!r}" for what, value in compared.items() if value != others.get(what))
    return f"{card.name!r} ({differs})" if differs else repr(card.name)


def _may_be_one(card: ScorerCard, other: ScorerCard) -> bool:
    """Whether nothing on two cards tells their scorers apart."""
    # A name says little where there are weights, and everything where there are none.
    names = (None, None) if card.weights else (card.name, other.name)
    cards = [replace(of, name=name or "", source=None) for of, name in zip((card, other), names, strict=True)]
    # Cards of before say nothing of these.
    if None in (card.settings, other.settings):
        cards = [replace(of, settings=None) for of in cards]
    if None in (card.arithmetic, other.arithmetic):
        cards = [replace(of, arithmetic=None) for of in cards]
    return cards[0] == cards[1]


def _paid_for(
    log: SearchLog, card: ScorerCard | None, items: StoredItems | PartItems
) -> tuple[list[_Paid], dict[str, ScorerCard]]:
    """What this scorer scored for each query, and the texts of queries that only others scored, with their cards.

    Scores count for items that are still there with the text that was scored.
    """
    paid: dict[str, _Paid] = {}
    others: dict[str, ScorerCard] = {}
    digests: dict[str, tuple[int, bytes]] = {}
    for search in log:
        if card is None or not _may_be_one(search.card, card):
            others.setdefault(search.query.text, search.card)
            continue
        if unseen := [id_ for id_ in search.ids if id_ not in digests]:
            there = items.known_positions(unseen)
            texts = items.at(list(there.values()))
            digests |= dict.fromkeys(unseen, (-1, b""))
            digests |= {item.id: (there[item.id], text_digest(item.text)) for item in texts}
        scored = paid.setdefault(search.query.text, _Paid(search.query, search.at, {}))
        paid[search.query.text] = replace(scored, at=max(scored.at, search.at))
        for id_, digest, score in zip(search.ids, search.digests, search.scores.tolist(), strict=True):
            position, now = digests[id_]
            if now == digest:
                scored.scores[position] = score
    return list(paid.values()), {text: card for text, card in others.items() if text not in paid}
