"""What an index folder may name to be opened, and what needs the user's consent."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

from adacur.errors import NotTrusted, UnknownName

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def why_consent(source: str, *, folder: Path | None) -> str | None:
    """Why a source that a folder names is not opened on its word; None for the weights of a model.

    Those are a hub name, and a path of this machine outside the folder. Code that a model names is run nowhere:
    transformers and sentence-transformers refuse it.
    """
    if _URL.match(source):
        return "a service, which would receive your queries and items"
    path = Path(source)
    if path.drive.startswith(("\\\\", "//")):
        return "a path on another machine"
    if path.is_absolute():
        if folder is not None and folder.resolve() in path.resolve().parents:
            return "a model in the folder itself"
        return None
    if _HUB_NAME.fullmatch(source) and not path.exists():
        return None
    if ":" in source:
        return "code, which would run as you"
    return "a path relative to wherever you happen to be"


def check_consent(source: str, *, what: str, folder: Path, allow_code: bool) -> None:
    """Refuse to open what a folder names where that takes the user's consent; `what` is "scorer" or "encoder"."""
    if allow_code:
        return
    try:
        why = why_consent(source, folder=folder)
    except (OSError, ValueError) as error:
        # A name too long for any file, or with a zero in it.
        why = f"no path ({error})"
    if why is None:
        return
    # To be pasted as it is, so that nothing in it is a word to the shell or an order to the terminal.
    typed = shlex.quote(source) if source.isprintable() else "…"
    raise NotTrusted(
        f"{str(folder)!r} names its {what} as {source!r}: {why}. A folder alone does not decide that. Give the {what} "
        f"yourself, {what}={source!r} in Python or --{what} {typed} in a command; or, if you trust the maker of the "
        "folder, allow_code=True or --allow-code."
    )


def check_not_from_here(source: str) -> None:
    """Refuse a "module:name" of a folder whose module Python would find in the current folder.

    Files lie there that came with whatever was unpacked; a module is believed where it is installed or on PYTHONPATH.
    """
    top = source.partition(":")[0].partition(".")[0]
    if top in sys.modules:
        return
    spec = importlib.util.find_spec(top)
    if spec is None:
        return
    places = {Path(place) for place in spec.submodule_search_locations or ()}
    if spec.has_location and spec.origin and not places:
        places = {Path(spec.origin)}
    here = Path.cwd().resolve()
    chosen = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if here not in chosen and any(place.resolve().parent == here for place in places):
        raise UnknownName(
            f"The module {top!r} of the scorer {source!r} lies in the current folder, where a name that an index gives "
            f"is not looked for. Name it yourself: --scorer {source}, or scorer={source!r}."
        )
