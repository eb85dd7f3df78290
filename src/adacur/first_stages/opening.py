"""The door for encoders: from an object, a path or a name to an encoder; the twin of `adacur.scorers.opening`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adacur.core.errors import UnknownName
from adacur.core.spelling import did_you_mean
from adacur.data.catalogue import fetch, names
from adacur.first_stages.encoders import SentenceTransformerEncoder, bge_small
from adacur.scorers.opening import imported, is_function_name

__all__ = ["encoder"]


def encoder(source: Any) -> Any:
    """Open a dual encoder.

    `source` is one of:

    - an object with `encode_queries` and `encode_items`, or None: returned as it is;
    - "module:name" of such an object;
    - a name that `adacur fetch` lists, such as "bge-small-en-v1.5", fetched if needed;
    - the folder or hub name "org/name" of a sentence-transformers model.
    """
    if not isinstance(source, str | Path):
        return source
    text = str(source)
    if text == "bge-small-en-v1.5":
        return bge_small(fetch(text))
    if text in names():
        return SentenceTransformerEncoder(fetch(text))
    if is_function_name(text):
        return imported(text, what="encoder")
    if not Path(source).exists() and "/" not in text:
        raise UnknownName(
            f"There is no encoder called {text!r}.{did_you_mean(text, names())} Give a name that `adacur fetch` lists, "
            "the folder or hub name 'org/name' of a sentence-transformers model, 'module:name', or an object."
        )
    return SentenceTransformerEncoder(source)
