"""`adacur index remove`: items by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.index.editing import edit_index
from adacur.core.errors import InputError


def remove(
    index: opt.IndexPath,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids; or name a file with --file.")] = None,
    file: Annotated[Path | None, Option("--file", help="A text file with an id per line.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Remove items from an index by their ids. Calls no scorer.

    Example: adacur index remove my.adacur doc-17 doc-18
    """
    named = [*(ids or ()), *(_lines(file) if file else ())]
    if not named:
        raise InputError("remove needs at least one id. Give ids, or --file FILE with an id per line.")
    edit_index(index, lambda edit: edit.remove(named), as_json=as_json)


def _lines(file: Path) -> list[str]:
    try:
        # str.splitlines would also cut ids at rare separators that they may contain.
        with file.open(encoding="utf-8-sig") as lines:
            return [line for text in lines if (line := text.strip())]
    except ValueError as error:
        raise InputError(f"{file} must be a text file with an id per line; it cannot be read ({error}).") from error
