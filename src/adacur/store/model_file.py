"""The Gaussian model at rest: what no query changes, computed once for a version of an index, and mapped when opened.

A model is stored whole at the end of a build or an edit: its rows are what anchor queries leave unexplained, and item
vectors stay with the dense first stage. Compressed (`adacur index compress`), its rows are packed columns of both. It
says which items, anchor queries, scores and vectors it was made from, and serves no others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from adacur.arrays import FloatArray
from adacur.data.stored import read_array, read_json, read_record
from adacur.errors import IndexMismatch
from adacur.model import Features, ItemFactors, PackedRows, ScoreScale
from adacur.model.rank_slopes import RankSlopes
from adacur.model.rows import Allocate
from adacur.store.folder import IndexFolder
from adacur.store.versions import MODEL
from adacur.store.writing import (
    CHECKSUMS,
    damage_reported,
    digest_file,
    made_whole,
    remove_unfinished,
    write_checksums,
)

_ABOUT = "model.json"
_COMPRESSION = "compression.json"
_Matrix = tuple[tuple[float, ...], ...]
_Variance = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class _About:
    """What is stored of a model besides arrays; `slopes` are a mean and a covariance by the name of a first stage."""

    made_from: Mapping[str, str | None]
    variance: _Variance
    embedding_variance: _Variance
    n_parts: Annotated[int, Meta(ge=1, le=2)]
    leading: bool
    shares_vectors: bool
    slopes: Mapping[str, tuple[tuple[float, ...], _Matrix]]


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """The features of a version, and what the ranks of its first stages are worth, by name."""

    features: Features
    slopes: Mapping[str, RankSlopes]


def is_compressed(home: Path) -> bool:
    """Whether a version holds a compressed model."""
    return (home / MODEL / _COMPRESSION).exists()


def has_model(folder: IndexFolder) -> bool:
    """Whether a version holds a model, be it whole or compressed, that was made from what it holds."""
    try:
        return read_record(_About, read_json(folder.home / MODEL / _ABOUT)).made_from == _sources(folder)
    except (OSError, ValueError):
        return False


def read_model(folder: IndexFolder, embeddings: Callable[[], FloatArray]) -> StoredModel | None:
    """The model of a version, memory-mapped; None where there is none, or one that was made from something else.

    A compressed one is refused then: who compressed an index has no room for a whole one. `embeddings` gives the item
    vectors in memory, where a whole one needs them.
    """
    place = folder.home / MODEL
    if not place.exists():
        return None
    compressed = is_compressed(folder.home)
    remedy = (
        f"Run `adacur index compress {folder.path}` again, or with --drop to search with the scores."
        if compressed
        else f"Delete {place}: searches then compute it, and the same build again, or an edit, stores it."
    )
    with damage_reported(f"The files in {place}", remedy):
        about, now = read_record(_About, read_json(place / _ABOUT)), _sources(folder)
        other = [what for what in now if about.made_from.get(what) != now[what]]
        if other and not compressed:
            return None
        if other:
            raise IndexMismatch(f"{place} was made when the index had other {' and '.join(other)}. {remedy}")
        features = _read(place, about, folder, embeddings)
        slopes = {name: _read_slopes(*numbers) for name, numbers in about.slopes.items()}
    return StoredModel(features, slopes)


def store_model(
    folder: IndexFolder,
    make: Callable[[Allocate], Features],
    *,
    slopes: Callable[[Features], Mapping[str, RankSlopes]],
    report: Callable[[Features], dict[str, Any]] = lambda _: {},
) -> dict[str, Any]:
    """Make a model in files of a hidden folder, and then put it in the place of an earlier one; its report.

    A report is of a compressed model, and says so. The caller holds the lock of the version.
    """
    remove_unfinished(folder.home, MODEL)
    with made_whole(folder.home / MODEL, replacing=True) as place:
        place.mkdir()
        features = make(_on_disk(place))
        learned = {name: (of.means.tolist(), of.covariance.tolist()) for name, of in slopes(features).items()}
        if reported := report(features):
            (place / _COMPRESSION).write_text(json.dumps(reported), encoding="utf-8")
        n_parts = len([*place.glob("part?.npy")])
        about = _About(
            made_from=_sources(folder),
            variance=features.variance,
            embedding_variance=features.embedding_variance,
            n_parts=n_parts,
            leading=features.factors.leading,
            shares_vectors=n_parts < len(features.factors.parts),
            slopes=learned,
        )
        # What does not grow with the items; the rest is there.
        arrays = {
            "scale_scores": features.scale.scores,
            "scale_rarities": features.scale.rarities,
            "precisions": features.precisions,
            "anchor_vectors": features.anchor_vectors,
            "centre": features.factors.centre,
            "mixing": features.factors.mixing,
        }
        for name, array in arrays.items():
            if array is not None:
                np.save(place / f"{name}.npy", array)
        (place / _ABOUT).write_text(json.dumps(asdict(about), indent=1), encoding="utf-8")
        write_checksums(place)
        # The mapping goes first: a file that is mapped cannot be renamed everywhere.
        del features
    return reported


def drop_model(home: Path) -> None:
    """Remove the model of a version, whose lock the caller holds."""
    remove_unfinished(home, MODEL)
    if (home / MODEL).exists():
        # Renamed first: a crash leaves the folder whole or gone.
        shutil.rmtree((home / MODEL).rename(home / f".{MODEL}.dropped.unfinished"))


def _sources(folder: IndexFolder) -> dict[str, str | None]:
    """Digests of what a model is made from."""
    manifest, vectors = folder.manifest, folder.home / "first" / "dense" / CHECKSUMS
    return {
        "items": manifest.items_digest,
        "anchor queries": manifest.anchors_digest,
        "scores": manifest.scores_digest,
        "vectors": digest_file(vectors) if vectors.exists() else None,
    }


def _on_disk(folder: Path) -> Allocate:
    """Arrays in .npy files of a folder, written as they are filled."""

    def allocate(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        file = folder / f"{name}.npy"
        rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        # A full disk is an error here; met when a mapped page is written, it would end the process.
        if hasattr(os, "posix_fallocate"):
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return rows

    return allocate


def _read(place: Path, about: _About, folder: IndexFolder, embeddings: Callable[[], FloatArray]) -> Features:
    n_items, n_anchors = len(folder.items), len(folder.anchor_queries)

    def array(name: str, *shape: int, mapped: bool = False, optional: bool = False) -> Any:
        """An array of this shape, of which -1 is any length."""
        file = place / f"{name}.npy"
        if optional and not file.exists():
            return None
        found = read_array(file, kind="fiu", ndim=len(shape), mapped=mapped)
        if any(wanted not in (-1, length) for wanted, length in zip(shape, found.shape, strict=True)):
            raise ValueError(f"{file.name} has the shape {found.shape}, where {shape} is needed")
        return found

    names = [f"part{number}" for number in range(about.n_parts)]
    parts = [
        PackedRows(array(n, n_items, -1, mapped=True), array(f"{n}_scales", n_items, mapped=True, optional=True))
        for n in names
    ]
    if about.shares_vectors:
        parts.append(PackedRows(embeddings()))
    n_columns = sum(part.shape[1] for part in parts)
    mixing = array("mixing", n_columns, -1, optional=True)
    vectors = array("anchor_vectors", n_anchors, -1, optional=True)
    n_features = n_columns if mixing is None else mixing.shape[1]
    n_known = n_features if vectors is None else n_anchors + vectors.shape[1]
    scores = array("scale_scores", -1)
    if n_features != max(n_known, n_anchors) or len(scores) < 2 or (about.leading and len(parts) != 2):
        raise ValueError(
            f"{len(parts)} parts, {n_features} features of {n_known}, {len(scores)} scores of the scale and leading "
            f"{about.leading!r} do not fit"
        )
    means = array("means", n_items, mapped=True)
    if not np.isfinite(means).all():
        raise ValueError("a mean is not a number")
    return Features(
        anchors=tuple(query.id for query in folder.anchor_queries),
        scale=ScoreScale(scores, array("scale_rarities", len(scores))),
        means=means,
        factors=ItemFactors(parts, array("centre", n_columns), mixing=mixing, leading=about.leading),
        anchor_vectors=vectors,
        precisions=array("precisions", n_anchors),
        variance=about.variance,
        embedding_variance=about.embedding_variance,
    )


def _read_slopes(means: tuple[float, ...], covariance: _Matrix) -> RankSlopes:
    if not means or np.shape(covariance) != (len(means), len(means)):
        raise ValueError(f"{len(means)} slopes with a covariance of shape {np.shape(covariance)}")
    return RankSlopes(np.array(means), np.array(covariance))
