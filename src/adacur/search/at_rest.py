"""What searches of a version need and no query changes: computed where a build, an edit or a first stage ends.

The model, what the ranks of first stages are worth, and how to read scores. A version that lacks them is searched
alike, but the first search of each process then computes them from all scores.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from adacur.errors import AdacurError
from adacur.first_stages.joined import SEPARATOR, parts_of
from adacur.model import Features, GaussianModel
from adacur.model.rank_slopes import RankSlopes
from adacur.search.index_stages import learned_slopes
from adacur.search.relevance import RELEVANCE, Relevance, as_stored
from adacur.store import IndexFolder
from adacur.store.model_file import has_model, is_compressed, store_model
from adacur.store.writing import write_atomically

if TYPE_CHECKING:
    from adacur.search.snapshot import Snapshot

_log = logging.getLogger("adacur.build")


def store_at_rest(snapshot: Snapshot) -> tuple[str, ...]:
    """Store what a version lacks of this, and give the names of its first stages.

    The caller holds its lock, or nobody knows of it yet.
    """
    folder = snapshot.anchors
    assert isinstance(folder, IndexFolder)
    try:
        relevance = None if (folder.home / RELEVANCE).exists() else Relevance.of_anchors(folder)
        if relevance is not None:
            write_atomically(folder.home / RELEVANCE, as_stored(relevance, anchor_queries=folder.anchor_queries))
        if not has_model(folder) and not is_compressed(folder.home):
            extraction = snapshot.uncompressed_model().extraction(folder)
            store_model(folder, extraction.features, slopes=lambda features: slopes_of_stages(snapshot, features))
    except AdacurError as error:
        # Its encoder may not be at hand, or a score damaged: searches need both, and will say so.
        _log.warning("The model of %s is not stored, and searches compute it: %s", folder.path, error)
    return folder.first_names()


def slopes_of_stages(snapshot: Snapshot, features: Features) -> dict[str, RankSlopes]:
    """What the ranks of all first stages of a version are worth, wherever a search starts, under their names."""
    first = snapshot.ranked_by_all(snapshot.stage(None))
    if first is None or not snapshot.anchors.anchor_queries:
        return {}
    names = SEPARATOR.join(part.name for part in parts_of(first))
    return {names: learned_slopes(GaussianModel(features=features), snapshot.anchors, first)}
