"""The index that ships with the package: anchor scores and embeddings of 10,033 Wikipedia articles.

Only numbers ship. The articles are fetched, and the anchor queries are cut from them again: both must be the very
texts that were scored, or nothing is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from adacur.core.errors import DamagedIndex
from adacur.core.protocols import ScorerCard
from adacur.data import cache_folder, fetch, pseudo_queries, wikivital
from adacur.first_stages import Dense, bge_small
from adacur.index import AnchorTable, IndexFolder, save_table
from adacur.index.database import digest_texts
from adacur.search.first_stages import add_first_stages, save_first_stage

_SHIPPED = files("adacur.data") / "shipped" / "wikivital"


def wikivital_folder() -> Path:
    """The shipped index, with the first stages bm25 and dense; assembled in the cache when first needed."""
    about = json.loads((_SHIPPED / "about.json").read_text(encoding="utf-8"))
    target = cache_folder() / f"wikivital-{about['anchors_digest'][:8]}.adacur"
    if not target.exists():
        items = wikivital()
        anchors = pseudo_queries(items, about["n_anchors"], seed=about["seed"])
        for name, texts in (("items", items), ("anchors", anchors)):
            if digest_texts((record.id, record.text) for record in texts) != about[f"{name}_digest"]:
                raise DamagedIndex(
                    f"The {name} cut from the fetched articles are not those that the shipped scores belong to. "
                    "Reinstall adacur, and remove the folder wikivital from its cache."
                )
        with (_SHIPPED / "scores.npy").open("rb") as stored:
            scores = np.load(stored)
        table = AnchorTable.from_arrays(items=items, anchor_queries=anchors, scores=scores.T)
        save_table(table, target, card=ScorerCard(**about["scorer"]))
    items_at_rest = IndexFolder.open(target).items
    add_first_stages(["bm25"], items=items_at_rest, path=target)
    if not (target / "first" / "dense").exists():
        save_first_stage(_dense(items_at_rest.ids), target)
    return target


def _dense(ids: Sequence[str]) -> Dense:
    with (_SHIPPED / "embeddings.npy").open("rb") as stored, (_SHIPPED / "scales.npy").open("rb") as scales:
        embeddings = np.load(stored).astype(np.float32) * np.load(scales)[:, None]
    encoder = bge_small(fetch("bge-small-en-v1.5"))
    return Dense.from_embeddings(ids, embeddings, encoder=encoder, storage="int8")
