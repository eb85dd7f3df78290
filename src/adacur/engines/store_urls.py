"""Vector stores by URL: qdrant://host:6333/articles, lancedb:///data/shop/articles, postgresql://host/shop/articles."""

from __future__ import annotations

import importlib
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from adacur.core.errors import InputError
from adacur.core.spelling import did_you_mean
from adacur.engines.vector_store import VectorStore

# Each class has `from_url(url, **options)`, and is imported when a URL asks for it.
_STORES = {
    "qdrant": ("adacur.engines.qdrant", "QdrantStore"),
    "qdrant+https": ("adacur.engines.qdrant", "QdrantStore"),
    "qdrant-edge": ("adacur.engines.qdrant_edge", "QdrantEdgeStore"),
    "lancedb": ("adacur.engines.lancedb", "LanceStore"),
    "postgresql": ("adacur.engines.postgres", "PostgresStore"),
}
STORE_SCHEMES = tuple(_STORES)
_SECRET = re.compile("key|password|passwd|token|secret", re.IGNORECASE)


def is_store_url(text: str) -> bool:
    """Whether a text is the URL of a vector store."""
    return text.partition("://")[0] in _STORES and "://" in text


def open_store(url: str, **options: Any) -> VectorStore:
    """The store at a URL, which need not exist yet.

    ?text=FIELD (again for each of several fields) and ?id=FIELD name the fields of an item's text and id, as `text=`
    and `id_field=` do; what else may stand there, each engine says.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _STORES:
        known = ", ".join(f"{one}://" for one in _STORES)
        raise InputError(
            f"The URL of a vector store begins with {known}; got {without_credentials(url)!r}."
            f"{did_you_mean(scheme, _STORES)}"
        )
    try:
        urlsplit(url)
    except ValueError as error:
        raise InputError(f"This is not a URL: {error}.") from None
    module, name = _STORES[scheme]
    store: VectorStore = getattr(importlib.import_module(module), name).from_url(url, **options)
    return store


def parameters(url: str, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Options after the '?' of a URL: `text` and `id`, and those of an engine with what reads them."""
    options: dict[str, Any] = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name == "text":
            options["text"] = (*options.get("text", ()), value)
        elif name == "id":
            options["id_field"] = value
        elif name in known:
            try:
                options[name] = known[name](value)
            except ValueError:
                raise InputError(f"{name} cannot be {value!r} in {without_credentials(url)}.") from None
        else:
            names = ("text", "id", *known)
            near = did_you_mean(name, names)
            raise InputError(f"A URL of this kind takes {', '.join(names)} after '?'; got {name!r}.{near}")
    return options


def without_credentials(url: str) -> str:
    """The URL without user, password, and parameters that are called key, token, password or secret."""
    scheme, separator, rest = url.partition("://")
    address, mark, query = rest.partition("?")
    # The last '@': a password may hold one, or a '/', that should have been written as %40 or %2F.
    if not address.startswith("/"):
        address = address.rpartition("@")[2]
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if not _SECRET.search(name)]
    return f"{scheme}{separator}{address}{mark if kept else ''}{urlencode(kept)}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
