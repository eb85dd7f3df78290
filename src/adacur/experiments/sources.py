"""From a spec to testbeds: files are read, queries split, and scores made where there are none."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adacur.core.errors import EmptyInput, InputError, UnknownName
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Query
from adacur.data import mondo, pseudo_queries, read_items, read_qrels, read_queries, split_queries, wikivital
from adacur.experiments.spec import CollectionSpec, Spec
from adacur.experiments.testbed import Judgements, Testbed, is_scored, kept_multi_vector
from adacur.index import Estimate, estimate
from adacur.search import encoder as open_encoder
from adacur.search import scorer as open_scorer

__all__ = ["Records", "live_split", "open_testbed", "read_records", "scoring_cost"]

OnCost = Callable[[str, Estimate], None]
# First stages and methods that need an encoder's embeddings.
_ENCODED = {"dense", "multi-vector", "axn", "anncur_dense"}
_DEFAULT_ENCODER = "bge-small-en-v1.5"
_LIVE_ANCHORS = 50
_LIVE_QUERIES = 20
_SAMPLE_ITEMS = 512
_SAMPLE_QUERIES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What the files of a collection hold."""

    items: Sequence[Item] = ()
    queries: Sequence[Query] = ()
    qrels: Judgements | None = None


def read_records(collection: CollectionSpec) -> Records:
    """Items, queries and judgements of a collection, as far as it names them."""
    found = Records()
    folder = collection.folder
    if folder is not None and not Path(folder).exists():
        found = _fetched(folder)
    elif folder is not None:
        # Without judgements it is still a collection: recall needs none.
        judged = any(Path(folder).glob("qrels*"))
        found = Records(
            tuple(read_items(folder, skip_empty=True)),
            () if collection.queries else tuple(read_queries(folder)),
            read_qrels(folder) if judged and not collection.qrels else None,
        )
    if collection.items:
        found = replace(found, items=tuple(read_items(collection.items)))
    if collection.queries:
        found = replace(found, queries=tuple(read_queries(collection.queries)))
    if collection.qrels:
        merged: dict[str, dict[str, int]] = {}
        for file in collection.qrels:
            for query, grades in read_qrels(file).items():
                merged.setdefault(query, {}).update(grades)
        found = replace(found, qrels=merged)
    return found


def open_testbed(
    collection: CollectionSpec, spec: Spec, *, on_cost: OnCost | None = None, progress: bool = True
) -> Testbed:
    """The collection with all its scores; where they must be made first, `on_cost` is told what that costs."""
    records = read_records(collection)
    wanted = {*spec.first, *(method.name for method in spec.methods)}
    wanted.update(*(_as_list(method.options.get("first", ())) for method in spec.methods))
    # A score folder has its own embeddings, one vector per item.
    needs_encoder = wanted & (_ENCODED if collection.scores is None else {"multi-vector"})
    encoder = open_encoder(spec.encoder or _DEFAULT_ENCODER) if needs_encoder or spec.encoder else None
    if collection.scores is None:
        return _live(collection, spec, records, encoder=encoder, on_cost=on_cost, progress=progress)
    has_texts = bool(records.items and records.queries)
    more: dict[str, Any] = {}
    if encoder is not None and has_texts:
        folder = spec.output / "first" / f"{collection.name}-{_digest(records.items)}"
        keep = functools.partial(kept_multi_vector, records.items, encoder=encoder, folder=folder, progress=progress)
        more = {"multi-vector": keep}
    return Testbed.from_score_folder(
        collection.scores,
        n_queries=spec.n_queries,
        items=records.items if has_texts else None,
        queries=records.queries if has_texts else None,
        qrels=records.qrels,
        name=collection.name,
        more_first=more,
    )


def live_split(records: Records, spec: Spec) -> tuple[list[Query], list[Query]]:
    """Anchor and test queries without a text in common; test queries are judged ones where there are any."""
    if not records.queries:
        raise EmptyInput("A collection without queries cannot be evaluated. Give queries = a file.")
    qrels = records.qrels or {}
    candidates = [query for query in records.queries if qrels.get(query.id)] or records.queries
    seed = spec.anchors.seed
    n_test = min(spec.n_queries or _LIVE_QUERIES, len(candidates))
    test = split_queries(candidates, anchors=0, test=n_test, seed=seed).test
    n_anchors = max(spec.anchors.numbers or (_LIVE_ANCHORS,))
    if spec.anchors.pseudo:
        return pseudo_queries(records.items, n_anchors, seed=seed), list(test)
    taken = {_plain(query.text) for query in test}
    source = read_queries(spec.anchors.file) if spec.anchors.file else records.queries
    left = [query for query in source if _plain(query.text) not in taken]
    n_anchors = min(n_anchors, len({_plain(query.text) for query in left}))
    if not n_anchors:
        raise InputError(
            f"All {len(records.queries)} queries are test queries, and none is left to be an anchor. Lower n_queries, "
            "or take pseudo = true in [anchors]."
        )
    return list(split_queries(left, anchors=n_anchors, test=0, seed=seed).anchors), list(test)


def scoring_cost(items: Sequence[Item], queries: Sequence[Query], *, scorer: Scorer, n_queries: int) -> Estimate:
    """What it costs to score all items for so many queries like these; takes some two seconds of scoring."""
    step = max(1, len(items) // _SAMPLE_ITEMS)
    pairs = len(items) * n_queries
    return estimate(
        items[::step][:_SAMPLE_ITEMS],
        queries[:_SAMPLE_QUERIES],
        scorer=scorer,
        n_items=len(items),
        n_anchors=(n_queries,),
        most_calls=max(16, pairs // 100),
    )[0]


def _live(
    collection: CollectionSpec,
    spec: Spec,
    records: Records,
    *,
    encoder: Any,
    on_cost: OnCost | None,
    progress: bool,
) -> Testbed:
    assert spec.scorer is not None
    scorer = open_scorer(spec.scorer.source, **spec.scorer.options)
    anchors, test = live_split(records, spec)
    card = repr(replace(scorer.card, source=None))
    folder = spec.output / "scores" / f"{collection.name}-{_digest(records.items, card)}"
    if on_cost is not None and not is_scored(folder, anchors, test):
        queries = [*test, *anchors]
        on_cost(collection.name, scoring_cost(records.items, queries, scorer=scorer, n_queries=len(queries)))
    return Testbed.from_live(
        records.items,
        anchors,
        test,
        scorer=scorer,
        folder=folder,
        name=collection.name,
        encoder=encoder,
        qrels=records.qrels,
        progress=progress,
    )


def _fetched(name: str) -> Records:
    if name == "mondo":
        fetched = mondo()
        return Records(fetched.items, fetched.queries, fetched.qrels)
    if name == "wikivital":
        return Records(wikivital())
    raise UnknownName(f"There is no folder {name}, and no collection of that name to fetch: mondo and wikivital are.")


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _digest(items: Sequence[Item], *names: str) -> str:
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=4)
    for item in items:
        digest.update(f"{item.id}\0{item.text}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()
