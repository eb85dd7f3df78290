"""What an index folder remembers of its export to a vector engine: all that searches need besides the rows there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from adacur.approximation import ScoreScale
from adacur.approximation.engine_rows import Outline
from adacur.approximation.rank_slopes import RankSlopes
from adacur.core.errors import DamagedIndex, IndexMismatch, NewerFormat
from adacur.data.stored import read_array, read_json, read_record
from adacur.index.files import damage_reported, made_whole, sync_tree, write_atomically, write_checksums
from adacur.index.manifest import read_manifest
from adacur.index.versions import EXPORTED

_FORMAT = 1
_SETTINGS = "export.json"
_ARRAYS = ("scale_scores", "scale_rarities", "precisions", "stored_centre", "row_mean", "row_covariance")
_OUTLINE_MAY_LACK = ("anchor_vectors", "mixing")
_OPTIONAL = (*_OUTLINE_MAY_LACK, "fusion_scores", "fusion_rarities")
# At the top of an index, whatever its version.
_TAGS = "exports.json"
_TAG = re.compile("[0-9a-f]{12}")
# Squares of larger numbers cannot be added up.
_LARGEST = 1e100


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

    @classmethod
    def of(
        cls, home: Path, outline: Outline, *, store: str, tag: str, dense: bool, slopes: Mapping[str, RankSlopes]
    ) -> Export:
        """The export of the index version in `home`."""
        manifest = read_manifest(home)
        return cls(
            store=store,
            tag=tag,
            items_digest=manifest.items_digest,
            anchors_digest=manifest.anchors_digest,
            n_items=outline.n_items,
            dense=dense,
            slopes={name: tuple(map(tuple, [one.means, *one.covariance])) for name, one in slopes.items()},
            variance=outline.variance,
            embedding_variance=outline.embedding_variance,
            trust=outline.trust,
            centre=outline.centre,
        )

    def rank_slopes(self) -> dict[str, RankSlopes]:
        """What the ranks of first stages are worth."""
        slopes = {name: RankSlopes(np.array(rows[0]), np.array(rows[1:])) for name, rows in self.slopes.items()}
        if any(one.covariance.shape != (len(one.means), len(one.means)) for one in slopes.values()):
            raise ValueError("the slopes have rows of different lengths")
        for one in slopes.values():
            if not np.isfinite(one.means).all() or not np.allclose(one.covariance, one.covariance.T):
                raise ValueError("the slopes' covariance is not symmetric, or their means are not finite")
            if len(one.means) and np.linalg.eigvalsh(one.covariance).min() < -1e-9:
                raise ValueError("the slopes' covariance has a negative eigenvalue")
        return slopes


def export_tag(home: Path, outline: Outline, *, content: str) -> str:
    """A name that follows from what is exported: the same index has the same, so that an export can be continued.

    `content` is a digest of items, scores and vectors; from rows, which processors round differently, nothing follows.
    """
    facts = {"content": content, "columns": outline.width, "mixed": outline.mixing is not None}
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=6).hexdigest()


def export_command(path: Path, store: str) -> str:
    """What to run where an export is missing or old."""
    return f"Run: adacur index export {quote(str(path))} {quote(store)}"


def remembered_tags(path: Path, store: str) -> list[str]:
    """The tags of this index's exports to this store, of whatever version; none where they cannot be read.

    A copy of a folder remembers none: what the original exported is not the copy's to drop.
    """
    tags = _remembered(path)["stores"].get(_slug(store), ())
    return [tag for tag in tags if isinstance(tag, str) and _TAG.fullmatch(tag)] if isinstance(tags, list) else []


def remember_tags(path: Path, store: str, tags: Sequence[str]) -> None:
    """Remember which collections beside a store are exports of this index: no others may be dropped."""
    known = _remembered(path)
    known["stores"][_slug(store)] = list(dict.fromkeys(tags))
    known["names"] = sorted({*known["names"], store})
    try:
        write_atomically(path / _TAGS, json.dumps({"folder": str(path.resolve()), **known}, indent=1))
    except OSError as error:
        raise DamagedIndex(f"{path / _TAGS} cannot be written ({error}).") from error


def old_exports(path: Path, home: Path) -> dict[str, list[str]]:
    """By store, the tags of this index's exports that are not of this version, or were never finished."""
    current = exported_to(home).values()
    old = {
        store: [tag for tag in remembered_tags(path, store) if tag not in current]
        for store in _remembered(path)["names"]
    }
    return {store: tags for store, tags in old.items() if tags}


def _remembered(path: Path) -> dict[str, Any]:
    """Tags by store, and the names of stores, which earlier versions of adacur did not keep."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = read_json(path / _TAGS)
        if known["folder"] == str(path.resolve()) and isinstance(known["stores"], dict):
            names = [name for name in known.get("names", ()) if isinstance(name, str)]
            return {"stores": known["stores"], "names": names}
    return {"stores": {}, "names": []}


def write_export(home: Path, export: Export, outline: Outline, *, fusion: ScoreScale | None) -> None:
    """Remember an export, in place of an earlier one to the same store; the caller holds the lock of the folder.

    `fusion` is the scale that exact scores are fused on.
    """
    arrays = {
        "scale_scores": outline.scale.scores,
        "scale_rarities": outline.scale.rarities,
        **{name: getattr(outline, name) for name in (*_ARRAYS[2:], *_OUTLINE_MAY_LACK)},
        "fusion_scores": None if fusion is None else fusion.scores,
        "fusion_rarities": None if fusion is None else fusion.rarities,
    }
    with made_whole(home / EXPORTED / _slug(export.store), replacing=True) as folder:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise DamagedIndex(f"{home / EXPORTED} cannot be written to ({error}).") from error
        for name, array in arrays.items():
            if array is not None:
                np.save(folder / f"{name}.npy", array)
        (folder / _SETTINGS).write_text(json.dumps(asdict(export), indent=1), encoding="utf-8")
        write_checksums(folder)
        sync_tree(folder)


def read_export(
    home: Path, store: str, *, anchors: tuple[str, ...], path: Path
) -> tuple[Export, Outline, ScoreScale | None]:
    """The export of the index at `path` to this store, refused where it has changed since, and the scale of fusing.

    `anchors` are the ids of its anchor queries.
    """
    folder = home / EXPORTED / _slug(store)
    remedy = export_command(path, store)
    if not folder.exists():
        raise IndexMismatch(f"{path} has not been exported to {store} as it is now. {remedy}")
    with damage_reported(f"The files in {folder}", remedy):
        settings = read_json(folder / _SETTINGS)
        if settings["format"] > _FORMAT:
            raise NewerFormat(f"{folder} has format {settings['format']}; this adacur reads {_FORMAT}. Upgrade adacur.")
        export = read_record(Export, settings)
        if not _TAG.fullmatch(export.tag):
            raise ValueError(f"the tag is {export.tag!r}")
        outline, fusion = _outline(folder, export, anchors)
        export.rank_slopes()
    manifest = read_manifest(home)
    if (export.items_digest, export.anchors_digest) != (manifest.items_digest, manifest.anchors_digest):
        raise IndexMismatch(f"{path} has changed since it was exported to {store}. {remedy}")
    return export, outline, fusion


def exported_to(home: Path) -> dict[str, str]:
    """The names of the stores that this version was exported to, as far as they can be read, and the tags there."""
    tags = {}
    for file in sorted((home / EXPORTED).glob(f"[!.]*/{_SETTINGS}")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            export = read_json(file)
            tags[str(export["store"])] = str(export["tag"])
    return tags


def _outline(folder: Path, export: Export, anchors: tuple[str, ...]) -> tuple[Outline, ScoreScale | None]:
    def array(name: str) -> np.ndarray:
        values = read_array(folder / f"{name}.npy", kind="f", ndim=None)
        if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) > _LARGEST:
            raise ValueError(f"{name} holds numbers that are too large, or none")
        return np.asarray(values)

    found = {name: array(name) for name in _ARRAYS}
    found |= {name: array(name) for name in _OPTIONAL if (folder / f"{name}.npy").exists()}
    width, stored = len(found["row_mean"]), len(found["stored_centre"])
    mixing, vectors = found.get("mixing"), found.get("anchor_vectors")
    n_features = stored if mixing is None else mixing.shape[-1]
    scales = [("scale_scores", "scale_rarities")]
    scales += [("fusion_scores", "fusion_rarities")] * ("fusion_scores" in found)
    fits = (
        found["row_mean"].ndim == found["stored_centre"].ndim == 1
        and found["row_covariance"].shape == (width, width)
        and stored in (width, width - 1)
        and found["precisions"].shape == (len(anchors),)
        and len(anchors) <= n_features
        and (mixing is None or (mixing.ndim == 2 and len(mixing) == stored))
        and (vectors is None or (vectors.ndim == 2 and len(vectors) == len(anchors)))
        and all(found[a].shape == found[b].shape and found[a].ndim == 1 and len(found[a]) > 1 for a, b in scales)
        and export.n_items > 0
        and min(export.variance, export.embedding_variance) >= 0
    )
    if not fits:
        raise ValueError(f"arrays of shapes { {name: one.shape for name, one in found.items()} } do not fit together")
    outline = Outline(
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
    fusion = ScoreScale(found["fusion_scores"], found["fusion_rarities"]) if len(scales) > 1 else None
    return outline, fusion


def _slug(store: str) -> str:
    """A folder name for a store: exports of one index to several engines lie side by side."""
    return hashlib.blake2b(store.encode(errors="surrogatepass"), digest_size=8).hexdigest()
