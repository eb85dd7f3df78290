"""From the address of a rerank server to its kind, its endpoint, its model and its key."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from adacur.core.errors import InputError, UnknownName
from adacur.core.extras import require
from adacur.scorers.http_dialects import DIALECTS

__all__ = ["Address", "Server", "discover", "read_address", "read_key"]

Get = Callable[[str], Awaitable[Any]]
"""From a URL to the JSON there, or None."""


@dataclass(frozen=True, slots=True)
class Address:
    """`base` is the root of the server; `endpoint` the rerank address, where the URL names one."""

    base: str
    endpoint: str | None
    host: str
    provider: str | None
    remembered: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server at an address."""

    kind: str
    endpoint: str
    model: str | None = None
    batch_size: int | None = None
    dtype: str | None = None
    max_tokens: int | None = None

    def source(self, scores: str) -> str:
        """A URL that opens the same scorer again: the part behind '#' is never sent."""
        remembered = {"kind": self.kind}
        if self.model is not None and DIALECTS[self.kind].names_model:
            remembered["model"] = self.model
        if scores != "auto":
            remembered["scores"] = scores
        return f"{self.endpoint}#{urlencode(remembered, quote_via=quote, safe='/')}"


def read_address(url: str) -> Address:
    httpx2 = require("httpx2", extra="http")
    try:
        parts = urlsplit(str(url).strip())
        host, secret = parts.hostname, parts.username or parts.password or parts.query
        httpx2.URL(urlunsplit(parts))
    except (ValueError, httpx2.InvalidURL) as error:
        raise InputError(f"This is not the address of a server: {error}.") from None
    if secret:
        # They would be kept in every index built with this scorer; so they are not repeated here either.
        raise InputError(f"An address must not hold credentials or a '?' (for {host}). Give a key as api_key=.")
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"An address must begin with http:// or https:// and a host; got {url!r}.")
    path = parts.path.rstrip("/")
    if path.endswith(("/v1", "/v2")):
        path += "/rerank"
    base = path.removesuffix("/rerank")
    if base != path:
        base = base.removesuffix("/v1").removesuffix("/v2")
    root = (parts.scheme, parts.netloc)
    domains = {domain: kind for kind, dialect in DIALECTS.items() for domain in dialect.hosts}
    providers = (kind for domain, kind in domains.items() if host == domain or host.endswith(f".{domain}"))
    return Address(
        base=urlunsplit((*root, base, "", "")),
        endpoint=urlunsplit((*root, path, "", "")) if path.endswith("/rerank") else None,
        host=host,
        provider=next(providers, None) if parts.scheme == "https" else None,
        remembered=dict(parse_qsl(parts.fragment)),
    )


def read_key(api_key: str | None, address: Address) -> str | None:
    """The key given, else that of the environment, which goes only to the host it is meant for."""
    # Any index folder can name any address.
    variables = DIALECTS[address.provider].key_variables if address.provider else ()
    key = api_key or next((os.environ[variable] for variable in variables if os.environ.get(variable)), None)
    if key is None and variables:
        raise InputError(f"{address.host} needs a key. Set {variables[0]}, or give api_key=.")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError("api_key must not hold a space, a line break or a letter outside ASCII (not shown). Strip it.")
    return key


async def discover(get: Get, address: Address, *, kind: str | None, model: str | None) -> Server:
    """What the server says of itself; where it says nothing, what the address says."""
    for name, dialect in DIALECTS.items():
        if dialect.info and kind in (None, name):
            info = await get(address.base + dialect.info)
            if isinstance(info, dict) and "max_client_batch_size" in info:
                return _described(name, address, info, model)
    owners = {dialect.owner: name for name, dialect in DIALECTS.items() if dialect.owner}
    if kind is None or (kind in owners.values() and model is None):
        for root in (f"{address.base}/v1", address.base):
            listing = await get(f"{root}/models")
            entries = listing.get("data") if isinstance(listing, dict) else None
            models = [entry for entry in entries or [] if isinstance(entry, dict) and "id" in entry]
            kinds = [owners[entry["owned_by"]] for entry in models if entry.get("owned_by") in owners]
            if models and (kind is not None or kinds):
                name = _one_model([str(entry["id"]) for entry in models], model, address)
                return Server(kind or kinds[0], address.endpoint or f"{root}/rerank", name)
    if kind is None:
        hosted = {dialect.path: name for name, dialect in DIALECTS.items() if dialect.hosts}
        kind = next((name for path, name in hosted.items() if (address.endpoint or "").endswith(path)), None)
    if kind is None:
        raise InputError(
            f"Neither the address {address.endpoint or address.base} nor a server there says what kind of rerank "
            f"server it is (tried: info, models). Give kind=, one of {', '.join(DIALECTS)}."
        )
    return Server(kind, address.endpoint or address.base + DIALECTS[kind].path, model)


def _described(kind: str, address: Address, info: dict[str, Any], model: str | None) -> Server:
    task, limit = info.get("model_type"), info["max_client_batch_size"]
    if isinstance(task, dict) and "reranker" not in task:
        raise InputError(
            f"{address.base} serves {info.get('model_id')!r} for {', '.join(task)}. Start the server with a reranker."
        )
    return Server(
        kind,
        address.endpoint or address.base + DIALECTS[kind].path,
        model=_one_model([str(info.get("model_id"))], model, address),
        batch_size=limit if isinstance(limit, int) and limit > 0 else None,
        dtype=info.get("model_dtype"),
        max_tokens=info.get("max_input_length"),
    )


def _one_model(served: list[str], model: str | None, address: Address) -> str:
    if model is None and len(served) == 1:
        return served[0]
    if model is None or model not in served:
        advice = "Give model=" if model is None else f"There is no {model!r}"
        raise UnknownName(f"{address.base} serves {', '.join(map(repr, served))}. {advice}.")
    return model
