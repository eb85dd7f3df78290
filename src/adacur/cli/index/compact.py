"""`adacur index compact`: one part, and nothing that is no longer used."""

from __future__ import annotations

from adacur.cli import options as opt
from adacur.cli.index.editing import edit_index


def compact(index: opt.IndexPath, as_json: opt.Json = False) -> None:
    """Copy an index into one part and delete what is no longer used. Calls no scorer.

    Versions that are open somewhere stay until the next change. Interrupted additions that were never continued are
    deleted too.

    Example: adacur index compact my.adacur
    """
    edit_index(index, lambda edit: edit.compact(), as_json=as_json)
