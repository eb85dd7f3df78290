"""Scorers by what users call them, names of the catalogue included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adacur.core.errors import UnknownName
from adacur.core.protocols import Scorer
from adacur.core.spelling import did_you_mean
from adacur.data import fetch, names
from adacur.scorers import scorer as opened_scorer

__all__ = ["scorer"]


def scorer(source: Any, **options: Any) -> Scorer:
    """Open a scorer; `options` go to its class, and what was opened is logged (INFO, "adacur.scorers").

    `source` is a scorer; a name that `adacur fetch` lists (fetched if need be); a file or folder with an ONNX or
    transformers cross-encoder; a hub name "org/name"; the URL of a service that re-ranks; a sentence-transformers
    CrossEncoder, a LangChain cross-encoder, a rerankers ranker or a PyTerrier transformer; a function of (query text,
    item text) pairs, plain or async; or "module:name" of any of these objects.
    """
    if isinstance(source, str) and source in names():
        source = fetch(source)
    elif isinstance(source, str) and not Path(source).exists() and not set("/:") & set(source):
        raise UnknownName(
            f"There is no scorer called {source!r}.{did_you_mean(source, names())} Give a name that `adacur fetch` "
            "lists, a folder or .onnx file, a hub name 'org/name', a URL that begins with http:// or https://, or "
            "'module:function'."
        )
    return opened_scorer(source, **options)
