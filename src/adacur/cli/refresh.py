"""`adacur refresh`: what was made of a search log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from adacur.cli.messages import note, print_json, say, tell
from adacur.cli.opening import Trust, opened_encoder

__all__ = ["add_refresh_command"]


def add_refresh_command(app: typer.Typer) -> None:
    """Make this command known."""
    app.command(epilog="Example: adacur refresh my.adacur --log searches.sqlite")(refresh)


def refresh(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")],
    log: Annotated[Path, typer.Option(help="A file that searches with --log wrote.")],
    limit: Annotated[int, typer.Option(min=1, help="Add at most so many queries: those with most scores first.")] = 500,
    fewest_scored: Annotated[int, typer.Option(min=1, help="Leave out queries with fewer scores than these.")] = 20,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder of the dense first stage; default: the one it names.")
    ] = None,
    trust: Trust = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for machines, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Make anchor queries of logged searches: what they scored is kept, the rest predicted. Calls no scorer."""
    import adacur

    dual = None if encoder is None else opened_encoder(encoder)
    with note.status("predicting what was not scored …"):
        done = adacur.search.refresh(index, log, limit=limit, fewest_scored=fewest_scored, encoder=dual, trust=trust)
    if as_json:
        print_json({"index": str(index), **asdict(done)})
        return
    say(f"{index}: {done.added} of {done.queries} logged queries added; {done.anchors} anchor queries now.")
    left_out = {
        "were anchor queries already": done.known,
        f"had fewer than {fewest_scored} scores": done.too_few,
        "are beyond --limit": done.beyond_limit,
        "were scored by another scorer than that of the index": done.other_scorer,
    }
    if told := [f"{n} {why}" for why, n in left_out.items() if n]:
        tell(f"Left out: {'; '.join(told)}.")
    if done.added:
        tell(
            f"The log holds the texts of the queries, and so does the index now; to remove one of them there: adacur "
            f"drop-anchors {quote(str(index))} ID (adacur inspect {quote(str(index))} --anchors lists the ids)"
        )
