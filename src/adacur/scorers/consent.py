"""What an index folder may have opened on its own word, and what takes the user's."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from adacur.core.errors import NotTrusted, UnknownName
from adacur.scorers.weights import json_of

__all__ = ["check_consent", "check_not_from_here", "why_consent"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Files in which a sentence-transformers model names classes to import, and the packages that these may be from.
_NAMES_CODE = ("modules.json", "router_config.json", "config.json")
_KNOWN_CODE = ("sentence_transformers.", "torch.nn.")


def why_consent(source: str, *, folder: Path) -> str | None:
    """Why a source that a folder names is not opened on its word; None for the weights of a model.

    Those are a hub name, and a path of this machine, outside the folder, whose model names no code of its own.
    """
    if _URL.match(source):
        return "a service, which would receive your queries and items"
    path = Path(source)
    if path.drive.startswith(("\\\\", "//")):
        return "a path on another machine"
    if path.is_absolute():
        if folder.resolve() in path.resolve().parents:
            return "a model in the folder itself"
        code = _code_of(path)
        return None if code is None else f"a model that runs the code {code!r}"
    if _HUB_NAME.fullmatch(source) and not path.exists():
        return None
    if ":" in source:
        return "code, which would run as you"
    return "a path relative to wherever you happen to be"


def check_consent(source: str, *, what: str, folder: Path, trust: bool) -> None:
    """Refuse to open what a folder names where that takes the user's consent; `what` is "scorer" or "encoder"."""
    if trust or (why := why_consent(source, folder=folder)) is None:
        return
    raise NotTrusted(
        f"{str(folder)!r} names its {what} as {source!r}: {why}. A folder alone does not decide that. Give the {what} "
        f"yourself, {what}={source!r} in Python or --{what} {source} in a command; or, if you trust whoever made the "
        "folder, trust=True or --trust."
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


def _code_of(model: Path) -> str | None:
    """A class that a sentence-transformers model would import from elsewhere than its own library."""
    if not model.is_dir():
        return None
    for name in _NAMES_CODE:
        for file in (model / name, *sorted(model.glob(f"*/{name}"))):
            for found in _classes(json_of(file)):
                if not found.startswith(_KNOWN_CODE):
                    return found
    return None


def _classes(content: Any) -> list[str]:
    """Values that sentence-transformers takes for the dotted name of a class."""
    if isinstance(content, list):
        return [found for one in content for found in _classes(one)]
    if not isinstance(content, dict):
        return []
    named = [content.get(key) for key in ("type", "activation_function", "activation_fn")]
    types = content.get("types")
    named += list(types.values()) if isinstance(types, dict) else []
    return [str(name) for name in named if isinstance(name, str) and "." in name] + _classes(
        content.get("sentence_transformers")
    )
