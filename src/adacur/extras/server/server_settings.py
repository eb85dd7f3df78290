"""Limits, keys and switches of a server; every default works."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adacur.budget import is_whole
from adacur.errors import InputError
from adacur.extras.server.search_log import SearchLog
from adacur.money import Price

_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits, keys and switches of a server.

    - `max_…`: limits of one request;
    - `concurrency`, `queue`: requests that run and that wait at a time; further ones are refused with 429;
    - `seconds`: the most that a request may take, waiting included;
    - `grace_seconds`: the time that requests under way have to finish when the server stops;
    - `api_keys`: if given, every request that searches needs one of them;
    - `allowed_hosts`: names, without ports, that a request's Host header may have besides localhost and loopback
      addresses. Without any, only requests that arrive at a loopback address are held to these;
    - `log_queries`: whether texts of queries go into the log;
    - `probe_seconds`: how often a scorer without known weights, such as a service, is asked a few pairs again to notice
      that it has changed; 0 is never;
    - `refuse_drift`: whether searches are refused once it has changed beyond the drift allowed;
    - `log_folder`: where the searches of each index are logged, with the texts of queries, in NAME.sqlite; nowhere by
      default. `log_keep` and `log_days` are the most that is kept;
    - `price`: what the scorers cost, such as "0.05 USD / 1M tokens"; by default as far as it is known.
    """

    max_body_bytes: int = 4 * 2**20
    max_queries: int = 32
    max_query_chars: int = 4_000
    max_filter_values: int = 10_000
    max_documents: int = 1_000
    max_document_chars: int = 100_000
    max_k: int = 1_000
    max_budget: int = 1_000
    max_rounds: int = 100
    concurrency: int = 64
    queue: int = 128
    seconds: float = 60.0
    grace_seconds: float = 30.0
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    log_queries: bool = False
    probe_seconds: float = 3600.0
    refuse_drift: bool = False
    log_folder: str = ""
    log_keep: int = 20_000
    log_days: float = 90.0
    price: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "queue" else 1
            if field.type == "int" and not (is_whole(value) and value >= least):
                raise InputError(f"{field.name} must be a whole number of at least {least}; got {value!r}.")
            if field.type == "float" and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise InputError(f"{field.name} must be a number of seconds; got {value!r}.")
            if field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{field.name} must be true or false; got {value!r}.")
            if field.type == "tuple[str, ...]" and isinstance(value, str):
                raise InputError(f"{field.name} must be a list of texts; got one text. Put it into a list.")
        if not self.seconds:
            raise InputError("seconds, the most that a request may take, must be more than 0.")
        if self.price is not None:
            Price.of(self.price)
        for host in self.allowed_hosts:
            if not (isinstance(host, str) and _HOST.fullmatch(host)):
                raise InputError(
                    f"allowed_hosts must be names or addresses in lower case, without http://, port or brackets; got "
                    f"{host!r}. Give for example 'search.example.com'."
                )
        if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in self.api_keys):
            raise InputError("API keys must be printable ASCII without spaces at the ends, to fit into a header.")

    def search_log(self, name: str) -> SearchLog | None:
        """The log of the index of this name; None where searches are not logged."""
        if not self.log_folder:
            return None
        folder = Path(self.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        return SearchLog(folder / f"{name}.sqlite", keep=self.log_keep, days=self.log_days)

    def defaults(self) -> dict[str, int]:
        """k and budget of a search that names neither: as in Python, within the limits."""
        budget = min(100, self.max_budget)
        return {"budget": budget, "k": min(10, self.max_k, budget)}

    def limits(self) -> dict[str, Any]:
        """The limits that a client should know."""
        most = {field.name: getattr(self, field.name) for field in fields(self) if field.name.startswith("max_")}
        return {name.removeprefix("max_"): value for name, value in most.items()} | {"seconds": self.seconds}
