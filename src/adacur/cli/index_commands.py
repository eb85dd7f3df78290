"""`adacur index …`: change an index, copy it, check it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import KEPT, counted, log_as_notes, note, notes, print_json, say
from adacur.data import read_queries
from adacur.errors import InputError
from adacur.units import megabytes

if TYPE_CHECKING:
    from adacur.search import Change, Edit
    from adacur.store import On


def add(
    index: opt.IndexPath,
    items: opt.NewItems,
    scorer: opt.ScorerOfIndex = None,
    allow_code: opt.AllowCode = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Add items to an index, for one scorer call per item and anchor query. Interrupted, the same command continues.

    Processes that have the index open keep the version that they opened.

    Example: adacur index add my.adacur new.jsonl
    """
    where: dict[str, Any] = {"executor": opt.on_workers(workers, ray), "allow_code": allow_code}
    _edit(index, lambda edit: edit.add(items), scorer=scorer, as_json=as_json, **where)


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
    _edit(index, lambda edit: edit.remove(named), as_json=as_json)


def replace(
    index: opt.IndexPath,
    items: opt.NewItems,
    scorer: opt.ScorerOfIndex = None,
    allow_code: opt.AllowCode = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Give items of an index other texts, for one scorer call per item and anchor query.

    An interrupted replacement continues with the same command.

    Example: adacur index replace my.adacur changed.jsonl
    """
    where: dict[str, Any] = {"executor": opt.on_workers(workers, ray), "allow_code": allow_code}
    _edit(index, lambda edit: edit.replace(items), scorer=scorer, as_json=as_json, **where)


def anchors(
    index: opt.IndexPath,
    queries: Annotated[Path | None, Argument(help="Queries to add: .jsonl, .csv, .tsv, .txt or BEIR.")] = None,
    drop: Annotated[list[str] | None, Option(metavar="ID", help="An anchor query to remove; may be repeated.")] = None,
    scorer: opt.ScorerOfIndex = None,
    allow_code: opt.AllowCode = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Add anchor queries, for one scorer call per item each, or remove some, for none. More of them predict better.

    An interrupted addition continues with the same command.

    Example: adacur index anchors my.adacur queries.jsonl
    """
    if queries is None and not drop:
        raise InputError("anchors needs a file of QUERIES to add, or --drop ID to remove one.")
    new = list(read_queries(queries)) if queries else []

    def make(edit: Edit) -> None:
        if drop:
            edit.drop_anchors(drop)
        if new:
            edit.add_anchors(new)

    where: dict[str, Any] = {"executor": opt.on_workers(workers, ray), "allow_code": allow_code}
    _edit(index, make, scorer=scorer, as_json=as_json, **where)


def compact(index: opt.IndexPath, as_json: opt.Json = False) -> None:
    """Copy an index into one part and delete what is no longer used. Calls no scorer.

    Versions that are open somewhere stay until the next change. Interrupted additions that were never continued are
    deleted too.

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
    """Make an index searchable in less memory, and measure the recall that it costs. Calls no scorer.

    Example: adacur index compress my.adacur --rank 128 --storage int8
    """
    import adacur
    from adacur import replay as tuning

    if drop:
        with adacur.load(index) as opened:
            dropped = tuning.decompress(opened)
        if as_json:
            print_json({"index": index, "dropped": dropped})
        else:
            say(f"{index}: searched with its scores{'' if dropped else ', as before'}.")
        return
    status = notes.status("compressing, and searching for held-out anchor queries …")
    with status, adacur.load(index, allow_code=allow_code) as opened:
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


def verify(index: opt.IndexPath, as_json: opt.Json = False) -> None:
    """Read an index and name what differs from what was written. Exit code 1 if anything is damaged.

    Example: adacur index verify my.adacur
    """
    from adacur.errors import NotAnIndex
    from adacur.store import read_manifest
    from adacur.store import verify as verify_index
    from adacur.store.manifest import CONTINUE, MANIFEST
    from adacur.store.writing import folder_at

    try:
        read_manifest(folder_at(index))
    except NotAnIndex:
        # A folder with a damaged manifest is for the report to name.
        if not Path(index).is_dir():
            raise
    report = verify_index(index)
    if not report.complete and report.ok and (Path(index) / MANIFEST).exists():
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


def refresh(
    index: opt.IndexPath,
    log: Annotated[Path, Option(help="A file that searches with --log wrote.")],
    limit: Annotated[int, Option(min=1, help="Have at most N anchor queries from logs: those with most scores.")] = 500,
    fewest_scored: Annotated[int, Option(min=1, help="Leave out queries with fewer than N scores.")] = 20,
    allow_code: opt.AllowCode = False,
    as_json: opt.Json = False,
) -> None:
    """Make anchor queries of logged searches: their scores are reused, the rest predicted. Calls no scorer.

    Example: adacur index refresh my.adacur --log searches.sqlite
    """
    import adacur

    with notes.status("predicting the missing scores …"):
        done = adacur.extras.server.refresh(index, log, limit=limit, fewest_scored=fewest_scored, allow_code=allow_code)
    if as_json:
        print_json({"index": index, **asdict(done)})
        return
    say(f"{index}: {done.added} of {done.queries} logged queries added; {done.anchors} anchor queries now.")
    if done.dropped:
        note(f"{done.dropped} from searches that this log does not hold were dropped.")
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
