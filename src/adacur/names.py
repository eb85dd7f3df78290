"""What extras add, by name: one line each, imported when it is used. The core knows nothing else of an extra."""

from __future__ import annotations

import importlib
from typing import Any

# Commands of `adacur`, in the order of its help.
COMMANDS = ("adacur.extras.server.commands:serve", "adacur.extras.train.train_command:train")
INDEX_COMMANDS = ("adacur.extras.server.commands:refresh",)
# Vector stores by the scheme of their URL; each class has `from_url(url, **options)`.
_LANCEDB, _POSTGRES = "adacur.extras.engines.lancedb:LanceStore", "adacur.extras.engines.postgres:PostgresStore"
STORES = {
    "qdrant": "adacur.extras.engines.qdrant:QdrantStore",
    "qdrant+https": "adacur.extras.engines.qdrant:QdrantStore",
    "lancedb": _LANCEDB,
    "postgresql": _POSTGRES,
}
# What is done with such a URL: search the collection, read its items, show it without its password.
SEARCH_IN = "adacur.extras.engines.engine_index:search_in"
ITEMS_IN = "adacur.extras.engines.engine_index:items_in"
WITHOUT_CREDENTIALS = "adacur.extras.engines.store_urls:without_credentials"
RAY = "adacur.extras.ray.ray_executor:Ray"
# Inference: the fastest forward pass for a model, the choice of one query's items as a CUDA graph, and the product of
# narrow rows with a vector.
FORWARDS = "adacur.extras.kernels.fast_forwards:fast_forward"
RECORDED_CHOICES = "adacur.extras.kernels.graph_top_n:RecordedChoices"
NARROW_PRODUCT = "adacur.extras.kernels.narrow_product:product_of_narrow"
# The key in config.json of an [EMB] cross-encoder, and what opens one.
EMB_KEY = "adacur_emb_head"
LOAD_EMB = "adacur.extras.train.emb_cross_encoder:load_emb_cross_encoder"
# When a `find` has done enough, and what that promises: a room above the one that asks.
CALIBRATED = "adacur.replay.certificates:calibrated"
# A server's memory of its searches, and why an item is a hit.
SEARCH_LOG = "adacur.extras.server.search_log:SearchLog"
EXPLAIN = "adacur.extras.server.explain:explain"


def named(place: str) -> Any:
    """What lives at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def is_store_url(text: str) -> bool:
    """Whether a text is the URL of a vector store."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in STORES
