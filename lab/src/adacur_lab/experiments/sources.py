"""From a spec to testbeds: files are read, queries split, and scores made where there are none."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adacur.data import (
    JudgedCollection,
    mondo,
    pseudo_queries,
    read_items,
    read_qrels,
    read_queries,
    split_queries,
    wikivital,
)
from adacur.errors import EmptyInput, InputError, UnknownName
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.protocols import Scorer
from adacur.records import Item, Query
from adacur.requirements import require
from adacur.scorers import scorer as open_scorer
from adacur.store import Estimate, estimate
from adacur_lab.experiments.methods import method
from adacur_lab.experiments.spec import CollectionSpec, Spec
from adacur_lab.experiments.testbed import (
    Judgements,
    Testbed,
    TokenVectors,
    check_first_stage,
    first_stage_names,
    is_scored,
)
from adacur_lab.first_stages import token_encoder
from adacur_lab.ir_datasets_collections import from_ir_datasets
from adacur_lab.zeshel import ZeshelTags, read_zeshel

__all__ = [
    "LiveSplit",
    "OnCost",
    "OnStart",
    "Records",
    "Source",
    "Start",
    "check_runs",
    "live_split",
    "open_testbed",
    "prepared",
    "read_records",
    "sampled",
    "scored_testbed",
    "scoring_cost",
]

# First stages and methods that need an encoder's embeddings.
_ENCODED = {"dense", "multi-vector", "axn", "anncur_dense"}
_DEFAULT_ENCODER = "bge-small-en-v1.5"
_LIVE_ANCHORS = 50
_LIVE_QUERIES = 20
_SAMPLE_ITEMS = 512
_SAMPLE_QUERIES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What was read of a collection. Unlike of a `JudgedCollection`, any part of it may be missing.

    `sampled_from` is the number of items before a sample was taken.
    """

    items: Sequence[Item] = ()
    queries: Sequence[Query] = ()
    qrels: Judgements | None = None
    sampled_from: int | None = None


def read_records(collection: CollectionSpec) -> Records:
    """Items, queries and judgements of a collection, as far as it names them."""
    found = Records()
    folder = collection.folder
    if folder is not None and not Path(folder).exists():
        found = _fetched(folder)
    elif collection.zeshel is not None:
        assert collection.world is not None
        tags = ZeshelTags() if collection.tags else None
        found = _all_of(read_zeshel(collection.zeshel, collection.world, tags=tags))
    elif collection.ir_dataset is not None:
        found = _all_of(from_ir_datasets(collection.ir_dataset))
    elif folder is not None:
        # Without judgements it is still a collection: recall needs none.
        judged = any(Path(folder).glob("qrels*"))
        found = Records(
            tuple(read_items(folder)),
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


@dataclass(frozen=True, slots=True)
class Start:
    """What a collection is evaluated with, known before anything is scored; a folder of scores has no `scorer`.

    `notes` say, in a sentence each, which judgements and budgets do not fit the collection.
    """

    collection: str
    scorer: Scorer | None
    n_test: int
    n_anchors: int
    pseudo_anchors: bool
    notes: tuple[str, ...] = ()


OnCost = Callable[[str, Estimate], None]
OnStart = Callable[[Start], None]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A collection read and found fit for the runs of a spec; nothing of it is scored yet."""

    collection: CollectionSpec
    records: Records
    encoder: Any = None


def prepared(spec: Spec) -> list[Source]:
    """Every collection of a spec, read and checked, so that nothing is scored in vain."""
    sources = [
        Source(collection, sampled(read_records(collection), spec, collection.sample))
        for collection in spec.collections
    ]
    for source in sources:
        check_runs(spec, source.collection, source.records)
    needed = [_needs_encoder(spec, source.collection) for source in sources]
    encoder = open_encoder(spec.encoder or _DEFAULT_ENCODER) if any(needed) else None
    if encoder is not None and "multi-vector" in _stages(spec) and token_encoder(encoder) is None:
        raise InputError(f"The encoder {spec.encoder!r} gives no vectors of tokens, which 'multi-vector' needs.")
    return [replace(source, encoder=encoder if own else None) for source, own in zip(sources, needed, strict=True)]


def check_runs(spec: Spec, collection: CollectionSpec, records: Records) -> None:
    """Refuse what could only fail after all is scored: first stages, judgements and packages that are not there.

    So is what would be scored in vain: a k above the number of items, and judgements of none of them.

    On a folder of scores nothing is paid for, and a run that fails stops no other.
    """
    if collection.scores is not None:
        return
    _check_fit(spec, collection.name, records.items, records.qrels)
    if _needs_encoder(spec, collection) and spec.encoder is None:
        require("onnxruntime", extra="onnx")
    can_encode = spec.encoder is not None or find_spec("onnxruntime") is not None
    known = first_stage_names(has_dense=can_encode, has_texts=True, has_tokens=can_encode)
    for name in _stages(spec):
        check_first_stage(name, known, collection=collection.name)
    for own in spec.methods:
        if method(own.name).calls_scorer:
            continue
        if not any((records.qrels or {}).values()):
            raise InputError(
                f"The method {own.name!r} calls no scorer, so it is measured by judgements, and {collection.name!r} "
                f"has none. Give qrels, or leave {own.name!r} out of the methods."
            )
        require("ir_measures", extra="evaluation")


def _check_fit(spec: Spec, name: str, items: Sequence[Item], qrels: Judgements | None) -> None:
    if max(spec.ks) > len(items):
        raise InputError(
            f"k is at most the number of items: {name!r} has {len(items):,}, and k is {max(spec.ks)}. Choose a smaller "
            "k."
        )
    judged, missing = _judged_items(items, qrels)
    if judged and len(missing) == len(judged):
        raise InputError(
            f"None of the {len(judged):,} judged items is in the corpus of {name!r} (e.g. {missing[0]!r}; its items "
            f"have ids such as {items[0].id!r}). Check the ids."
        )


def _judged_items(items: Sequence[Item], qrels: Judgements | None) -> tuple[list[str], list[str]]:
    """The ids of all judged items, and of those that are not among the items."""
    judged = list(dict.fromkeys(id_ for grades in (qrels or {}).values() for id_ in grades))
    known = {item.id for item in items} if judged else set()
    return judged, [id_ for id_ in judged if id_ not in known]


def _notes(
    spec: Spec,
    name: str,
    items: Sequence[Item],
    test: Sequence[Query],
    qrels: Judgements | None,
) -> tuple[str, ...]:
    notes = []
    judged, missing = _judged_items(items, qrels)
    if not judged:
        notes.append(f"{name}: no judgements (qrels/test.tsv), so judged quality is left out.")
    elif not any((qrels or {}).get(query.id) for query in test):
        notes.append(
            f"{name}: none of the test queries is judged, so judged quality is left out. Judged queries have ids such "
            f"as {next(iter(qrels or {}))!r}, test queries such as {test[0].id!r}."
        )
    if missing:
        notes.append(
            f"{name}: no search can find {len(missing):,} of the {len(judged):,} judged items, which are not in the "
            f"corpus or have no text (e.g. {missing[0]!r})."
        )
    budgets = [*spec.budgets, *(b for own in spec.methods for b in _as_list(own.options.get("budget", ())))]
    if max(budgets) > len(items):
        notes.append(f"{name}: budgets above its {len(items):,} items are taken as {len(items):,}.")
    return tuple(notes)


def open_testbed(
    collection: CollectionSpec, spec: Spec, *, on_cost: OnCost | None = None, progress: bool = True
) -> Testbed:
    """The collection with all its scores; where they must be made first, `on_cost` is told what that costs."""
    (source,) = prepared(replace(spec, collections=(collection,)))
    return scored_testbed(source, spec, on_cost=on_cost, progress=progress)


def scored_testbed(
    source: Source, spec: Spec, *, on_start: OnStart | None = None, on_cost: OnCost | None = None, progress: bool = True
) -> Testbed:
    """The source with all its scores; `on_start` is told with what, `on_cost` what making them costs."""
    collection, records, encoder = source.collection, source.records, source.encoder
    if collection.scores is None:
        return _live(source, spec, on_start=on_start, on_cost=on_cost, progress=progress)
    has_texts = bool(records.items and records.queries)
    testbed = Testbed.from_score_folder(
        collection.scores,
        n_queries=spec.n_queries,
        items=records.items if has_texts else None,
        queries=records.queries if has_texts else None,
        qrels=records.qrels,
        name=collection.name,
    )
    _check_fit(spec, collection.name, testbed.items, testbed.qrels)
    if has_texts and (tokens := token_encoder(encoder)):
        kept = spec.token_vectors or spec.output / "first"
        folder = kept / f"{collection.name}-{_digest(testbed.items)}"
        testbed = replace(testbed, tokens=TokenVectors(tokens, folder, progress))
    if on_start is not None:
        there = len(testbed.anchor_queries)
        on_start(
            Start(
                collection.name,
                None,
                len(testbed.test_queries),
                min(there, max(spec.anchors.numbers or (there,))),
                False,
                _notes(spec, collection.name, testbed.items, testbed.test_queries, testbed.qrels),
            )
        )
    return testbed


def sampled(records: Records, spec: Spec, n: int | None) -> Records:
    """At least n of the items, by a seeded draw: all that are judged for the test queries, and others at random.

    Only the judgements of the test queries are kept: what others were judged by may be gone.
    """
    if n is None or n >= len(records.items):
        return records
    test = _test_queries(records, spec)
    qrels = (
        None if records.qrels is None else {one.id: records.qrels[one.id] for one in test if one.id in records.qrels}
    )
    judged = {id_ for grades in (qrels or {}).values() for id_ in grades}
    kept = [at for at, item in enumerate(records.items) if item.id in judged]
    others = [at for at, item in enumerate(records.items) if item.id not in judged]
    drawn = np.random.default_rng(spec.anchors.seed).permutation(len(others))[: max(0, n - len(kept))]
    places = sorted([*kept, *(others[at] for at in drawn.tolist())])
    items = tuple(records.items[at] for at in places)
    return replace(records, items=items, qrels=qrels, sampled_from=len(records.items))


@dataclass(frozen=True, slots=True)
class LiveSplit:
    """Anchor and test queries; `pseudo` anchors were cut from the items."""

    anchors: Sequence[Query]
    test: Sequence[Query]
    pseudo: bool = False


def _pseudo_anchors(records: Records, n: int, taken: set[str], *, seed: int) -> list[Query]:
    """Pseudo-queries that are no test query's text: such an anchor would give the answer away."""
    made = pseudo_queries(records.items, n, seed=seed)
    kept = [query for query in made if _plain(query.text) not in taken]
    if len(kept) < n:
        with contextlib.suppress(InputError):
            more = pseudo_queries(records.items, n + len(taken), seed=seed)
            kept = [query for query in more if _plain(query.text) not in taken][:n]
    return kept


def live_split(records: Records, spec: Spec) -> LiveSplit:
    """Anchor and test queries without a text in common; test queries are judged ones where there are any.

    Where no method uses anchors there are none. Where too few queries are left to be anchors, pseudo-queries are,
    unless the spec rules them out or the items do not yield as many.
    """
    if not records.queries:
        raise EmptyInput("A collection without queries cannot be evaluated. Give queries = a file.")
    seed = spec.anchors.seed
    test = _test_queries(records, spec)
    if not any("anchors" in method(own.name).takes for own in spec.methods):
        return LiveSplit((), test)
    n_anchors = max(spec.anchors.numbers or (_LIVE_ANCHORS,))
    taken = {_plain(query.text) for query in test}
    if spec.anchors.pseudo:
        return LiveSplit(_pseudo_anchors(records, n_anchors, taken, seed=seed), test, pseudo=True)
    source = read_queries(spec.anchors.file) if spec.anchors.file else records.queries
    left = [query for query in source if _plain(query.text) not in taken]
    n_left = len({_plain(query.text) for query in left})
    if n_left < n_anchors and spec.anchors.pseudo is None and spec.anchors.file is None:
        try:
            return LiveSplit(_pseudo_anchors(records, n_anchors, taken, seed=seed), test, pseudo=True)
        except InputError:
            if not n_left:
                raise
    if not n_left:
        raise InputError(
            f"All {len(records.queries)} queries are test queries, and none is left to be an anchor. Lower n_queries, "
            "or take pseudo = true in [anchors]."
        )
    return LiveSplit(split_queries(left, anchors=min(n_anchors, n_left), test=0, seed=seed).anchors, test)


def _test_queries(records: Records, spec: Spec) -> Sequence[Query]:
    """Judged queries where there are any; the choice does not depend on the items."""
    qrels = records.qrels or {}
    candidates = [query for query in records.queries if qrels.get(query.id)] or records.queries
    n_test = min(spec.n_queries or _LIVE_QUERIES, len(candidates))
    return split_queries(candidates, anchors=0, test=n_test, seed=spec.anchors.seed).test


def scoring_cost(items: Sequence[Item], queries: Sequence[Query], *, scorer: Scorer, n_queries: int) -> Estimate:
    """What it costs to score all items for so many queries like these; takes some two seconds of scoring."""
    step = max(1, len(items) // _SAMPLE_ITEMS)
    pairs = len(items) * n_queries
    return estimate(
        items[::step][:_SAMPLE_ITEMS],
        queries[:_SAMPLE_QUERIES],
        scorer=scorer,
        n_items=len(items),
        n_anchors=n_queries,
        most_calls=max(16, pairs // 100),
    )


def _live(source: Source, spec: Spec, *, on_start: OnStart | None, on_cost: OnCost | None, progress: bool) -> Testbed:
    collection, records = source.collection, source.records
    split = live_split(records, spec)
    scorer = open_scorer(spec.scorer.source, **spec.scorer.options)
    if on_start is not None:
        notes = _notes(spec, collection.name, records.items, split.test, records.qrels)
        if records.sampled_from is not None:
            notes = (
                f"{collection.name}: a sample of {len(records.items):,} of the {records.sampled_from:,} items, with "
                "all that are judged for the test queries. Searching fewer items is easier: expect lower numbers, and "
                "larger differences between methods, on the whole collection.",
                *notes,
            )
        on_start(Start(collection.name, scorer, len(split.test), len(split.anchors), split.pseudo, notes))
    card = repr(replace(scorer.card, source=None))
    folder = spec.output / "scores" / f"{collection.name}-{_digest(records.items, card)}"
    if on_cost is not None and not is_scored(folder, split.anchors, split.test):
        queries = [*split.test, *split.anchors]
        on_cost(collection.name, scoring_cost(records.items, queries, scorer=scorer, n_queries=len(queries)))
    return Testbed.from_live(
        records.items,
        split.anchors,
        split.test,
        scorer=scorer,
        folder=folder,
        name=collection.name,
        encoder=source.encoder,
        qrels=records.qrels,
        pseudo_anchors=split.pseudo,
        progress=progress,
    )


def _all_of(collection: JudgedCollection) -> Records:
    return Records(collection.items, collection.queries, collection.qrels)


def _fetched(name: str) -> Records:
    if name == "mondo":
        return _all_of(mondo())
    if name == "wikivital":
        return Records(wikivital())
    raise UnknownName(f"There is no folder {name}, and no collection of that name to fetch: mondo and wikivital are.")


def _stages(spec: Spec) -> list[str]:
    """The first stages that a spec names, or that its methods imply."""
    names = list(spec.first)
    for own in spec.methods:
        what = method(own.name)
        names += _as_list(own.options.get("first", what.presets.get("first", ())))
        names += [] if what.calls_scorer else [own.name]
    return list(dict.fromkeys(names))


def _needs_encoder(spec: Spec, collection: CollectionSpec) -> bool:
    # A score folder has its own embeddings, one vector per item.
    encoded = _ENCODED if collection.scores is None else {"multi-vector"}
    return spec.encoder is not None or bool(encoded & {*_stages(spec), *(own.name for own in spec.methods)})


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _digest(items: Sequence[Item], *names: str) -> str:
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=4)
    for item in items:
        digest.update(f"{item.id}\0{item.text}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()
