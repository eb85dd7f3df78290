"""A sparse build: each anchor query scores only its best items by the dense first stage, and a few at random."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.approximation.acquisition import best_positions
from adacur.core.arrays import IntArray
from adacur.core.errors import IndexMismatch, InputError
from adacur.core.protocols import FirstStage, Items, Scorer
from adacur.core.records import Item, Query, as_queries
from adacur.core.seeds import stream_key, uniform
from adacur.first_stages import Placed, placed
from adacur.index import IndexFolder, Origin, Progress, Sparse, is_finished
from adacur.index.object_store import refuse_url
from adacur.index.sparse import SparseBuild, Sparsity, read_sparsity
from adacur.index.table import distinct_anchors
from adacur.search.first_stages import add_first_stages, open_first_stages


def dense_among(stages: Sequence[str | FirstStage]) -> str | FirstStage:
    """The dense first stage among these, which a sparse index needs."""
    dense = next((stage for stage in stages if (stage if isinstance(stage, str) else stage.name) == "dense"), None)
    if dense is None:
        raise InputError(
            "A sparse index must have a dense first stage, by which it chooses items and predicts scores; got: "
            f"{', '.join(map(str, stages)) or 'none'}. Build it with first=['dense'] and an encoder, or --first dense."
        )
    return dense


def check_not_sparse(path: str | Path) -> None:
    """Refuse a path that holds a sparse index where a complete one is to be built."""
    if is_finished(path) and (about := read_sparsity(Path(path))) is not None:
        raise IndexMismatch(
            f"{path} is a sparse index, with {about.per_query} items scored per anchor query. Choose another path for "
            "a complete one."
        )


def build_sparse(
    items: Iterable[Item],
    anchor_queries: Iterable[Query | str],
    *,
    scorer: Scorer,
    path: str | Path,
    sparse: Sparse,
    first: Sequence[str | FirstStage],
    encoder: Any = None,
    dtype: str = "float32",
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    show_encoding: bool = False,
    origin: Origin | None = None,
) -> IndexFolder:
    """Score each anchor query against `sparse` items, at that many calls, and predict the rest.

    The same call again continues a stopped build; at most the scores of a few anchor queries are lost.
    """
    refuse_url(path, "A sparse build")
    stage = dense_among(first)
    anchors = distinct_anchors(as_queries(anchor_queries))
    items = list(items) if iter(items) is items else items
    build = SparseBuild(path, scorer=scorer, dtype=dtype, origin=origin)
    if (done := build.finished(items, anchors, sparse=sparse)) is not None:
        return done
    staged = build.stage(items)
    sparsity = Sparsity(sparse.per_query(len(staged.items)), random_share=sparse.random_share, seed=seed)
    add_first_stages([stage], items=staged.items, path=build.staged, encoder=encoder, progress=show_encoding)
    dense = placed(open_first_stages(build.staged, encoder=encoder)["dense"](), staged.items)
    vectors = dense.vectors()
    if vectors is None or vectors.embed_queries is None:
        raise InputError(
            "A sparse index needs a dense first stage of all its items with an encoder for queries; this one has "
            "other items, or no encoder. Build it from these items, with encoder=…."
        )

    choose = functools.partial(_chosen, dense=dense, items=staged.items, sparsity=sparsity)
    scored = build.score(anchors, sparsity=sparsity, choose=choose, progress=progress)
    return build.finish(
        anchors,
        scored,
        embeddings=vectors.all_rows(),
        query_vectors=vectors.embed_queries(anchors),
        sparsity=sparsity,
    )


def _chosen(queries: Sequence[Query], *, dense: Placed, items: Items, sparsity: Sparsity) -> IntArray:
    """Each query's best items, then others drawn at random; shape (queries, items per anchor query)."""
    n_random = sparsity.n_random
    n_best = sparsity.per_query - n_random
    results = dense.search(queries, n_best) if n_best else None
    chosen = np.empty((len(queries), sparsity.per_query), dtype=np.intp)
    for number, query in enumerate(queries):
        best = np.empty(0, dtype=np.intp) if results is None else results[number].positions
        draws = uniform(stream_key(sparsity.seed, "sparse", query.id), items.keys)
        # The best are not drawn a second time.
        draws[best] = -np.inf
        chosen[number] = np.concatenate([best, best_positions(draws, n_random, keys=items.keys)])
    return chosen
