"""`adacur copy`: an index from a folder to an object store, or back."""

from __future__ import annotations

from typing import Annotated

import typer

from adacur.cli.messages import note, print_json, say, tell

__all__ = ["add_copy_command"]

_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else, on stdout.")]


def add_copy_command(app: typer.Typer) -> None:
    """Make this command known."""
    app.command(epilog="Example: adacur copy my.adacur s3://bucket/my.adacur")(copy)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="An index folder, or a URL.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A URL, or a folder that is not there yet.")],
    as_json: _Json = False,
) -> None:
    """Copy an index from a folder to an object store, or back. Interrupted, the same command copies it anew."""
    from adacur.index.copying import copy_index

    with note.status("copying …"):
        copy_index(source, target)
    if as_json:
        print_json({"from": source, "to": target})
        return
    say(f"{target}: a copy of {source}.")
    tell(f"To look at it: adacur inspect {target}")
