"""How scores depend on the ranks of a first stage, learned by searching some anchor queries with it."""

from __future__ import annotations

import warnings

import numpy as np

from adacur.approximation import GaussianModel
from adacur.approximation.rank_slopes import MOST_QUERIES, RANKS_THAT_COUNT, RankSlopes
from adacur.core.errors import AdacurError
from adacur.core.protocols import AnchorScores
from adacur.first_stages import Placed
from adacur.index import IndexFolder
from adacur.search.first_stages import FirstStageWarning


def learned_slopes(model: GaussianModel, anchors: AnchorScores, first: Placed) -> RankSlopes:
    """The slopes of this first stage's ranks; assumed ones where it cannot be asked about anchor queries."""
    queries, assumed = anchors.anchor_queries, RankSlopes.assumed(first.n_stages)
    if not first.can_be_asked:
        return assumed
    # Predicted scores may come from the very embeddings that a dense first stage ranks by.
    exact = np.flatnonzero(anchors.exact_anchors()) if isinstance(anchors, IndexFolder) else np.arange(len(queries))
    if len(exact) < 2:
        return assumed
    columns = exact[np.unique(np.linspace(0, len(exact) - 1, MOST_QUERIES).round().astype(np.intp))]
    try:
        depth = min(RANKS_THAT_COUNT, len(anchors.items))
        _, lists = first.search_parts([queries[at] for at in columns.tolist()], depth)
    except AdacurError:
        # A table of answers to other queries, for example.
        return assumed
    except Exception as error:
        # It may still answer the queries of users.
        warnings.warn(
            f"The first stage {first.name!r} failed when asked about anchor queries ({type(error).__name__}: {error}), "
            "so what its ranks are worth is assumed and not learned. Let it answer every query, if only with nothing.",
            FirstStageWarning,
            stacklevel=2,
        )
        return assumed
    features = model.features_of(anchors)
    # Keys stored with the features save reading all ids.
    keys = anchors.items.keys if model.keys is None else model.keys
    return RankSlopes.fitted(features, columns, lists, keys=keys, ridge=model.query_noise)
