"""What is evaluated on: a BEIR folder, a sample of it, its anchor and test queries, and how many fit into the time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.data import JudgedCollection, pseudo_queries, read_beir, split_queries
from adacur.errors import InputError
from adacur.protocols import Scorer
from adacur.records import Item, Query
from adacur.store import Estimate, estimate

_FEWEST_QUERIES, _MOST_QUERIES = 5, 30
_FEWEST_ANCHORS, _MOST_ANCHORS = 10, 100
_SHARE_OF_TESTS = 0.4
_TIMED_QUERIES = 10
_FEWEST_ITEMS, _QUERIES_OF_A_SAMPLE = 200, 40
_SAMPLE_ITEMS, _SAMPLE_QUERIES = 512, 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of anchor queries, test queries and items (None: all); `folder` is what they were chosen for."""

    anchors: int
    queries: int
    items: int | None
    folder: str


@dataclass(frozen=True, slots=True)
class Split:
    """Anchor and test queries; `pseudo` anchors were cut from the items."""

    anchors: Sequence[Query]
    test: Sequence[Query]
    pseudo: bool = False


def read_collection(folder: str | Path) -> JudgedCollection:
    """Read a BEIR folder: corpus.jsonl, queries.jsonl and, for judged quality, qrels/test.tsv."""
    collection = read_beir(folder)
    judged = {id_ for grades in collection.qrels.values() for id_ in grades}
    if judged and len(missing := missing_items(collection)) == len(judged):
        raise InputError(
            f"None of the {len(judged):,} judged items is in the corpus of {collection.name!r} (e.g. {missing[0]!r}; "
            f"its items have ids such as {collection.items[0].id!r}). Check the ids."
        )
    return collection


def missing_items(collection: JudgedCollection) -> list[str]:
    """The ids of judged items that are not among the items."""
    known = {item.id for item in collection.items}
    judged = dict.fromkeys(id_ for grades in collection.qrels.values() for id_ in grades)
    return [id_ for id_ in judged if id_ not in known]


def choose_sizes(
    collection: JudgedCollection,
    folder: str | Path,
    kept: Path,
    *,
    scorer: Scorer,
    minutes: float,
    anchors: int | None,
    queries: int | None,
    items: int | None,
) -> Sizes:
    """Fill in the sizes that are not given, so that scoring takes about this long; the scorer is timed for seconds.

    Where not even the fewest queries fit, a sample of the items is taken. The sizes in the file `kept`, of an earlier
    evaluation in the same place, serve where none is given.
    """
    name = str(Path(folder).resolve())
    if kept.exists():
        before = Sizes(**json.loads(kept.read_text(encoding="utf-8")))
        if before.folder != name:
            raise InputError(f"{kept.parent} holds the evaluation of {before.folder}. Choose another for {folder}.")
        if anchors is None and queries is None and items is None:
            return before
    if not minutes > 0:
        raise InputError(f"minutes must be positive: the time that scoring may take; got {minutes}.")
    n_all = len(collection.items)
    if anchors is None or queries is None:
        pace = scoring_cost(collection, collection.queries, scorer=scorer, n_queries=_TIMED_QUERIES).pairs_per_second
        pairs = pace * 60 * minutes
        if items is None and pairs < ((queries or _FEWEST_QUERIES) + (anchors or _FEWEST_ANCHORS)) * n_all:
            affordable_items = max(_FEWEST_ITEMS, int(pairs / _QUERIES_OF_A_SAMPLE))
            # Most of the items would take as long as all of them.
            items = affordable_items if 2 * affordable_items <= n_all else None
        affordable = int(pairs / min(items or n_all, n_all))
        if queries is None:
            queries = max(_FEWEST_QUERIES, min(round(_SHARE_OF_TESTS * affordable), _MOST_QUERIES))
        if anchors is None:
            anchors = max(_FEWEST_ANCHORS, min(affordable - queries, _MOST_ANCHORS))
    items = None if items is None or items >= n_all else items
    return Sizes(anchors, queries, items, name)


def scoring_cost(collection: JudgedCollection, queries: Sequence[Query], *, scorer: Scorer, n_queries: int) -> Estimate:
    """What it costs to score all items for this number of queries like these; takes seconds of scoring."""
    step = max(1, len(collection.items) // _SAMPLE_ITEMS)
    return estimate(
        collection.items[::step][:_SAMPLE_ITEMS],
        queries[:_SAMPLE_QUERIES],
        scorer=scorer,
        n_items=len(collection.items),
        n_anchors=n_queries,
        most_calls=max(16, len(collection.items) * n_queries // 100),
    )


def sample(collection: JudgedCollection, n: int | None, *, n_test: int, seed: int) -> JudgedCollection:
    """At least n of the items: all that are judged for the test queries, and others at random.

    Only the judgements of the test queries are kept: the items that others were judged by may be gone. The name tells
    the size, since runs on a sample are not comparable with runs on all items.
    """
    if n is None or n >= len(collection.items):
        return collection
    test = _test_queries(collection, n_test, seed)
    qrels = {query.id: collection.qrels[query.id] for query in test if query.id in collection.qrels}
    judged = {id_ for grades in qrels.values() for id_ in grades}
    needed = [place for place, item in enumerate(collection.items) if item.id in judged]
    others = [place for place, item in enumerate(collection.items) if item.id not in judged]
    drawn = np.random.default_rng(seed).permutation(len(others))[: max(0, n - len(needed))]
    places = sorted([*needed, *(others[at] for at in drawn.tolist())])
    return replace(
        collection,
        name=f"{collection.name}-{n}-items",
        items=tuple(collection.items[place] for place in places),
        qrels=qrels,
    )


def split(collection: JudgedCollection, *, n_anchors: int, n_test: int, seed: int) -> Split:
    """Anchor and test queries without a text in common; test queries are judged ones where there are any.

    Where too few queries are left to be anchors, pseudo-queries are, unless the items do not yield as many.
    """
    test = _test_queries(collection, n_test, seed)
    if not n_anchors:
        return Split((), test)
    taken = {plain_text(query.text) for query in test}
    left = [query for query in collection.queries if plain_text(query.text) not in taken]
    n_left = len({plain_text(query.text) for query in left})
    if n_left < n_anchors:
        try:
            pseudo = pseudo_queries(collection.items, n_anchors, seed=seed)
            # An anchor with the text of a test query would give the answer away.
            return Split([query for query in pseudo if plain_text(query.text) not in taken], test, pseudo=True)
        except InputError:
            if not n_left:
                raise
    return Split(split_queries(left, anchors=min(n_anchors, n_left), test=0, seed=seed).anchors, test)


def _test_queries(collection: JudgedCollection, n: int, seed: int) -> Sequence[Query]:
    """The choice does not depend on the items, so that a sample has the test queries of the whole."""
    candidates = collection.judged or collection.queries
    return split_queries(candidates, anchors=0, test=min(n, len(candidates)), seed=seed).test


def plain_text(text: str) -> str:
    """A text without what does not tell questions apart: upper case and spacing."""
    return " ".join(text.casefold().split())


def digest_of(records: Sequence[Query] | Sequence[Item]) -> str:
    """The number of records, and a hash of their ids and texts."""
    digest = hashlib.blake2b(digest_size=6)
    for record in records:
        digest.update(f"{record.id}\0{record.text}\0".encode(errors="surrogatepass"))
    return f"{len(records)}-{digest.hexdigest()}"
