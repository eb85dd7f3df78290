"""The index of the demo: anchor scores and embeddings of 10,033 Wikipedia articles.

The numbers are a distribution of their own, adacur_wikivital: there in a clone, elsewhere fetched. The articles are
fetched, and the anchor queries are cut from them again: both must be the very texts that were scored, or nothing is
opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from adacur.data import cache_folder, fetch, pseudo_queries, wikivital
from adacur.errors import DamagedIndex
from adacur.first_stages import Dense, bge_small
from adacur.protocols import ScorerCard
from adacur.search.at_rest import store_at_rest
from adacur.search.index_stages import add_first_stages, open_first_stages
from adacur.search.snapshot import Snapshot
from adacur.store import AnchorTable, IndexFolder, locked, save_table
from adacur.store.database import digest_texts
from adacur.store.manifest import FORMAT


def wikivital_folder() -> Path:
    """The index, with the first stages bm25 and dense; assembled in the cache when first needed."""
    numbers = wikivital_numbers()
    about = json.loads((numbers / "about.json").read_text(encoding="utf-8"))
    # An index of another format, made by another adacur, stays where it is.
    target = cache_folder() / f"wikivital-{about['anchors_digest'][:8]}-{FORMAT}.adacur"
    if not target.exists():
        items = wikivital()
        anchors = pseudo_queries(items, about["n_anchors"], seed=about["seed"])
        for name, texts in (("items", items), ("anchors", anchors)):
            if digest_texts((record.id, record.text) for record in texts) != about[f"{name}_digest"]:
                raise DamagedIndex(
                    f"The {name} cut from the fetched articles are not those that the scores belong to. "
                    "Remove the folder wikivital from its cache."
                )
        scores = np.load(numbers / "scores.npy")
        table = AnchorTable.from_arrays(items=items, anchor_queries=anchors, scores=scores.T)
        save_table(table, target, card=ScorerCard(**about["scorer"]))
    folder = IndexFolder.open(target)
    if len(folder.manifest.first) < 2:
        stages = {"bm25": "bm25", "dense": _dense(folder.items.ids, numbers)}
        folder = add_first_stages(stages, folder)
        with locked(folder.home):
            store_at_rest(Snapshot(folder, first=open_first_stages(folder.home)))
    return target


def wikivital_numbers() -> Path:
    """The folder of the scores and embeddings: of the package where it is installed, else fetched."""
    found = find_spec("adacur_wikivital")
    return fetch("wikivital-scores") if found is None or found.origin is None else Path(found.origin).parent


def _dense(ids: Sequence[str], numbers: Path) -> Dense:
    embeddings = np.load(numbers / "embeddings.npy").astype(np.float32) * np.load(numbers / "scales.npy")[:, None]
    encoder = bge_small(fetch("bge-small-en-v1.5"))
    return Dense.from_embeddings(ids, embeddings, encoder=encoder, storage="int8")
