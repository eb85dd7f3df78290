"""Scoring an index: every item against every anchor query; a finished block is never scored again."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from adacur.errors import IndexMismatch, InputError, NotAnIndex
from adacur.protocols import AnchorScores, Scorer, ScorerCard
from adacur.records import Item, Query, as_queries, check_item
from adacur.store.anchor_table import distinct_anchors
from adacur.store.blocks import check_dtype, check_seed
from adacur.store.database import connect, read_texts
from adacur.store.estimate import MOST_LOOKED_AT
from adacur.store.executor import On, check_workers, connected_to
from adacur.store.folder import BUILT, IndexFolder, check_lost_no_manifest
from adacur.store.items import StoredItems
from adacur.store.manifest import (
    MANIFEST,
    PARTS,
    VERSIONS,
    Manifest,
    Origin,
    home_of,
    point_to,
    read_manifest,
    write_manifest,
)
from adacur.store.parts import Part, read_parts, write_places
from adacur.store.progress import Progress
from adacur.store.scored_parts import Scoring, begin_part, score_part, write_part
from adacur.store.writing import (
    LOCK,
    check_no_links,
    folder_at,
    full_disk_reported,
    is_in_use,
    locked,
    made_whole,
    sync_path,
    write_atomically,
)

_log = logging.getLogger("adacur.build")

# Lets PyTerrier recognise the folder as an artifact.
_PYTERRIER = {"type": "adacur_index", "format": "adacur", "package_hint": "adacur"}

Completes = Callable[[IndexFolder], Mapping[str, Any]]
"""Adds to a version whose scores are all stored what it lacks; the fields of the manifest that say so."""

_SHOWN = 60


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
    - completes: adds what else belongs to the build, such as first stages, once all is scored; then the manifest is
      sealed. A finished build is given what it lacks of it.
    """
    folder = folder_at(path)
    check_dtype(dtype)
    if block_items is not None and block_items < 1:
        raise InputError(f"block_items must be at least 1; got {block_items}.")
    check_seed(seed)
    check_workers(executor, scorer)
    anchors = () if anchor_queries is None else distinct_anchors(as_queries(anchor_queries))
    scoring = Scoring(scorer, dtype, seed, executor, block_items, progress or Progress())
    part = folder / PARTS / BUILT
    # Before anything in a folder is opened, or one is made.
    check_no_links(folder)
    _begun(folder)
    with locked(folder) as created, full_disk_reported(folder, scoring.progress.summary):
        if (before := _begun(folder)) is None:
            before = _begin(folder, items, anchors, scoring, origin=origin, created=created)
        else:
            _check_same(folder, part, before, items, anchors, scoring)
            if before.status == "complete":
                scoring.progress.blocks_done = scoring.progress.blocks = before.n_blocks
            else:
                _log.info("Continuing the build in %s: finished blocks are not scored again.", folder)
        home, manifest = home_of(folder), before
        if manifest.status != "complete":
            stored = StoredItems(part, keep_open=False)
            with connected_to(executor):
                sealed = score_part(part, scoring, anchors, stored)
            write_atomically(folder / "pt_meta.json", json.dumps(_PYTERRIER))
            if sealed.cut:
                _log.warning("%s", cut_in_words(sealed.cut, len(stored), scorer.card))
            probes, digest = sealed.probes, sealed.scores_digest
            manifest = replace(manifest, status="complete", probes=probes, cut=sealed.cut, scores_digest=digest)
        if completes is not None:
            parts = read_parts(folder, home, manifest)
            facts = completes(IndexFolder.of_parts(folder, parts, manifest=manifest, home=home))
            manifest = replace(manifest, **facts)
        if manifest != before:
            write_manifest(home, manifest)
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
        given: dict[str, Any] = {"dtype": str(matrix.dtype), "scorer": card}
        part = unfinished / PARTS / BUILT
        manifest = write_part(part, table.items, anchors, lambda start, stop: matrix[start:stop], **given)
        write_atomically(unfinished / "pt_meta.json", json.dumps(_PYTERRIER))
        _write_first_version(unfinished, replace(manifest, **facts))
    return IndexFolder.open(folder)


def _begun(folder: Path) -> Manifest | None:
    """The manifest of the build that was begun in a folder; None where one may begin."""
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        if manifest.version > 1:
            raise IndexMismatch(
                f"{folder} has been changed since it was built, and is at version {manifest.version}. Open it with "
                "adacur.load and change it with index.edit(), or choose another path for a new index."
            )
        return manifest
    if folder.exists() and not folder.is_dir():
        raise NotAnIndex(f"{folder} is a file. Choose another path for the index.")
    if folder.is_dir() and not (folder / LOCK).exists() and any(folder.iterdir()):
        raise NotAnIndex(f"{folder} holds other files and is not an index. Choose a new or empty folder.")
    check_lost_no_manifest(folder)
    return None


def _begin(
    folder: Path,
    items: Iterable[Item],
    anchors: Sequence[Query],
    scoring: Scoring,
    *,
    origin: Origin | None,
    created: bool,
) -> Manifest:
    """Begin the part of a build, and its version; the manifest of the index comes last."""
    _clear(folder)
    given: dict[str, Any] = {"dtype": scoring.dtype, "seed": scoring.seed, "block_items": scoring.block_items}
    try:
        manifest = begin_part(folder / PARTS / BUILT, items, anchors, scorer=scoring.scorer.card, **given)
    except Exception:
        _clear(folder)
        (folder / LOCK).unlink(missing_ok=True)
        if created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return _write_first_version(folder, replace(manifest, origin=origin))


def _clear(folder: Path) -> None:
    """Remove what a build that never reached its manifest left behind, and nothing else."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    shutil.rmtree(folder / VERSIONS, ignore_errors=True)


def _write_first_version(folder: Path, manifest: Manifest) -> Manifest:
    """Write the version of one part, as far as that is built, and make it the current one."""
    home = folder / VERSIONS / "1"
    home.mkdir(parents=True)
    places = write_places(home, [Part.after([], folder / PARTS / BUILT)])
    manifest = replace(manifest, parts=(BUILT,), places=places)
    write_manifest(home, manifest)
    sync_path(home.parent)
    sync_path(folder)
    point_to(folder, 1)
    return manifest


def _check_same(
    folder: Path,
    part: Path,
    manifest: Manifest,
    items: Iterable[Item],
    anchors: Sequence[Query],
    scoring: Scoring,
) -> None:
    """Refuse to continue with anything but what the folder was begun with; the folder is not touched."""
    # Where a scorer was opened from does not matter; on another processor a build goes on where the scores agree.
    before, now = manifest.scorer, scoring.scorer.card
    differences = [
        f"scorer {name}: {was!r} in the folder, {is_!r} now"
        for name in (field.name for field in fields(ScorerCard) if field.name not in ("source", "arithmetic"))
        if (was := getattr(before, name, None)) != (is_ := getattr(now, name))
    ]
    if manifest.dtype != scoring.dtype:
        differences.append(f"dtype: {manifest.dtype!r} in the folder, {scoring.dtype!r} now")
    texts = ((item.id, item.text) for item in map(check_item, items))
    with contextlib.closing(connect(part)) as connection:
        asked = ((query.id, query.text) for query in anchors)
        differences += _difference("anchor queries", asked, read_texts(connection, "anchors", folder=part))
        differences += _difference("items", texts, read_texts(connection, "items", folder=part))
    if not differences:
        return
    remedy = (
        "It is finished; choose another path for the new index."
        if manifest.status == "complete"
        else "Choose another path, or continue it as it was begun: with the same items, anchor queries and scorer."
    )
    raise IndexMismatch(f"{folder} was built from something else: {'; '.join(differences)}. {remedy}")


def _difference(kinds: str, given: Iterable[tuple[str, str]], stored: Iterable[tuple[str, str]]) -> list[str]:
    """The first id or text that differs, if any."""
    for position, (now, before) in enumerate(zip_longest(given, stored)):
        if now is None or before is None:
            fewer, more = ("now", "in the folder") if now is None else ("in the folder", "now")
            return [f"{kinds}: {position:,} {fewer}, and more {more}"]
        if now[0] != before[0]:
            return [f"{kinds}: at position {position}, id {before[0]!r} in the folder, {now[0]!r} now"]
        if now[1] != before[1]:
            was, is_ = (text[:_SHOWN] for text in (before[1], now[1]))
            return [f"{kinds}: the text of {now[0]!r} is {was!r} in the folder, {is_!r} now"]
    return []
