"""`adacur index anchors`: more anchor queries, or fewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.index.editing import edit_index
from adacur.core.errors import InputError
from adacur.data import read_queries

if TYPE_CHECKING:
    from adacur.search import Edit


def anchors(
    index: opt.IndexPath,
    queries: Annotated[Path | None, Argument(help="Queries to add: .jsonl, .csv, .tsv, .txt or BEIR.")] = None,
    drop: Annotated[list[str] | None, Option(metavar="ID", help="An anchor query to remove; may be repeated.")] = None,
    scorer: opt.ScorerOfIndex = None,
    trust: opt.Trust = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
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

    edit_index(index, make, scorer=scorer, trust=trust, on=opt.on_workers(workers, ray), as_json=as_json)
