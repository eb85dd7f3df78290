"""Vector stores by URL: qdrant://host:6333/articles, lancedb:///data/shop/articles, postgresql://host/shop/articles.

A URL holds no credentials, and one that could is refused without being repeated.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from adacur.errors import InputError
from adacur.extras.engines.checked_store import CheckedStore
from adacur.names import STORES, named
from adacur.spelling import did_you_mean

_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
# One host with its port; or nothing, before a path on this machine.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,@\[\]]*)(:\d+)?")
_CONTROL = re.compile(r"[\0-\x1f\x7f\ud800-\udfff]")
# What every store takes after '?': fields of text, which may be several, and of the id, and the vector to search by.
_OPTIONS = {"text": "text", "id": "id_field", "vector": "vector"}


def open_store(url: str) -> CheckedStore:
    """The store at a URL; it is looked for when it is first asked.

    ?text=FIELD (again for each of several fields) and ?id=FIELD name the fields of an item's text and id, and
    ?vector=NAME the vector to search by.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in STORES:
        known = ", ".join(f"{one}://" for one in STORES)
        seen = f" This one begins with {scheme}://." if separator and _SCHEME.fullmatch(scheme) else ""
        near = did_you_mean(scheme, STORES) if seen else ""
        raise InputError(f"The URL of a vector store begins with one of {known}.{seen}{near}")
    return CheckedStore(named(STORES[scheme]).from_url(url))


def address_in(url: str) -> tuple[SplitResult, dict[str, Any]]:
    """The parts of a URL, and the options after its '?'; one that could hold a password is refused.

    A '/', '?' or '#' in a password ends the host, and what follows would pass for a path: so '@' must be escaped.
    """
    parts = _split(url)
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            # Neither name nor value is repeated: what follows an '&' in a password is read as another name.
            near = did_you_mean(name, _OPTIONS)
            raise InputError(f"The URL of a vector store takes {', '.join(_OPTIONS)} after '?'; got another.{near}")
        options[_OPTIONS[name]] = (*options.get("text", ()), value) if name == "text" else value
    return parts, options


def _split(url: str) -> SplitResult:
    scheme = url.partition("://")[0]
    try:
        url.encode()
        parts = urlsplit(url)
        safe = "@" not in url and not parts.fragment and "#" not in url and not _CONTROL.search(unquote(url))
    except ValueError:
        safe = False
    if not safe or not _HOST.fullmatch(parts.netloc):
        which = f"{scheme}:// " if _SCHEME.fullmatch(scheme) else ""
        raise InputError(
            f"This {which}URL cannot be read, or not safely. It must hold no user and no password, which come from the "
            "environment; a port is a number; and '@', '/', '?', '#' that are part of a word are written %40, %2F, "
            "%3F, %23."
        )
    return parts


def without_credentials(url: str) -> str:
    """A URL as messages show it: scheme, host and path, or only the scheme where more could be a password."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return url
    try:
        parts = _split(url)
    except InputError:
        return f"{scheme}://…" if _SCHEME.fullmatch(scheme) else "…"
    return f"{scheme}://{parts.netloc}{parts.path}"
