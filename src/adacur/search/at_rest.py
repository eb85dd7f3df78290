"""What searches of a version need and no query changes: computed where a build, an edit or a first stage ends.

The model, what the ranks of first stages are worth, and how to read scores. A version that lacks them is searched
alike, but the first search of each process then computes them from all scores.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from adacur.errors import AdacurError
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
    """What ranks are worth of each first stage of a version, and of all of them joined."""
    if not snapshot.anchors.anchor_queries:
        return {}
    names = [*snapshot.named_stages, *([snapshot.all_joined] if snapshot.all_joined else [])]
    model = GaussianModel(features=features)
    return {name: learned_slopes(model, snapshot.anchors, snapshot.first_stage(name)) for name in names}
