"""Logged searches as further anchor queries: what they scored is exact, the rest is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation import GaussianModel
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import InputError, WrongScorer
from adacur.core.protocols import AnchorScores, ScorerCard
from adacur.core.records import Query
from adacur.index.items import PartItems, StoredItems
from adacur.index.updates import updating
from adacur.search.anchor_index import AnchorIndex
from adacur.search.first_stages import open_first_stages
from adacur.search.search_log import SearchLog, text_digest

_AT_ONCE = 64
_LIMIT = 500
# With fewer scores, nearly all of a query's column would be the model's prior.
_FEWEST_SCORED = 20


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of a log. Of its `queries`, each counted once, `added` are anchor queries now; `known` were already,
    `too_few` had too few scores for items that are still as they were, `beyond_limit` were left for next time, and
    `other_scorer` were scored only by others than that of the index. `new_ids` are those of the anchor queries added.
    """

    queries: int
    added: int
    known: int
    too_few: int
    beyond_limit: int
    other_scorer: int
    anchors: int
    new_ids: tuple[str, ...]


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
    limit: int = _LIMIT,
    fewest_scored: int = _FEWEST_SCORED,
    encoder: Any = None,
    trust: bool = False,
) -> Refreshed:
    """Turn logged searches into anchor queries of the index in a folder; no scorer is called.

    At most `limit` are added: those with most scores first, then the newest. Scores are used only for items whose text
    is still the one that was scored. Searches by another scorer are left out; a log of nothing else is refused.
    `encoder` and `trust` are those of `load`.
    """
    if limit < 1 or fewest_scored < 1:
        raise InputError(f"limit and fewest_scored count from 1; got {limit} and {fewest_scored}.")
    if not isinstance(log, SearchLog):
        if not Path(log).is_file():
            raise InputError(f"There is no search log {log}. Searches write one with log=FILE, or --log FILE.")
        log = SearchLog(log)
    with updating(path) as update:
        folder = update.current
        first = open_first_stages(folder.home, encoder=encoder, trust=trust)
        index = AnchorIndex(folder, first=first, card=folder.manifest.scorer, path=folder.path)
        paid, others = _paid_for(log, index.card, folder.items)
        if others and not paid:
            other = next(iter(others.values()))
            raise WrongScorer(
                f"{log.path} holds only searches scored by {_described(other, index.card)}; {path} was built with "
                f"{_described(index.card, other)}. Give a log of searches in this index."
            )
        there = {query.text for query in index.anchor_queries} | {query.id for query in index.anchor_queries}
        new = [search for search in paid if search.query.text not in there and search.query.id not in there]
        enough = [search for search in new if len(search.scores) >= fewest_scored]
        chosen = sorted(enough, key=lambda search: (-len(search.scores), -search.at, search.query.id))[:limit]
        if chosen:
            scores, exact = complete_searches(
                index.snapshot.gaussian_model(),
                folder,
                [search.query for search in chosen],
                [np.array(sorted(search.scores), dtype=np.intp) for search in chosen],
                [np.array([search.scores[at] for at in sorted(search.scores)]) for search in chosen],
            )
            update.add_anchor_scores([search.query for search in chosen], scores, exact=exact)
            update.switch()
        return Refreshed(
            queries=len(paid) + len(others),
            added=len(chosen),
            known=len(paid) - len(new),
            too_few=len(new) - len(enough),
            beyond_limit=len(enough) - len(chosen),
            other_scorer=len(others),
            anchors=len(index.anchor_queries) + len(chosen),
            new_ids=tuple(search.query.id for search in chosen),
        )


def complete_searches(
    gaussian: GaussianModel,
    anchors: AnchorScores,
    queries: Sequence[Query],
    positions: Sequence[IntArray],
    scores: Sequence[FloatArray],
) -> tuple[FloatArray, BoolArray]:
    """Scores of every item for queries that were scored at some positions, and which of them are exact.

    Both have shape (queries, items). The others are what the search itself would predict after these scores.
    """
    values = np.empty((len(queries), len(anchors.items)), dtype=np.float32)
    exact = np.zeros(values.shape, dtype=np.bool_)
    for start in range(0, len(queries), _AT_ONCE):
        group = slice(start, start + _AT_ONCE)
        approximation = gaussian.begin(anchors, queries[group])
        approximation.tell(positions[group], scores[group])
        values[group] = [approximation.in_scores(np.asarray(row)) for row in approximation.predict()]
    for row, (where, exact_scores) in enumerate(zip(positions, scores, strict=True)):
        values[row, where] = exact_scores
        exact[row, where] = True
    return values, exact


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
