"""From texts to an index, and from a folder back to one."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adacur.approximation import Storage
from adacur.core.errors import InputError, UnknownOption
from adacur.core.protocols import Retriever, Scorer, ScorerCard
from adacur.core.records import Item, Query
from adacur.data import ItemFile, as_items, names, pseudo_queries
from adacur.first_stages.opening import encoder
from adacur.index import Drift, IndexFolder, Origin, Progress, build_scores, check_scorer, is_finished
from adacur.scorers import Cached
from adacur.scorers.consent import check_consent, check_not_from_here
from adacur.scorers.opening import is_function_name, scorer
from adacur.search.anchor_index import AnchorIndex, Reopen
from adacur.search.compression import Compression
from adacur.search.first_stages import (
    FirstStage,
    add_first_stages,
    check_first_stages,
    check_leads,
    listed_stages,
    open_first_stages,
)
from adacur.search.living import ScoringBar
from adacur.search.search_log import SearchLog
from adacur.search.sparse_build import RANDOM_SHARE, build_sparse, check_not_sparse, check_random_share, check_sparse
from adacur.search.tuning import FEWEST_QUERIES

__all__ = ["build", "compress", "load"]

_log = logging.getLogger("adacur.build")

# What a search without options asks for.
_USUAL_K, _USUAL_BUDGET = 10, 100
_QUICK_QUERIES = 50
_SCORES_TO_TUNE_BY = 100_000_000


def build(
    items: Iterable[Item | str] | str | Path,
    anchor_queries: Iterable[Query] | int,
    *,
    scorer: Any,
    path: str | Path,
    dtype: str = "float32",
    first: FirstStage | Sequence[FirstStage] = "bm25",
    encoder: Any = None,
    block_items: int | None = None,
    seed: int = 0,
    progress: bool = True,
    cache: str | Path | None = None,
    tune: bool = True,
    sparse: float | None = None,
    random_share: float | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    command: Sequence[str] = (),
) -> AnchorIndex:
    """Score every item against every anchor query, keep the scores in a folder, and open it.

    `items` are records, a list of texts (whose ids are then 0, 1, 2 …), or the path of a file, which `read_items`
    reads; of an `ItemFile` the index remembers the fields, and `add` and `replace` read other files by them.
    Costs items × anchor queries scorer calls, and up to half a percent more to choose the size of a block. A build
    that was interrupted goes on where it stopped when called again; a finished one is opened. A scorer without weights
    to compare, such as a function, is then recognised first, by 8 or 32 calls. A number instead of
    `anchor_queries` makes that many pseudo-queries from the items (`adacur.pseudo_queries`); 0 makes an index without
    any, which costs no scorer call, is searched by its first stages and can be given anchor queries later
    (`AnchorIndex.add_anchors`). `scorer` is a Scorer, a function of (query text, item text) pairs, or what
    `adacur.scorer` opens. `first` names the first stages to keep: "bm25", "dense" (with `encoder`), several of them, or
    objects. `cache` is the file of a score cache (`Cached`) to ask first.
    A new index is tuned at the end, quickly, for the best 10 within 100 calls; `tune=False` leaves that out, and so
    does an index of more than 100 million scores, which would have to be held in memory for it.

    With `sparse`, a number of items or a share of them such as .05, each anchor query is scored against so many items
    only: its best under the dense first stage, which is then needed, and a `random_share` of them (0.1) at random. The
    other scores are predicted. Such an index is not tuned: its anchor queries' true best are not known.

    `workers` processes score side by side, here or, with `engine="ray"`, on the Ray cluster at `address`; without an
    address Ray is started on this machine. A function comes from a module that they can import or, on Ray, may be a
    closure; `path` is a place that all nodes share.

    The verdict of the tuning is `index.tunings[0].verdict`; it is logged (INFO, "adacur.build"), and so are calls
    beyond items × anchor queries. `command` is what an unfinished index says to continue it: the arguments of the
    command line.
    """
    records = as_items(items)
    dual = _open_encoder(encoder)
    stages = listed_stages(first)
    check_first_stages(stages, encoder=dual)
    check_random_share(random_share, sparse=sparse)
    anchors: Iterable[Query] | None = None
    if anchor_queries == 0:
        check_leads(stages)
    if sparse is not None:
        if anchor_queries == 0:
            raise InputError(f"sparse chooses the scores of anchor queries, and there are none; got sparse={sparse}.")
        check_sparse(stages, engine=engine, address=address, workers=workers)
    opened = _cached(_open_scorer(scorer), cache)
    was_finished = is_finished(path)
    origin = _origin(records, command)
    if not isinstance(anchor_queries, int):
        anchors = anchor_queries
    elif anchor_queries:
        records = records if isinstance(records, ItemFile) else list(records)
        anchors = pseudo_queries(records, anchor_queries, seed=seed)
    bar = ScoringBar() if progress else None
    drift: Drift | None = None
    timed = 0

    def told(now: Progress) -> None:
        nonlocal drift, timed
        drift, timed = now.drift, now.timed
        if bar:
            bar.show(now)

    try:
        if sparse is not None and anchors is not None:
            folder = build_sparse(
                records,
                anchors,
                scorer=opened,
                path=path,
                sparse=sparse,
                random_share=RANDOM_SHARE if random_share is None else random_share,
                first=stages,
                encoder=dual,
                dtype=dtype,
                seed=seed,
                progress=told,
                show_encoding=progress,
                origin=origin,
            )
        else:
            check_not_sparse(path)
            folder = build_scores(
                records,
                anchors,
                scorer=opened,
                path=path,
                dtype=dtype,
                block_items=block_items,
                seed=seed,
                progress=told,
                engine=engine,
                address=address,
                workers=workers,
                origin=origin,
            )
    finally:
        if bar:
            bar.close()
    add_first_stages(stages, items=folder.items, path=folder.path, encoder=dual, progress=progress)
    index = _opened(folder, scorer=opened, encoder=dual, check=was_finished, built=not was_finished, drift=drift)
    if timed:
        _log.info("%s scorer calls went into timing the scorer.", f"{timed:,}")
    if tune and sparse is None and not was_finished and len(index) * len(index.anchor_queries) <= _SCORES_TO_TUNE_BY:
        _tune_quickly(index, seed=seed)
    return index


def _origin(items: Iterable[Item], command: Sequence[str]) -> Origin | None:
    if not isinstance(items, ItemFile) and not command:
        return None
    fields = (items.id_field, items.text_fields) if isinstance(items, ItemFile) else (None, None)
    return Origin(*fields, command=tuple(command), folder=str(Path.cwd()) if command else "")


def _tune_quickly(index: AnchorIndex, *, seed: int) -> None:
    # A smaller index has nothing to choose between: all its items are scored, or chance decides.
    if len(index) <= _USUAL_BUDGET or not index.anchor_queries:
        return
    if len(index.anchor_queries) < FEWEST_QUERIES:
        _log.info("Not tuned: %d anchor queries, and %d are needed.", len(index.anchor_queries), FEWEST_QUERIES)
    else:
        tuning = index.tune(k=_USUAL_K, budget=_USUAL_BUDGET, queries=_QUICK_QUERIES, seed=seed, quick=True)
        _log.info("%s", tuning.verdict)


def load(
    path: str | Path,
    *,
    scorer: Any = None,
    encoder: Any = None,
    check: bool = True,
    cache: str | Path | None = None,
    device: str | None = None,
    log: str | Path | None = None,
    trust: bool = False,
) -> AnchorIndex:
    """Open an index folder.

    Without `scorer`, the one named in the manifest is opened when a search first needs it: a model of the catalogue,
    of the hub or in a folder of yours. A function or a service is refused (`NotTrusted`), for the manifest may be
    anybody's: give it as `scorer`, or say `trust=True` to open whatever this folder names. Either way it must be
    the scorer that built the index: another model is refused, another backend of it is accepted with a
    `DriftWarning` that gives the measured difference. Recognising a scorer whose weights differ or cannot be
    compared costs 32 calls; `check=False` trusts it instead. `encoder` replaces the dense first stage's.

    `cache` is the file of a score cache: `index.scorer` is then a `Cached`, whose `hits` and `misses` tell what was
    paid. A budget counts answers, known or not, so that a search finds the same with a cache as without.

    `device`, e.g. "cuda", is where "gaussian" searches keep the items' features and predict, by torch's name of it;
    by default numpy does that.

    `log` is the file of a `SearchLog`: what every search pays for is written there, with the text of its query, for
    `adacur.refresh` to make anchor queries of. Without it nothing is.
    """
    folder = IndexFolder.open(path)
    # A file that is no log is told before a search is paid for.
    kept = None if log is None else SearchLog(log)
    opened = None if scorer is None else _cached(_open_as_built(scorer, folder.manifest.scorer), cache)
    dual = _open_encoder(encoder)
    return _opened(folder, scorer=opened, encoder=dual, check=check, cache=cache, device=device, log=kept, trust=trust)


def compress(
    path: str | Path,
    *,
    rank: int = 128,
    storage: Storage = "int8",
    k: int = 10,
    budget: int = 100,
    encoder: Any = None,
    seed: int = 0,
    trust: bool = False,
) -> Compression:
    """Make the index in a folder searchable in less memory, as `AnchorIndex.compress` explains.

    `encoder` and `trust` are those of `load`.
    """
    with load(path, encoder=encoder, trust=trust) as index:
        return index.compress(rank=rank, storage=storage, k=k, budget=budget, seed=seed)


# `build` and `load` take arguments of these names.
_open_scorer = scorer
_open_encoder = encoder


def _opened(
    folder: IndexFolder,
    *,
    scorer: Scorer | None,
    encoder: Any,
    check: bool,
    cache: str | Path | None = None,
    device: str | None = None,
    built: bool = False,
    log: SearchLog | None = None,
    drift: Drift | None = None,
    trust: bool = False,
) -> AnchorIndex:
    if scorer is not None and check:
        drift = check_scorer(folder, scorer)

    def named_scorer(version: IndexFolder) -> tuple[Scorer, Drift | None]:
        return _named_scorer(version, check=check, cache=cache, trust=trust)

    def first_stages(version: IndexFolder) -> Mapping[str, Callable[[], Retriever]]:
        return open_first_stages(version.home, encoder=encoder, trust=trust)

    return AnchorIndex(
        folder,
        scorer=functools.partial(named_scorer, folder) if scorer is None else scorer,
        first=first_stages(folder),
        card=folder.manifest.scorer,
        path=folder.path,
        drift=drift,
        device=device,
        reopen=Reopen(scorer=named_scorer, first=first_stages),
        recognised=check or built,
        log=log,
    )


def _open_as_built(source: Any, card: ScorerCard | None) -> Scorer:
    """A scorer by its name cuts items as the one that built the index did: else it would be taken for another."""
    if card is not None and card.max_item_tokens is not None and isinstance(source, str | Path):
        # Functions and services cut nothing.
        with contextlib.suppress(UnknownOption):
            return _open_scorer(source, max_item_tokens=card.max_item_tokens)
    return _open_scorer(source)


def _cached(scorer: Scorer, cache: str | Path | None) -> Scorer:
    return scorer if cache is None else Cached(scorer, cache)


def _named_scorer(
    folder: IndexFolder, *, check: bool, cache: str | Path | None, trust: bool
) -> tuple[Scorer, Drift | None]:
    card = folder.manifest.scorer
    if card is None or (card.source is None and card.name not in names()):
        raise InputError(
            f"The manifest of {str(folder.path)!r} does not say how to open its scorer"
            f"{f' {card.name!r}' if card else ''}. Give it: adacur.load(path, scorer=…), or --scorer."
        )
    limits = {"max_tokens": card.max_tokens, "max_item_tokens": card.max_item_tokens}
    # A service cuts texts by its own limit and takes none from us.
    options = {name: limit for name, limit in limits.items() if limit is not None and card.backend != "http"}
    source = card.name if card.source is None else card.source
    if source not in names():
        check_consent(source, what="scorer", folder=folder.path, trust=trust)
    try:
        # A path of another machine is no help, but a name that everybody can fetch is.
        if card.name in names() and Path(source).is_absolute() and not Path(source).exists():
            source = card.name
        if is_function_name(source):
            check_not_from_here(source)
        opened = scorer(source, **options)
    except (LookupError, OSError, ValueError) as error:
        raise InputError(
            f"The scorer of {str(folder.path)!r}, {card.name!r} from {card.source!r}, cannot be opened here. {error} "
            "Or give it: adacur.load(path, scorer=…), or --scorer."
        ) from error
    drift = check_scorer(folder, opened) if check else None
    return _cached(opened, cache), drift
