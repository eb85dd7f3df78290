"""Vector stores by URL: qdrant://host:6333/articles, lancedb:///data/shop/articles, postgresql://host/shop?table=articles.

What is wrong with a URL may be that a password was not escaped: an error repeats nothing of a URL that is in doubt but
its scheme.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from adacur.errors import InputError
from adacur.extras.engines.vector_store import VectorStore
from adacur.names import STORES, named
from adacur.spelling import did_you_mean

# After their "://" comes a folder, whose name may hold '@'.
_FOLDERS = ("lancedb", "lancedb+file", "file")
_SECRET = re.compile("key|password|passwd|token|secret", re.IGNORECASE)
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
_LONGEST_WAIT = 1_000_000
_CONTROL = re.compile(r"[\0-\x1f\x7f\ud800-\udfff]")


def open_store(url: str, **options: Any) -> VectorStore:
    """The store at a URL; it is looked for when it is first asked.

    ?text=FIELD (again for each of several fields) and ?id=FIELD name the fields of an item's text and id, and
    ?vector=NAME the vector to search by, as `text=`, `id_field=` and `vector=` do; what else may stand there, each
    engine says.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in STORES:
        known = ", ".join(f"{one}://" for one in STORES)
        seen = f" This one begins with {scheme}://." if separator and _SCHEME.fullmatch(scheme) else ""
        near = did_you_mean(scheme, STORES) if seen else ""
        raise InputError(f"The URL of a vector store begins with one of {known}.{seen}{near}")
    store: VectorStore = named(STORES[scheme]).from_url(url, **options)
    return store


def split(url: str, *, credentials: bool = False) -> SplitResult:
    """The parts of a URL; one that may hold a password where none belongs is refused.

    A '/', '?' or '#' in a password ends the host, and what follows would pass for a path: so '@' must be escaped
    wherever there could be a host. With `credentials`, USER:PASSWORD@ may stand before the host, and several hosts.
    """
    scheme = url.partition("://")[0]
    try:
        url.encode()
        parts = urlsplit(url)
        address, later = parts.netloc, f"{parts.path}?{parts.query}#{parts.fragment}"
        if not credentials:
            parts.port  # noqa: B018  (A ValueError where it is no number.)
        host = address.rpartition("@")[2]
        doubtful = "@" in later and (address != "" or parts.scheme not in _FOLDERS)
        doubtful |= address.count("@") > credentials or parts.fragment != "" or _CONTROL.search(url) is not None
        # A password whose host is missing: postgresql://me:secret/database.
        doubtful |= not all(re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d+)?", one) for one in host.split(","))
    except ValueError:
        doubtful = True
    if doubtful:
        shown = f"{scheme}:// " if _SCHEME.fullmatch(scheme) else ""
        where = "USER:PASSWORD@ may stand before its host" if credentials else "It must hold no user and no password"
        raise InputError(
            f"This {shown}URL cannot be read, or not safely. {where}, a port is a number, and '@', '/', '?', '#' that "
            "are part of a word are written %40, %2F, %3F, %23."
        )
    return parts


def parameters(
    url: str,
    known: Mapping[str, Callable[[str], Any]],
    *,
    several: Collection[str] = (),
    passed: Collection[str] = (),
) -> dict[str, Any]:
    """Options after the '?' of a URL: `text`, `id` and `vector`, and those of an engine with what reads them.

    - `several`: those that may be given again, whose values come as a tuple; `text` is one;
    - `passed`: those that are not for us.
    """
    options: dict[str, Any] = {}
    secret_before = False
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name == "text" or name in several:
            options[name] = (*options.get(name, ()), value)
        elif name == "id":
            options["id_field"] = value
        elif name == "vector":
            options["vector"] = value
        elif name in known:
            try:
                options[name] = known[name](value)
            except ValueError:
                raise InputError(f"{name} cannot be {value!r} in {without_credentials(url)}.") from None
        elif name not in passed:
            names = ("text", "id", "vector", *several, *known)
            # What follows an '&' in a password is read as another name.
            seen = "" if secret_before else f"; got {name!r}.{did_you_mean(name, names)}"
            raise InputError(f"A URL of this kind takes {', '.join(names)} after '?'{seen or ', and got another.'}")
        secret_before |= _SECRET.search(name) is not None
    return options


def check_seconds(**options: float) -> None:
    """Refuse times to wait that are not positive, or too long."""
    for name, seconds in options.items():
        if not 0 < seconds <= _LONGEST_WAIT:
            raise InputError(f"{name} must be above 0 and at most {_LONGEST_WAIT:,} seconds; got {seconds}.")


def without_credentials(url: str) -> str:
    """The URL without user, password, a parameter that is called key, token, password or secret, and what follows it.

    Of a URL that may hold a password elsewhere, only the scheme.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return url
    if not _SCHEME.fullmatch(scheme):
        return "…"
    try:
        parts = split(url, credentials=True)
    except InputError:
        return f"{scheme}://…"
    given = parse_qsl(parts.query, keep_blank_values=True)
    kept = list(takewhile(lambda pair: not _SECRET.search(pair[0]), given))
    query = f"?{urlencode(kept)}" if kept else ""
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
