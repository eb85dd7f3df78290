"""Item vectors in a Qdrant server, or in the in-memory mode of its client."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, EngineUnavailable, InputError
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.store_urls import address_in, without_credentials
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item, field_names, field_of
from adacur.requirements import require

_TRY_AGAIN = {408, 425, 429}
_TRY_AGAIN_GRPC = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "UNKNOWN"}
_PORT = 6333
_SECONDS = 60
_BATCH = 256
_FIELDS_SHOWN = 500


class QdrantStore(VectorStore):
    """A collection of a Qdrant server, or of the client's in-memory mode.

    - collection: its name;
    - client: a `QdrantClient`, which `close` leaves open;
    - text: the payload field of an item's text, or several, joined with a space; "metadata.title" is the title in the
      dictionary metadata, as in filters;
    - id_field: the payload field of an item's id; without it, the point's id as text. All other fields are metadata;
    - vector: the vector to search by, as ?vector= in a URL.

    A filter is a dictionary of metadata, or a `models.Filter`.
    """

    adds_words = True

    def __init__(
        self,
        collection: str,
        *,
        client: Any,
        text: str | Sequence[str] = "text",
        id_field: str | None = None,
        vector: str | None = None,
    ) -> None:
        self._collection, self._client, self._owns_client = collection, client, False
        self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self._id_field, self.vector = id_field, vector
        self.secrets = [key] if (key := client.init_options.get("api_key")) else []
        self._address = _address(client.init_options)

    @classmethod
    def from_url(cls, url: str) -> QdrantStore:
        """qdrant://HOST[:PORT]/COLLECTION, or qdrant+https://…; with QDRANT_API_KEY over https or to this machine."""
        parts, options = address_in(url)
        prefix, _, collection = parts.path.rpartition("/")
        scheme = "https" if parts.scheme.endswith("https") else "http"
        if not parts.hostname or not collection:
            raise InputError("A Qdrant collection is given as qdrant://HOST:PORT/COLLECTION, or qdrant+https://….")
        key = os.environ.get("QDRANT_API_KEY") if scheme == "https" or _is_loopback(parts.hostname) else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
            connect = require("qdrant_client", extra="qdrant").QdrantClient
            address = f"{scheme}://{parts.netloc}{prefix}"
            client = connect(url=address, api_key=key or None, timeout=_SECONDS, check_compatibility=False)
        store = cls(unquote(collection), client=client, **options)
        store._owns_client = True
        return store

    @property
    def name(self) -> str:
        return f"{self._address}/{quote(self._collection, safe='')}"

    def dimensions(self) -> Mapping[str, int]:
        return {
            name: one.size
            for name, one in self._vectors.items()
            if one.distance in (_models().Distance.DOT, _models().Distance.COSINE) and not one.multivector_config
        }

    def count(self, where: Where = None) -> int:
        return int(self._client.count(self._collection, count_filter=_compiled(where), exact=True).count)

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        m = _models()
        requests = [
            m.QueryRequest(
                query=m.NearestQuery(nearest=question.weights.tolist()),
                using=vector or None,
                limit=question.n,
                filter=_compiled(where, question),
                # An index looks where the best are, and the items that a question names may lie elsewhere.
                params=self._params(exact or question.within is not None),
            )
            for question in questions
        ]
        answers = self._client.query_batch_points(self._collection, requests=requests)
        is_cosine = self._vectors[vector].distance == m.Distance.COSINE
        # The engine compares unit vectors with the direction of the weights.
        lengths = [float(np.linalg.norm(one.weights)) if is_cosine else 1.0 for one in questions]
        return [_found(answer.points, lengths[at]) for at, answer in enumerate(answers)]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        rows = {}
        # The vector without a name comes where all are asked for.
        for point in self._points(keys, with_payload=False, with_vectors=[vector] if vector else True):
            row = point.vector.get(vector) if isinstance(point.vector, dict) else point.vector
            if row is not None:  # A point need not have all vectors.
                rows[_key(point.id)] = np.asarray(row, dtype=np.float32)
        return rows

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        points = self._points(keys, with_payload=True, with_vectors=False)
        return {_key(point.id): self._item(point) for point in points}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        m, condition = _models(), _compiled(where)
        sparse = next((name for name in self._description.sparse_vectors or {} if "bm25" in name.lower()), None)
        if sparse is None:
            raise InputError(
                f"{self.name} has no ranked search for words: that takes a sparse vector with 'bm25' in its name, with "
                "IDF."
            )
        words = require("qdrant_edge", extra="qdrant").Bm25().embed_query(text)
        query = m.SparseVector(indices=words.indices, values=words.values)
        options = {"using": sparse, "limit": n, "query_filter": condition, "with_payload": False}
        return _found(self._client.query_points(self._collection, query=query, **options).points)

    def sample(self, n: int) -> list[Key]:
        """Evenly over the ids of a collection that has 0, 1, 2, …; of others the first, which is chance with UUIDs."""
        n_items = self.count()
        even: list[Key] = np.linspace(0, max(0, n_items - 1), min(n, n_items)).astype(int).tolist()
        if n < n_items and sum(1 for _ in self._points(even, with_payload=False, with_vectors=False)) == n:
            return even
        keys: list[Key] = []
        start = None
        # Not without end, should a page lead back to an earlier one.
        for _ in range(2 + 2 * n_items // _BATCH):
            points, start = self._client.scroll(
                self._collection, offset=start, limit=_BATCH, with_payload=False, with_vectors=False
            )
            keys += [_key(point.id) for point in points]
            if start is None or len(keys) >= n:
                break
        return keys[:n]

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    def explain(self, error: Exception) -> AdacurError | None:
        exceptions = require("qdrant_client.http.exceptions", extra="qdrant")
        if isinstance(error, exceptions.UnexpectedResponse):
            status = error.status_code or 500
            words = f"{status} {error.reason_phrase}: {' '.join(error.content.decode(errors='replace').split())}"
            if status in (401, 403):
                hint = "The key was not accepted" if self.secrets else "Set QDRANT_API_KEY, or give the client a key"
                return InputError(f"{hint}. {words}")
            return EngineUnavailable(words) if status >= 500 or status in _TRY_AGAIN else InputError(words)
        if isinstance(error, exceptions.ResponseHandlingException):
            # What pydantic says of an answer of another shape is long, and repeats the answer.
            reason = (str(error.source).splitlines() or ["no reason given"])[0]
            return EngineUnavailable(f"{type(error.source).__name__}: {reason}")
        if isinstance(error, require("grpc", extra="qdrant").RpcError):
            words = f"{error.code().name}: {error.details()}"
            return EngineUnavailable(words) if error.code().name in _TRY_AGAIN_GRPC else InputError(words)
        if isinstance(error, json.JSONDecodeError) or type(error).__name__ == "ResourceExhaustedResponse":
            # The login page of a proxy, say: it was not the server that answered.
            return EngineUnavailable(f"{type(error).__name__}: {error}")
        # The client's own checks, and what its in-memory mode does not implement, are refusals.
        is_refusal = isinstance(error, ValueError | NotImplementedError) and not isinstance(error, AdacurError)
        return InputError(str(error)) if is_refusal else None

    @cached_property
    def _description(self) -> Any:
        return self._client.get_collection(self._collection).config.params

    @property
    def _vectors(self) -> dict[str, Any]:
        dense = self._description.vectors
        return dense if isinstance(dense, dict) else {"": dense} if dense else {}

    def _params(self, exact: bool) -> Any:
        m = _models()
        if self._client.init_options.get("location") == ":memory:" or self._client.init_options.get("path"):
            return None
        # Compressed copies of the vectors do not give exact values: left aside, or corrected by the originals.
        return m.SearchParams(exact=exact, quantization=m.QuantizationSearchParams(ignore=exact, rescore=not exact))

    def _points(self, keys: Sequence[Key], **wanted: Any) -> Iterator[Any]:
        for start in range(0, len(keys), _BATCH):
            yield from self._client.retrieve(self._collection, list(keys[start : start + _BATCH]), **wanted)

    def _item(self, point: Any) -> Item:
        payload = dict(point.payload or {})
        texts = [str(text) for field in self.text_fields if (text := field_of(payload, field)) is not None]
        id_ = field_of(payload, self._id_field) if self._id_field else _key(point.id)
        if id_ is None:
            held = ", ".join(map(repr, field_names(payload)))[:_FIELDS_SHOWN] or "none"
            raise InputError(
                f"Every point of {self.name} must have the field {self._id_field!r} that id_field= (?id= in a URL) "
                f"names; {_key(point.id)!r} has {held}."
            )
        rest = {name: value for name, value in payload.items() if name not in (*self.text_fields, self._id_field)}
        return Item(str(id_), " ".join(texts), rest)


def _address(options: Mapping[str, Any]) -> str:
    """Where a client finds its server, as the beginning of a name; less is said where there could be a password."""
    if options.get("location") == ":memory:" or options.get("path"):
        return f"qdrant://{quote(options.get('path') or ':memory:', safe=':/')}"
    host, port = options.get("host") or options.get("location") or "localhost", options.get("port") or _PORT
    shown = without_credentials(options.get("url") or f"http{'s' if options.get('https') else ''}://{host}:{port}")
    scheme, _, place = shown.partition("://")
    place = place.rstrip("/") if re.search(r":\d+", place) or place == "…" else f"{place.rstrip('/')}:{port}"
    return f"qdrant{'+https' if scheme == 'https' else ''}://{place}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _found(points: Sequence[Any], length: float = 1.0) -> Found:
    return Found([_key(point.id) for point in points], np.array([point.score for point in points]) * length)


def _key(id_: Any) -> Key:
    return id_ if isinstance(id_, int) else str(id_)


def _models() -> Any:
    """The models of Qdrant's client."""
    return require("qdrant_client.models", extra="qdrant")


def _compiled(where: Where, question: Nearest | None = None) -> Any:
    """A filter, and the keys that a question names, as one of Qdrant's; None where there is neither."""
    m = _models()
    if where is None:
        must = []
    elif isinstance(where, Mapping):
        must = [_has(name, values) for name, values in where.items()]
    elif isinstance(where, m.Filter):
        must = [where]
    else:
        raise InputError(f"A filter must be a dictionary of metadata or a models.Filter; got {type(where).__name__}.")
    must_not = []
    if question is not None and question.within is not None:
        must.append(m.HasIdCondition(has_id=list(question.within)))
    if question is not None and question.without:
        must_not.append(m.HasIdCondition(has_id=list(question.without)))
    return m.Filter(must=must, must_not=must_not) if must or must_not else None


def _has(name: str, values: list[Any]) -> Any:
    """That a field has one of these values, be its name written with dots or its place inside dictionaries."""
    m = _models()
    here = _is_any(_quoted(name), values)
    parts = name.split(".")
    if len(parts) == 1 or not all(parts):
        return here
    lacks = m.FieldCondition(key=_quoted(name), is_empty=True)
    return m.Filter(should=[here, m.Filter(must=[lacks, _is_any(".".join(map(_quoted, parts)), values)])])


def _is_any(path: str, values: list[Any]) -> Any:
    m = _models()
    if not values:
        return m.HasIdCondition(has_id=[])
    if len({type(value) for value in values}) == 1 and type(values[0]) in (str, int):
        return m.FieldCondition(key=path, match=m.MatchAny(any=values))
    return m.Filter(should=[_is(path, value) for value in values])


def _is(path: str, value: str | bool | int | float | None) -> Any:
    m = _models()
    if value is None:
        return m.FieldCondition(key=path, is_null=True)
    if isinstance(value, float):
        # The engine's last digit may be another.
        near = m.Range(gte=math.nextafter(value, -math.inf), lte=math.nextafter(value, math.inf))
        return m.FieldCondition(key=path, range=near)
    return m.FieldCondition(key=path, match=m.MatchValue(value=value))


def _quoted(name: str) -> str:
    """A name as a path into a payload, where dots and brackets would lead inside."""
    if '"' in name:
        raise InputError(f"Qdrant cannot filter by a field called {shown(name)}.")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
