"""`adacur inspect`: what an index folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from adacur.cli.messages import plain, print_json, print_table
from adacur.cli.options import IndexPath, Json
from adacur.core.units import megabytes

if TYPE_CHECKING:
    from adacur.index import IndexFolder

__all__ = ["inspect"]


def inspect(
    index: IndexPath,
    anchors: Annotated[
        bool, typer.Option("--anchors", help="List the anchor queries instead: id and text, a line each.")
    ] = False,
    as_json: Json = False,
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
    manifest = folder.manifest
    table = Table(show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("items × anchor queries", f"{manifest.n_items:,} × {manifest.n_anchors:,} ({manifest.dtype})")
    card = manifest.scorer
    if card is not None:
        parts = [card.name, card.backend, card.dtype, f"weights {card.weights}" if card.weights else card.source]
        parts.append(f"items cut to {card.max_item_tokens} tokens" if card.max_item_tokens else None)
        table.add_row("scorer", Text(", ".join(part for part in parts if part)))
    if facts["sparse"] is not None:
        table.add_row("sparse", f"built with {facts['sparse'].per_query:,} items per anchor query")
    if not manifest.n_anchors:
        table.add_row("searched by", "its first stages; `adacur index anchors` adds anchor queries")
    if (exact := facts["exact_scores"]) < (n_scores := manifest.n_items * manifest.n_anchors):
        table.add_row("exact", f"{exact:,} of {n_scores:,} scores are exact, the rest predicted")
    table.add_row("first stages", ", ".join((*facts["first"], "random")))
    scores = facts["probes"]
    table.add_row("scores", f"{min(scores):.2f} … {max(scores):.2f}" if scores else "–")
    table.add_row("anchor queries", Text("\n".join(facts["anchor_examples"])))
    tuned = "; ".join(f"k = {one.k}, {one.budget} calls ({one.first or 'random'})" for one in facts["tuned"])
    table.add_row("tuned for", tuned or "–")
    compressed = facts["compressed_bytes"]
    table.add_row("compressed", f"{megabytes(compressed)} for 'gaussian' searches" if compressed else "–")
    parts_of = f", in {len(folder.parts)} parts" if len(folder.parts) > 1 else ""
    table.add_row("version", f"{folder.version}{parts_of}")
    table.add_row("blocks", f"{folder.n_blocks:,}, each of up to {manifest.block_items:,} items")
    table.add_row("on disk", megabytes(facts["bytes"]))
    # Each version has its own manifest, so the time is that of the last change.
    when = "built" if folder.version == 1 else "changed"
    table.add_row(when, f"{manifest.created}, " + ", ".join(f"{n} {v}" for n, v in facts["packages"].items()))
    return table


def _size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
