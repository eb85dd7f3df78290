"""Item vectors in a Qdrant server, or in the in-memory mode of its client."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from adacur.errors import InputError
from adacur.extras.engines.qdrant_points import Opened, PointStore, Vector, search_params
from adacur.extras.engines.retries import NoAnswer, answered
from adacur.extras.engines.store_urls import check_seconds, is_loopback, parameters, split
from adacur.extras.engines.vector_store import TEXT_FIELD, Key, check_name
from adacur.requirements import require

_TRY_AGAIN = {408, 425, 429}
_TRY_AGAIN_GRPC = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "UNKNOWN"}
_PORT = 6333
_IN_MEMORY = ":memory:"


class QdrantStore(PointStore):
    """A collection of a Qdrant server, or of the client's in-memory mode.

    - collection: its name;
    - url: of the server, http:// or https://, or ":memory:";
    - api_key: no error, name or repr shows it;
    - text: the payload field of an item's text, or several, joined with a space;
    - id_field: the payload field of an item's id; without it, the point's id as text;
    - vector: the vector to search by, as ?vector= in a URL;
    - client: a `QdrantClient` to use instead of `url`, `api_key` and `timeout`; `close` leaves it open;
    - timeout: seconds that one request may take. It is tried three times where no answer comes.
    """

    def __init__(
        self,
        collection: str,
        *,
        url: str = f"http://localhost:{_PORT}",
        api_key: str | None = None,
        text: str | Sequence[str] = TEXT_FIELD,
        id_field: str | None = None,
        vector: str | None = None,
        client: Any = None,
        timeout: float = 30.0,
    ) -> None:
        opened = Opened(lambda: client or _connect(url, api_key, timeout))
        super().__init__(opened, owns=client is None, text=text, id_field=id_field, vector=vector)
        self._models = require("qdrant_client.models", extra="qdrant")
        self._collection = check_name("collection", collection)
        check_seconds(timeout=timeout)
        options = self._client.init_options
        self._key: str | None = options.get("api_key")
        self._is_local = options.get("location") == _IN_MEMORY or options.get("path") is not None
        self._address = _address(options)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> QdrantStore:
        """qdrant://HOST[:PORT]/COLLECTION, or qdrant+https://…; with QDRANT_API_KEY over https or to this machine."""
        in_memory = url.startswith(f"qdrant://{_IN_MEMORY}/")
        parts = split(url.replace(_IN_MEMORY, "memory", 1) if in_memory else url)
        prefix, _, collection = parts.path.rpartition("/")
        scheme = "https" if parts.scheme.endswith("https") else "http"
        if not parts.hostname or not collection:
            raise InputError("A Qdrant collection is given as qdrant://HOST:PORT/COLLECTION, or qdrant+https://….")
        options = parameters(url, {"timeout": float}) | options
        if in_memory:
            return cls(unquote(collection), url=_IN_MEMORY, **options)
        if scheme == "https" or is_loopback(parts.hostname):
            options.setdefault("api_key", os.environ.get("QDRANT_API_KEY") or None)
        return cls(unquote(collection), url=f"{scheme}://{parts.netloc}{prefix}", **options)

    @property
    def name(self) -> str:
        return f"{self._address}/{quote(self._collection, safe='')}"

    @property
    def _client(self) -> Any:
        return self._opened.get()

    def _describe(self) -> dict[str, Vector]:
        params = self._ask("get_collection").config.params
        dense = params.vectors if isinstance(params.vectors, dict) else {"": params.vectors} if params.vectors else {}
        vectors = {
            name: Vector(one.size, "multivector" if one.multivector_config else str(one.distance.value))
            for name, one in dense.items()
        }
        return vectors | {name: Vector(0, "sparse") for name in params.sparse_vectors or {}}

    def _count(self, filter_: Any) -> int:
        return int(self._ask("count", count_filter=filter_, exact=True).count)

    def _nearest(self, vector: str, weights: list[float], n: int, filter_: Any, exact: bool) -> Any:
        m = self._models
        return m.QueryRequest(
            query=m.NearestQuery(nearest=weights),
            using=vector or None,
            limit=n,
            filter=filter_,
            params=None if self._is_local else search_params(m, exact),
        )

    def _search(self, requests: list[Any]) -> list[Any]:
        return [answer.points for answer in self._ask("query_batch_points", requests=requests)]

    def _search_words(self, field: str, text: str, n: int, filter_: Any) -> Any:
        query = self._models.TextQuery(text=self._models.TextQueryInput(query=text))
        return self._query(query, field, n, filter_)

    def _search_sparse(self, vector: str, indices: list[int], values: list[float], n: int, filter_: Any) -> Any:
        return self._query(self._models.SparseVector(indices=indices, values=values), vector, n, filter_)

    def _query(self, query: Any, using: str, n: int, filter_: Any) -> Any:
        return self._ask(
            "query_points", query=query, using=using, limit=n, query_filter=filter_, with_payload=False
        ).points

    def _retrieve(self, ids: list[Key], *, payload: bool, vectors: list[str] | None) -> Any:
        # The vector without a name comes where all are asked for.
        named = True if vectors == [""] else vectors or False
        return self._ask("retrieve", ids=ids, with_payload=payload, with_vectors=named)

    def _scroll(self, start: Key | None, n: int, *, payload: bool) -> tuple[Any, Any]:
        points, following = self._ask("scroll", offset=start, limit=n, with_payload=payload, with_vectors=False)
        return points, following

    def _has_id(self, ids: Collection[Key]) -> Any:
        return self._models.HasIdCondition(has_id=list(ids))

    def _equals(self, value: str | bool | int) -> Any:
        return self._models.MatchValue(value=value)

    def _between(self, low: float, high: float) -> Any:
        return self._models.Range(gte=low, lte=high)

    def _ask(self, method: str, **arguments: Any) -> Any:
        """What the client's method answers; tried again where the server does not."""
        arguments["collection_name"] = self._collection
        return answered(self.name, lambda: self._attempt(method, arguments), extra="qdrant")

    def _attempt(self, method: str, arguments: dict[str, Any]) -> Any:
        try:
            return getattr(self._client, method)(**arguments)
        except Exception as error:
            failure = self._failure(error)
            if failure is None:
                raise
        # Not within `except`: the client's error holds what the server said, which may be the key.
        raise failure

    def _failure(self, error: Exception) -> NoAnswer | InputError | None:
        exceptions = require("qdrant_client.http.exceptions", extra="qdrant")
        # The key is hidden before the text is cut, which might leave half of it.
        problem = self._without_key(_in_words(error, exceptions))[:300]
        no_answer = NoAnswer(f"{problem}. Is the server well, and this its URL?")
        refused = InputError(f"{self.name} refused: {problem}.")
        if isinstance(error, exceptions.UnexpectedResponse):
            status = error.status_code or 500
            if status in (401, 403):
                return InputError(f"{refused} {'The key was not accepted.' if self._key else 'Give api_key=.'}")
            return no_answer if status >= 500 or status in _TRY_AGAIN else refused
        if (
            isinstance(error, exceptions.ResponseHandlingException)
            or type(error).__name__ == "ResourceExhaustedResponse"
        ):
            return no_answer
        if isinstance(error, require("grpc", extra="qdrant").RpcError):
            return no_answer if _grpc_code(error) in _TRY_AGAIN_GRPC else refused
        if isinstance(error, json.JSONDecodeError):
            # The login page of a proxy, say: it was not the server that answered.
            return no_answer
        # The client's own checks, and what its in-memory mode does not implement, are refusals.
        return refused if isinstance(error, ValueError | NotImplementedError) else None

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _connect(url: str, api_key: str | None, timeout: float) -> Any:
    client = require("qdrant_client", extra="qdrant").QdrantClient
    if url == _IN_MEMORY:
        return client(location=_IN_MEMORY)
    parts = split(url)
    if parts.query:
        raise InputError(f"The address of a server must not hold a '?' (for {parts.hostname}). Give a key as api_key=.")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("The address of a server must begin with http:// or https:// and a host.")
    with warnings.catch_warnings():
        if is_loopback(parts.hostname):
            warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
        try:
            return client(url=url, api_key=api_key, timeout=timeout, check_compatibility=False)
        except ValueError:
            raise InputError("The address of a server must be http:// or https:// and a host that can exist.") from None


def _address(options: Mapping[str, Any]) -> str:
    """Where a client was told to find its server, as the beginning of a name."""
    if options.get("location") == _IN_MEMORY:
        return f"qdrant://{_IN_MEMORY}"
    if options.get("path") is not None:
        return f"qdrant://{quote(Path(options['path']).absolute().as_posix())}"
    port = options.get("port") or _PORT
    secure = options.get("https") or (options.get("https") is None and options.get("api_key"))
    default = f"http{'s' if secure else ''}://{options.get('host') or 'localhost'}:{port}"
    try:
        parts = split(options.get("url") or options.get("location") or default, credentials=True)
    except InputError:
        return "qdrant://…"
    scheme = "qdrant+https" if parts.scheme == "https" else "qdrant"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    prefix = parts.path.strip("/") or (options.get("prefix") or "").strip("/")
    return f"{scheme}://{host}:{parts.port or port}{prefix and f'/{prefix}'}"


def _in_words(error: Exception, exceptions: Any) -> str:
    if isinstance(error, exceptions.UnexpectedResponse):
        text = error.content.decode(errors="replace")
        with suppress(ValueError, LookupError, TypeError):
            text = str(json.loads(text)["status"]["error"])
        return f"{error.status_code} {error.reason_phrase}: {' '.join(text.split())}"
    if isinstance(error, exceptions.ResponseHandlingException):
        # What pydantic says of an answer of another shape is long, and repeats the answer.
        short = str(error.source).splitlines()[0] if str(error.source) else "no more is known"
        return f"{type(error.source).__name__}: {short}"
    if code := _grpc_code(error):
        return f"{code}: {error.details()}"  # type: ignore[attr-defined]
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def _grpc_code(error: Exception) -> str:
    code = getattr(error, "code", None)
    return str(code().name) if callable(code) else ""
