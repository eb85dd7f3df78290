"""First stages of an index: built by name, stored in its folder, updated by edits; and the worth of their ranks."""

from __future__ import annotations

import functools
import shutil
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.errors import AdacurError, InputError
from adacur.first_stages import FIRST_STAGES, Placed, Retriever, first_stage_named, load_first_stage
from adacur.model import GaussianModel
from adacur.model.rank_slopes import MOST_QUERIES, RANKS_THAT_COUNT, RankSlopes
from adacur.protocols import AnchorScores, FirstStage, Items
from adacur.records import Item, ItemList
from adacur.store import IndexFolder, first_stage_folders, locked, read_manifest, write_checksums, write_manifest
from adacur.store.writing import full_disk_reported

# Kinds that have left the library; other packages may register them again.
_FORMER = ("tfidf", "multi-vector", "random")


class FirstStageWarning(UserWarning):
    """A first stage cannot be used here, or cannot be asked about anchor queries."""


def listed_stages(first: Any) -> list[Any]:
    """The first stages given as one or several, by name or as objects."""
    if isinstance(first, str | Retriever):
        return [first]
    if isinstance(first, Mapping) or not isinstance(first, Iterable):
        raise InputError(f"first must be a first stage or a list of them, by name or as objects; got {first!r}.")
    return list(first)


def check_first_stages(stages: Sequence[Any], *, encoder: Any, saved: bool = True) -> None:
    """Refuse first stages that cannot be built, or `saved`, before anything is paid for."""
    for stage in stages:
        if isinstance(stage, str):
            if stage != "random" and first_stage_named(stage).needs_encoder and encoder is None:
                raise InputError(f"A {stage} first stage needs an encoder; give encoder=…, e.g. 'bge-small-en-v1.5'.")
        elif saved and not isinstance(stage, FirstStage):
            raise InputError(
                f"A first stage that is stored with an index must implement adacur.protocols.FirstStage; "
                f"{type(stage).__name__} does not. Got {stage!r}."
            )
        elif not isinstance(stage, Retriever):
            raise InputError(f"A first stage must have search(queries, k); {type(stage).__name__} does not.")


def check_leads(stages: Sequence[Any]) -> None:
    """Refuse an index with neither anchor queries nor a first stage: it would search at random."""
    if not stages:
        raise InputError(
            f"An index without anchor queries needs a first stage to start from: {', '.join(FIRST_STAGES)} or an "
            "object. Name 'random' to search at random."
        )


def needs_encoder(stages: Sequence[str | FirstStage]) -> bool:
    """Whether a stage to be built by name needs an encoder."""
    named = [FIRST_STAGES[stage] for stage in stages if isinstance(stage, str) and stage in FIRST_STAGES]
    return any(stage.needs_encoder for stage in named)


def stages_in_memory(
    first: Any, items: ItemList, *, encoder: Any, progress: bool
) -> dict[str, FirstStage | Retriever | Callable[[], FirstStage]]:
    """First stages for items in memory, by name; those without an encoder are built at their first use."""
    named = dict(first) if isinstance(first, Mapping) else {_name_of(one): one for one in listed_stages(first)}
    check_leads(list(named.values()))
    check_first_stages(list(named.values()), encoder=encoder, saved=False)

    def opened(stage: Any) -> Any:
        if not isinstance(stage, str):
            return stage
        build = functools.partial(first_stage_named(stage).build, items, encoder=encoder, progress=progress)
        return build() if FIRST_STAGES[stage].needs_encoder else build

    return {name: opened(stage) for name, stage in named.items() if stage != "random"}


def _name_of(stage: Any) -> str:
    return stage if isinstance(stage, str) else getattr(stage, "name", type(stage).__name__)


def add_first_stages(
    stages: Sequence[str | FirstStage], *, items: Items, path: Path, encoder: Any = None, progress: bool = False
) -> None:
    """Build the first stages that the folder lacks, and save them in it."""
    named = read_manifest(path).first
    for stage in stages:
        name = _name_of(stage)
        if name == "random" or (name in named and (path / "first" / name).exists()):
            continue
        if not isinstance(stage, str):
            save_first_stage(stage, path)
        else:
            build = functools.partial(first_stage_named(name).build, items, encoder=encoder, progress=progress)
            _write(lambda folder, build=build: build(folder=folder), path, name=name)  # type: ignore[misc]


def save_first_stage(stage: FirstStage, path: Path, *, name: str | None = None) -> None:
    """Write a first stage into an index folder that lacks it; a crash leaves it absent, never half there."""
    _write(lambda folder: stage, path, name=name or stage.name)


def update_first_stages(
    stages: Mapping[str, FirstStage], *, home: Path, items: Items, new: Collection[str], progress: bool
) -> list[str]:
    """Write the first stages of a new version, given those of the last one and the new ids; returns their names."""
    added = np.flatnonzero([id_ in new for id_ in items.ids])
    for name, stage in stages.items():
        folder = home / "first" / name
        folder.mkdir(parents=True)
        position_of = {id_: position for position, id_ in enumerate(stage.ids) if id_ not in new}
        old = [(position, position_of[id_]) for position, id_ in enumerate(items.ids) if id_ in position_of]
        unchanged = np.array(old, dtype=np.intp).reshape(-1, 2)
        stage.updated(
            _ItemsAt(items, np.concatenate([unchanged[:, 0], added])),
            unchanged=unchanged[:, 1],
            new=_ItemsAt(items, added),
            folder=folder,
            progress=progress and bool(len(added)),
        ).save(folder)
        write_checksums(folder)
    return list(stages)


def open_first_stages(
    path: Path, *, encoder: Any = None, allow_code: bool = False
) -> Mapping[str, Callable[[], FirstStage]]:
    """How to open each first stage of an index folder; `allow_code` lets it name an encoder that needs consent."""
    folders = first_stage_folders(path)
    former = [folder.name for folder in folders if folder.name in _FORMER and folder.name not in FIRST_STAGES]
    if former:
        warnings.warn(
            f"{path} has the first stage {' and '.join(map(repr, former))}, which this version of adacur cannot use: "
            f"searches start from the others. Build the index again with --first {','.join(list(FIRST_STAGES)[:2])}.",
            FirstStageWarning,
            stacklevel=2,
        )
    return {
        folder.name: functools.partial(load_first_stage, folder, encoder=encoder, allow_code=allow_code)
        for folder in folders
        if folder.name not in former
    }


def learned_slopes(model: GaussianModel, anchors: AnchorScores, first: Placed) -> RankSlopes:
    """The slopes of this first stage's ranks; assumed ones where it cannot be asked about anchor queries."""
    queries, assumed = anchors.anchor_queries, RankSlopes.assumed(first.n_stages)
    if not first.can_be_asked:
        return assumed
    # Predicted scores may come from the very embeddings that a dense first stage ranks by.
    exact = np.flatnonzero(anchors.exact_anchors()) if isinstance(anchors, IndexFolder) else np.arange(len(queries))
    if len(exact) < 2:
        return assumed
    columns = exact[np.unique(np.linspace(0, len(exact) - 1, MOST_QUERIES).round().astype(np.intp))]
    try:
        depth = min(RANKS_THAT_COUNT, len(anchors.items))
        _, lists = first.search_parts([queries[at] for at in columns.tolist()], depth)
    except AdacurError:
        # A table of answers to other queries, for example.
        return assumed
    except Exception as error:
        # It may still answer the queries of users.
        warnings.warn(
            f"The first stage {first.name!r} failed when asked about anchor queries ({type(error).__name__}: {error}), "
            "so what its ranks are worth is assumed and not learned. Let it answer every query, if only with nothing.",
            FirstStageWarning,
            stacklevel=2,
        )
        return assumed
    features = model.features_of(anchors)
    # Keys stored with the features save reading all ids.
    keys = anchors.items.keys if model.keys is None else model.keys
    return RankSlopes.fitted(features, columns, lists, keys=keys, ridge=model.query_noise)


def _write(make: Callable[[Path], FirstStage], path: Path, *, name: str) -> None:
    if not name or name[0] == "." or any(sign in name for sign in "/\\:"):
        raise InputError(f"A first stage's name must serve as the name of a folder; got {name!r}.")
    unfinished = path / "first" / f".{name}.{uuid.uuid4().hex}.unfinished"
    safe = f"all scores are safely stored, the first stage {name!r} is not"
    with locked(path), full_disk_reported(path, lambda: safe):
        for left_over in (path / "first").glob(f".{name}.*.unfinished"):
            shutil.rmtree(left_over)
        if not (path / "first" / name).exists():
            unfinished.mkdir(parents=True)
            try:
                make(unfinished).save(unfinished)
                write_checksums(unfinished)
            except OSError:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            unfinished.rename(path / "first" / name)
        # A process that was killed in between has left the folder without its name in the manifest.
        if name not in (manifest := read_manifest(path)).first:
            write_manifest(path, replace(manifest, first=tuple(sorted({*manifest.first, name}))))


class _ItemsAt:
    """The items at some positions, in that order, read anew each time."""

    def __init__(self, items: Items, positions: IntArray) -> None:
        self._items = items
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self._positions), 1024):
            yield from self._items.at(self._positions[start : start + 1024].tolist())
