"""`adacur inspect`: what an index folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, note, plain, print_json, rows_table, show
from adacur.units import megabytes

if TYPE_CHECKING:
    from adacur.protocols import ScorerCard
    from adacur.store import IndexFolder


def inspect(
    index: opt.IndexPath,
    anchors: Annotated[
        bool, Option("--anchors", help="Instead: the anchor queries, id and text, a line each.")
    ] = False,
    verify: Annotated[
        bool, Option("--verify", help="Instead: read all of it and name what is damaged; exit code 1 if anything is.")
    ] = False,
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
        if as_json:
            print_json(rows)
        for row in () if as_json else rows:
            # Tabs and line ends of a text would look like those of the list; rich makes spaces of every tab.
            typer.echo(f"{plain(row['id'])}\t{plain(' '.join(row['text'].split()))}")
        return
    facts = _facts(folder)
    show(facts, rows_table(("", ""), _rows(folder, facts), texts=2), as_json=as_json)


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
    if not report.complete and report.ok and (Path(index) / MANIFEST).exists():
        note(CONTINUE)
    state = "complete" if report.complete else f"unfinished: {report.blocks_checked} of {report.blocks} blocks"
    whole = [f"{index}: nothing is damaged ({state})."]
    show(
        {"ok": report.ok, "complete": report.complete, "problems": report.problems, "blocks": report.blocks},
        *(whole if report.ok else [f"{problem.file}: {problem.what}" for problem in report.problems]),
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


def _rows(folder: IndexFolder, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    from adacur.store.build_blocks import cut_in_words

    card, n_scores = folder.manifest.scorer, facts["items"] * facts["anchors"]
    exact, compressed = facts["exact_scores"], facts["compressed_bytes"]
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    rows = {
        "items × anchor queries": f"{facts['items']:,} × {facts['anchors']:,} ({facts['dtype']})",
        "documents": facts["documents"] and f"{facts['documents']:,}, of which the items are passages",
        "scorer": _in_words(card) if card else "",
        "prompt": card and card.prompt and repr(card.prompt),
        "reads": card and card.readout,
        "cut": facts["cut"] and cut_in_words(facts["cut"], facts["items"], card),
        "searched by": "" if n_scores else "its first stages; `adacur index add --anchors FILE` adds anchor queries",
        "exact": exact < n_scores and f"{exact:,} of {n_scores:,} scores are exact, the rest predicted",
        "first stages": ", ".join((*facts["first"], "random")),
        "anchor queries": "\n".join(facts["anchor_examples"]),
        "tuned for": "; ".join(f"k = {one.k}, {one.budget} calls ({one.first or 'random'})" for one in facts["tuned"]),
        "compressed": compressed and f"{megabytes(compressed)} for 'gaussian' searches",
        "version": f"{facts['version']}, in {counted(facts['parts'], 'part', 'parts')}",
        "on disk": megabytes(facts["bytes"]),
        # Each version has its own manifest, so the time is that of the last change.
        "built" if facts["version"] == 1 else "changed": f"{facts['created']}, {packages}",
    }
    return [(name, str(value)) for name, value in rows.items() if value]


def _in_words(card: ScorerCard) -> str:
    # Weights say more than a path, where they are known.
    origin = f"weights {card.weights}" if card.weights else card.source
    return ", ".join(part for part in (card.name, card.backend, card.dtype, origin) if part)


def _size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
