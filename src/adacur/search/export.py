"""An index in a vector engine: written there once, and searched there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from adacur.approximation.engine_rows import Outline
from adacur.core.errors import EngineUnavailable, IndexMismatch
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import VectorStore
from adacur.index import IndexFolder, locked
from adacur.index.exported import export_tag, read_export, write_export
from adacur.search.anchor_index import AnchorIndex
from adacur.search.editing import writable_home
from adacur.search.engine_index import EngineSnapshot, engine_stages
from adacur.search.engine_items import EngineItems
from adacur.search.first_stages import open_first_stages

# Rows of a thousand columns: some megabytes a call.
_ITEMS_PER_CALL = 512
FEATURES, DENSE = "features", "dense"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: items under `collection`, rows of `columns` numbers, and how many were `there` before.

    `dropped` are collections of earlier exports.
    """

    collection: str
    items: int
    columns: int
    there: int
    dropped: tuple[str, ...] = ()


def export(index: AnchorIndex, store: VectorStore | str, *, drop_old: bool = False, progress: bool = True) -> Exported:
    """Write an index into a vector engine: texts, metadata, item vectors, and the rows that predictions are made of.

    They become a new collection beside `store`, named after what the index holds: an export that was interrupted goes
    on, and one of a changed index leaves the earlier collection to searches under way. Searches move to it when all is
    there. `adacur.load(path, store=…)` then opens the index without reading what grows with its items.

    - `store`: a store, or its URL;
    - `drop_old`: remove the collections of earlier exports beside it afterwards;
    - `progress`: show a bar.
    """
    home = writable_home(index)
    opened = open_store(store) if isinstance(store, str) else store
    snapshot = index.snapshot
    features, vectors = snapshot.gaussian_model().features_of(index.anchors), snapshot.item_vectors()
    outline = Outline.of(features)
    tag = export_tag(home, outline)
    target = opened.beside(tag)
    n_items = len(index)
    with locked(home):
        if not target.exists():
            target.create({FEATURES: outline.width} | ({DENSE: vectors.shape[1]} if vectors else {}))
        there = min(target.count(), n_items)
        # Calls are made in order, and the last one may have been cut off.
        begin = there // _ITEMS_PER_CALL * _ITEMS_PER_CALL
        with tqdm(total=n_items, initial=begin, desc="export", unit="item", disable=not progress) as bar:
            for start in range(begin, n_items, _ITEMS_PER_CALL):
                positions = np.arange(start, min(start + _ITEMS_PER_CALL, n_items))
                stored, means = features.factors.stored(positions), features.means[positions]
                rows = {FEATURES: np.hstack([stored, means[:, None]]).astype(np.float32)}
                if vectors is not None:
                    rows[DENSE] = vectors.rows(positions).astype(np.float32)
                target.put(positions.tolist(), index.items.at(positions.tolist()), rows)
                bar.update(len(positions))
        if (written := target.count()) != n_items:
            raise EngineUnavailable(f"{target.name} holds {written:,} items after {n_items:,} were written. Run again.")
        slopes = {}
        if vectors is not None and (learned := snapshot.rank_slopes(snapshot.stage(DENSE))) is not None:
            slopes[DENSE] = learned
        write_export(home, store=opened.name, tag=tag, outline=outline, dense=vectors is not None, slopes=slopes)
    old = tuple(other for other in opened.siblings() if other != tag) if drop_old else ()
    for other in old:
        opened.beside(other).drop()
    return Exported(target.name, n_items, outline.width, there, tuple(opened.beside(other).name for other in old))


def engine_snapshot(
    folder: IndexFolder, store: VectorStore | str, *, encoder: Any = None, trust: bool = False, exact: bool = True
) -> EngineSnapshot:
    """The snapshot of an index whose items are searched where they were exported to."""
    opened = open_store(store) if isinstance(store, str) else store
    anchors = tuple(query.id for query in folder.anchor_queries)
    export, outline = read_export(folder.home, opened.name, anchors=anchors)
    target = opened.beside(export.tag)
    remedy = f"Run: adacur index export {folder.path} {opened.name}"
    if not target.exists():
        raise IndexMismatch(f"{target.name} is gone. {remedy}")
    sizes, n_items = target.dimensions(), target.count()
    if sizes.get(FEATURES) != outline.width or n_items != export.n_items:
        raise IndexMismatch(
            f"{target.name} has {n_items:,} items and vectors {sizes}; exported were {export.n_items:,} items with "
            f"{outline.width} columns. {remedy}"
        )
    embed_queries = None
    if export.dense:
        vectors = open_first_stages(folder.home, encoder=encoder, trust=trust)[DENSE]().vectors()
        embed_queries = vectors.embed_queries if vectors else None
    engine = EngineItems(target, n_items, FEATURES, outline, exact=exact)
    return EngineSnapshot(
        folder,
        engine=engine,
        stages=engine_stages(engine, embed_queries, vector=DENSE),
        embed_queries=embed_queries,
        slopes=export.rank_slopes(),
    )
