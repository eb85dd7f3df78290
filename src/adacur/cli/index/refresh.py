"""`adacur index refresh`: anchor queries from logged searches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

from typer import Option

from adacur.cli import options as opt
from adacur.cli.messages import note, notes, print_json, say


def refresh(
    index: opt.IndexPath,
    log: Annotated[Path, Option(help="A file that searches with --log wrote.")],
    limit: Annotated[int, Option(min=1, help="Have at most N anchor queries from logs: those with most scores.")] = 500,
    fewest_scored: Annotated[int, Option(min=1, help="Leave out queries with fewer than N scores.")] = 20,
    trust: opt.Trust = False,
    as_json: opt.Json = False,
) -> None:
    """Make anchor queries of logged searches: their scores are reused, the rest predicted. Calls no scorer.

    Example: adacur index refresh my.adacur --log searches.sqlite
    """
    import adacur

    with notes.status("predicting the missing scores …"):
        done = adacur.search.refresh(index, log, limit=limit, fewest_scored=fewest_scored, trust=trust)
    if as_json:
        print_json({"index": index, **asdict(done)})
        return
    say(f"{index}: {done.added} of {done.queries} logged queries added; {done.anchors} anchor queries now.")
    if done.updated:
        note(f"{done.updated} that were there have more scores now.")
    left_out = {
        "were anchor queries already": done.known,
        f"had fewer than {fewest_scored} scores": done.too_few,
        "are beyond --limit": done.beyond_limit,
        "were scored by another scorer than that of the index": done.other_scorer,
    }
    if reasons := [f"{n} {why}" for why, n in left_out.items() if n]:
        note(f"Left out: {'; '.join(reasons)}.")
    if done.added:
        name = quote(index)
        note(
            "The index now holds the texts of these queries. To remove one: adacur index anchors "
            f"{name} --drop ID (adacur inspect {name} --show anchors lists the ids)"
        )
