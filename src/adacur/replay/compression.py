"""The Gaussian model's features in less memory, and what that costs in recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.budget import Budget, check_k
from adacur.errors import InputError
from adacur.first_stages import Placed, placed
from adacur.model import Features, GaussianModel, Storage
from adacur.model.features import rows_at
from adacur.model.rows import check_storage
from adacur.records import ItemList, Query, as_queries
from adacur.replay.measures import mean_of
from adacur.replay.searches import KnownScores, Searches, Way, check_anchors, check_exact, held_out, some_anchors
from adacur.results import Hits
from adacur.search import AnchorIndex
from adacur.search.at_rest import slopes_of_stages, store_at_rest
from adacur.search.editing import writable_home
from adacur.search.index_stages import learned_slopes
from adacur.search.tuned import default_settings
from adacur.seeds import stream_key, uniform
from adacur.store import AnchorTable, IndexFolder, locked
from adacur.store.model_file import drop_model, is_compressed, store_model
from adacur.store.writing import full_disk_reported

_FEWEST_ANCHORS = 20
_QUERIES = 100
# Recall is measured among as many items as have this many scores: 100 MB, held about five times.
_SCORES_TO_MEASURE_BY = 25_000_000


@dataclass(frozen=True, slots=True)
class Compression:
    """What compressing an index changed.

    `bytes_before` and `bytes_after` are what searches hold or map of features. The recalls are means
    over `queries` held-out anchor queries, among `items` of the items; `lost` is their difference, with a 95 %
    interval.
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
    items: int


def compress(
    index: AnchorIndex,
    *,
    rank: int = 128,
    storage: Storage = "int8",
    k: int = 10,
    budget: int = 100,
    seed: int = 0,
) -> Compression:
    """Store the features of "gaussian" searches in the index folder, in less memory, and measure what that costs.

    Searches then no longer read the anchor scores. Scores and vectors are read a block at a time, and features are
    written as they are made. No scorer is called.

    - `rank`: columns kept of the anchor scores, besides as many as the dense first stage's vectors have;
    - `storage`: "int8", "float16" or "float32";
    - `k`, `budget`: the recall to measure, with the features as they are and compressed, on up to 100 anchor queries
      held out by a draw with this `seed`, at most half. Of many items it is measured among a sample that fits into
      memory.
    """
    home = writable_home(index)
    check_anchors(index, "Compressing", fewest=_FEWEST_ANCHORS)
    check_exact(index)
    check_k(k, Budget(budget).calls)
    check_storage(storage)
    if rank < 1:
        raise InputError(f"rank must be at least 1; got {rank}.")
    anchors, vectors = index.anchors, index.snapshot.item_vectors()
    embed_queries = None if vectors is None else vectors.embed_queries
    with locked(home), full_disk_reported(home, lambda: "the index is as it was", what="compression"):
        sample = _sample(anchors.items.keys, n_anchors=len(anchors.anchor_queries), seed=seed)
        items = index.items if len(sample) == len(index) else ItemList(index.items.at(sample.tolist()))
        table = AnchorTable(items, tuple(anchors.anchor_queries), rows_at(anchors, sample))
        held = held_out(table, min(_QUERIES, len(anchors.anchor_queries) // 2), seed=seed)
        queries = [table.anchor_queries[at] for at in held.tolist()]
        rest = some_anchors(table, np.setdiff1d(np.arange(len(anchors.anchor_queries)), held))
        first = index.snapshot.stage(None)
        if first is not None and len(sample) < len(index):
            first = placed(_Among(first, sample, table.items.ids), table.items)
        name = None if first is None else first.name

        def recalls(model: GaussianModel) -> FloatArray:
            searches = Searches(
                rest,
                queries,
                k=k,
                stages={name: first},
                scorer=KnownScores.of(table),
                model=model,
                slopes=lambda stage: learned_slopes(model, rest, stage),
                seed=seed,
            )
            return searches.recalls(Way(default_settings(k), name, min(budget, len(items))))

        embeddings = None if vectors is None else vectors.rows(sample).astype(np.float32, copy=False)
        whole = GaussianModel(embeddings=embeddings, embed_queries=embed_queries)
        before = recalls(whole)
        features = whole.compressed(rest, rank=rank, storage=storage)
        after = recalls(GaussianModel(embed_queries=embed_queries, features=features))
        lost = mean_of(before - after)

        def report(made: Features) -> dict[str, Any]:
            # Residuals as wide as the scores, vectors in float32, and means.
            width, wide = len(anchors.anchor_queries), made.means.itemsize
            per_item = width * wide + (0 if vectors is None else vectors.shape[1] * 4) + wide
            return {
                "rank": min(rank, width),
                "storage": storage,
                "bytes_before": len(anchors.items) * per_item,
                "bytes_after": made.nbytes,
                "k": k,
                "budget": budget,
                "queries": lost.n,
                "recall_before": float(before.mean()),
                "recall_after": float(after.mean()),
                "lost": lost.value,
                "low": lost.low,
                "high": lost.high,
                "items": len(sample),
            }

        model = GaussianModel(embeddings=vectors, embed_queries=embed_queries)
        assert isinstance(anchors, IndexFolder)
        compression = store_model(
            anchors,
            lambda allocate: model.compressed(anchors, rank=rank, storage=storage, allocate=allocate),
            slopes=lambda made: slopes_of_stages(index.snapshot, made),
            report=report,
        )
    index.snapshot.reread()
    return Compression(**compression)


def decompress(index: AnchorIndex) -> bool:
    """Put the whole model in the place of what `compress` stored; False where there was nothing."""
    home = writable_home(index)
    with locked(home), full_disk_reported(home, lambda: "the index can be searched", what="command"):
        if not is_compressed(home):
            return False
        drop_model(home)
        index.snapshot.reread()
        store_at_rest(index.snapshot)
    index.snapshot.reread()
    return True


def _sample(keys: KeyArray, *, n_anchors: int, seed: int) -> IntArray:
    """Positions of the items to measure among, in order: all, or as many as fit into memory several times."""
    most = max(1, _SCORES_TO_MEASURE_BY // n_anchors)
    if len(keys) <= most:
        return np.arange(len(keys))
    return np.sort(np.argpartition(uniform(stream_key(seed, "measured"), keys), most)[:most])


class _Among:
    """A first stage's answers among some of the items that it knows, at these positions: it is searched deeper."""

    def __init__(self, first: Placed, positions: IntArray, ids: Sequence[str]) -> None:
        self.name = first.name
        self._first = first
        self._share = len(positions) / len(first.items)
        self._ids = dict(zip(positions.tolist(), ids, strict=True))

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """At most k hits per query; now and then fewer, where chance left few of them among its best."""
        # Half as many again, and some: of these, k are among the items nearly always.
        answers = self._first.search(queries, int(1.5 * k / self._share) + 100)
        hits = []
        for query, (positions, scores) in zip(as_queries(queries), answers, strict=True):
            ranks = [rank for rank, at in enumerate(positions.tolist()) if at in self._ids][:k]
            ids = tuple(self._ids[at] for at in positions[ranks].tolist())
            hits.append(Hits(query=query, ids=ids, scores=scores[ranks]))
        return hits
