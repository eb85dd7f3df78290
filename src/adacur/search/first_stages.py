"""First stages kept with an index: built by name, written whole or not at all, opened when used."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError, UnknownName
from adacur.core.protocols import Items, Retriever, SavedRetriever
from adacur.core.records import Item
from adacur.retrievers import BM25, Dense, load_retriever

__all__ = ["add_first_stages", "open_first_stages", "save_first_stage"]

FirstStage = str | SavedRetriever


def add_first_stages(
    stages: Sequence[FirstStage], *, items: Items, path: Path, encoder: Any = None, progress: bool = False
) -> None:
    """Build the first stages that the folder lacks, and keep them in it."""
    for stage in stages:
        name = stage if isinstance(stage, str) else stage.name
        if name == "random" or (path / "first" / name).exists():
            continue
        save_first_stage(_built(stage, items=items, encoder=encoder, progress=progress), path)


def save_first_stage(stage: SavedRetriever, path: Path) -> None:
    """Write a first stage into an index folder; a crash leaves it absent, never half there."""
    target = path / "first" / stage.name
    unfinished = path / "first" / f".{stage.name}.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    stage.save(unfinished)
    unfinished.rename(target)


def open_first_stages(path: Path, *, encoder: Any = None) -> Mapping[str, Callable[[], Retriever]]:
    """How to open each first stage of an index folder."""
    folders = sorted(folder for folder in (path / "first").glob("[!.]*") if folder.is_dir())
    return {
        folder.name: functools.partial(
            load_retriever, folder, **({"encoder": encoder} if folder.name == "dense" else {})
        )
        for folder in folders
    }


def _built(stage: FirstStage, *, items: Items, encoder: Any, progress: bool) -> SavedRetriever:
    if not isinstance(stage, str):
        return stage
    if stage == "bm25":
        return BM25.build(_every(items))
    if stage == "dense":
        if encoder is None:
            raise InputError("A dense first stage needs an encoder; give encoder=… (see adacur.retrievers).")
        return Dense.build(_every(items), encoder=encoder, progress=progress)
    raise UnknownName(f"There is no first stage {stage!r} to build. Choose bm25, dense or random, or give an object.")


def _every(items: Items) -> Iterable[Item]:
    block = 1024
    for start in range(0, len(items), block):
        yield from items.at(range(start, min(start + block, len(items))))
