"""From a URL to a server: which kind it is, where it is asked, and which key may go there."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from adacur.errors import InputError, UnknownName
from adacur.scorers.http_dialects import DIALECTS

JUDGE = "judge"
# Endpoints of language models.
CHAT, COMPLETIONS = "/chat/completions", "/completions"
# As `hosts` and `key_variables` of a dialect, for judges.
_JUDGE_KEYS = {
    "openai.com": ("OPENAI_API_KEY",),
    "deepinfra.com": ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    "fireworks.ai": ("FIREWORKS_API_KEY",),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
    "together.xyz": ("TOGETHER_API_KEY",),
}
_OWNERS = {dialect.owner: kind for kind, dialect in DIALECTS.items() if dialect.owner}
_MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says.

    `root` is that of the server; `endpoint` the address for requests, where the URL names one; `kind` is known from the
    host of a service or from what is behind '#'; `keys` are the environment variables meant for the host.
    """

    root: str
    endpoint: str | None
    host: str
    kind: str | None
    model: str | None
    keys: tuple[str, ...]
    remembered: Mapping[str, str]

    @classmethod
    def of(cls, url: str, kind: str | None = None) -> Address:
        """What a URL says, of a server of this `kind` if that is known.

        The part behind '#', which is never sent, holds what `source` wrote there.
        """
        try:
            parts = urlsplit(str(url).strip())
            host, secret, _ = parts.hostname, parts.username or parts.password or parts.query, parts.port
        except ValueError as error:
            raise InputError(f"This is not the address of a server: {error}.") from None
        if secret:
            # They would be kept in every index built with this scorer; so they are not repeated here either.
            raise InputError(f"An address must not hold credentials or a '?' (for {host}). Give a key as api_key=.")
        if parts.scheme not in ("http", "https") or not host:
            raise InputError(f"An address must begin with http:// or https:// and a host; got {url!r}.")
        remembered = dict(parse_qsl(parts.fragment))
        path = parts.path.rstrip("/")
        # Neither a look-alike nor a plain connection is a service.
        domains = _domains_of(host) if parts.scheme == "https" else ()
        services = {domain: name for name, dialect in DIALECTS.items() for domain in dialect.hosts}
        service = next((services[domain] for domain in domains if domain in services), None)
        kind = kind or remembered.get("kind") or (JUDGE if path.endswith(COMPLETIONS) else service)
        if kind == JUDGE:
            keys = next((_JUDGE_KEYS[domain] for domain in domains if domain in _JUDGE_KEYS), ())
            tails: tuple[str, ...] = (CHAT, COMPLETIONS)
        else:
            keys = DIALECTS[service].key_variables if service else ()
            dialect = DIALECTS.get(kind or "")
            tails = (dialect.tail, *dialect.endings) if dialect else ("/rerank",)
        before, has_model, _ = tails[0].partition("{model}")
        model = None
        if has_model:
            base, _, model = path.partition(before)
            endpoint = path if model else None
        else:
            path += tails[0] if path.endswith(("/v1", "/v2")) else ""
            tail = next((tail for tail in tails if path.endswith(tail)), "")
            base, endpoint = path.removesuffix(tail), path if tail else None
        server = f"{parts.scheme}://{parts.netloc}"
        return cls(
            root=server + base.removesuffix("/v1").removesuffix("/v2"),
            endpoint=server + endpoint if endpoint else None,
            host=host,
            kind=kind,
            model=remembered.get("model") or model or None,
            keys=keys,
            remembered=remembered,
        )

    def key(self, api_key: str | None) -> str | None:
        """The key given, else that of the environment, which goes only to the service it is meant for."""
        # Any index folder can name any address.
        key = api_key or next((os.environ[variable] for variable in self.keys if os.environ.get(variable)), None)
        if key is None and self.keys:
            raise InputError(f"{self.host} needs a key. Set {self.keys[0]}, or give api_key=.")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise InputError("api_key must be printable ASCII without spaces (not shown). Strip it.")
        return key


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server at an address."""

    kind: str
    endpoint: str
    model: str | None = None
    batch_size: int | None = None
    dtype: str | None = None
    max_tokens: int | None = None


def is_judge(url: str, kind: str | None) -> bool:
    """Whether a URL is that of a language model; one that cannot be read is not, and is refused where it is opened."""
    try:
        return Address.of(url, kind).kind == JUDGE
    except InputError:
        return False


def source(endpoint: str, **options: Any) -> str:
    """A URL that opens the same scorer again; empty options are left out, and those that are no text become JSON."""
    written = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in options.items()
        if value
    }
    return f"{endpoint}#{urlencode(written, quote_via=quote, safe='/')}"


async def find_server(
    get: Callable[[str], Awaitable[Any]], address: Address, *, kind: str | None, model: str | None
) -> Server:
    """What the server says of itself, else what the address says; `get` gives the JSON at a URL, or None."""
    info = await get(f"{address.root}/info") if kind in (None, "tei") else None
    if isinstance(info, dict) and "max_client_batch_size" in info:
        task, limit = info.get("model_type"), info["max_client_batch_size"]
        if isinstance(task, dict) and "reranker" not in task:
            raise InputError(
                f"{address.root} serves {info.get('model_id')!r} for {', '.join(task)}, not as a reranker."
            )
        return Server(
            "tei",
            address.endpoint or address.root + DIALECTS["tei"].path,
            model=_one_model([str(info.get("model_id"))], model, address),
            batch_size=limit if isinstance(limit, int) and limit > 0 else None,
            dtype=info.get("model_dtype"),
            max_tokens=info.get("max_input_length"),
        )
    if kind is None or (kind in _OWNERS.values() and model is None):
        for root in (f"{address.root}/v1", address.root):
            models = await _models(get, root)
            found = kind or next((_OWNERS[owner] for owner in models.values() if owner in _OWNERS), None)
            if models and found:
                return Server(found, address.endpoint or f"{root}/rerank", _one_model(list(models), model, address))
    if kind is None:
        raise InputError(
            f"The server at {address.root} does not say what kind of rerank server it is (tried: /info, /models). "
            f"Give kind=, one of {', '.join(DIALECTS)}; or {JUDGE}, for a language model."
        )
    path = DIALECTS[kind].path
    if address.endpoint is None and "{model}" in path and model is None:
        raise InputError(f"The address of a {kind} model ends in its name: give model=.")
    return Server(kind, address.endpoint or address.root + path.replace("{model}", model or ""), model)


async def find_judge(get: Callable[[str], Awaitable[Any]], address: Address, *, model: str | None) -> Server:
    """Where a language model is asked; without `model`, the only one that the server lists."""
    endpoint = address.endpoint or f"{address.root}/v1{CHAT}"
    if model is None:
        model = _one_model(
            list(await _models(get, endpoint.removesuffix(CHAT).removesuffix(COMPLETIONS))), None, address
        )
    return Server(JUDGE, endpoint, model)


async def _models(get: Callable[[str], Awaitable[Any]], root: str) -> dict[str, Any]:
    """The models that a server lists, and whom each is owned by."""
    listing = await get(f"{root}/models")
    entries = listing.get("data") if isinstance(listing, dict) else None
    listed = entries if isinstance(entries, list) else []
    return {str(entry["id"]): entry.get("owned_by") for entry in listed if isinstance(entry, dict) and "id" in entry}


def _one_model(served: list[str], model: str | None, address: Address) -> str:
    if model is None and len(served) == 1:
        return served[0]
    if model is None and not served:
        raise UnknownName(f"{address.root} lists no models: name one, model='NAME' or #model=NAME behind the URL.")
    if model is None or model not in served:
        shown = ", ".join(map(repr, served[:_MOST_NAMES])) + (", …" if len(served) > _MOST_NAMES else "")
        raise UnknownName(f"model must be one that {address.root} serves: {shown or 'it lists none'}; got {model!r}.")
    return model


def _domains_of(host: str) -> tuple[str, ...]:
    """A host and the domains that it is in."""
    labels = host.split(".")
    return tuple(".".join(labels[at:]) for at in range(len(labels)))
