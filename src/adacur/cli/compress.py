"""`adacur compress`: what is told of sizes and of the recall they cost."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import Any

from adacur.cli.messages import megabytes, note, print_json, say, tell

__all__ = ["compress_command", "drop_command"]


def compress_command(index: str, *, as_json: bool, trust: bool, **options: Any) -> None:
    """Compress an index folder and print sizes and recall before and after."""
    import adacur
    from adacur.tuning import compress

    status = note.status("compressing, and searching for held-out anchor queries …")
    with status, adacur.load(index, trust=trust) as opened:
        done = compress(opened, **options)
    if as_json:
        print_json({"index": str(index), **asdict(done)})
        return
    say(
        f"{index}: {megabytes(done.bytes_after)} in memory instead of {megabytes(done.bytes_before)} "
        f"({done.bytes_before / done.bytes_after:.1f} times less), rank {done.rank}, {done.storage}."
    )
    say(
        f"Recall of the best {done.k} in {done.budget} calls: {done.recall_after:.3f} instead of "
        f"{done.recall_before:.3f}; it loses {done.lost:.3f}, between {done.low:.3f} and {done.high:.3f} with 95 % "
        f"confidence."
    )
    tell(
        f"Measured on {done.queries} held-out anchor queries among {done.items:,} items, without a scorer call. The "
        "scores stay in the folder; "
        f"searches no longer read them. To go back: adacur compress {quote(str(index))} --drop"
    )


def drop_command(index: str, *, as_json: bool) -> None:
    """Go back to searching with the anchor scores as they are."""
    import adacur
    from adacur.tuning import decompress

    dropped = decompress(adacur.load(index))
    if as_json:
        print_json({"index": str(index), "dropped": dropped})
    else:
        say(f"{index}: searched with its scores as they are{'' if dropped else ', as it was before'}.")
