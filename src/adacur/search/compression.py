"""The Gaussian's features in less memory, kept in the index folder, and what that costs in recall."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation import Features, GaussianModel, ItemFactors, PackedRows, ScoreScale, Storage
from adacur.approximation.gaussian_features import EmbedQueries, rows_at
from adacur.approximation.packed_rows import Allocate, check_storage
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import Budget, check_k
from adacur.core.errors import AdacurError, DamagedIndex, IndexMismatch, InputError, NewerFormat
from adacur.core.protocols import AnchorScores, Items, Ranking, Vectors
from adacur.core.ranking import best_positions
from adacur.core.records import ItemList, Query, as_queries
from adacur.core.results import Hits
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.data.stored import read_array, read_json
from adacur.first_stages import Dense, Placed, as_hits, placed, read_settings
from adacur.index import COMPRESSED, AnchorTable, locked, read_manifest, write_checksums
from adacur.scorers import MatrixScorer
from adacur.search.methods import AdaCUR
from adacur.search.settings import GaussianSettings

__all__ = [
    "Compression",
    "compress_features",
    "drop_features",
    "is_compressed",
    "read_features",
]

FEWEST_ANCHORS = 20
# Recall is measured among as many items as have so many scores: 100 MB, held about five times.
_SCORES_TO_MEASURE_BY = 25_000_000
_FORMAT = 1
_SETTINGS = "features.json"


@dataclass(frozen=True, slots=True)
class Compression:
    """What compressing an index changed.

    `bytes_before` and `bytes_after` are what searches hold or map of anchor scores and features. The recalls are means
    over `queries` anchor queries that were held out, among `items` of the items; `lost` is their difference, with a
    95 % interval.
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
    items: int = 0


def compress_features(
    anchors: AnchorScores,
    *,
    path: Path,
    vectors: Vectors | None,
    embed_queries: EmbedQueries | None,
    first: Placed | None,
    settings: GaussianSettings,
    rank: int,
    storage: Storage,
    k: int,
    budget: int,
    queries: int = 100,
    seed: int = 0,
) -> Compression:
    """Write the Gaussian's features, compressed, into an index folder, and measure what that costs.

    `vectors` are the items' embeddings in the order of the index. Scores and vectors are read a block at a time, and
    features go to the disk as they are made. Up to `queries` of the anchor queries, at most half, are held out by a
    seeded draw and searched for with features of the others, as they are and compressed; of many items, among a sample
    that fits into memory. No scorer is called.
    """
    _check(anchors, rank=rank, storage=storage, k=k, budget=budget)
    remembered = embed_queries and _Remembered(embed_queries)
    with locked(path):
        before, after, n_measured = _recalls(
            anchors,
            vectors=vectors,
            embed_queries=remembered,
            first=first,
            settings=settings,
            rank=rank,
            storage=storage,
            k=k,
            budget=budget,
            queries=queries,
            seed=seed,
        )
        lost = before - after
        margin = _margin(lost)
        with _unfinished(path) as folder:
            gaussian = GaussianModel(embeddings=vectors, embed_queries=remembered)
            features = gaussian.compressed(anchors, rank=rank, storage=storage, allocate=_on_disk(folder))
            np.save(folder / "keys.npy", anchors.items.keys)
            # Scores, as much again for what the regression leaves of them, vectors in float32, and means.
            width, wide = len(anchors.anchor_queries), features.means.itemsize
            per_item = 2 * width * wide + (0 if vectors is None else vectors.shape[1] * 4) + wide
            compression = Compression(
                rank=min(rank, len(features.anchors)),
                storage=storage,
                bytes_before=len(anchors.items) * per_item,
                bytes_after=features.nbytes,
                k=k,
                budget=budget,
                queries=len(lost),
                recall_before=float(before.mean()),
                recall_after=float(after.mean()),
                lost=float(lost.mean()),
                low=float(lost.mean()) - margin,
                high=float(lost.mean()) + margin,
                items=n_measured,
            )
            _save(features, folder, settings=_belongs_to(path) | {"compression": asdict(compression)})
            write_checksums(folder)
            # The mapping goes first: a file that is mapped cannot be renamed everywhere.
            del features
            _remove(path)
            folder.rename(path / COMPRESSED)
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
        settings = read_json(folder / _SETTINGS)
        newer, other = settings["format"] > _FORMAT, [what for what in now if settings[what] != now[what]]
        features = None if newer or other else _arrays(folder, settings, anchors)
    except AdacurError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise DamagedIndex(f"The files in {folder} cannot be read ({error}). {remedy}") from error
    if newer:
        raise NewerFormat(
            f"{folder} has format {settings['format']}; this adacur reads up to {_FORMAT}. Upgrade adacur. {remedy}"
        )
    if features is None:
        raise IndexMismatch(f"{folder} was made when the index had another {' and another '.join(other)}. {remedy}")
    counts = {len(features.means), *(part.shape[0] for part in features.factors.parts)}
    counts |= set() if features.keys is None else {len(features.keys)}
    if counts != {len(anchors.items)} or len(features.precisions) != len(anchors.anchor_queries):
        raise DamagedIndex(f"{folder} holds {counts} rows for {len(anchors.items)} items. {remedy}")
    return features


def drop_features(path: Path) -> bool:
    """Remove compressed features from an index folder; False where there were none."""
    with locked(path):
        _remove_unfinished(path)
        return _remove(path)


def _margin(differences: FloatArray) -> float:
    """Of a 95 % interval around their mean."""
    return float(1.96 * differences.std(ddof=1) / len(differences) ** 0.5)


def _check(anchors: AnchorScores, *, rank: int, storage: Storage, k: int, budget: int) -> None:
    """Refuse before the work what could not be done after it."""
    check_k(k)
    Budget(budget).check_k(k)
    check_storage(storage)
    if rank < 1:
        raise InputError(f"rank is at least 1; got {rank}.")
    if len(anchors.anchor_queries) < FEWEST_ANCHORS:
        raise InputError(
            f"What compression costs is measured on held-out anchor queries, and takes {FEWEST_ANCHORS} of them or "
            f"more; this index has {len(anchors.anchor_queries)}."
        )


def _recalls(
    anchors: AnchorScores,
    *,
    vectors: Vectors | None,
    embed_queries: EmbedQueries | None,
    first: Placed | None,
    settings: GaussianSettings,
    rank: int,
    storage: Storage,
    k: int,
    budget: int,
    queries: int,
    seed: int,
) -> tuple[FloatArray, FloatArray, int]:
    """Top-k-Recall of each held-out anchor query: features as they are, and compressed; and among how many items."""
    keys = item_keys(query.id for query in anchors.anchor_queries)
    draws = uniform(stream_key(seed, "held out"), keys)
    held_out = np.sort(best_positions(draws, min(queries, len(keys) // 2), keys=keys))
    kept = np.setdiff1d(np.arange(len(keys)), held_out)
    sample = _sample(anchors, seed=seed)
    items: Items = anchors.items
    if len(sample) < len(items):
        share, items = len(sample) / len(items), ItemList(items.at(sample.tolist()))
        if first is not None:
            first = placed(_Among(first, sample, items.ids, share=share), items)
    scores = rows_at(anchors, sample)
    rest = AnchorTable(items, tuple(anchors.anchor_queries[at] for at in kept), np.ascontiguousarray(scores[:, kept]))
    asked = [anchors.anchor_queries[at] for at in held_out]
    exact = np.ascontiguousarray(scores[:, held_out].T)
    del scores
    scorer = MatrixScorer(asked, items.ids, exact)
    wanted = min(k, exact.shape[1])
    thresholds = np.partition(exact, -wanted, axis=1)[:, -wanted]

    def recalls(approximator: GaussianModel) -> FloatArray:
        from adacur.search.anchor_index import AnchorIndex

        method = AdaCUR(
            rounds=settings.rounds,
            approximator=settings.approximator(approximator),
            first_batch=settings.first_batch,
            first_share=settings.first_share,
            first_weight=settings.first_weight,
            seed=seed,
        )
        hits = AnchorIndex(rest, scorer=scorer).search(asked, k, budget=budget, method=method, first=first)
        found = [int((own.scores >= worst).sum()) for own, worst in zip(hits, thresholds, strict=True)]
        return np.asarray(np.minimum(found, wanted) / wanted)

    embeddings = None if vectors is None else vectors.rows(sample).astype(np.float32, copy=False)
    gaussian = GaussianModel(embeddings=embeddings, embed_queries=embed_queries)
    features = gaussian.compressed(rest, rank=rank, storage=storage)
    compressed = GaussianModel(embed_queries=embed_queries, features=features)
    return recalls(gaussian), recalls(compressed), len(sample)


def _sample(anchors: AnchorScores, *, seed: int) -> IntArray:
    """Positions of the items to measure among, in order: all, or as many as fit into memory several times."""
    n_items, most = len(anchors.items), max(1, _SCORES_TO_MEASURE_BY // len(anchors.anchor_queries))
    if n_items <= most:
        return np.arange(n_items)
    draws = uniform(stream_key(seed, "measured"), anchors.items.keys)
    return np.sort(np.argpartition(draws, most)[:most])


class _Among:
    """A first stage's answers among some of the items that it knows, at these positions: it is searched deeper."""

    def __init__(self, first: Placed, positions: IntArray, ids: Sequence[str], *, share: float) -> None:
        self._first = first
        self._share = share
        self._ids = dict(zip(positions.tolist(), ids, strict=True))
        self.name = first.name
        vectors = first.vectors()
        # Vectors of the sample can be searched exactly.
        self._embed_queries = vectors.embed_queries if vectors else None
        self._dense = Dense.from_embeddings(ids, vectors.rows(positions)) if vectors else None

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """At most k hits per query; now and then fewer, where chance left few of them among its best."""
        queries = as_queries(queries)
        if self._dense is not None and self._embed_queries is not None:
            return as_hits(queries, self._dense.nearest(self._embed_queries(queries), k), self._dense.ids)
        # Half as many again, and some: of these, k are among the items nearly always.
        answers = self._first.search(queries, int(1.5 * k / self._share) + 100)
        ranks = [[rank for rank, at in enumerate(one.positions.tolist()) if at in self._ids][:k] for one in answers]
        among = [Ranking(one.positions[rank], one.scores[rank]) for one, rank in zip(answers, ranks, strict=True)]
        return as_hits(queries, among, self._ids)


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


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A hidden folder to write into; gone, unless renamed, when it is left."""
    _remove_unfinished(path)
    folder = path / f".{COMPRESSED}.{uuid.uuid4().hex}.unfinished"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unfinished(path: Path) -> None:
    """What was left by one that was killed is as large as what it would have made."""
    for left_over in path.glob(f".{COMPRESSED}.*.unfinished"):
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


def _remove(path: Path) -> bool:
    if not is_compressed(path):
        return False
    # Renamed first: a crash leaves the folder whole or gone.
    going = path / f".{COMPRESSED}.{uuid.uuid4().hex}.unfinished"
    (path / COMPRESSED).rename(going)
    shutil.rmtree(going)
    return True


def _save(features: Features, folder: Path, *, settings: dict[str, Any]) -> None:
    """Write what does not grow with the items; the rest is there."""
    factors = features.factors
    arrays = {
        "scale_scores": features.scale.scores,
        "scale_rarities": features.scale.rarities,
        "trust": features.precisions,
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


def _arrays(folder: Path, settings: dict[str, Any], anchors: AnchorScores) -> Features:
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
        precisions=array("trust"),
        **numbers,
        # Absent from what was compressed before keys were kept.
        keys=optional("keys", mapped=True),
    )
