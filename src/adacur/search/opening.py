"""From a folder to an index."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adacur.data import names
from adacur.errors import InputError, UnknownOption
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.names import SEARCH_IN, SEARCH_LOG, WITHOUT_CREDENTIALS, is_store_url, named
from adacur.protocols import FirstStage, Scorer, ScorerCard
from adacur.scorers.by_name import is_function_name
from adacur.scorers.by_name import scorer as open_scorer
from adacur.scorers.consent import check_consent, check_not_from_here
from adacur.search.index import AnchorIndex, SearchWatcher
from adacur.search.index_stages import open_first_stages
from adacur.search.shipped import wikivital_folder
from adacur.search.snapshot import Reopen
from adacur.store import Drift, IndexFolder, check_scorer


def load(
    path: str | Path,
    *,
    scorer: Any = None,
    encoder: Any = None,
    check: bool = True,
    device: str | None = None,
    log: str | Path | SearchWatcher | None = None,
    allow_code: bool = False,
    exact: bool = True,
) -> AnchorIndex:
    """Open an index folder, or the index that ships with adacur: "wikivital", 10,033 Wikipedia articles.

    The URL of a collection in a vector engine ("qdrant://localhost:6333/articles") is opened by `search_in`.

    - `scorer`: the scorer that built the index, or its name. By default the one named in the manifest is opened when a
      search first needs it: a model of the catalogue, of the hub or in a folder of yours. Another model is refused,
      another backend of the same one is accepted with a `DriftWarning` that gives the measured difference;
    - `allow_code`: open a function or a service that the manifest names; else that is refused (`NotTrusted`), since
      the folder may come from anyone;
    - `check`: recognise a scorer whose weights differ or cannot be compared, for 32 calls;
    - `encoder`: replaces that of the dense first stage;
    - `device`: where "gaussian" searches hold the items' features and predict, e.g. "cuda"; by default numpy does;
    - `exact`: False lets an engine use an index that may miss some items;
    - `log`: a `SearchLog` or its file, to which every search writes its query and what it paid for;
      `adacur.extras.server.refresh` makes anchor queries from it.
    """
    if path == "wikivital" and not Path(path).exists():
        path = wikivital_folder()
    if isinstance(path, str) and is_store_url(path):
        if scorer is None:
            raise InputError(f"{named(WITHOUT_CREDENTIALS)(path)} names no scorer. Give one: scorer=…, or --scorer.")
        if device is not None:
            raise InputError("device= is for index folders; a collection is searched where it is.")
        opened_there: AnchorIndex = named(SEARCH_IN)(
            path, scorer=scorer, encoder=encoder, exact=exact, check=check, log=log
        )
        return opened_there
    folder = IndexFolder.open(path)
    # A file that is not a log is refused before a search is paid for.
    search_log = named(SEARCH_LOG)(log) if isinstance(log, str | Path) else log
    opened = None if scorer is None else _open_as_built(scorer, folder.manifest.scorer)
    drift = None if opened is None or not check else check_scorer(folder, opened)
    how: dict[str, Any] = {"check": check, "drift": drift, "device": device, "log": search_log}
    return open_folder(folder, scorer=opened, encoder=open_encoder(encoder), allow_code=allow_code, **how)


def open_folder(
    folder: IndexFolder,
    *,
    scorer: Scorer | None,
    encoder: Any,
    check: bool = True,
    drift: Drift | None = None,
    device: str | None = None,
    log: SearchWatcher | None = None,
    allow_code: bool = False,
) -> AnchorIndex:
    """An index on an opened folder; `drift` was measured of the scorer that is given, unless without `check`."""

    def named_scorer(version: IndexFolder) -> tuple[Scorer, Drift | None]:
        return _named_scorer(version, check=check, allow_code=allow_code)

    def first_stages(version: IndexFolder) -> Mapping[str, Callable[[], FirstStage]]:
        return open_first_stages(version.home, encoder=encoder, allow_code=allow_code)

    return AnchorIndex(
        folder,
        scorer=functools.partial(named_scorer, folder) if scorer is None else scorer,
        first=first_stages(folder),
        card=folder.manifest.scorer,
        path=folder.path,
        drift=drift,
        device=device,
        reopen=Reopen(scorer=named_scorer, first=first_stages),
        recognised=check,
        log=log,
    )


def _open_as_built(source: Any, card: ScorerCard | None) -> Scorer:
    """A scorer given by its name gets the options of the one that built the index, or it would not be recognised."""
    if card is not None and isinstance(source, str | Path) and (options := _as_built(card, source)):
        # Functions and services take none of these options.
        with contextlib.suppress(UnknownOption):
            return open_scorer(source, **options)
    return open_scorer(source)


def _as_built(card: ScorerCard, source: object) -> dict[str, Any]:
    """The options on a card that decide the scores; a function is known to caches by its name."""
    name = card.name if card.backend == "function" and card.source == source else None
    options = {"max_item_tokens": card.max_item_tokens, "prompt": card.prompt, "readout": card.readout, "name": name}
    return {name: value for name, value in options.items() if value is not None}


def _named_scorer(folder: IndexFolder, *, check: bool, allow_code: bool) -> tuple[Scorer, Drift | None]:
    card = folder.manifest.scorer
    if card is None or (card.source is None and card.name not in names()):
        raise InputError(
            f"The manifest of {str(folder.path)!r} does not say how to open its scorer"
            f"{f' {card.name!r}' if card else ''}. Give it: adacur.load(path, scorer=…), or --scorer."
        )
    limit = {} if card.max_tokens is None else {"max_tokens": card.max_tokens}
    # A service has its own limit and takes none from us.
    options = {} if card.backend == "http" else limit | _as_built(card, card.source)
    source = card.name if card.source is None else card.source
    if source not in names():
        check_consent(source, what="scorer", folder=folder.path, allow_code=allow_code)
    try:
        # The path may be of another machine; a name of the catalogue can be fetched anywhere.
        if card.name in names() and Path(source).is_absolute() and not Path(source).exists():
            source = card.name
        if is_function_name(source):
            check_not_from_here(source)
        opened = open_scorer(source, **options)
    except (LookupError, OSError, ValueError) as error:
        raise InputError(
            f"The scorer of {str(folder.path)!r}, {card.name!r} from {card.source!r}, cannot be opened here. {error} "
            "Or give it: adacur.load(path, scorer=…), or --scorer."
        ) from error
    drift = check_scorer(folder, opened) if check else None
    return opened, drift
