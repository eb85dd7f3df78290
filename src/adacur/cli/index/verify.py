"""`adacur index verify`: is every file as it was written?"""

from __future__ import annotations

from pathlib import Path

import typer

from adacur.cli import options as opt
from adacur.cli.messages import note, print_json, say


def verify(index: opt.IndexPath, as_json: opt.Json = False) -> None:
    """Read an index and name what differs from what was written. Exit code 1 if anything is damaged.

    Example: adacur index verify my.adacur
    """
    from adacur.core.errors import NotAnIndex
    from adacur.index import index_url, read_manifest
    from adacur.index import verify as verify_index
    from adacur.index.manifest import CONTINUE, MANIFEST

    is_folder = index_url(index) is None
    try:
        if is_folder:
            read_manifest(Path(index))
    except NotAnIndex:
        # A folder with a damaged manifest is for the report to name.
        if not Path(index).is_dir():
            raise
    report = verify_index(index)
    if not report.complete and report.ok and is_folder and (Path(index) / MANIFEST).exists():
        note(CONTINUE)
    if as_json:
        print_json({"ok": report.ok, "complete": report.complete, "problems": report.problems, "blocks": report.blocks})
    elif report.ok:
        state = "complete" if report.complete else f"unfinished: {report.blocks_checked} of {report.blocks} blocks"
        say(f"{index}: nothing is damaged ({state}).")
    else:
        for problem in report.problems:
            say(f"{problem.file}: {problem.what}")
    if not report.ok:
        raise typer.Exit(1)
