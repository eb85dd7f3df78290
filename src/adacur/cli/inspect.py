"""`adacur inspect`: what an index folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from adacur.cli import arguments as opt
from adacur.cli.messages import facts_table, plain, show
from adacur.units import megabytes

if TYPE_CHECKING:
    from adacur.store import IndexFolder


def inspect(
    index: opt.IndexPath,
    anchors: Annotated[bool, Option("--anchors", help="Instead: the anchor queries, a line each.")] = False,
    verify: Annotated[bool, Option("--verify", help="Instead: read all of it, and name what is damaged.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show what an index holds, or whether it is damaged.

    Example: adacur inspect my.adacur
    """
    from adacur.store import IndexFolder

    if verify:
        _verify(index, as_json=as_json)
        return
    folder = IndexFolder.open(index)
    if anchors:
        rows = [{"id": query.id, "text": query.text} for query in folder.anchor_queries]
        # Line ends of a text would look like those of the list, and rich makes spaces of every tab.
        lines = (f"{plain(row['id'])}\t{plain(' '.join(row['text'].split()))}" for row in rows)
        show(rows, as_json=as_json)
        typer.echo("" if as_json else "\n".join(lines), nl=not as_json)
        return
    facts = _facts(folder)
    show(facts, facts_table(facts | _in_words(folder, facts)), as_json=as_json)


def _verify(index: str, *, as_json: bool) -> None:
    from adacur.errors import NotAnIndex
    from adacur.store import read_manifest
    from adacur.store import verify as verify_index
    from adacur.store.manifest import CONTINUE, MANIFEST
    from adacur.store.writing import folder_at

    try:
        read_manifest(folder_at(index))
    except NotAnIndex:
        # A folder with a damaged manifest is for the report to name.
        if not Path(index).is_dir():
            raise
    report = verify_index(index)
    can_go_on = not report.complete and report.ok and (Path(index) / MANIFEST).exists()
    state = "complete" if report.complete else f"unfinished: {report.blocks_checked} of {report.blocks} blocks"
    whole = [f"{index}: nothing is damaged ({state})."]
    show(
        {"ok": report.ok, "complete": report.complete, "problems": report.problems, "blocks": report.blocks},
        *(whole if report.ok else [f"{problem.file}: {problem.what}" for problem in report.problems]),
        hints=[CONTINUE] * can_go_on,
        as_json=as_json,
    )
    if not report.ok:
        raise typer.Exit(1)


def _facts(folder: IndexFolder) -> dict[str, Any]:
    from adacur.search.tuned import read_tunings
    from adacur.store import MODEL
    from adacur.store.manifest import FORMAT
    from adacur.store.model_file import is_compressed

    manifest = folder.manifest
    return {
        "items": manifest.n_items,
        "documents": manifest.documents,
        "cut": manifest.cut,
        "anchors": manifest.n_anchors,
        "dtype": manifest.dtype,
        "version": folder.version,
        "parts": max(1, len(folder.parts)),
        "blocks": sum(part.manifest.n_blocks for part in folder.parts),
        "first": folder.first_names(),
        "exact_scores": folder.n_exact,
        "scorer": manifest.scorer,
        "seed": manifest.seed,
        "created": manifest.created,
        "format": FORMAT,
        "packages": dict(manifest.packages),
        "bytes": _size(folder.path),
        "compressed_bytes": _size(folder.home / MODEL) if is_compressed(folder.home) else None,
        "probes": [probe.score for probe in manifest.probes],
        "anchor_examples": [query.text for query in folder.anchor_queries[:3]],
        "tuned": read_tunings(folder.home, anchor_queries=folder.anchor_queries),
    }


def _in_words(folder: IndexFolder, facts: dict[str, Any]) -> dict[str, Any]:
    """Those facts that people want otherwise."""
    from adacur.store.build_blocks import cut_in_words

    compressed = facts["compressed_bytes"]
    return {
        "cut": facts["cut"] and cut_in_words(facts["cut"], facts["items"], folder.manifest.scorer),
        "packages": [f"{name} {version}" for name, version in facts["packages"].items()],
        "bytes": megabytes(facts["bytes"]),
        "compressed_bytes": compressed and megabytes(compressed),
        "probes": len(facts["probes"]),
        "tuned": [f"k = {one.k}, {one.budget} calls ({one.first or 'random'})" for one in facts["tuned"]],
    }


def _size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
