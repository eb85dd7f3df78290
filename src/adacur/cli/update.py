"""Commands that change an index: add, remove, replace, add-anchors, drop-anchors, compact."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adacur.cli.messages import KEPT, counted, log_as_notes, note, print_json, say, tell
from adacur.cli.opening import Trust
from adacur.core.errors import InputError
from adacur.data import ItemFile, read_queries

if TYPE_CHECKING:
    from adacur.search import AnchorIndex, Change, Edit

__all__ = ["add_update_commands"]

_Index = Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")]
_ItemsFile = Annotated[
    Path, typer.Argument(metavar="ITEMS", help="Items: .jsonl, .csv, .tsv or .txt (also .gz), or a BEIR folder.")
]
_Scorer = Annotated[
    str | None, typer.Option("--scorer", help="The scorer that built the index; default: the one it names.")
]
_Encoder = Annotated[
    str | None,
    typer.Option("--encoder", help="Encoder of the dense first stage; default: the one they name."),
]
_Cache = Annotated[Path | None, typer.Option(help="A file that keeps scores from run to run; made if there is none.")]
_IdField = Annotated[
    str | None, typer.Option("--id-field", help="The field or column with the item's id, if it goes by another name.")
]
_TextFields = Annotated[
    list[str] | None, typer.Option("--text-field", help="The field or column with the item's text; may be repeated.")
]
_Ray = Annotated[bool, typer.Option("--ray", help="Score on a Ray cluster.")]
_Address = Annotated[
    str | None, typer.Option("--address", help="The Ray cluster, e.g. auto; default: one is started on this machine.")
]
_Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that score; default: as for build.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids; or name a file with --file.")]
_IdsFile = Annotated[Path | None, typer.Option("--file", help="A text file with an id per line.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else, on stdout.")]


def add_update_commands(app: typer.Typer) -> None:
    """Make these commands known."""
    app.command(epilog="Example: adacur add my.adacur new.jsonl")(add)
    app.command(epilog="Example: adacur remove my.adacur doc-17 doc-18")(remove)
    app.command(epilog="Example: adacur replace my.adacur changed.jsonl")(replace)
    app.command("add-anchors", epilog="Example: adacur add-anchors my.adacur queries.jsonl")(add_anchors)
    app.command("drop-anchors", epilog="Example: adacur drop-anchors my.adacur q-3 q-4")(drop_anchors)
    app.command(epilog="Example: adacur compact my.adacur")(compact)


def add(
    index: _Index,
    items: _ItemsFile,
    scorer: _Scorer = None,
    trust: Trust = False,
    encoder: _Encoder = None,
    cache: _Cache = None,
    ray: _Ray = False,
    address: _Address = None,
    workers: _Workers = None,
    id_field: _IdField = None,
    text_field: _TextFields = None,
    as_json: _Json = False,
) -> None:
    """Add items to an index, one scorer call per anchor query each. Interrupt it at will: the same command continues.

    Whoever has the index open keeps the version that was opened; whoever opens it from then on finds the new items.
    """
    with _opened(index, scorer=scorer, trust=trust, encoder=encoder, cache=cache) as opened:
        source = _items(opened, items, id_field, text_field)
        done = _change(opened, lambda edit: edit.add(source), on=_on(ray, address, workers))
        _show(index, done, asked=sum(1 for _ in source) * done.anchors, as_json=as_json)


def replace(
    index: _Index,
    items: _ItemsFile,
    scorer: _Scorer = None,
    trust: Trust = False,
    encoder: _Encoder = None,
    cache: _Cache = None,
    ray: _Ray = False,
    address: _Address = None,
    workers: _Workers = None,
    id_field: _IdField = None,
    text_field: _TextFields = None,
    as_json: _Json = False,
) -> None:
    """Give items of an index other texts, in one step, for one scorer call per anchor query each.

    Interrupt it at will: the same command continues.
    """
    with _opened(index, scorer=scorer, trust=trust, encoder=encoder, cache=cache) as opened:
        source = _items(opened, items, id_field, text_field)
        done = _change(opened, lambda edit: edit.replace(source), on=_on(ray, address, workers))
        _show(index, done, asked=sum(1 for _ in source) * done.anchors, as_json=as_json)


def remove(index: _Index, ids: _Ids = None, file: _IdsFile = None, as_json: _Json = False) -> None:
    """Remove items from an index by their ids. Calls no scorer."""
    with _opened(index) as opened:
        _show(index, _change(opened, lambda edit: edit.remove(_ids(ids, file))), as_json=as_json)


def add_anchors(
    index: _Index,
    queries: Annotated[Path, typer.Argument(metavar="QUERIES", help="Queries: .jsonl, .csv, .tsv, .txt or BEIR.")],
    scorer: _Scorer = None,
    trust: Trust = False,
    cache: _Cache = None,
    ray: _Ray = False,
    address: _Address = None,
    workers: _Workers = None,
    as_json: _Json = False,
) -> None:
    """Add anchor queries to an index, one scorer call per item each. Interrupt it at will: the same command continues.

    More anchor queries predict better.
    """
    new = list(read_queries(queries))
    with _opened(index, scorer=scorer, trust=trust, cache=cache) as opened:
        done = _change(opened, lambda edit: edit.add_anchors(new), on=_on(ray, address, workers))
        _show(index, done, asked=len(new) * done.items, as_json=as_json)


def drop_anchors(index: _Index, ids: _Ids = None, file: _IdsFile = None, as_json: _Json = False) -> None:
    """Remove anchor queries from an index by their ids. Calls no scorer."""
    with _opened(index) as opened:
        _show(index, _change(opened, lambda edit: edit.drop_anchors(_ids(ids, file))), as_json=as_json)


def compact(index: _Index, as_json: _Json = False) -> None:
    """Copy what counts of an index into one part and delete what nobody uses any more. Calls no scorer.

    Versions that somebody has open stay until the next change. What is left of additions that were interrupted and
    never continued is deleted too.
    """
    with _opened(index) as opened, note.status("copying …"):
        _show(index, _change(opened, lambda edit: edit.compact()), as_json=as_json)


def _opened(index: Path, *, encoder: str | None = None, **options: Any) -> AnchorIndex:
    import adacur
    from adacur.cli.opening import opened_encoder

    # The change itself recognises the scorer, once it has refused what cannot be.
    return adacur.load(index, encoder=None if encoder is None else opened_encoder(encoder), check=False, **options)


def _items(index: AnchorIndex, file: Path, id_field: str | None, text_field: list[str] | None) -> ItemFile:
    """The items of a file, by the fields that the index was built with where none are named."""
    from adacur.index import Origin

    built = index.origin or Origin()
    given = Origin(id_field or built.id_field, tuple(text_field) if text_field else built.text_fields)
    if index.origin is not None and given.fields != built.fields:
        tell(f"{index.path} was built with {built.fields or 'the usual fields'}; {file} is read with {given.fields}.")
    elif built.fields:
        tell(f"{file} is read with {built.fields}, as {index.path} was built.")
    return ItemFile(file, id_field=given.id_field, text_fields=given.text_fields)


def _on(ray: bool, address: str | None, workers: int | None) -> Any:
    from adacur.engines import Ray

    if address is not None and not ray:
        raise InputError(f"--address is that of a Ray cluster; give --ray too. Got {address!r}.")
    return Ray(address, workers) if ray else workers


def _change(index: AnchorIndex, make: Callable[[Edit], None], *, on: Any = None) -> Change:
    try:
        with log_as_notes("adacur.change"), index.edit(on=on) as edit:
            make(edit)
        return edit.change
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{index.path} is as it was. {KEPT}") from None


def _show(index: Path, done: Change, *, asked: int = 0, as_json: bool) -> None:
    if as_json:
        print_json({"index": str(index), **asdict(done)})
        return
    items, anchors = counted(done.items, "item", "items"), counted(done.anchors, "anchor query", "anchor queries")
    say(f"{index}: version {done.version}, {items} × {anchors}.")
    if asked:
        rest = "; the others had been scored before" if done.calls < asked else ""
        tell(f"{done.calls:,} scorer calls were paid{rest}." if done.calls else "None was paid: it was scored before.")
    if beside := [
        f"{calls:,} calls went into {what}"
        for what, calls in (("recognising the scorer", done.recognising), ("timing it", done.timing))
        if calls
    ]:
        tell(f"Besides, {' and '.join(beside)}.")
    again = {"compressed features": [f"adacur compress {quote(str(index))}"], "tunings": _tune_again(index, done)}
    for what in done.lost:
        tell(f"The {what} belonged to the version before. To make them again: {' && '.join(again[what])}")


def _tune_again(index: Path, done: Change) -> list[str]:
    """The commands that tune for the same k and budgets; one command takes each of its k with each of its budgets."""
    ks_of: dict[int, list[int]] = {}
    for k, budget in done.tuned_for:
        ks_of.setdefault(budget, []).append(k)
    budgets_of: dict[tuple[int, ...], list[int]] = {}
    for budget, ks in ks_of.items():
        budgets_of.setdefault(tuple(ks), []).append(budget)
    return [
        " ".join(
            [
                f"adacur tune {quote(str(index))}",
                *(f"-k {k}" for k in ks),
                *(f"--budget {budget}" for budget in budgets),
            ]
        )
        for ks, budgets in (budgets_of or {(): []}).items()
    ]


def _ids(ids: Iterable[str] | None, file: Path | None) -> list[str]:
    named = list(ids or ())
    if file is not None:
        try:
            # Line by line as files have them: str.splitlines would cut ids at signs of their own.
            with file.open(encoding="utf-8-sig") as lines:
                named += [line for text in lines if (line := text.strip())]
        except ValueError as error:
            raise InputError(
                f"{file} is to be a text file with an id per line; it cannot be read ({error})."
            ) from error
    if not named:
        raise InputError("Nothing was named. Give ids, or --file FILE with an id per line.")
    return named
