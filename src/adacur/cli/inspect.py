"""`adacur inspect`: what an index folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from adacur.cli import options as opt
from adacur.cli.messages import plain, print_json, print_table
from adacur.core.units import megabytes

if TYPE_CHECKING:
    from adacur.index import IndexFolder

__all__ = ["inspect"]


def inspect(
    index: opt.IndexPath,
    anchors: Annotated[
        bool, Option("--anchors", help="List the anchor queries instead: id and text, a line each.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Show what an index folder holds: items, anchor queries, scorer, first stages, versions.

    Example: adacur inspect my.adacur
    """
    from adacur.index import IndexFolder

    folder = IndexFolder.open(index)
    if anchors:
        rows = [{"id": query.id, "text": query.text} for query in folder.anchor_queries]
        if as_json:
            print_json(rows)
        for row in () if as_json else rows:
            # Tabs and line ends of a text would look like those of the list; rich makes spaces of every tab.
            typer.echo(f"{plain(row['id'])}\t{plain(' '.join(row['text'].split()))}")
        return
    facts = _facts(folder)
    if as_json:
        print_json(facts)
    else:
        print_table(_table(folder, facts))


def _facts(folder: IndexFolder) -> dict[str, Any]:
    from adacur.index import COMPRESSED
    from adacur.index.sparse import read_sparsity
    from adacur.search.tuned import read_tunings

    manifest = folder.manifest
    return {
        "items": manifest.n_items,
        "anchors": manifest.n_anchors,
        "dtype": manifest.dtype,
        "version": folder.version,
        "parts": max(1, len(folder.parts)),
        "blocks": folder.n_blocks,
        "first": folder.first_names(),
        "sparse": read_sparsity(folder.path),
        "exact_scores": folder.n_exact,
        "scorer": manifest.scorer,
        "seed": manifest.seed,
        "created": manifest.created,
        "format": manifest.format,
        "packages": dict(manifest.packages),
        "bytes": _size(folder.path),
        "compressed_bytes": _size(folder.home / COMPRESSED) or None,
        "probes": [probe.score for probe in manifest.probes],
        "anchor_examples": [query.text for query in folder.anchor_queries[:3]],
        "tuned": read_tunings(folder.home, anchor_queries=folder.anchor_queries),
    }


def _table(folder: IndexFolder, facts: Mapping[str, Any]) -> Table:
    manifest, card = folder.manifest, folder.manifest.scorer
    scores, compressed = facts["probes"], facts["compressed_bytes"]
    about: list[str | None] = []
    if card is not None:
        about = [card.name, card.backend, card.dtype, f"weights {card.weights}" if card.weights else card.source]
        about += [f"items cut to {card.max_item_tokens} tokens" if card.max_item_tokens else None]
    n_scores = manifest.n_items * manifest.n_anchors
    tuned = (f"k = {one.k}, {one.budget} calls ({one.first or 'random'})" for one in facts["tuned"])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    rows = {
        "items × anchor queries": f"{manifest.n_items:,} × {manifest.n_anchors:,} ({manifest.dtype})",
        "scorer": ", ".join(part for part in about if part),
        "sparse": facts["sparse"] and f"built with {facts['sparse'].per_query:,} items per anchor query",
        "searched by": "" if n_scores else "its first stages; `adacur index anchors` adds anchor queries",
        "exact": facts["exact_scores"] < n_scores
        and f"{facts['exact_scores']:,} of {n_scores:,} scores are exact, the rest predicted",
        "first stages": ", ".join((*facts["first"], "random")),
        "scores": f"{min(scores):.2f} … {max(scores):.2f}" if scores else "–",
        "anchor queries": "\n".join(facts["anchor_examples"]),
        "tuned for": "; ".join(tuned) or "–",
        "compressed": f"{megabytes(compressed)} for 'gaussian' searches" if compressed else "–",
        "version": f"{folder.version}{f', in {len(folder.parts)} parts' if len(folder.parts) > 1 else ''}",
        "blocks": f"{folder.n_blocks:,}, each of up to {manifest.block_items:,} items",
        "on disk": megabytes(facts["bytes"]),
        # Each version has its own manifest, so the time is that of the last change.
        "built" if folder.version == 1 else "changed": f"{manifest.created}, {packages}",
    }
    table = Table(show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(value))
    return table


def _size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
