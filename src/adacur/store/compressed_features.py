"""The Gaussian model's features in an index folder: stored whole, read memory-mapped, refused where they do not fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import KeyArray
from adacur.data.stored import read_array, read_json
from adacur.errors import DamagedIndex, IndexMismatch, OtherFormat
from adacur.model import Features, ItemFactors, PackedRows, ScoreScale
from adacur.model.rows import Allocate
from adacur.protocols import AnchorScores
from adacur.store.manifest import manifest_in
from adacur.store.versions import COMPRESSED
from adacur.store.writing import damage_reported, locked, made_whole, write_checksums

_FORMAT = 1
_SETTINGS = "features.json"


def is_compressed(home: Path) -> bool:
    """Whether an index folder holds compressed features."""
    return (home / COMPRESSED).exists()


def read_features(home: Path, anchors: AnchorScores) -> Features:
    """The compressed features of an index folder, memory-mapped; refused where they belong to something else."""
    folder = home / COMPRESSED
    remedy = f"Run `adacur index compress {home}` again, or with --drop to search with the scores."
    now = _belongs_to(home)
    with damage_reported(f"The files in {folder}", remedy):
        settings = read_json(folder / _SETTINGS)
        if settings["format"] != _FORMAT:
            raise OtherFormat(f"{folder} has format {settings['format']}; this adacur reads {_FORMAT}. {remedy}")
        if other := [what for what in now if settings[what] != now[what]]:
            raise IndexMismatch(f"{folder} was made when the index had another {' and another '.join(other)}. {remedy}")
        features = _read(folder, settings, anchors)
    counts = {len(features.means), *(part.shape[0] for part in features.factors.parts)}
    counts |= set() if features.keys is None else {len(features.keys)}
    if counts != {len(anchors.items)} or len(features.precisions) != len(anchors.anchor_queries):
        raise DamagedIndex(f"{folder} holds {counts} rows for {len(anchors.items)} items. {remedy}")
    return features


def store_features(
    home: Path,
    make: Callable[[Allocate], Features],
    *,
    keys: KeyArray,
    report: Callable[[Features], dict[str, Any]],
) -> dict[str, Any]:
    """Make features in files of a hidden folder, and then put it in the place of earlier ones; the report of them.

    The caller holds the lock of the folder.
    """
    _remove_unfinished(home)
    with made_whole(home / COMPRESSED, replacing=True) as folder:
        folder.mkdir()
        features = make(_on_disk(folder))
        np.save(folder / "keys.npy", keys)
        reported = report(features)
        _write(features, folder, settings=_belongs_to(home) | {"compression": reported})
        write_checksums(folder)
        # The mapping goes first: a file that is mapped cannot be renamed everywhere.
        del features
    return reported


def drop_features(home: Path) -> bool:
    """Remove compressed features from an index folder; False where there were none."""
    with locked(home):
        _remove_unfinished(home)
        if not is_compressed(home):
            return False
        # Renamed first: a crash leaves the folder whole or gone.
        shutil.rmtree((home / COMPRESSED).rename(home / f".{COMPRESSED}.dropped.unfinished"))
        return True


def _belongs_to(home: Path) -> dict[str, Any]:
    """What compressed features depend on, besides the scores that these texts were given."""
    manifest = manifest_in(home)
    dense = home / "first" / "dense"
    return {
        "items_digest": manifest.items_digest,
        "anchors_digest": manifest.anchors_digest,
        "encoder": read_json(dense / "retriever.json")["encoder"] if dense.exists() else None,
        "dense": dense.exists(),
    }


def _remove_unfinished(home: Path) -> None:
    """An interrupted compression leaves files as large as those that it would have made."""
    for left_over in home.glob(f".{COMPRESSED}.*.unfinished"):
        shutil.rmtree(left_over)


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


def _write(features: Features, folder: Path, *, settings: dict[str, Any]) -> None:
    """Write what does not grow with the items; the rest is there."""
    factors = features.factors
    arrays = {
        "scale_scores": features.scale.scores,
        "scale_rarities": features.scale.rarities,
        "precisions": features.precisions,
        "anchor_vectors": features.anchor_vectors,
        "centre": factors.centre,
        "mixing": factors.mixing,
    }
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    numbers = {"variance": features.variance, "embedding_variance": features.embedding_variance}
    content = {"format": _FORMAT, **settings, "n_parts": len(factors.parts), "leading": factors.leading, **numbers}
    (folder / _SETTINGS).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _read(folder: Path, settings: dict[str, Any], anchors: AnchorScores) -> Features:
    def array(name: str, *, mapped: bool = False) -> Any:
        return read_array(folder / f"{name}.npy", kind="fiu", ndim=None, mapped=mapped)

    def optional(name: str, *, mapped: bool = False) -> Any:
        return array(name, mapped=mapped) if (folder / f"{name}.npy").exists() else None

    numbers = {name: float(settings[name]) for name in ("variance", "embedding_variance")}
    if not all(0 <= number < float("inf") for number in numbers.values()):
        raise ValueError(f"the variances are {numbers}")
    parts = [
        PackedRows(array(f"part{number}", mapped=True), optional(f"part{number}_scales", mapped=True))
        for number in range(settings["n_parts"])
    ]
    centre, mixing = array("centre"), optional("mixing")
    widths = {len(centre), sum(part.shape[1] for part in parts)} | (set() if mixing is None else {len(mixing)})
    if not parts or len(widths) > 1 or (settings["leading"] and len(parts) != 2):
        raise ValueError(f"{len(parts)} parts, {sorted(widths)} columns and leading {settings['leading']!r} do not fit")
    return Features(
        anchors=tuple(query.id for query in anchors.anchor_queries),
        scale=ScoreScale(array("scale_scores"), array("scale_rarities")),
        means=array("means", mapped=True),
        factors=ItemFactors(parts, centre, mixing=mixing, leading=bool(settings["leading"])),
        anchor_vectors=optional("anchor_vectors"),
        precisions=array("precisions"),
        variance=numbers["variance"],
        embedding_variance=numbers["embedding_variance"],
        keys=array("keys", mapped=True),
    )
