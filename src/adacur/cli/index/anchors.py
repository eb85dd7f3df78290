"""`adacur index anchors`: more anchor queries, or fewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adacur.cli.index.editing import edit_index
from adacur.cli.options import IndexPath, Json, RayAddress, ScorerOfIndex, Trust, Workers
from adacur.core.errors import InputError
from adacur.data import read_queries

if TYPE_CHECKING:
    from adacur.search import Edit

__all__ = ["anchors"]


def anchors(
    index: IndexPath,
    queries: Annotated[
        Path | None, typer.Argument(metavar="QUERIES", help="Queries to add: .jsonl, .csv, .tsv, .txt or BEIR.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="ID", help="Remove this anchor query; may be repeated.")
    ] = None,
    scorer: ScorerOfIndex = None,
    trust: Trust = False,
    workers: Workers = None,
    ray: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Add anchor queries, for one scorer call per item each, or remove some, for none. More of them predict better.

    An interrupted addition continues with the same command.

    Example: adacur index anchors my.adacur queries.jsonl
    """
    if queries is None and not drop:
        raise InputError("anchors needs a file of QUERIES to add, or --drop ID to remove one.")
    new = list(read_queries(queries)) if queries else []

    def make(edit: Edit) -> None:
        if drop:
            edit.drop_anchors(drop)
        if new:
            edit.add_anchors(new)

    edit_index(index, make, scorer=scorer, trust=trust, workers=workers, ray=ray, as_json=as_json)
