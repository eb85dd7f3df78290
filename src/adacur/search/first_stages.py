"""First stages kept with an index: built by name, written whole or not at all, opened when used."""

from __future__ import annotations

import errno
import functools
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.errors import InputError, StorageFull, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import Items, Retriever, SavedRetriever
from adacur.core.records import Item, ItemList
from adacur.core.spelling import did_you_mean
from adacur.first_stages import BM25, Dense, MultiVector, TfIdf, TokenEncoder, load_retriever, read_settings
from adacur.index import first_stage_folders, locked, read_manifest, write_checksums, write_manifest

__all__ = [
    "FirstStage",
    "add_first_stages",
    "check_first_stages",
    "check_first_stages_follow",
    "check_leads",
    "follow_first_stages",
    "listed_stages",
    "needs_encoder",
    "open_first_stages",
    "save_first_stage",
    "stages_in_memory",
]

FirstStage = str | SavedRetriever
_BY_NAME = ("bm25", "tfidf", "dense", "multi-vector", "random")
_ENCODED = ("dense", "multi-vector")


def listed_stages(first: Any) -> list[Any]:
    """First stages as they may be given: one or several, names or objects."""
    if isinstance(first, str | Retriever):
        return [first]
    if isinstance(first, Mapping) or not isinstance(first, Iterable):
        raise InputError(f"first is a first stage or a list of them, by name or as objects; got {first!r}.")
    return list(first)


def check_first_stages(stages: Sequence[Any], *, encoder: Any, saved: bool = True) -> None:
    """Refuse first stages that could not be built, or `saved`, before anything is paid for."""
    for stage in stages:
        if isinstance(stage, str) and stage not in _BY_NAME:
            near = did_you_mean(stage, _BY_NAME)
            raise UnknownName(
                f"There is no first stage {stage!r} to build.{near} Choose {', '.join(_BY_NAME)}, or give an object."
            )
        if isinstance(stage, str) and stage in _ENCODED and encoder is None:
            raise InputError(f"A {stage} first stage needs an encoder; give encoder=…, e.g. 'bge-small-en-v1.5'.")
        # The command line checks before it opens the encoder, by its name.
        if isinstance(stage, str) and stage == "multi-vector" and not isinstance(encoder, str | TokenEncoder):
            raise InputError(
                "A multi-vector first stage needs an encoder with encode_query_tokens and encode_item_tokens; "
                f"{type(encoder).__name__} has not. OnnxEncoder and SentenceTransformerEncoder have."
            )
        if isinstance(stage, str) and stage == "tfidf":
            require("sklearn", extra="tfidf")
        if not isinstance(stage, (str | SavedRetriever) if saved else (str | Retriever)):
            needed = "a name, search and save" if saved else "search"
            raise InputError(f"A first stage has {needed}; {type(stage).__name__} has not. Got {stage!r}.")


def check_leads(stages: Sequence[Any]) -> None:
    """Refuse an index that would search at random without anybody having said so: it has no anchor queries."""
    if not stages:
        raise InputError(
            f"An index without anchor queries needs a first stage to start from: {', '.join(_BY_NAME)} or an object. "
            "Name 'random' to search at random."
        )


def stages_in_memory(
    first: Any, items: ItemList, *, encoder: Any, progress: bool
) -> dict[str, Retriever | Callable[[], Retriever]]:
    """First stages for items in memory; what is quick to build is built when first used."""
    if isinstance(first, Mapping):
        check_leads(list(first.values()))
        check_first_stages(list(first.values()), encoder=encoder, saved=False)
        named = dict(first)
    else:
        stages = listed_stages(first)
        check_leads(stages)
        check_first_stages(stages, encoder=encoder, saved=False)
        named = {one if isinstance(one, str) else getattr(one, "name", type(one).__name__): one for one in stages}

    def opened(stage: Any) -> Retriever | Callable[[], Retriever]:
        if stage == "bm25":
            return lambda: BM25.build(items)
        if stage == "tfidf":
            return lambda: TfIdf.build(items)
        if isinstance(stage, str):
            build = Dense.build if stage == "dense" else MultiVector.build
            return build(items, encoder=encoder, progress=progress)
        retriever: Retriever = stage
        return retriever

    return {name: opened(stage) for name, stage in named.items() if stage != "random"}


def needs_encoder(stages: Sequence[FirstStage]) -> bool:
    """Whether a stage that is to be built by name encodes texts."""
    return any(stage in _ENCODED for stage in stages if isinstance(stage, str))


def add_first_stages(
    stages: Sequence[FirstStage], *, items: Items, path: Path, encoder: Any = None, progress: bool = False
) -> None:
    """Build the first stages that the folder lacks, and keep them in it."""
    for stage in stages:
        name = stage if isinstance(stage, str) else stage.name
        if name == "random" or (path / "first" / name).exists():
            continue
        if not isinstance(stage, str):
            save_first_stage(stage, path)
        elif name == "bm25":
            save_first_stage(BM25.build(_Every(items)), path)
        elif name == "tfidf":
            save_first_stage(TfIdf.build(_Every(items)), path)
        else:
            # Vectors go to the disk as they are made, so that memory does not grow with the collection.
            def build(folder: Path, name: str = name) -> Dense | MultiVector:
                kind, file = (Dense, "embeddings.npy") if name == "dense" else (MultiVector, "tokens.f16")
                return kind.build(_Every(items), encoder=encoder, progress=progress, path=folder / file)

            _write(build, path, name=name)


def save_first_stage(stage: SavedRetriever, path: Path, *, name: str | None = None) -> None:
    """Write a first stage into an index folder that lacks it; a crash leaves it absent, never half there."""
    _write(lambda folder: stage, path, name=name or stage.name)


def check_first_stages_follow(stages: Iterable[Retriever]) -> None:
    """Refuse to add items where a first stage could not take them in, before anything is paid for."""
    for stage in stages:
        if isinstance(stage, Dense | MultiVector):
            stage.open_encoder()


def follow_first_stages(
    stages: Mapping[str, Retriever], *, home: Path, items: Items, new: Collection[str], progress: bool
) -> list[str]:
    """Write the first stages of a version, given those of the one before it; the names.

    BM25 and TF-IDF weigh words by all items, so they are built anew, with the same settings. Vectors are copied, and
    only those of `new` ids are made.
    """
    for name, stage in stages.items():
        folder = home / "first" / name
        folder.mkdir(parents=True)
        if isinstance(stage, Dense | MultiVector):
            live = set(items.ids)
            keep = [id_ for id_ in stage.ids if id_ in live and id_ not in new]
            added = np.flatnonzero([id_ in new for id_ in items.ids])
            file = "embeddings.npy" if isinstance(stage, Dense) else "tokens.f16"
            stage.updated(
                keep=keep, new=_Every(items, added), path=folder / file, progress=progress and bool(len(added))
            ).save(folder)
        elif isinstance(stage, BM25 | TfIdf):
            stage.rebuilt(_Every(items)).save(folder)
        else:
            raise InputError(f"A first stage of the kind {type(stage).__name__} cannot follow a change of items.")
        write_checksums(folder)
    return list(stages)


def open_first_stages(path: Path, *, encoder: Any = None, trust: bool = False) -> Mapping[str, Callable[[], Retriever]]:
    """How to open each first stage of an index folder; `trust` lets it name an encoder that takes consent."""
    return {folder.name: functools.partial(_opened, folder, encoder, trust) for folder in first_stage_folders(path)}


def _write(make: Callable[[Path], SavedRetriever], path: Path, *, name: str) -> None:
    if not name or name[0] == "." or any(sign in name for sign in "/\\:"):
        raise InputError(f"A first stage's name must serve as the name of a folder; got {name!r}.")
    unfinished = path / "first" / f".{name}.{uuid.uuid4().hex}.unfinished"
    with locked(path):
        if (path / "first" / name).exists():
            return
        for left_over in (path / "first").glob(f".{name}.*.unfinished"):
            shutil.rmtree(left_over)
        unfinished.mkdir(parents=True)
        try:
            make(unfinished).save(unfinished)
            write_checksums(unfinished)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            # Numpy tells a full disk by the bytes it could not write, without an error number.
            if error.errno == errno.ENOSPC or "requested and" in str(error):
                raise StorageFull(
                    f"The disk that holds {path} is full; all scores are safely stored, the first stage {name!r} "
                    "is not. Free some space and run the same build again."
                ) from error
            raise
        unfinished.rename(path / "first" / name)
        manifest = read_manifest(path)
        write_manifest(path, replace(manifest, first=tuple(sorted({*manifest.first, name}))))


def _opened(folder: Path, encoder: Any, trust: bool) -> Retriever:
    is_encoded = read_settings(folder)["kind"] in _ENCODED
    return load_retriever(folder, encoder=encoder, trust=trust) if is_encoded else load_retriever(folder)


class _Every:
    """All items, or those at some positions, read anew each time."""

    def __init__(self, items: Items, positions: Sequence[int] | IntArray | None = None) -> None:
        self._items = items
        self._positions = range(len(items)) if positions is None else positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Item]:
        block = 1024
        for start in range(0, len(self._positions), block):
            yield from self._items.at(map(int, self._positions[start : start + block]))
