"""`adacur index …`: change an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import KEPT, counted, log_as_notes, notes, show
from adacur.data import read_queries
from adacur.errors import InputError
from adacur.units import megabytes

if TYPE_CHECKING:
    from adacur.search import Edit
    from adacur.store import On


def add(
    index: opt.IndexPath,
    items: Annotated[Path | None, Argument(metavar="ITEMS", help="Items with the fields of the index.")] = None,
    anchors: Annotated[Path | None, Option(help="Anchor queries to add, for one scorer call per item each.")] = None,
    replace: Annotated[bool, Option("--replace", help="The items are there already: give them these texts.")] = False,
    scorer: opt.ScorerOfIndex = None,
    allow_code: opt.AllowCode = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Add items or anchor queries, or replace items.

    One scorer call per new pair. Interrupted, the same command continues. Processes that have the index open keep
    the version that they opened.

    Example: adacur index add my.adacur new.jsonl
    """
    if items is None and (anchors is None or replace):
        raise InputError("add needs a file of ITEMS, or --anchors FILE.")
    new = list(read_queries(anchors)) if anchors else []

    def make(edit: Edit) -> None:
        if items is not None:
            (edit.replace if replace else edit.add)(items)
        if new:
            edit.add_anchors(new)

    _edit(index, make, scorer=scorer, allow_code=allow_code, executor=opt.on_workers(workers, ray), as_json=as_json)


def remove(
    index: opt.IndexPath,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids of items; or name a file with --file.")] = None,
    file: Annotated[Path | None, Option("--file", help="A text file with an id per line.")] = None,
    anchor: Annotated[list[str] | None, Option(metavar="ID", help="An anchor query; may be repeated.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Remove items or anchor queries by their ids.

    Calls no scorer.

    Example: adacur index remove my.adacur doc-17 doc-18
    """
    named = [*(ids or ()), *(_lines(file) if file else ())]
    if not named and not anchor:
        raise InputError("remove needs at least one id. Give ids, --file FILE with an id per line, or --anchor ID.")

    def make(edit: Edit) -> None:
        if named:
            edit.remove(named)
        if anchor:
            edit.drop_anchors(anchor)

    _edit(index, make, as_json=as_json)


def compact(index: opt.IndexPath, as_json: opt.Json = False) -> None:
    """Copy an index into one part, without what is unused.

    Calls no scorer. Versions that are open somewhere stay until the next change. Interrupted additions that were
    never continued are deleted too.

    Example: adacur index compact my.adacur
    """
    _edit(index, lambda edit: edit.compact(), as_json=as_json)


def compress(
    index: opt.IndexPath,
    rank: Annotated[int, Option(min=1, help="Columns, besides as many as the dense first stage's vectors have.")] = 128,
    storage: Annotated[str, Option(help="int8, float16 (for a GPU) or float32.")] = "int8",
    k: opt.K = 10,
    budget: opt.Budget = 100,
    drop: Annotated[bool, Option("--drop", help="Remove the compressed form.")] = False,
    allow_code: opt.AllowCode = False,
    as_json: opt.Json = False,
) -> None:
    """Search an index in less memory.

    Measures the recall that it costs, on anchor queries held out. Calls no scorer.

    Example: adacur index compress my.adacur --rank 128 --storage int8
    """
    import adacur
    from adacur import replay

    if drop:
        with adacur.load(index) as opened:
            dropped = replay.decompress(opened)
        told = f"{index}: searched with its scores{'' if dropped else ', as before'}."
        show({"index": index, "dropped": dropped}, told, as_json=as_json)
        return
    status = notes.status("compressing, and searching for held-out anchor queries …")
    with status, adacur.load(index, allow_code=allow_code) as opened:
        # The library checks the name.
        done = replay.compress(opened, rank=rank, storage=storage, k=k, budget=budget)  # type: ignore[arg-type]
    show(
        {"index": index, **asdict(done)},
        f"{index}: {megabytes(done.bytes_after)} in memory instead of {megabytes(done.bytes_before)}, rank "
        f"{done.rank}, {done.storage}. Recall of the best {done.k} in {done.budget} calls: {done.recall_after:.3f} "
        f"instead of {done.recall_before:.3f}; it loses {done.lost:.3f} ({done.low:.3f} to {done.high:.3f} with 95 % "
        f"confidence), measured on {done.queries} held-out anchor queries.",
        hints=[f"To search with the scores again: adacur index compress {quote(index)} --drop"],
        as_json=as_json,
    )


def _lines(file: Path) -> list[str]:
    try:
        # str.splitlines would also cut ids at rare separators that they may contain.
        with file.open(encoding="utf-8-sig") as lines:
            return [line for text in lines if (line := text.strip())]
    except ValueError as error:
        raise InputError(f"{file} must be a text file with an id per line; it cannot be read ({error}).") from error


def _edit(
    path: str,
    make: Callable[[Edit], None],
    *,
    as_json: bool,
    scorer: str | None = None,
    allow_code: bool = False,
    executor: On = None,
) -> None:
    """Make one new version of an index by the edits that `make` asks for, and print it."""
    import adacur

    # The edit recognises the scorer, after it has refused what cannot be done.
    with adacur.load(path, scorer=scorer, allow_code=allow_code, check=False) as index:
        try:
            with log_as_notes("adacur.change"), index.edit(executor=executor) as edit:
                make(edit)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{path} is unchanged. {KEPT}") from None
    change = edit.change
    items, anchors = counted(change.items, "item", "items"), counted(change.anchors, "anchor query", "anchor queries")
    calls = f"{change.calls:,} scorer calls for new scores, {change.recognising:,} to recognise the scorer."
    again = {
        "compressed features": f"adacur index compress {quote(path)}",
        "tunings": " && ".join(f"adacur tune {quote(path)} -k {k} --budget {n}" for k, n in change.tuned_for),
    }
    lost = [f"The {what} belonged to the version before. To make them again: {again[what]}" for what in change.lost]
    show(
        {"index": path, **asdict(change)},
        f"{path}: version {change.version}, {items} × {anchors}.",
        hints=[calls if change.calls or change.recognising else "", *lost],
        as_json=as_json,
    )
