"""From a URL to a server: which kind it is, where it is asked, and which key may go there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from adacur.errors import InputError
from adacur.scorers.http_dialects import DIALECTS

JUDGE = "judge"
# The endpoint of a language model.
CHAT = "/chat/completions"
# As `hosts` and `key_variables` of a dialect, for judges.
_JUDGE_KEYS = {
    "openai.com": ("OPENAI_API_KEY",),
    "deepinfra.com": ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    "fireworks.ai": ("FIREWORKS_API_KEY",),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
    "together.xyz": ("TOGETHER_API_KEY",),
}


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says.

    `kind` is known from the host of a service, from the path of a language model, or from `remembered`: what `source`
    wrote behind '#', which is never sent. `keys` are the environment variables meant for the host.
    """

    server: str
    path: str
    host: str
    kind: str | None
    keys: tuple[str, ...]
    remembered: Mapping[str, str]

    @classmethod
    def of(cls, url: str, kind: str | None = None) -> Address:
        """What a URL says, of a server of this `kind` if that is known."""
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
        remembered, path = dict(parse_qsl(parts.fragment)), parts.path.rstrip("/")
        # Neither a look-alike nor a plain connection is a service.
        labels = host.split(".") if parts.scheme == "https" else []
        domains = [".".join(labels[at:]) for at in range(len(labels))]
        service = next((name for name, dialect in DIALECTS.items() if not set(domains).isdisjoint(dialect.hosts)), None)
        kind = kind or remembered.get("kind") or (JUDGE if path.endswith(CHAT) else service)
        if kind == JUDGE:
            keys = next((_JUDGE_KEYS[domain] for domain in domains if domain in _JUDGE_KEYS), ())
        else:
            keys = DIALECTS[service].key_variables if service else ()
        return cls(f"{parts.scheme}://{parts.netloc}", path, host, kind, keys, remembered)

    def endpoint(self, usual: str, *endings: str) -> str:
        """Where requests go: this address if it ends as one for requests does, else the `usual` path below it."""
        tail = re.split("/v[12](?=/)", usual)[-1]
        path = self.path + tail if self.path.endswith(("/v1", "/v2")) else self.path
        return self.server + (path if path.endswith((tail, *endings)) else path + usual)

    def key(self, api_key: str | None) -> str | None:
        """The key given, else that of the environment, which goes only to the service it is meant for."""
        # Any index folder can name any address.
        key = api_key or next((os.environ[variable] for variable in self.keys if os.environ.get(variable)), None)
        if key is None and self.keys:
            raise InputError(f"{self.host} needs a key. Set {self.keys[0]}, or give api_key=.")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise InputError("api_key must be printable ASCII without spaces (not shown). Strip it.")
        return key


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
