"""From texts to an index: what it would cost, and the build."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from adacur import replay as tuning
from adacur.data import ItemFile, Passages, as_items, pseudo_queries
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.money import Price
from adacur.names import ITEMS_IN, is_store_url, named
from adacur.protocols import FirstStage
from adacur.records import Item, Query, as_queries
from adacur.replay.measures import FEWEST_QUERIES
from adacur.replay.tune_index import verdict
from adacur.scorers.by_name import scorer as open_scorer
from adacur.search import AnchorIndex, index_stages
from adacur.search.at_rest import store_at_rest
from adacur.search.finish import check_fuse
from adacur.search.opening import open_folder
from adacur.search.snapshot import Snapshot
from adacur.store import (
    Estimate,
    On,
    Origin,
    Progress,
    build_scores,
    build_status,
    check_scorer,
    estimate,
    is_finished,
)
from adacur.store.anchor_table import distinct_anchors
from adacur.store.blocks import check_dtype, check_seed
from adacur.store.executor import check_workers
from adacur.store.folder import IndexFolder, pairs_done
from adacur.store.writing import folder_at, locked

_log = logging.getLogger("adacur.build")

# A new index is tuned for what a search without options does.
DEFAULT_K, _USUAL_BUDGET = 10, 100
_QUICK_QUERIES = 50
_MOST_SCORES_TO_TUNE = 100_000_000
_SAMPLE_ITEMS, _SAMPLE_QUERIES = 512, 64
_FEWEST_TIMED = 64


class BuildOptions(TypedDict, total=False):
    """The options of `build` besides scorer and path."""

    first: str | FirstStage | Sequence[str | FirstStage]
    encoder: Any
    executor: On
    seed: int
    dtype: str
    block_items: int | None
    tune: bool
    progress: bool
    price: Price | str | None
    passages: int | None
    fuse: float | None


_Items = Iterable[Item | str] | str | Path
_Queries = Iterable[Query | str] | int


@overload
def build(
    items: _Items,
    anchor_queries: _Queries,
    *,
    scorer: Any,
    path: str | Path,
    dry_run: Literal[False] = False,
    **options: Unpack[BuildOptions],
) -> AnchorIndex: ...


@overload
def build(
    items: _Items,
    anchor_queries: _Queries,
    *,
    scorer: Any,
    path: str | Path,
    dry_run: Literal[True],
    **options: Unpack[BuildOptions],
) -> Estimate: ...


def build(
    items: _Items,
    anchor_queries: _Queries,
    *,
    scorer: Any,
    path: str | Path,
    first: str | FirstStage | Sequence[str | FirstStage] = "bm25",
    encoder: Any = None,
    executor: On = None,
    seed: int = 0,
    dtype: str = "float32",
    block_items: int | None = None,
    tune: bool = True,
    progress: bool = True,
    dry_run: bool = False,
    price: Price | str | None = None,
    passages: int | None = None,
    fuse: float | None = None,
) -> AnchorIndex | Estimate:
    """Score every item against every anchor query, keep the scores in a folder, and open it.

    Costs items × anchor queries scorer calls; the cost is
    logged first (INFO, "adacur.build"). A build that was interrupted continues where it stopped when called again; a
    finished one is opened. A scorer without weights to compare, such as a function, is then recognised by 8 or 32
    calls.

    - items: records, texts (their ids are then 0, 1, 2 …), the path of a file that `adacur.data.read_items` reads, or
      the URL of a collection in a vector engine.
      Of an `ItemFile` the index remembers the fields, by which edits read other files.
    - anchor_queries: queries; a number to make that many pseudo-queries from the items; or 0 for an index that is
      searched by its first stages alone, until anchor queries are added.
    - scorer: what `adacur.scorer` opens, such as a name or a function of (query text, item text) pairs.
    - path: the folder to write.
    - first: first stages to keep: "bm25", "dense" (with `encoder`), several of them, or objects.
    - encoder: what `adacur.encoder` opens.
    - executor: None for this process, or `Ray(…)`: on a cluster, or on several cores or GPUs of this machine.
    - seed: for pseudo-queries, random draws and tuning.
    - dtype: "float32" or "float16".
    - block_items: items between two save points; by default there are at most 512 of these.
    - tune: end with a quick tuning for the best 10 within 100 calls, unless the index has a tuning, or more than 100
      million scores, which it would have to hold in memory.
    - progress: show bars.
    - dry_run: return the `Estimate` instead, at the cost of timing the scorer and the encoder on a sample.
    - price: what the scorer costs, such as "0.05 USD / 1M tokens", for that estimate; by default as the scorer says.
    - passages: split items of more words than this into passages of a document, as `adacur.data.Passages` does; edits
      then do the same.
    - fuse: the first stage's weight in the order of hits, remembered for searches that name none: 0 where the scorer is
      the truth, 1 where it is one witness; by default as the scorer is. To change it, build again with another.
    """
    check_fuse(fuse)
    source = named(ITEMS_IN)(items) if isinstance(items, str) and is_store_url(items) else as_items(items)
    records = source if passages is None else Passages(source, passages)
    dual, stages = open_encoder(encoder), index_stages.named_stages(first)
    index_stages.check_first_stages(stages, encoder=dual)
    check_dtype(dtype)
    check_seed(seed)
    if anchor_queries == 0:
        index_stages.check_leads(stages)
    folder_at(path)
    opened = open_scorer(scorer)
    check_workers(executor, opened)
    if isinstance(anchor_queries, int):
        records = records if hasattr(source, "text_fields") else list(records)
        queries = pseudo_queries(records, anchor_queries, seed=seed) if anchor_queries else []
    else:
        queries = list(distinct_anchors(as_queries(anchor_queries)))
    if dry_run:
        encode = [dual.encode_items for stage in stages.values() if index_stages.needs_encoder(stage)]
        given: dict[str, Any] = {"scorer": opened, "encode": encode, "dtype": dtype, "seed": seed, "price": price}
        return _estimate(records, queries, path, executor=executor, **given)
    was_finished = is_finished(path)
    # Files of later items are read by the same fields.
    id_field = source.id_field if isinstance(source, ItemFile) else None
    text_fields = getattr(source, "text_fields", None)
    has_fields = isinstance(source, ItemFile) or text_fields or passages is not None
    origin = Origin(id_field, text_fields, passages) if has_fields else None

    def complete(version: IndexFolder) -> dict[str, Any]:
        with locked(version.home):
            options = {"encoder": dual, "progress": progress}
            index_stages.write_first_stages(stages, items=version.items, home=version.home, **options)
            opened = index_stages.open_first_stages(version.home, encoder=dual)
            names = {*version.manifest.first, *store_at_rest(Snapshot(version, first=opened))}
        return {"first": tuple(sorted(names)), **({} if fuse is None else {"fuse": float(fuse)})}

    with Progress(progress) as report:
        folder = build_scores(
            records,
            queries or None,
            scorer=opened,
            path=path,
            dtype=dtype,
            block_items=block_items,
            seed=seed,
            progress=report,
            executor=executor,
            origin=origin,
            completes=complete,
        )
        if not queries and not was_finished:
            _log.info("%s", Estimate(len(folder.items), n_anchors=0, pairs=0, bytes=0).summary())
    drift = check_scorer(folder, opened) if was_finished else report.drift
    index = open_folder(folder, scorer=opened, encoder=dual, drift=drift)
    # A build that was killed after its last score is finished, and yet to be tuned.
    if tune and not index.tunings:
        _tune_quickly(index, seed=seed)
    return index


def _estimate(items: Iterable[Item], queries: Sequence[Query], path: str | Path, **options: Any) -> Estimate:
    sample, n_items = _sample(items)
    pairs, status, done = n_items * len(queries), build_status(path), pairs_done(path)
    n_bytes = n_items * len(queries) * np.dtype(options["dtype"]).itemsize
    if status == "complete":
        return Estimate(n_items, len(queries), pairs, n_bytes, pairs_done=pairs, status=status)
    size: dict[str, Any] = {"n_items": n_items, "n_anchors": len(queries)}
    limit = max(_FEWEST_TIMED, pairs // 100)
    cost = estimate(sample, queries[:_SAMPLE_QUERIES], most_calls=limit, **size, **options)
    cost = cost.left_to_do((pairs - done) / pairs if pairs else 1.0)
    return replace(cost, pairs_done=done, status="building" if done else status)


def _sample(items: Iterable[Item]) -> tuple[list[Item], int]:
    """A random sample of the items, and the number of all items."""
    draw = random.Random(0)
    sample: list[Item] = []
    seen = 0
    for seen, item in enumerate(items, 1):
        if len(sample) < _SAMPLE_ITEMS:
            sample.append(item)
        elif (place := draw.randrange(seen)) < _SAMPLE_ITEMS:
            sample[place] = item
    return sample, seen


def _tune_quickly(index: AnchorIndex, *, seed: int) -> None:
    n_anchors = len(index.anchor_queries)
    # In a smaller index there is nothing to tune: a search scores all items.
    if len(index) <= _USUAL_BUDGET or not 0 < len(index) * n_anchors <= _MOST_SCORES_TO_TUNE:
        return
    if n_anchors < FEWEST_QUERIES:
        _log.info("Not tuned: %d anchor queries, and %d are needed.", n_anchors, FEWEST_QUERIES)
        return
    tuned = tuning.tune(index, k=DEFAULT_K, budget=_USUAL_BUDGET, queries=_QUICK_QUERIES, seed=seed, quick=True)
    _log.info("%s", verdict(tuned))
