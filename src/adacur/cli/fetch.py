"""`adacur fetch`: models and collections by name."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from adacur.cli import arguments as opt
from adacur.cli.messages import note, notes, print_json, print_rows, say
from adacur.data import Asset, cache_folder, describe, is_fetched, names
from adacur.data import fetch as fetch_one
from adacur.units import megabytes


def fetch(
    wanted: Annotated[list[str] | None, Argument(help="Names; none lists what there is.", metavar="NAME")] = None,
    as_json: opt.Json = False,
) -> None:
    """Fetch models and collections by name, checked and cached. Without a name: list them.

    Example: adacur fetch ms-marco-MiniLM-L-12-v2 wikivital
    """
    assets = [describe(name) for name in wanted or names()]
    if not wanted:
        _list(assets, as_json=as_json)
        return
    fetched = {}
    for asset in assets:
        note(f"{asset.name}: {asset.origin}. Licence: {asset.licence}.")
        with notes.status(f"fetching {asset.name}, {megabytes(asset.size)} …"):
            fetched[asset.name] = str(fetch_one(asset.name))
    if as_json:
        print_json(fetched)
        return
    for name, path in fetched.items():
        say(f"{name}\t{path}")


def _list(assets: list[Asset], *, as_json: bool) -> None:
    if as_json:
        facts = ("name", "kind", "licence", "origin")
        rows = [{name: getattr(one, name) for name in facts} | {"bytes": one.size} for one in assets]
        print_json([row | {"fetched": is_fetched(row["name"])} for row in rows])
        return
    shown = [(asset.name, megabytes(asset.size), asset.licence, asset.origin) for asset in assets]
    print_rows(("name", "size", "licence", "what it is"), shown, texts=4)
    here = [asset.name for asset in assets if is_fetched(asset.name)]
    note(f"Stored in {cache_folder()} (set ADACUR_CACHE to change). Next: adacur fetch NAME")
    note(f"Here already: {', '.join(here) or 'none'}.")
