"""The Gaussian's features in less memory, kept in the index folder, and what that costs in recall."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation import Features, Gaussian, ItemFactors, PackedRows, ScoreScale, Storage
from adacur.core.arrays import FloatArray
from adacur.core.budget import Budget, check_k
from adacur.core.errors import DamagedIndex, IndexMismatch, InputError, NewerFormat
from adacur.core.protocols import AnchorScores, Retriever
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.index import COMPRESSED, AnchorTable, locked, read_manifest, write_checksums
from adacur.retrievers import read_settings
from adacur.scorers import MatrixScorer
from adacur.search.methods import AdaCUR
from adacur.search.settings import GaussianSettings

__all__ = ["Compression", "compress_features", "drop_features", "is_compressed", "read_features"]

FEWEST_ANCHORS = 20
_FORMAT = 1
_SETTINGS = "features.json"


@dataclass(frozen=True, slots=True)
class Compression:
    """What compressing an index changed.

    `bytes_before` and `bytes_after` are what searches hold in memory of anchor scores and features. The recalls are
    means over `queries` anchor queries that were held out; `lost` is their difference, with a 95 % interval.
    """

    rank: int
    storage: str
    bytes_before: int
    bytes_after: int
    k: int
    budget: int
    queries: int
    recall_before: float
    recall_after: float
    lost: float
    low: float
    high: float


def compress_features(
    anchors: AnchorScores,
    *,
    path: Path,
    gaussian: Gaussian,
    first: Retriever | None,
    settings: GaussianSettings,
    rank: int,
    storage: Storage,
    k: int,
    budget: int,
    queries: int = 100,
    seed: int = 0,
) -> Compression:
    """Write the compressed features of `gaussian` into an index folder, and measure what they cost.

    Up to `queries` of the anchor queries, at most half, are held out by a seeded draw and searched for with features of
    the others, as they are and compressed. No scorer is called.
    """
    check_k(k)
    if len(anchors.anchor_queries) < FEWEST_ANCHORS:
        raise InputError(
            f"What compression costs is measured on held-out anchor queries, and takes {FEWEST_ANCHORS} of them or "
            f"more; this index has {len(anchors.anchor_queries)}."
        )
    known = Gaussian(
        embeddings=gaussian.embeddings,
        embed_queries=gaussian.embed_queries and _Remembered(gaussian.embed_queries),
    )
    before, after = _recalls(
        anchors,
        gaussian=known,
        first=first,
        settings=settings,
        rank=rank,
        storage=storage,
        k=k,
        budget=budget,
        queries=queries,
        seed=seed,
    )
    full, features = known.features_of(anchors), known.compressed(anchors, rank=rank, storage=storage)
    lost = before - after
    margin = 1.96 * float(lost.std(ddof=1)) / len(lost) ** 0.5
    compression = Compression(
        rank=min(rank, len(features.anchors)),
        storage=storage,
        bytes_before=anchors.matrix.nbytes + full.nbytes,
        bytes_after=features.nbytes,
        k=k,
        budget=budget,
        queries=len(lost),
        recall_before=float(before.mean()),
        recall_after=float(after.mean()),
        lost=float(lost.mean()),
        low=float(lost.mean()) - margin,
        high=float(lost.mean()) + margin,
    )
    _write(features, path, compression=compression)
    return compression


def is_compressed(path: Path) -> bool:
    """Whether an index folder holds compressed features."""
    return (path / COMPRESSED).exists()


def read_features(path: Path, anchors: AnchorScores) -> Features:
    """The compressed features of an index folder, memory-mapped; refused where they belong to something else."""
    folder = path / COMPRESSED
    remedy = f"Run `adacur compress {path}` again, or `adacur compress {path} --drop` to search with the scores."
    now = _belongs_to(path)
    try:
        settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        newer, other = settings["format"] > _FORMAT, [what for what in now if settings[what] != now[what]]
        features = None if newer or other else _arrays(folder, settings, anchors)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DamagedIndex(f"The files in {folder} cannot be read ({error}). {remedy}") from error
    if newer:
        raise NewerFormat(
            f"{folder} has format {settings['format']}; this adacur reads up to {_FORMAT}. Upgrade adacur. {remedy}"
        )
    if features is None:
        raise IndexMismatch(f"{folder} was made when the index had another {' and another '.join(other)}. {remedy}")
    counts = {len(features.means), *(part.shape[0] for part in features.factors.parts)}
    if counts != {len(anchors.items)} or len(features.trust) != len(anchors.anchor_queries):
        raise DamagedIndex(f"{folder} holds {counts} rows for {len(anchors.items)} items. {remedy}")
    return features


def drop_features(path: Path) -> bool:
    """Remove compressed features from an index folder; False where there were none."""
    with locked(path):
        return _remove(path)


def _recalls(
    anchors: AnchorScores,
    *,
    gaussian: Gaussian,
    first: Retriever | None,
    settings: GaussianSettings,
    rank: int,
    storage: Storage,
    k: int,
    budget: int,
    queries: int,
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Top-k-Recall of each held-out anchor query, with the features as they are and compressed."""
    keys = item_keys(query.id for query in anchors.anchor_queries)
    draws = uniform(stream_key(seed, "held out"), keys)
    held_out = np.sort(best_positions(draws, min(queries, len(keys) // 2), keys=keys))
    kept = np.setdiff1d(np.arange(len(keys)), held_out)
    rest = AnchorTable(
        anchors.items, tuple(anchors.anchor_queries[at] for at in kept), np.ascontiguousarray(anchors.matrix[:, kept])
    )
    asked = [anchors.anchor_queries[at] for at in held_out]
    exact = np.ascontiguousarray(anchors.matrix[:, held_out].T)
    scorer = MatrixScorer(asked, anchors.items.ids, exact)
    wanted = min(k, exact.shape[1])
    thresholds = np.partition(exact, -wanted, axis=1)[:, -wanted]

    def recalls(approximator: Gaussian) -> FloatArray:
        hits = AdaCUR(
            index=rest,
            scorer=scorer,
            budget=Budget(calls=budget, rounds=min(budget, settings.rounds)),
            first=first,
            approximator=settings.approximator(approximator),
            first_batch=settings.first_batch,
            first_share=settings.first_share,
            first_weight=settings.first_weight,
            seed=seed,
        ).search(asked, k)
        found = [int((own.scores >= worst).sum()) for own, worst in zip(hits, thresholds, strict=True)]
        return np.asarray(np.minimum(found, wanted) / wanted)

    features = gaussian.compressed(rest, rank=rank, storage=storage)
    compressed = Gaussian(embed_queries=gaussian.embed_queries, features=features)
    return recalls(gaussian), recalls(compressed)


class _Remembered:
    """Query vectors, each embedded once."""

    def __init__(self, embed_queries: Any) -> None:
        self._embed_queries = embed_queries
        self._known: dict[str, FloatArray] = {}

    def __call__(self, queries: Sequence[Query]) -> FloatArray:
        new = [query for query in queries if query.id not in self._known]
        if new:
            self._known |= zip((query.id for query in new), self._embed_queries(new), strict=True)
        return np.stack([self._known[query.id] for query in queries])


def _belongs_to(path: Path) -> dict[str, Any]:
    """What compressed features depend on, besides the scores that these texts were given."""
    manifest = read_manifest(path)
    dense = path / "first" / "dense"
    return {
        "items_digest": manifest.items_digest,
        "anchors_digest": manifest.anchors_digest,
        "encoder": read_settings(dense)["encoder"] if dense.exists() else None,
        "dense": dense.exists(),
    }


def _write(features: Features, path: Path, *, compression: Compression) -> None:
    unfinished = path / f".{COMPRESSED}.{uuid.uuid4().hex}.unfinished"
    with locked(path):
        for left_over in path.glob(f".{COMPRESSED}.*.unfinished"):
            shutil.rmtree(left_over)
        unfinished.mkdir()
        try:
            _save(features, unfinished, settings=_belongs_to(path) | {"compression": asdict(compression)})
            write_checksums(unfinished)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _remove(path)
        unfinished.rename(path / COMPRESSED)


def _remove(path: Path) -> bool:
    if not is_compressed(path):
        return False
    # Renamed first: a crash leaves the folder whole or gone.
    going = path / f".{COMPRESSED}.{uuid.uuid4().hex}.unfinished"
    (path / COMPRESSED).rename(going)
    shutil.rmtree(going)
    return True


def _save(features: Features, folder: Path, *, settings: dict[str, Any]) -> None:
    factors = features.factors
    arrays = {
        "scale_scores": features.scale.scores,
        "scale_rarities": features.scale.rarities,
        "means": features.means,
        "trust": features.trust,
        "anchor_vectors": features.anchor_vectors,
        "centre": factors.centre,
        "mixing": factors.mixing,
    }
    for number, part in enumerate(factors.parts):
        assert isinstance(part, PackedRows)
        arrays |= {f"part{number}": part.values, f"part{number}_scales": part.scales}
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    numbers = {"variance": features.variance, "embedding_variance": features.embedding_variance}
    content = {"format": _FORMAT, **settings, "n_parts": len(factors.parts), "leading": factors.leading, **numbers}
    (folder / _SETTINGS).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _arrays(folder: Path, settings: dict[str, Any], anchors: AnchorScores) -> Features:
    def array(name: str, *, mapped: bool = False) -> Any:
        file = folder / f"{name}.npy"
        return np.load(file, mmap_mode="r" if mapped else None)

    def optional(name: str) -> Any:
        return array(name) if (folder / f"{name}.npy").exists() else None

    parts = [
        PackedRows(array(f"part{number}", mapped=True), optional(f"part{number}_scales"))
        for number in range(settings["n_parts"])
    ]
    return Features(
        anchors=tuple(query.id for query in anchors.anchor_queries),
        scale=ScoreScale(array("scale_scores"), array("scale_rarities")),
        means=array("means"),
        factors=ItemFactors(parts, array("centre"), mixing=optional("mixing"), leading=bool(settings["leading"])),
        anchor_vectors=optional("anchor_vectors"),
        trust=array("trust"),
        variance=float(settings["variance"]),
        embedding_variance=float(settings["embedding_variance"]),
    )
