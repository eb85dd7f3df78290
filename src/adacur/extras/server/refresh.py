"""Logged searches as further anchor queries: their scores are exact, the rest is predicted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.budget import is_whole
from adacur.errors import InputError, WrongScorer
from adacur.extras.server.search_log import LOGGED, SearchLog, text_digest
from adacur.model.acquire import best_positions
from adacur.protocols import Items, ScorerCard
from adacur.records import Query
from adacur.search.at_rest import store_at_rest
from adacur.search.index_stages import open_first_stages
from adacur.search.snapshot import Snapshot
from adacur.seeds import stream_key, uniform
from adacur.store import AnchorTable, IndexFolder
from adacur.store.edit import editing
from adacur.store.items import PartItems, StoredItems

LIMIT = 500
# With fewer scores, nearly all of a query's column would be predicted.
_FEWEST_SCORED = 20
# Unseen items that are assumed to have a search's lowest score, per scored item: a search scores the best that it can
# find, which say nothing of the rest. With this many complete anchor queries, no such assumption is needed.
_ASSUMED = 0.1
_ENOUGH = 20
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did with a log. Its `queries`, each counted once, are divided into:

    - `added`: anchor queries now;
    - `known`: anchor queries before;
    - `left_out`: with too few scores for items that are still unchanged, or beyond the limit;
    - `other_scorer`: scored only by scorers other than that of the index.

    `dropped` anchor queries came from searches that the log no longer holds; `anchors` counts those there are now.
    `changed` says whether there is a new version.
    """

    queries: int
    added: int
    known: int
    left_out: int
    other_scorer: int
    anchors: int
    dropped: int
    changed: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Paid:
    """The paid scores of a query, from all its searches, by position."""

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
    allow_code: bool = False,
) -> Refreshed:
    """Turn logged searches into anchor queries of the index in a folder; no scorer is called.

    The anchor queries that came from a log are made anew from this one: at most `limit`, those with most scores first,
    then the newest. Their missing scores are predicted. Scores count only for items whose text is unchanged. Searches
    by another scorer are left out; a log of nothing else is refused. An index without anchor queries becomes that of
    the newest search's scorer.

    `encoder` and `allow_code` are those of `load`.
    """
    if not all(is_whole(count) and count >= 1 for count in (limit, fewest_scored)):
        raise InputError(f"limit and fewest_scored must be at least 1; got {limit} and {fewest_scored}.")
    if not isinstance(log, SearchLog):
        if not Path(log).is_file():
            raise InputError(f"There is no search log {log}. Searches write one with log=FILE.")
        log = SearchLog(log)
    with editing(path) as edit:
        folder = edit.new.current
        of_index = folder.manifest.scorer
        if not folder.anchor_queries:
            # It holds no scores, so any scorer's will do.
            of_index = log.newest_card() or of_index
        paid, others = _paid_for(log, of_index, folder.items)
        if others and not paid:
            raise WrongScorer(
                f"{log.path} holds only searches scored by {next(iter(others.values()))}; {path} was built with "
                f"{of_index or 'an unknown scorer'}. Give a log of searches in this index."
            )
        before = _made_before(folder)
        given = [query for query in folder.anchor_queries if query.id not in before]
        there = {query.text for query in given} | {query.id for query in given}
        logged = [one for one in paid if one.query.text not in there and one.query.id not in there]
        enough = [one for one in logged if len(one.scores) >= fewest_scored]
        chosen = sorted(enough, key=lambda one: (-len(one.scores), -one.at, one.query.id))[:limit]
        changed = {one.query.id: len(one.scores) for one in chosen} != before
        if changed:
            stages = open_first_stages(folder.home, encoder=encoder, allow_code=allow_code)
            complete = Snapshot(_complete(folder, before), first=stages)
            if before:
                edit.drop_anchors(before, replaced=True)
            if chosen:
                values, exact = _completed(chosen, complete)
                edit.add_anchor_scores([one.query for one in chosen], values, exact=exact, card=of_index)
            edit.new.write(lambda version, _: store_at_rest(Snapshot(version, first=stages)))
        added = sum(one.query.id not in before for one in chosen)
        return Refreshed(
            queries=len(paid) + len(others),
            added=added,
            known=len(paid) - len(logged) + len(chosen) - added,
            left_out=len(logged) - len(chosen),
            other_scorer=len(others),
            anchors=len(given) + len(chosen),
            dropped=len(before.keys() - {one.query.id for one in chosen}),
            changed=changed,
        )


def _completed(paid: Sequence[_Paid], complete: Snapshot) -> tuple[FloatArray, BoolArray]:
    """Scores of every item for queries, and which of them are exact, both of shape (queries, items).

    Missing scores are predicted as a search would, from its scores and the `complete` anchor queries.
    """
    items = complete.anchors.items
    values, exact = np.empty((len(paid), len(items)), dtype=np.float32), np.zeros((len(paid), len(items)), dtype=bool)
    assumes = len(complete.anchors.anchor_queries) < _ENOUGH
    for start in range(0, len(paid), _AT_ONCE):
        group = paid[start : start + _AT_ONCE]
        scored = [(np.fromiter(one.scores, np.intp), np.fromiter(one.scores.values(), float)) for one in group]
        known = [_with_assumed(one.query, *given, items) for one, given in zip(group, scored, strict=True)]
        approximation = complete.gaussian_model().begin(complete.anchors, [one.query for one in group])
        approximation.tell(*zip(*(known if assumes else scored), strict=True))
        for at, (row, given) in enumerate(zip(approximation.predict(), scored, strict=True)):
            values[start + at] = approximation.in_scores(at, np.asarray(row))
            values[start + at, given[0]] = given[1]
            exact[start + at, given[0]] = True
    return values, exact


def _with_assumed(query: Query, positions: IntArray, scores: FloatArray, items: Items) -> tuple[IntArray, FloatArray]:
    """Scores with some that are assumed: of unseen items, drawn at random, as low as the lowest."""
    n = min(len(items) - len(positions), max(1, round(_ASSUMED * len(positions))))
    draws = uniform(stream_key(0, "logged", query.id), items.keys)
    draws[positions] = -np.inf
    drawn = best_positions(draws, n, keys=items.keys)
    return np.append(positions, drawn), np.append(scores, np.full(n, scores.min()))


def _complete(folder: IndexFolder, logged: Collection[str]) -> AnchorTable:
    """The index without the anchor queries made from logged searches."""
    columns = [column for column, query in enumerate(folder.anchor_queries) if query.id not in logged]
    if not columns:
        return AnchorTable.of_items(folder.items)
    queries = tuple(folder.anchor_queries[column] for column in columns)
    # No copy if none is left out: the model reads the whole matrix anyway.
    matrix = folder.matrix if not logged else np.ascontiguousarray(folder.matrix[:, columns])
    return AnchorTable(folder.items, queries, matrix)


def _made_before(folder: IndexFolder) -> dict[str, int]:
    """The ids of anchor queries made from logged searches, and how many of their scores are exact."""
    cells = folder.exact_cells()
    n_exact = [] if cells is None else np.count_nonzero(cells, axis=0).tolist()
    return {
        query.id: n
        for query, n in zip(folder.anchor_queries, n_exact, strict=False)
        if query.id.startswith(LOGGED) and n < len(folder.items)
    }


def _may_be_one(card: ScorerCard, other: ScorerCard) -> bool:
    """Whether two cards may belong to the same scorer."""
    # The name counts only where there are no weights to compare.
    left_out = {"source", *(["name"] if card.weights else [])}
    return all(value == getattr(other, what) for what, value in asdict(card).items() if what not in left_out)


def _paid_for(
    log: SearchLog, card: ScorerCard | None, items: StoredItems | PartItems
) -> tuple[list[_Paid], dict[str, ScorerCard]]:
    """The scores by this scorer for each query, and the texts of queries that only others scored, with their cards.

    Scores count only for items that still have the text that was scored.
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
