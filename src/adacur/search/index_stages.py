"""First stages of an index: built by name, stored in its folder, updated by edits; and the worth of their ranks."""

from __future__ import annotations

import functools
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from adacur.store import IndexFolder, first_stage_folders, locked, write_checksums, write_manifest
from adacur.store.writing import full_disk_reported, made_whole


class FirstStageWarning(UserWarning):
    """A first stage cannot be asked about anchor queries."""


def named_stages(first: Any) -> dict[str, Any]:
    """The first stages given as one or several, by name or as objects, or in a dictionary: by their names."""
    if isinstance(first, Mapping):
        return dict(first)
    if not isinstance(first, Iterable) and not isinstance(first, Retriever):
        raise InputError(f"first must be a first stage or a list of them, by name or as objects; got {first!r}.")
    stages = [first] if isinstance(first, str | Retriever) else list(first)
    return {one if isinstance(one, str) else getattr(one, "name", type(one).__name__): one for one in stages}


def check_first_stages(stages: Mapping[str, Any], *, encoder: Any, saved: bool = True) -> None:
    """Refuse first stages that cannot be built, or `saved`, before anything is paid for."""
    for name, stage in stages.items():
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
        if saved and (not name or name[0] == "." or any(sign in name for sign in "/\\:")):
            raise InputError(f"A first stage's name must serve as the name of a folder; got {name!r}.")


def check_leads(stages: Mapping[str, Any]) -> None:
    """Refuse an index with neither anchor queries nor a first stage: it would search at random."""
    if not stages:
        raise InputError(
            f"An index without anchor queries needs a first stage to start from: {', '.join(FIRST_STAGES)} or an "
            "object. Name 'random' to search at random."
        )


def needs_encoder(stage: str | FirstStage) -> bool:
    """Whether a stage is to be built by its name, with an encoder."""
    return isinstance(stage, str) and stage in FIRST_STAGES and FIRST_STAGES[stage].needs_encoder


def stages_in_memory(
    first: Any, items: ItemList, *, encoder: Any, progress: bool
) -> dict[str, FirstStage | Retriever | Callable[[], FirstStage]]:
    """First stages for items in memory, by name; those without an encoder are built at their first use."""
    named = named_stages(first)
    check_leads(named)
    check_first_stages(named, encoder=encoder, saved=False)

    def opened(stage: Any) -> Any:
        if not isinstance(stage, str):
            return stage
        build = functools.partial(first_stage_named(stage).build, items, encoder=encoder, progress=progress)
        return build() if needs_encoder(stage) else build

    return {name: opened(stage) for name, stage in named.items() if stage != "random"}


def write_first_stages(
    stages: Mapping[str, Any], *, items: Items, home: Path, encoder: Any = None, progress: bool = False
) -> tuple[str, ...]:
    """Build and save the first stages that a folder lacks, whose lock the caller holds; the names of all that it has.

    A crash leaves each absent or whole.
    """
    check_first_stages(stages, encoder=encoder)
    for left_over in (home / "first").glob(".*.unfinished"):
        shutil.rmtree(left_over)
    for name, stage in stages.items():
        if name == "random" or (home / "first" / name).exists():
            continue
        (home / "first").mkdir(exist_ok=True)
        with made_whole(home / "first" / name) as folder:
            folder.mkdir()
            if isinstance(stage, str):
                options = {"encoder": encoder, "progress": progress, "folder": folder}
                stage = first_stage_named(name).build(items, **options)
            stage.save(folder)
            write_checksums(folder)
            # Nothing may hold its files open while it is renamed.
            del stage
    return tuple(folder.name for folder in first_stage_folders(home))


def add_first_stages(
    stages: Mapping[str, Any], folder: IndexFolder, *, fuse: float | None = None, **options: Any
) -> IndexFolder:
    """Add to a finished index the first stages that it lacks, and the weight in the order of hits where it is given."""
    with locked(folder.path), full_disk_reported(folder.path, lambda: "all scores are safely stored"):
        names = write_first_stages(stages, items=folder.items, home=folder.home, **options)
        weight = folder.manifest.fuse if fuse is None else float(fuse)
        manifest = replace(folder.manifest, first=tuple(sorted({*folder.manifest.first, *names})), fuse=weight)
        if manifest != folder.manifest:
            write_manifest(folder.home, manifest)
            folder.manifest = manifest
    return folder


def update_first_stages(
    stages: Mapping[str, FirstStage], version: IndexFolder, *, new: Collection[str], progress: bool
) -> None:
    """Write the first stages of a new version, given those of the last one and the new ids."""
    home, items = version.home, version.items
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


def open_first_stages(
    path: Path, *, encoder: Any = None, allow_code: bool = False
) -> Mapping[str, Callable[[], FirstStage]]:
    """How to open each first stage of an index folder; `allow_code` lets it name an encoder that needs consent."""
    return {
        folder.name: functools.partial(load_first_stage, folder, encoder=encoder, allow_code=allow_code)
        for folder in first_stage_folders(path)
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
    return RankSlopes.fitted(features, columns, lists, keys=anchors.items.keys)


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
