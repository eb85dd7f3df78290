"""Vector stores by URL: qdrant://host:6333/articles, lancedb:///data/shop/articles, postgresql://host/shop?table=articles.

A URL holds no credentials, and one that could is refused without being repeated.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from adacur.errors import InputError
from adacur.extras.engines.checked_store import CheckedStore
from adacur.names import STORES, named
from adacur.spelling import did_you_mean

_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
# One host, or several separated by commas, each with its port; or nothing, before a path on this machine.
_HOSTS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,@\[\]]*)(:\d+)?(,(\[[0-9A-Fa-f:.]+\]|[^:,@\[\]]*)(:\d+)?)*")
_CONTROL = re.compile(r"[\0-\x1f\x7f\ud800-\udfff]")
# Every store takes these after '?': fields of text, which may be several, of the id, and the vector to search by.
_OPTIONS = {"text": "text", "id": "id_field", "vector": "vector", "metadata": "metadata"}
_SEVERAL = ("text", "metadata")


def open_store(url: str) -> CheckedStore:
    """The store at a URL; it is looked for when it is first asked.

    ?text=FIELD (again for each of several fields) and ?id=FIELD name the fields of an item's text and id, and
    ?vector=NAME the vector to search by; what else may stand there, each engine says.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in STORES:
        known = ", ".join(f"{one}://" for one in STORES)
        seen = f" This one begins with {scheme}://." if separator and _SCHEME.fullmatch(scheme) else ""
        near = did_you_mean(scheme, STORES) if seen else ""
        raise InputError(f"The URL of a vector store begins with one of {known}.{seen}{near}")
    return CheckedStore(named(STORES[scheme]).from_url(url))


def split(url: str) -> SplitResult:
    """The parts of a URL; one that could hold a password is refused.

    A '/', '?' or '#' in a password ends the host, and what follows would pass for a path: so '@' must be escaped.
    """
    scheme = url.partition("://")[0]
    try:
        url.encode()
        parts = urlsplit(url)
        safe = "@" not in url and not parts.fragment and "#" not in url and not _CONTROL.search(unquote(url))
    except ValueError:
        safe = False
    if not safe or not _HOSTS.fullmatch(parts.netloc):
        which = f"{scheme}:// " if _SCHEME.fullmatch(scheme) else ""
        raise InputError(
            f"This {which}URL cannot be read, or not safely. It must hold no user and no password, which come from the "
            "environment; a port is a number; and '@', '/', '?', '#' that are part of a word are written %40, %2F, "
            "%3F, %23."
        )
    return parts


def options_in(parts: SplitResult, **more: Callable[[str], Any]) -> dict[str, Any]:
    """The options after the '?' of a URL: those that every store takes, and `more`, each with what reads its value."""
    known = (*_OPTIONS, *more)
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # Neither name nor value is repeated: what follows an '&' in a password is read as another name.
            raise InputError(
                f"A URL of this kind takes {', '.join(known)} after '?'; got another.{did_you_mean(name, known)}"
            )
        if name in _SEVERAL:
            options[name] = (*options.get(name, ()), value)
            continue
        try:
            options[_OPTIONS.get(name, name)] = more.get(name, str)(value)
        except ValueError:
            raise InputError(f"The value of {name} in a {parts.scheme}:// URL cannot be read.") from None
    return options


def without_credentials(url: str) -> str:
    """A URL as messages show it: scheme, host and path, or only the scheme where more could be a password."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return url
    try:
        parts = split(url)
    except InputError:
        return f"{scheme}://…" if _SCHEME.fullmatch(scheme) else "…"
    return f"{scheme}://{parts.netloc}{parts.path}"


def seconds(value: str | float) -> float:
    """A time to wait."""
    if not 0 < (time := float(value)) <= 1e6:
        raise InputError(f"timeout must be above 0 and at most 1,000,000 seconds; got {time:g}.")
    return time


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
