"""`adacur index compress`: less memory, and the recall that it costs."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import Annotated

from typer import Option

from adacur.cli import options as opt
from adacur.cli.messages import note, notes, print_json, say
from adacur.core.units import megabytes


def compress(
    index: opt.IndexPath,
    rank: Annotated[int, Option(min=1, help="Columns, besides as many as the dense first stage's vectors have.")] = 128,
    storage: Annotated[str, Option(help="int8, float16 (for a GPU) or float32.")] = "int8",
    k: opt.K = 10,
    budget: opt.Budget = 100,
    drop: Annotated[bool, Option("--drop", help="Remove the compressed form.")] = False,
    trust: opt.Trust = False,
    as_json: opt.Json = False,
) -> None:
    """Make an index searchable in less memory, and measure the recall that it costs. Calls no scorer.

    Example: adacur index compress my.adacur --rank 128 --storage int8
    """
    import adacur
    from adacur import tuning

    if drop:
        with adacur.load(index) as opened:
            dropped = tuning.decompress(opened)
        if as_json:
            print_json({"index": index, "dropped": dropped})
        else:
            say(f"{index}: searched with its scores{'' if dropped else ', as before'}.")
        return
    status = notes.status("compressing, and searching for held-out anchor queries …")
    with status, adacur.load(index, trust=trust) as opened:
        # The library checks the name.
        done = tuning.compress(opened, rank=rank, storage=storage, k=k, budget=budget)  # type: ignore[arg-type]
    if as_json:
        print_json({"index": index, **asdict(done)})
        return
    say(
        f"{index}: {megabytes(done.bytes_after)} in memory instead of {megabytes(done.bytes_before)} "
        f"({done.bytes_before / done.bytes_after:.1f} times less), rank {done.rank}, {done.storage}.\n"
        f"Recall of the best {done.k} in {done.budget} calls: {done.recall_after:.3f} instead of "
        f"{done.recall_before:.3f}; it loses {done.lost:.3f}, between {done.low:.3f} and {done.high:.3f} with 95 % "
        f"confidence."
    )
    note(f"Measured on {done.queries} held-out anchor queries among {done.items:,} items, without a scorer call.")
    note(f"The scores stay in the folder. To search with them again: adacur index compress {quote(index)} --drop")
