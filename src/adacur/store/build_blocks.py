"""Scoring an index: every item against every anchor query; a finished block is never scored again."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur.errors import EmptyInput, IndexMismatch, InputError
from adacur.protocols import AnchorScores, Scorer, ScorerCard
from adacur.records import Item, Query, as_queries
from adacur.store.anchor_table import distinct_anchors
from adacur.store.blocks import check_dtype
from adacur.store.database import load
from adacur.store.estimate import MOST_LOOKED_AT
from adacur.store.folder import BUILT, IndexFolder
from adacur.store.items import StoredItems
from adacur.store.manifest import PARTS, VERSIONS, Manifest, Origin, PartRecord, home_of, point_to, write_manifest
from adacur.store.parts import Layout, read_parts, write_removed_items
from adacur.store.progress import Progress
from adacur.store.scored_parts import Scoring, begin_part, score_part, write_part
from adacur.store.source import Source, begun, check_same
from adacur.store.workers import On, check_workers, connected_to
from adacur.store.writing import (
    LOCK,
    check_no_links,
    folder_at,
    full_disk_reported,
    is_in_use,
    locked,
    made_whole,
    remove_files,
    sync_path,
    write_atomically,
)

_log = logging.getLogger("adacur.build")

# Lets PyTerrier recognise the folder as an artifact.
_PYTERRIER = {"type": "adacur_index", "format": "adacur", "package_hint": "adacur"}

Completes = Callable[[IndexFolder], Mapping[str, Any]]
"""Adds to a version whose scores are all stored what belongs to its build; the fields of the manifest that say so."""


def build_scores(
    items: Iterable[Item],
    anchor_queries: Iterable[Query | str] | None,
    *,
    scorer: Scorer,
    path: str | Path,
    dtype: str = "float32",
    block_items: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    executor: On = None,
    origin: Origin | None = None,
    completes: Completes | None = None,
) -> IndexFolder:
    """Score every item against every anchor query into a folder; the same call again continues a stopped build.

    Items are read once, in order, and never held all at once. While a block is scored, the next is read and the last
    is written. A continued build keeps the seed, block size and metadata it began with.

    - anchor_queries: None scores nothing; the folder then holds the items alone.
    - block_items: items between two save points; by default there are at most 512 of these.
    - progress: counts blocks as they are written.
    - executor: None for this process, or `Ray(…)`. Workers send scores back, and only this process writes to `path`.
    - origin: the fields of its file, remembered in the manifest.
    - completes: what else belongs to the build, such as first stages. Called when all is scored; then the manifest is
      sealed.
    """
    folder = folder_at(path)
    check_dtype(dtype)
    if block_items is not None and block_items < 1:
        raise InputError(f"block_items must be at least 1; got {block_items}.")
    check_workers(executor, scorer)
    anchors = () if anchor_queries is None else distinct_anchors(as_queries(anchor_queries))
    source = Source(items, anchors, card=scorer.card, dtype=dtype, origin=origin)
    scoring = Scoring(scorer, dtype, seed, executor, block_items, progress or Progress())
    part = folder / PARTS / BUILT
    # Before anything in a finished folder is opened.
    check_no_links(folder)
    if (manifest := begun(folder)) is not None and manifest.status == "complete":
        check_same(folder, part, manifest, source)
        return IndexFolder.open(folder)
    with connected_to(executor), locked(folder) as created, full_disk_reported(folder, scoring.progress.summary):
        # Another process may have begun, or finished, before this one got the lock.
        if (manifest := begun(folder)) is None:
            manifest = _begin(folder, source, scoring, created=created)
        else:
            check_same(folder, part, manifest, source)
            _log.info("Continuing the build in %s: finished blocks are not scored again.", folder)
        if manifest.status != "complete":
            stored = StoredItems(part, keep_open=False)
            sealed = score_part(part, scoring, anchors, stored)
            write_atomically(folder / "pt_meta.json", json.dumps(_PYTERRIER))
            if sealed.cut:
                _log.warning("%s", cut_in_words(sealed.cut, len(stored), scorer.card))
            home, probes, digest = home_of(folder), sealed.probes, sealed.scores_digest
            manifest = replace(manifest, status="complete", probes=probes, cut=sealed.cut, scores_digest=digest)
            facts: dict[str, Any] = {}
            if completes is not None:
                parts = read_parts(folder, home, manifest)
                facts |= completes(IndexFolder.of_parts(folder, *parts, manifest=manifest, home=home))
            write_manifest(home, replace(manifest, **facts))
    return IndexFolder.open(folder)


def cut_in_words(n_cut: int, n_items: int, card: ScorerCard | None) -> str:
    """How many items are cut, and what to do about it."""
    about = "about " if n_items > MOST_LOOKED_AT else ""
    limit = card and (card.max_item_tokens or card.max_tokens)
    tokens = f" ({limit:,} tokens{'' if card and card.max_item_tokens else ' with the query'})" if limit else ""
    return (
        f"{about}{n_cut:,} of {n_items:,} items are longer than the scorer takes{tokens}: the rest of them is not read."
    )


def save_table(table: AnchorScores, path: str | Path, *, card: ScorerCard | None = None, **facts: Any) -> IndexFolder:
    """Write anchor scores from memory as a finished folder; `card` names their scorer, `facts` go into its manifest."""
    folder = folder_at(path)
    if is_in_use(folder):
        raise IndexMismatch(f"{folder} is in use already. Save to a new folder, or remove that one first.")
    matrix, anchors = table.matrix, distinct_anchors(table.anchor_queries) if table.anchor_queries else ()
    # Saving cannot be resumed, so half a table must never be seen under the folder's name.
    with made_whole(folder) as unfinished:
        part = unfinished / PARTS / BUILT
        given: dict[str, Any] = {"dtype": str(matrix.dtype), "card": card}
        manifest = write_part(part, table.items, anchors, lambda start, stop: matrix[start:stop], **given)
        write_atomically(unfinished / "pt_meta.json", json.dumps(_PYTERRIER))
        _write_first_version(unfinished, replace(manifest, **facts), n_brought=len(anchors))
    return IndexFolder.open(folder)


def _begin(folder: Path, source: Source, scoring: Scoring, *, created: bool) -> Manifest:
    """Store the items and anchor queries, an array without scores, and the manifests; that of the index comes last."""
    _clear(folder)
    part = folder / PARTS / BUILT
    try:
        part.mkdir(parents=True)
        loaded = load(part, source.items, source.anchors)
        if not loaded.n_items:
            raise EmptyInput("There are no items. Give at least one.")
    except Exception:
        _clear(folder)
        remove_files(folder, LOCK)
        if created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    size = scoring.block_size(StoredItems(part, keep_open=False), source.anchors)
    shape = loaded.n_items, len(source.anchors)
    manifest = begin_part(part, loaded, *shape, source.dtype, size, scorer=source.card, seed=scoring.seed)
    manifest = replace(manifest, origin=source.origin, documents=loaded.documents)
    return _write_first_version(folder, manifest, n_brought=len(source.anchors))


def _clear(folder: Path) -> None:
    """Remove what a build that never reached its manifest left behind, and nothing else."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    shutil.rmtree(folder / VERSIONS, ignore_errors=True)


def _write_first_version(folder: Path, manifest: Manifest, *, n_brought: int) -> Manifest:
    """Write the version of one part, as far as that is built, and make it the current one."""
    home = folder / VERSIONS / "1"
    home.mkdir(parents=True)
    records = (PartRecord(BUILT, manifest.n_items, n_brought),)
    removed = write_removed_items(home, Layout.of(records).items)
    manifest = replace(manifest, parts=records, removed_items=removed)
    write_manifest(home, manifest)
    sync_path(home.parent)
    sync_path(folder)
    point_to(folder, 1)
    return manifest
