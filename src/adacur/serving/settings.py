"""What a server allows, and how it behaves: every limit has a default that works."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from adacur.core.budget import is_whole
from adacur.core.errors import InputError
from adacur.tuning import FEWEST_QUERIES

__all__ = ["ServerSettings"]

_LEAST = {"queue": 0, "recall_queries": FEWEST_QUERIES}
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits, keys and switches of a server.

    `concurrency` searches run at a time and `queue` more wait for their turn; whoever comes then is sent away with 429.
    `seconds` is the most that a request may take, waiting included; `grace_seconds` is what requests under way are
    given to finish when the server is told to stop. With `api_keys`, everything that searches needs one of them.
    `shared_batches` lets requests that wait at the same time share scorer calls: by default those of models in this
    process, with True those of every scorer, and then a failed call is repeated caller by caller, beyond any budget.
    `allowed_hosts` are the names, without ports, that a request's Host header may have beside localhost and loopback
    addresses. Without any, only requests that arrive at a loopback address are held to these.
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
    shared_batches: bool | None = None
    log_queries: bool = False
    recall_queries: int = 50

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = _LEAST.get(field.name, 1)
            if field.type == "int" and not (is_whole(value) and value >= least):
                raise InputError(f"{field.name} is a whole number of at least {least}; got {value!r}.")
            if field.type == "float" and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise InputError(f"{field.name} is a number of seconds; got {value!r}.")
        if not self.seconds:
            raise InputError("seconds is the most that a request may take, and must be more than 0.")
        for name in ("api_keys", "allowed_hosts"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} is a list of texts; got one text. Put it into a list.")
        for host in self.allowed_hosts:
            if not (isinstance(host, str) and _HOST.fullmatch(host)):
                raise InputError(
                    f"allowed_hosts are names or addresses in small letters, without http://, port or brackets; "
                    f"got {host!r}. Give for example 'search.example.com'."
                )
        if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in self.api_keys):
            raise InputError(
                "An API key is of letters, digits and signs of ASCII, without spaces at its ends: what every client "
                "can put into a header. One of those given is not."
            )

    def defaults(self) -> dict[str, int]:
        """What a search that says nothing gets: as in Python, within the limits."""
        budget = min(100, self.max_budget)
        return {"budget": budget, "k": min(10, self.max_k, budget)}

    def limits(self) -> dict[str, Any]:
        """The limits that a client should know."""
        most = {field.name: getattr(self, field.name) for field in fields(self) if field.name.startswith("max_")}
        return {name.removeprefix("max_"): value for name, value in most.items()} | {"seconds": self.seconds}
