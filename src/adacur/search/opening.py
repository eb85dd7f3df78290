"""From texts to an index, and from a folder back to one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adacur.approximation import Storage
from adacur.core.errors import InputError, UnknownName, UnknownOption
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Item, Query
from adacur.core.spelling import did_you_mean
from adacur.data import fetch, names, pseudo_queries
from adacur.index import Drift, IndexFolder, Progress, build_scores, check_scorer, is_finished
from adacur.retrievers import bge_small
from adacur.scorers import Cached
from adacur.scorers import scorer as opened_scorer
from adacur.search.anchor_index import AnchorIndex
from adacur.search.compression import Compression
from adacur.search.first_stages import FirstStage, add_first_stages, check_first_stages, open_first_stages
from adacur.search.tuning import FEWEST_QUERIES

__all__ = ["build", "compress", "encoder", "load", "scorer"]

# What a search without options asks for.
_USUAL_K, _USUAL_BUDGET = 10, 100
_QUICK_QUERIES = 50
_SCORES_TO_TUNE_BY = 100_000_000


def scorer(source: Any, **options: Any) -> Scorer:
    """Open a scorer; `options` go to its class, and what was opened is logged (INFO, "adacur.scorers").

    `source` is a scorer; a name that `adacur fetch` lists (fetched if need be); a file or folder with an ONNX or
    transformers cross-encoder; a hub name "org/name"; the URL of a service that re-ranks; a sentence-transformers
    CrossEncoder, a LangChain cross-encoder, a rerankers ranker or a PyTerrier transformer; a function of (query text,
    item text) pairs, plain or async; or "module:name" of any of these objects.
    """
    if isinstance(source, str) and source in names():
        source = fetch(source)
    elif isinstance(source, str) and not Path(source).exists() and not set("/:") & set(source):
        raise UnknownName(
            f"No scorer is known by {source!r}.{did_you_mean(source, names())} Give a name that `adacur fetch` lists, "
            "a folder or .onnx file, a hub name 'org/name', a URL that begins with http:// or https://, or "
            "'module:function'."
        )
    return opened_scorer(source, **options)


def encoder(source: Any) -> Any:
    """Open a dual encoder: "bge-small-en-v1.5" (fetched if need be), a sentence-transformers name or folder, or one."""
    if source == "bge-small-en-v1.5":
        return bge_small(fetch(source))
    if isinstance(source, str | Path):
        from adacur.retrievers import SentenceTransformerEncoder

        if source not in names() and not Path(source).exists() and "/" not in str(source):
            raise UnknownName(
                f"No encoder is known by {str(source)!r}.{did_you_mean(str(source), names())} Give "
                "'bge-small-en-v1.5', the folder or hub name 'org/name' of a sentence-transformers model, or an object."
            )
        return SentenceTransformerEncoder(fetch(source) if source in names() else source)
    return source


def build(
    items: Iterable[Item],
    anchor_queries: Iterable[Query] | int,
    *,
    scorer: Any,
    path: str | Path,
    dtype: str = "float32",
    first: Sequence[FirstStage] = ("bm25",),
    encoder: Any = None,
    block_items: int | None = None,
    seed: int = 0,
    progress: bool = True,
    cache: str | Path | None = None,
    tune: bool = True,
) -> AnchorIndex:
    """Score every item against every anchor query, keep the scores in a folder, and open it.

    Costs items × anchor queries scorer calls, and up to half a percent more to choose the size of a block. A build
    that was interrupted goes on where it stopped when called again; a finished one is opened. A scorer without weights
    to compare, such as a function, is then recognised first, by 8 or 32 calls. A number instead of
    `anchor_queries` makes that many pseudo-queries from the items (`adacur.pseudo_queries`). `scorer` is a Scorer, a
    function of (query text, item text) pairs, or what `adacur.scorer` opens. `first` names the first stages to keep:
    "bm25", "dense" (with `encoder`), or objects. `cache` is the file of a score cache (`Cached`) to ask first.
    A new index is tuned at the end, quickly, for the best 10 within 100 calls; `tune=False` leaves that out, and so
    does an index of more than 100 million scores, which would have to be held in memory for it.
    """
    dual = _open_encoder(encoder)
    check_first_stages(first, encoder=dual)
    opened = _cached(_open_scorer(scorer), cache)
    was_finished = is_finished(path)
    if isinstance(anchor_queries, int):
        items = list(items)
        anchor_queries = pseudo_queries(items, anchor_queries, seed=seed)
    bar = _Bar() if progress else None
    try:
        folder = build_scores(
            items,
            anchor_queries,
            scorer=opened,
            path=path,
            dtype=dtype,
            block_items=block_items,
            seed=seed,
            progress=bar.show if bar else None,
        )
    finally:
        if bar:
            bar.close()
    add_first_stages(first, items=folder.items, path=Path(path), encoder=dual, progress=progress)
    index = _opened(folder, scorer=opened, encoder=dual, check=was_finished)
    if tune and not was_finished and len(index) * len(index.anchor_queries) <= _SCORES_TO_TUNE_BY:
        _tune_quickly(index, seed=seed)
    return index


def _tune_quickly(index: AnchorIndex, *, seed: int) -> None:
    # A smaller index has nothing to choose between: all its items are scored, or chance decides.
    if len(index) > _USUAL_BUDGET and len(index.anchor_queries) >= FEWEST_QUERIES:
        index.tune(k=_USUAL_K, budget=_USUAL_BUDGET, queries=_QUICK_QUERIES, seed=seed, quick=True)


def load(
    path: str | Path,
    *,
    scorer: Any = None,
    encoder: Any = None,
    check: bool = True,
    cache: str | Path | None = None,
    device: str | None = None,
) -> AnchorIndex:
    """Open an index folder.

    Without `scorer`, the one named in the manifest is opened when a search first needs it. Either way it must be
    the scorer that built the index: another model is refused, another backend of it is accepted with a
    `DriftWarning` that gives the measured difference. Recognising a scorer whose weights differ or cannot be
    compared costs 32 calls; `check=False` trusts it instead. `encoder` replaces the dense first stage's.

    `cache` is the file of a score cache: `index.scorer` is then a `Cached`, whose `hits` and `misses` tell what was
    paid. A budget counts answers, known or not, so that a search finds the same with a cache as without.

    `device`, e.g. "cuda", is where "gaussian" searches keep the items' features and predict, by torch's name of it;
    by default numpy does that.
    """
    folder = IndexFolder.open(path)
    opened = None if scorer is None else _cached(_open_as_built(scorer, folder.manifest.scorer), cache)
    return _opened(folder, scorer=opened, encoder=_open_encoder(encoder), check=check, cache=cache, device=device)


def compress(
    path: str | Path,
    *,
    rank: int = 128,
    storage: Storage = "int8",
    k: int = 10,
    budget: int = 100,
    encoder: Any = None,
    seed: int = 0,
) -> Compression:
    """Make the index in a folder searchable in less memory, as `AnchorIndex.compress` explains."""
    with load(path, encoder=encoder) as index:
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
) -> AnchorIndex:
    drift = check_scorer(folder, scorer) if scorer is not None and check else None
    return AnchorIndex(
        folder,
        scorer=functools.partial(_named_scorer, folder, check=check, cache=cache) if scorer is None else scorer,
        first=open_first_stages(folder.path, encoder=encoder),
        card=folder.manifest.scorer,
        path=folder.path,
        drift=drift,
        device=device,
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


def _named_scorer(folder: IndexFolder, *, check: bool, cache: str | Path | None) -> tuple[Scorer, Drift | None]:
    card = folder.manifest.scorer
    if card is None or (card.source is None and card.name not in names()):
        raise InputError(
            f"The manifest of {str(folder.path)!r} does not say how to open its scorer"
            f"{f' {card.name!r}' if card else ''}. Give it: adacur.load(path, scorer=…), or --scorer."
        )
    limits = {"max_tokens": card.max_tokens, "max_item_tokens": card.max_item_tokens}
    # A service cuts texts by its own limit and takes none from us.
    options = {name: limit for name, limit in limits.items() if limit is not None and card.backend != "http"}
    # A path of another machine is no help, but a name that everybody can fetch is.
    gone = card.source is None or (Path(card.source).is_absolute() and not Path(card.source).exists())
    try:
        opened = scorer(card.name if gone and card.name in names() else card.source, **options)
    except (LookupError, OSError, ValueError) as error:
        raise InputError(
            f"The scorer of {str(folder.path)!r}, {card.name!r} from {card.source!r}, cannot be opened here. {error} "
            "Or give it: adacur.load(path, scorer=…), or --scorer."
        ) from error
    drift = check_scorer(folder, opened) if check else None
    return _cached(opened, cache), drift


class _Bar:
    """A progress bar over pairs, with pairs per second and time left."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, progress: Progress) -> None:
        from tqdm import tqdm

        if self._bar is None:
            done = progress.pairs_done
            self._bar = tqdm(total=progress.pairs, initial=done, unit=" pairs", unit_scale=True, desc="scoring")
        self._bar.update(progress.pairs_done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
