"""What the commands that edit an index share: open it, make one new version, show what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING

from adacur.cli.messages import KEPT, counted, log_as_notes, note, print_json, say

if TYPE_CHECKING:
    from adacur.engines import Ray
    from adacur.search import Change, Edit


def edit_index(
    path: str,
    make: Callable[[Edit], None],
    *,
    as_json: bool,
    scorer: str | None = None,
    trust: bool = False,
    on: Ray | None = None,
) -> None:
    """Make one new version of an index by the edits that `make` asks for, and print it."""
    import adacur

    # The edit recognises the scorer, after it has refused what cannot be done.
    with adacur.load(path, scorer=scorer, trust=trust, check=False) as index:
        try:
            with log_as_notes("adacur.change"), index.edit(on=on) as edit:
                make(edit)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{path} is unchanged. {KEPT}") from None
        _show(path, edit.change, as_json=as_json)


def _show(path: str, change: Change, *, as_json: bool) -> None:
    if as_json:
        print_json({"index": path, **asdict(change)})
        return
    items, anchors = counted(change.items, "item", "items"), counted(change.anchors, "anchor query", "anchor queries")
    say(f"{path}: version {change.version}, {items} × {anchors}.")
    if change.calls or change.recognising:
        note(
            f"{change.calls:,} scorer calls for new scores, {change.recognising:,} to recognise the scorer, "
            f"{change.timing:,} to time it."
        )
    tunings = [f"adacur tune {quote(path)} -k {k} --budget {budget}" for k, budget in change.tuned_for]
    again = {"compressed features": [f"adacur index compress {quote(path)}"], "tunings": tunings}
    for lost in change.lost:
        note(f"The {lost} belonged to the version before. To make them again: {' && '.join(again[lost])}")
