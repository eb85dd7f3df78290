"""`adacur index export`: an index into a vector engine, to be searched there."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import Annotated

from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.messages import note, print_json, say


def export(
    index: opt.IndexPath,
    store: Annotated[
        str,
        Argument(
            metavar="URL",
            help="Where to: qdrant://host:6333/NAME, qdrant-edge:///folder/NAME, lancedb:///folder/NAME or "
            "postgresql://host/database?table=NAME. A new collection beside NAME is made.",
        ),
    ],
    drop_old: Annotated[bool, Option("--drop-old", help="Remove what this index exported there before.")] = False,
    encoder: opt.EncoderName = None,
    trust: opt.Trust = False,
    as_json: opt.Json = False,
) -> None:
    """Write an index into a vector engine. An interrupted export continues with the same command. Calls no scorer.

    Example: adacur index export my.adacur qdrant://localhost:6333/articles
    """
    import adacur
    from adacur.search import export as export_index

    with adacur.load(index, encoder=encoder, trust=trust) as opened:
        done = export_index(opened, store, drop_old=drop_old)
    if as_json:
        print_json({"index": index, **asdict(done)})
        return
    say(f"{done.collection}: {done.items:,} items, rows of {done.columns} numbers.")
    if done.there:
        note(f"{done.there:,} of them were there before.")
    for name in done.dropped:
        note(f"Removed: {name}")
    url = quote(opt.repeatable_url(store))
    note(f"Next: adacur search {quote(index)} 'your question' --store {url}")
