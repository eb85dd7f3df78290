"""What an index is built from, and how it differs from what a folder holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path

from adacur.errors import IndexMismatch, NotAnIndex
from adacur.protocols import ScorerCard
from adacur.records import Item, Query, check_item
from adacur.store.database import connect, read_texts
from adacur.store.manifest import MANIFEST, Manifest, Origin, read_manifest
from adacur.store.writing import LOCK

_SHOWN = 60
FINISHED = "It is finished; choose another path for the new index."


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Items and anchor queries, the card of their scorer, and how scores are stored."""

    items: Iterable[Item]
    anchors: Sequence[Query]
    card: ScorerCard | None
    dtype: str
    origin: Origin | None = None


def begun(folder: Path) -> Manifest | None:
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
    return None


def check_same(folder: Path, part: Path, manifest: Manifest, source: Source) -> None:
    """Refuse to continue with anything but what the folder was begun with; the folder is not touched."""

    def texts() -> Iterator[tuple[str, str]]:
        for item in source.items:
            check_item(item)
            yield item.id, item.text

    differences = _other_settings(manifest, source)
    with contextlib.closing(connect(part)) as connection:
        anchors = ((query.id, query.text) for query in source.anchors)
        differences += _difference("anchor query", anchors, read_texts(connection, "anchors", folder=part))
        differences += _difference("item", texts(), read_texts(connection, "items", folder=part))
    if differences:
        if manifest.status == "complete":
            remedy = FINISHED
        else:
            remedy = (
                "Choose another path, or continue it as it was begun: with the same items, anchor queries and scorer."
            )
        raise IndexMismatch(f"{folder} was built from something else: {'; '.join(differences)}. {remedy}")


def comparable(card: ScorerCard) -> ScorerCard:
    """A card without what may differ between the machines of one build."""
    return replace(card, source=None, arithmetic=card.arithmetic if card.saturates else None)


def _other_settings(manifest: Manifest, source: Source) -> list[str]:
    # A build that was begun on another processor goes on where the scores agree.
    undecided = {"source", "arithmetic"}
    differences = [
        f"scorer {name}: {before!r} in the folder, {now!r} now"
        for name in (field.name for field in fields(ScorerCard) if field.name not in undecided)
        if (before := getattr(manifest.scorer, name, None)) != (now := getattr(source.card, name, None))
    ]
    if manifest.dtype != source.dtype:
        differences.append(f"dtype: {manifest.dtype!r} in the folder, {source.dtype!r} now")
    return differences


def _difference(kind: str, given: Iterable[tuple[str, str]], stored: Iterable[tuple[str, str]]) -> list[str]:
    """The counts where they differ, since that alone explains it; else the first id or text that differs, if any."""
    n_now = n_before = 0
    first: list[str] = []
    for position, (now, before) in enumerate(zip_longest(given, stored)):
        n_now, n_before = n_now + (now is not None), n_before + (before is not None)
        if first or now is None or before is None or now == before:
            continue
        # Texts are shown from where they begin to differ.
        what, one, other = ("id", before[0], now[0]) if before[0] != now[0] else ("text", before[1], now[1])
        differ = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        start = max(0, next(differ, min(len(one), len(other))) - _SHOWN // 2)
        shown = [text[start : start + _SHOWN] for text in (one, other)]
        first = [f"{kind} {now[0]!r} at position {position} has {what} {shown[0]!r} in the folder, {shown[1]!r} now"]
    several = "items" if kind == "item" else "anchor queries"
    return first if n_now == n_before else [f"it has {n_before:,} {several}, and there are {n_now:,} now"]
