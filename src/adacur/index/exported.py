"""What an index folder remembers of its export to a vector engine: all that searches need besides the rows there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adacur.approximation import ScoreScale
from adacur.approximation.engine_rows import Outline
from adacur.approximation.rank_slopes import RankSlopes
from adacur.core.errors import AdacurError, DamagedIndex, IndexMismatch, NewerFormat
from adacur.data.stored import read_array, read_json, read_record
from adacur.index.files import sync_tree, write_checksums
from adacur.index.manifest import read_manifest
from adacur.index.versions import EXPORTED

_FORMAT = 1
_SETTINGS = "export.json"
_ARRAYS = ("scale_scores", "scale_rarities", "precisions", "stored_centre", "row_mean", "row_covariance")
_OPTIONAL = ("anchor_vectors", "mixing")
_NUMBERS = ("variance", "embedding_variance", "trust", "centre")


@dataclass(frozen=True, slots=True)
class Export:
    """An export of an index: `tag` names the collection beside `store`; `dense` says whether it has item vectors.

    `slopes` are, by first stage, the means and the rows of the covariance of what its ranks are worth.
    """

    store: str
    tag: str
    items_digest: str
    anchors_digest: str
    n_items: int
    dense: bool
    slopes: Mapping[str, tuple[tuple[float, ...], ...]]
    variance: float
    embedding_variance: float
    trust: float
    centre: float
    format: int = _FORMAT

    def rank_slopes(self) -> dict[str, RankSlopes]:
        """What the ranks of first stages are worth."""
        return {name: RankSlopes(np.array(rows[0]), np.array(rows[1:])) for name, rows in self.slopes.items()}


def export_tag(home: Path, outline: Outline) -> str:
    """A name that follows from what is exported: the same index has the same, so that an export can be continued."""
    manifest = read_manifest(home)
    digest = hashlib.blake2b(digest_size=6)
    for part in (manifest.items_digest, manifest.anchors_digest, str(outline.width)):
        digest.update(str(part).encode())
    digest.update(outline.row_mean.tobytes())
    return digest.hexdigest()


def write_export(
    home: Path, *, store: str, tag: str, outline: Outline, dense: bool, slopes: Mapping[str, RankSlopes]
) -> None:
    """Remember an export, in place of an earlier one to the same store; the caller holds the lock of the folder."""
    manifest = read_manifest(home)
    folder = home / EXPORTED / _slug(store)
    unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.unfinished")
    unfinished.mkdir(parents=True)
    arrays = {
        "scale_scores": outline.scale.scores,
        "scale_rarities": outline.scale.rarities,
        **{name: getattr(outline, name) for name in (*_ARRAYS[2:], *_OPTIONAL)},
    }
    content = {
        "format": _FORMAT,
        "store": store,
        "tag": tag,
        "items_digest": manifest.items_digest,
        "anchors_digest": manifest.anchors_digest,
        "n_items": outline.n_items,
        "dense": dense,
        "slopes": {name: [one.means.tolist(), *one.covariance.tolist()] for name, one in slopes.items()},
        **{name: getattr(outline, name) for name in _NUMBERS},
    }
    try:
        for name, array in arrays.items():
            if array is not None:
                np.save(unfinished / f"{name}.npy", array)
        (unfinished / _SETTINGS).write_text(json.dumps(content, indent=1), encoding="utf-8")
        write_checksums(unfinished)
        sync_tree(unfinished)
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_export(home: Path, store: str, *, anchors: tuple[str, ...]) -> tuple[Export, Outline]:
    """The export to this store, refused where the index has changed since; `anchors` are its anchor queries' ids."""
    folder = home / EXPORTED / _slug(store)
    remedy = f"Run: adacur index export {home} {store}"
    if not folder.exists():
        raise IndexMismatch(f"This version of {home} has not been exported to {store}. {remedy}")
    try:
        settings = read_json(folder / _SETTINGS)
        if settings["format"] > _FORMAT:
            raise NewerFormat(f"{folder} has format {settings['format']}; this adacur reads {_FORMAT}. Upgrade adacur.")
        export = read_record(Export, settings)
        outline = _outline(folder, export, anchors)
        export.rank_slopes()
    except AdacurError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise DamagedIndex(f"The files in {folder} cannot be read ({error}). {remedy}") from error
    manifest = read_manifest(home)
    if (export.items_digest, export.anchors_digest) != (manifest.items_digest, manifest.anchors_digest):
        raise IndexMismatch(f"{home} has changed since it was exported to {store}. {remedy}")
    return export, outline


def exported_to(home: Path) -> list[str]:
    """The names of the stores that this version was exported to, as far as they can be read."""
    names = []
    for file in sorted((home / EXPORTED).glob(f"[!.]*/{_SETTINGS}")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            names.append(str(read_json(file)["store"]))
    return names


def _outline(folder: Path, export: Export, anchors: tuple[str, ...]) -> Outline:
    def array(name: str) -> np.ndarray:
        values = read_array(folder / f"{name}.npy", kind="f", ndim=None)
        if not np.isfinite(values).all():
            raise ValueError(f"{name} holds NaN or infinity")
        return np.asarray(values)

    found = {name: array(name) for name in _ARRAYS}
    found |= {name: array(name) for name in _OPTIONAL if (folder / f"{name}.npy").exists()}
    width, stored = len(found["row_mean"]), len(found["stored_centre"])
    mixing, vectors = found.get("mixing"), found.get("anchor_vectors")
    fits = (
        found["row_covariance"].shape == (width, width)
        and stored in (width, width - 1)
        and found["precisions"].shape == (len(anchors),)
        and (mixing is None or (mixing.ndim == 2 and len(mixing) == stored))
        and (vectors is None or (vectors.ndim == 2 and len(vectors) == len(anchors)))
        and found["scale_scores"].shape == found["scale_rarities"].shape
        and found["scale_scores"].ndim == 1
        and len(found["scale_scores"]) > 1
        and export.n_items > 0
        and min(export.variance, export.embedding_variance) >= 0
    )
    if not fits:
        raise ValueError(f"arrays of shapes { {name: one.shape for name, one in found.items()} } do not fit together")
    return Outline(
        n_items=export.n_items,
        anchors=anchors,
        scale=ScoreScale(found["scale_scores"], found["scale_rarities"]),
        anchor_vectors=vectors,
        precisions=found["precisions"],
        variance=export.variance,
        embedding_variance=export.embedding_variance,
        trust=export.trust,
        centre=export.centre,
        stored_centre=found["stored_centre"],
        mixing=mixing,
        row_mean=found["row_mean"],
        row_covariance=found["row_covariance"],
    )


def _slug(store: str) -> str:
    """A folder name for a store: exports of one index to several engines lie side by side."""
    return hashlib.blake2b(store.encode(), digest_size=8).hexdigest()
