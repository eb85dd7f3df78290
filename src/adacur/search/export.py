"""An index in a vector engine: written there once, and searched there."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from adacur.approximation import Features, PackedRows
from adacur.approximation.engine_rows import Outline, rows_of
from adacur.core.errors import EngineUnavailable, IndexMismatch
from adacur.core.protocols import BlockedScores, Vectors
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import CheckedStore, VectorStore
from adacur.index import IndexFolder, locked
from adacur.index.exported import (
    Export,
    export_command,
    export_tag,
    read_export,
    remember_tags,
    remembered_tags,
    write_export,
)
from adacur.search.anchor_index import AnchorIndex
from adacur.search.editing import writable_home
from adacur.search.engine_index import EngineSnapshot, engine_stages, opened_store
from adacur.search.engine_items import EngineItems
from adacur.search.first_stages import open_first_stages

# Rows of a thousand columns: some megabytes a call.
_ITEMS_PER_CALL = 512
FEATURES, DENSE = "features", "dense"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: items in `collection`, with rows of `columns` numbers; `there` of them were there before.

    `dropped` are the collections of earlier exports that it removed.
    """

    collection: str
    items: int
    columns: int
    there: int
    dropped: tuple[str, ...] = ()


def export(index: AnchorIndex, store: VectorStore | str, *, drop_old: bool = False, progress: bool = True) -> Exported:
    """Write an index into a vector engine: texts, metadata, item vectors, and the rows that predictions are made of.

    They become a new collection beside `store`, named after the content of the index. An interrupted export is
    continued; that of a changed index leaves the earlier collection to searches under way. Searches move to the new one
    when it is complete. `adacur.load(path, store=…)` then opens the index without reading what grows with its items.

    - `store`: a store, or its URL;
    - `drop_old`: afterwards, remove the collections of earlier exports of this index to this store;
    - `progress`: show a bar.
    """
    home = writable_home(index)
    if isinstance(store, str):
        with closing(open_store(store)) as opened:
            return export(index, opened, drop_old=drop_old, progress=progress)
    store = CheckedStore.of(store)
    snapshot = index.snapshot
    features, vectors = snapshot.gaussian_model().features_of(index.anchors), snapshot.item_vectors()
    outline = Outline.of(features)
    tag = export_tag(home, outline, content=_digest(index, features, vectors))
    target, path = store.beside(tag), index.path or home
    before = remembered_tags(path, store.name)
    n_items = len(index)
    sizes = {FEATURES: outline.width} | ({DENSE: vectors.shape[1]} if vectors else {})

    def write(begin: int) -> bool:
        """Write all items from this one on; whether the collection then holds as many as the index."""
        with tqdm(total=n_items, initial=begin, desc="export", unit="item", disable=not progress) as bar:
            for start in range(begin, n_items, _ITEMS_PER_CALL):
                positions = np.arange(start, min(start + _ITEMS_PER_CALL, n_items))
                rows = {FEATURES: rows_of(features, positions)}
                if vectors is not None:
                    rows[DENSE] = vectors.rows(positions).astype(np.float32)
                target.put(positions.tolist(), index.items.at(positions.tolist()), rows)
                bar.update(len(positions))
        return target.count() == n_items

    with locked(home):
        # Noted first, so that an export that never ends can be dropped later.
        remember_tags(path, store.name, [*before, tag])
        if not target.exists():
            target.create(sizes)
        there = min(target.count(), n_items)
        # Items are written in order, and the last call may have been cut off. If earlier items are missing, all are
        # written again; if there are others, the collection is created anew.
        if not (write(there // _ITEMS_PER_CALL * _ITEMS_PER_CALL) or write(0)):
            target.drop()
            target.create(sizes)
            if not write(0):
                raise EngineUnavailable(f"{target.name} holds {target.count():,} items, and {n_items:,} were written.")
        learned = None if vectors is None else snapshot.rank_slopes(snapshot.stage(DENSE))
        slopes = {} if learned is None else {DENSE: learned}
        fusion = snapshot.fusion(1.0).scale if index.anchor_queries else None
        exported = Export.of(home, outline, store=store.name, tag=tag, dense=vectors is not None, slopes=slopes)
        write_export(home, exported, outline, fusion=fusion)
    old = [store.beside(other) for other in before if other != tag] if drop_old else []
    for other in old:
        other.drop()
    if drop_old:
        remember_tags(path, store.name, [tag])
    return Exported(target.name, n_items, outline.width, there, tuple(other.name for other in old))


def engine_snapshot(
    folder: IndexFolder, store: VectorStore | str, *, encoder: Any = None, trust: bool = False, exact: bool = True
) -> EngineSnapshot:
    """The snapshot of an index that is searched where it was exported to."""
    with opened_store(store) as (checked, owned):
        anchors = tuple(query.id for query in folder.anchor_queries)
        export, outline, fusion = read_export(folder.home, checked.name, anchors=anchors, path=folder.path)
        target = checked.beside(export.tag)
        remedy = export_command(folder.path, checked.name)
        if not target.exists():
            raise IndexMismatch(f"{target.name} is gone. {remedy}")
        sizes, n_items = target.dimensions(), target.count()
        if sizes.get(FEATURES) != outline.width or n_items != export.n_items:
            raise IndexMismatch(
                f"{target.name} has {n_items:,} items and vectors {sizes}; exported were {export.n_items:,} items with "
                f"{outline.width} columns. {remedy}"
            )
        if outline.anchor_vectors is not None and outline.anchor_vectors.shape[1] != sizes.get(DENSE):
            raise IndexMismatch(f"{target.name} has vectors {sizes}, and not those of the anchor queries. {remedy}")
        embed_queries = None
        if export.dense:
            vectors = open_first_stages(folder.home, encoder=encoder, trust=trust)[DENSE]().vectors()
            embed_queries = vectors.embed_queries if vectors else None
        by_document = folder.manifest.documents is not None
        engine = EngineItems(target, n_items, FEATURES, outline, exact=exact, by_document=by_document)
        return EngineSnapshot(
            folder,
            engine=engine,
            stages=engine_stages(engine, embed_queries, vector=DENSE),
            embed_queries=embed_queries,
            slopes=export.rank_slopes(),
            fusion=fusion,
            owned=owned,
        )


def _digest(index: AnchorIndex, features: Features, vectors: Vectors | None) -> str:
    """A hash of all that is exported: two indexes must never share a collection."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(index), _ITEMS_PER_CALL):
        positions = range(start, min(start + _ITEMS_PER_CALL, len(index)))
        for item in index.items.at(positions):
            digest.update(json.dumps([item.id, item.text, item.metadata], sort_keys=True, default=str).encode())
        if vectors is not None:
            digest.update(vectors.rows(np.array(positions)).astype("<f4").tobytes())
    if index.snapshot.is_compressed:
        # All that is exported follows from these, and they are smaller than the scores.
        for part in features.factors.parts:
            assert isinstance(part, PackedRows)
            for array in (part.values, *([] if part.scales is None else [part.scales])):
                for start in range(0, len(array), _ITEMS_PER_CALL):
                    digest.update(np.ascontiguousarray(array[start : start + _ITEMS_PER_CALL]).tobytes())
        digest.update(np.ascontiguousarray(features.means).tobytes())
    else:
        scores = index.anchors
        blocks = (one for _, one in scores.blocks()) if isinstance(scores, BlockedScores) else iter([scores.matrix])
        for block in blocks:
            digest.update(np.ascontiguousarray(block).tobytes())
    return digest.hexdigest()
