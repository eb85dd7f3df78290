"""`adacur index copy`: from a folder to an object store, or back."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from adacur.cli import options as opt
from adacur.cli.messages import note, notes, print_json, say


def copy(
    source: Annotated[str, Argument(metavar="FROM", help="An index folder, or a URL.")],
    target: Annotated[str, Argument(metavar="TO", help="A URL, or a folder that does not exist yet.")],
    as_json: opt.Json = False,
) -> None:
    """Copy an index from a folder to an object store, or back. After an interruption, the same command starts over.

    Example: adacur index copy my.adacur s3://bucket/my.adacur
    """
    from adacur.index.copying import copy_index

    with notes.status("copying …"):
        copy_index(source, target)
    if as_json:
        print_json({"from": source, "to": target})
        return
    say(f"{target}: a copy of {source}.")
    note(f"To look at it: adacur inspect {target}")
