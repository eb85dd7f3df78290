"""Opens indexes for serving: each under a name, and each model only once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur.errors import InputError
from adacur.extras.engines.store_urls import without_credentials
from adacur.extras.server.server_settings import ServerSettings
from adacur.names import is_store_url
from adacur.protocols import Scorer
from adacur.scorers import Cached
from adacur.search import AnchorIndex, load
from adacur.store import IndexFolder

_NAMED = re.compile(r"(?P<name>[^=/\\]+)=(?P<place>.+)", re.DOTALL)


def named_places(given: Iterable[str]) -> dict[str, str]:
    """Folders or URLs by the names they are served under: NAME=PATH, or the folder's name without .adacur."""
    places: dict[str, str] = {}
    for one in given:
        named = None if Path(one).exists() else _NAMED.fullmatch(one)
        place = named["place"] if named else one
        name = named["name"] if named else _name_of(place)
        if name in places:
            raise InputError(
                f"Two indexes would be served under the name {name!r}: {without_credentials(places[name])} and "
                f"{without_credentials(place)}. Name one of them: NAME=INDEX"
            )
        places[name] = place
    return places


def _name_of(place: str) -> str:
    """The name of a folder, or of the collection or table at a URL."""
    place = place.partition("?")[0] if is_store_url(place) else place
    return Path(place.rstrip("/")).resolve().name.removesuffix(".adacur")


def open_indexes(
    places: Mapping[str, str | Path],
    *,
    scorer: Any = None,
    encoder: Any = None,
    allow_code: bool = False,
    cache: Path | None = None,
    settings: ServerSettings | None = None,
) -> dict[str, AnchorIndex]:
    """Open indexes with their scorers; indexes that were built by the same scorer share it.

    `scorer` replaces the one that each was built with, and `encoder` that of item vectors; `cache` is a file
    for scores. `settings` say what is logged.
    """
    opened: dict[Any, Scorer] = {}
    indexes: dict[str, AnchorIndex] = {}
    for name, place in places.items():
        card = None if is_store_url(str(place)) else IndexFolder.open(place).manifest.scorer
        # With a scorer given, indexes differ by what they make of it.
        model: Any = card and (card.max_item_tokens, card.prompt, card.readout)
        if card and scorer is None:
            model = replace(card, arithmetic=None)
        log = None if settings is None else settings.search_log(name)
        index = load(place, scorer=opened.get(model, scorer), encoder=encoder, allow_code=allow_code, log=log)
        if cache is not None and model not in opened:
            index = index.with_scorer(lambda opened_scorer: Cached(opened_scorer, cache))
        opened[model] = index.scorer
        indexes[name] = index
    return indexes
