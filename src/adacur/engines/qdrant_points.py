"""What a Qdrant server and Qdrant Edge have in common: points, their payloads, and filters over these."""

from __future__ import annotations

import json
import math
import re
import threading
import uuid
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import EngineUnavailable, InputError
from adacur.core.extras import require
from adacur.core.records import Item
from adacur.core.spelling import did_you_mean
from adacur.engines.vector_store import (
    EngineStore,
    Found,
    Key,
    Nearest,
    Where,
    check_kept,
    found,
    has_characters,
    shown,
    weights_of,
)

# The payload field that marks the points that `put` wrote.
OURS = "_adacur"
_TAKEN = ("id", "text", OURS)
_INT64 = range(-(2**63), 2**63)
_BATCH = 256
# Numbers in one request: some 20 MB of JSON, below the 32 MB that a server takes.
_NUMBERS = 1_000_000
_STOPS = 64
_UUIDS_BEGIN = 2**64


class Vector(NamedTuple):
    """A named vector of a collection; metric "Dot", "Cosine", "Euclid", "Manhattan", "sparse" or "multivector"."""

    size: int
    metric: str


class Described(NamedTuple):
    """A collection: its vectors, whether `create` made it, and whether its text has an index that ranks words."""

    vectors: dict[str, Vector]
    made: bool
    indexed: bool


class Opened:
    """What a store and those beside it have open, by name: opened when it is first used, and again after `close`."""

    def __init__(self, open_: Callable[[Any], Any]) -> None:
        self._open = open_
        self._held: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def get(self, name: Any = None) -> Any:
        """What is open under this name."""
        with self._lock:
            if name not in self._held:
                self._held[name] = self._open(name)
            return self._held[name]

    def close(self, *names: Any) -> None:
        """Close what is open under these names, or all."""
        with self._lock:
            for name in names or list(self._held):
                if (held := self._held.pop(name, None)) is not None:
                    held.close()


class PointStore(EngineStore):
    """A collection of points; what a question looks like to the engine is left to the two that inherit from this.

    A point that `put` wrote holds an item's id and text, its metadata under their own names, and under "_adacur" what
    Qdrant would not return unchanged. Of other points, `text` names the field of the text, or several that are joined,
    and `id_field` that of the id, by default the point's own; all other fields are metadata.
    """

    # qdrant_client.models or qdrant_edge, which call most things alike.
    _models: Any

    def __init__(
        self, opened: Opened, *, owns: bool, text: str | Sequence[str], id_field: str | None, vector: str | None
    ) -> None:
        self._opened, self._owns_opened = opened, owns
        self._text = self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self._id_field, self.vector = id_field, vector
        self._known: Described | None = None
        if not self._text:
            raise InputError("text must name at least one payload field.")

    @abstractmethod
    def _describe(self) -> Described: ...

    @abstractmethod
    def _count(self, filter_: Any) -> int: ...

    @abstractmethod
    def _nearest(self, vector: str, weights: list[float], n: int, filter_: Any, exact: bool) -> Any:
        """A request for `_search`."""

    @abstractmethod
    def _search(self, requests: list[Any]) -> list[Any]:
        """Lists of points with scores, one per request."""

    @abstractmethod
    def _search_words(self, field: str, text: str, n: int, filter_: Any) -> Any:
        """Points by the BM25 of a text index that ranks; an `InputError` where the field has none."""

    @abstractmethod
    def _search_sparse(self, vector: str, indices: list[int], values: list[float], n: int, filter_: Any) -> Any: ...

    @abstractmethod
    def _retrieve(self, ids: list[Key], *, payload: bool, vectors: list[str] | None) -> Any: ...

    @abstractmethod
    def _scroll(self, start: Key | None, n: int, *, payload: bool) -> tuple[Any, Any]:
        """At most n points in order of their ids, and where the next begin."""

    @abstractmethod
    def _upsert(self, points: list[tuple[int, dict[str, list[float]], dict[str, Any]]]) -> None:
        """Write points: key, vectors and payload of each."""

    @abstractmethod
    def _has_id(self, ids: Collection[Key]) -> Any: ...

    @abstractmethod
    def _equals(self, value: str | bool | int) -> Any: ...

    @abstractmethod
    def _between(self, low: float, high: float) -> Any: ...

    @abstractmethod
    def _index_words(self) -> None:
        """Give the text of items an index that ranks words, where the engine has such."""

    def close(self) -> None:
        if self._owns_opened:
            self._opened.close()

    def dimensions(self) -> dict[str, int]:
        return {name: size for name, (size, metric) in self._described.vectors.items() if metric in ("Dot", "Cosine")}

    def count(self, where: Where = None) -> int:
        return self._count(self._filter(where))

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        size, metric = self._searchable(vector)
        requests, waiting = [], []
        answers = [found(self.name, (), 0)] * len(questions)
        for at, question in enumerate(questions):
            weights = weights_of(question, size, vector=vector, store=self.name)
            if question.n > 0 and (question.within is None or len(question.within)):
                filter_ = self._filter(where, without=question.without, within=question.within)
                # An index looks where the best are, and the items that a question names may lie elsewhere.
                exactly = exact or question.within is not None
                requests.append(self._nearest(vector, weights.tolist(), question.n, filter_, exactly))
                # The engine compares unit vectors with the direction of the weights.
                waiting.append((at, float(np.linalg.norm(weights)) if metric == "Cosine" else 1.0))
        lists = self._search(requests) if requests else []
        if len(lists) != len(requests):
            raise self._invalid(f"{len(lists)} lists of points to {len(requests)} questions")
        for (at, length), points in zip(waiting, lists, strict=True):
            answers[at] = self._found(points, questions[at].n, length)
        return answers

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        size, _ = self._searchable(vector)
        rows: dict[Key, FloatArray] = {}
        for key, point in self._points(keys, payload=False, vectors=[vector]):
            row = point.vector.get(vector) if isinstance(point.vector, dict) else point.vector
            if row is not None:  # A point need not have all vectors.
                rows[key] = np.asarray(row, dtype=np.float32)
                if rows[key].shape != (size,):
                    raise self._invalid(f"vector {vector!r} of {key!r} does not have {size} numbers")
        return rows

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        return {key: self._item(point) for key, point in self._points(keys, payload=True)}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        if n <= 0 or not text.strip():
            return found(self.name, (), 0)
        text, filter_ = text.encode(errors="replace").decode(), self._filter(where)
        for name, (_, metric) in self._described.vectors.items():
            if metric == "sparse" and "bm25" in name.lower():
                query = require("qdrant_edge", extra="qdrant").Bm25().embed_query(text)
                return self._found(self._search_sparse(name, query.indices, query.values, n, filter_), n)
        refusals = []
        for field in self._text:
            try:
                return self._found(self._search_words(_path(field), text, n, filter_), n)
            except InputError as error:
                refusals.append(str(error))
        raise InputError(
            f"{self.name} has no ranked search for words. Give {self._text[0]!r} a text index with scoring (Qdrant "
            f"1.20 or later), or the collection a sparse vector 'bm25' with IDF. It said: {' '.join(refusals)}"
        )

    def sample(self, n: int) -> tuple[Key, ...]:
        """Evenly over the ids 0, 1, 2, … of a collection that `put` filled.

        Over other ids: runs of neighbours at 64 places spread evenly between the first id and the last, some 80 small
        requests; where ids are clustered, so is the sample.
        """
        n_items = self.count()
        if n >= n_items:
            pages = self._pages(payload=False, most=2 + 2 * n_items // _BATCH)
            return tuple(_key(point.id) for page in pages for point in page)
        if n <= 0:
            return ()
        even: list[Key] = np.linspace(0, n_items - 1, n).astype(int).tolist()
        if len(list(self._points(even, payload=False))) == n:
            return tuple(even)
        return self._spread(n)

    def scan(self) -> Iterator[Item]:
        return (self._item(point) for page in self._pages(payload=True) for point in page)

    @property
    def _described(self) -> Described:
        if self._known is None:
            self._known = self._describe()
        return self._known

    def _forget(self) -> None:
        self._known = None

    def _made_with(self) -> dict[str, int] | None:
        return self.dimensions() if self._described.made else None

    def _write(self, keys: list[int], items: list[Item], vectors: dict[str, FloatArray]) -> None:
        if not self._described.indexed:
            # The process that made the collection may have been killed before it made the index.
            self._index_words()
            self._known = self._described._replace(indexed=True)
        rows = [{name: array[at].tolist() for name, array in vectors.items()} for at in range(len(keys))]
        points = list(zip(keys, rows, map(payload_of, items), strict=True))
        step = max(1, _NUMBERS // max(1, sum(array.shape[1] for array in vectors.values())))
        for start in range(0, len(points), step):
            self._upsert(points[start : start + step])

    def _searchable(self, vector: str) -> Vector:
        vectors = self._described.vectors
        if vector not in vectors:
            known = ", ".join(repr(name) for name in vectors)
            raise InputError(
                f"{self.name} has no vector {shown(vector)}. It has: {known}.{did_you_mean(vector, vectors)}"
            )
        if vectors[vector].metric not in ("Dot", "Cosine"):
            raise InputError(
                f"Items are searched by inner product; {vector!r} of {self.name} is {vectors[vector].metric}. "
                "Take a dense vector of metric Dot or Cosine."
            )
        return vectors[vector]

    def _found(self, points: Any, n: int, length: float = 1.0) -> Found:
        return found(self.name, ((_key(point.id), point.score * length) for point in points), n)

    def _points(
        self, keys: Sequence[Key], *, payload: bool, vectors: list[str] | None = None
    ) -> Iterator[tuple[Key, Any]]:
        wanted = {_point_id(key): key for key in keys}
        ids = list(wanted)
        for start in range(0, len(ids), _BATCH):
            for point in self._retrieve(ids[start : start + _BATCH], payload=payload, vectors=vectors):
                if _key(point.id) in wanted:
                    yield wanted[_key(point.id)], point

    def _pages(self, *, payload: bool, most: float = math.inf) -> Iterator[Any]:
        """All points, a page at a time, and no more than this many pages."""
        start, reached, asked = None, -1, 0
        while asked < most:
            points, start = self._scroll(start, _BATCH, payload=payload)
            yield points
            asked += 1
            if start is None:
                return
            # Else a page that leads back to an earlier one would be read for ever.
            try:
                place = _place(_key(start))
            except InputError:
                raise self._invalid(f"points go on after {shown(start)}, which is not an id") from None
            if place <= reached:
                raise self._invalid(f"points go on after {_key(start)!r}, where they came from")
            reached = place

    def _spread(self, n: int) -> tuple[Key, ...]:
        if not (one := self._scroll(None, 1, payload=False)[0]):
            raise self._invalid("it counts points and returns none")
        first = _place(_key(one[0].id))
        # How far ids reach, within a factor of two, then nearer.
        reach = bisect_left(range(_UUIDS_BEGIN.bit_length() * 2), True, key=lambda k: not self._from(first + 2**k, 1))
        low, high = first + 2**reach // 2, first + 2**reach
        for _ in range(8):
            middle = (low + high) // 2
            low, high = (middle, high) if self._from(middle, 1) else (low, middle)
        stops = min(n, _STOPS)
        keys: dict[Key, None] = {}
        for at in range(stops):
            length = n // stops + (at < n % stops)
            keys |= dict.fromkeys(self._from(first + (low - first) * at // max(1, stops - 1), length))
        # Where runs met the same points, others of the first make up for it.
        keys |= dict.fromkeys(self._from(first, n))
        return tuple(keys)[:n]

    def _from(self, place: int, n: int) -> list[Key]:
        if place >= _UUIDS_BEGIN + 2**128:
            return []
        start = place if place < _UUIDS_BEGIN else str(uuid.UUID(int=place - _UUIDS_BEGIN))
        return [_key(point.id) for point in self._scroll(start, n, payload=False)[0]]

    def _item(self, point: Any) -> Item:
        payload = dict(point.payload or {})
        if isinstance(payload.get(OURS), dict):
            try:
                rest = payload.pop(OURS)
                id_, text = payload.pop("id"), payload.pop("text")
                as_json = {name: json.loads(value) for name, value in rest.get("json", {}).items()}
                return Item(id_, text, payload | rest.get("metadata", {}) | as_json)
            except (LookupError, TypeError, ValueError, AttributeError):
                raise self._invalid(f"a point {_key(point.id)!r} whose fields id, text or {OURS} are damaged") from None
        texts = [str(payload.pop(field)) for field in self._text if payload.get(field) is not None]
        id_ = payload.pop(self._id_field, None) if self._id_field else None
        return Item(str(_key(point.id) if id_ is None else id_), " ".join(texts), payload)

    def _filter(self, where: Where, *, without: Collection[Key] = (), within: Collection[Key] | None = None) -> Any:
        if where is None:
            must = []
        elif isinstance(where, Mapping):
            must = [self._has(name, wanted) for name, wanted in where.items()]
        elif isinstance(where, self._models.Filter):
            must = [where]
        else:
            raise InputError(
                f"A filter for {self.name} must be a dictionary of metadata or a {self._models.__name__}.Filter; got "
                f"{type(where).__name__}."
            )
        if within is not None:
            must.append(self._has_id(_ids(within)))
        must_not = [self._has_id(_ids(without))] if len(without) else []
        return self._models.Filter(must=must, must_not=must_not) if must or must_not else None

    def _has(self, name: str, wanted: Any) -> Any:
        values = [
            one.item() if isinstance(one, np.generic) else one
            for one in (wanted if isinstance(wanted, list | tuple | set) else [wanted])
        ]
        if name not in _TAKEN:
            return self._is_any(_path(name), values)
        m = self._models
        theirs = [self._is_any(name, values), m.FieldCondition(key=OURS, is_empty=True)]
        return m.Filter(should=[self._is_any(f"{OURS}.metadata.{name}", values), m.Filter(must=theirs)])

    def _is_any(self, path: str, values: list[Any]) -> Any:
        m = self._models
        if not values:
            return self._has_id(())
        for value in values:
            if isinstance(value, list | dict) or not _fits(value):
                raise InputError(
                    f"Metadata is compared with texts, numbers, True, False, None; got {shown(value)} for {path}."
                )
        if len({type(value) for value in values}) == 1 and type(values[0]) in (str, int):
            return m.FieldCondition(key=path, match=m.MatchAny(any=values))
        return m.Filter(should=[self._is(path, value) for value in values])

    def _is(self, path: str, value: str | bool | int | float | None) -> Any:
        m = self._models
        if value is None:
            return m.FieldCondition(key=path, is_null=True)
        if isinstance(value, float):
            # The engine's last digit may be another.
            near = self._between(math.nextafter(value, -math.inf), math.nextafter(value, math.inf))
            return m.FieldCondition(key=path, range=near)
        return m.FieldCondition(key=path, match=self._equals(value))

    def _invalid(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self.name} gave an invalid answer: {what}.")


def search_params(models: Any, exact: bool) -> Any:
    """Parameters of a search."""
    # Compressed copies of the vectors do not tell exact values: left aside, or corrected by the originals.
    quantization = models.QuantizationSearchParams(ignore=exact, rescore=not exact)
    return models.SearchParams(exact=exact, quantization=quantization)


def payload_of(item: Item) -> dict[str, Any]:
    """An item as a payload: metadata can be filtered by its own names, and comes back as it was."""
    check_kept(Item(item.id, item.text))
    payload: dict[str, Any] = {}
    taken: dict[str, Any] = {}
    as_json: dict[str, str] = {}
    for name, value in item.metadata.items():
        if not isinstance(name, str) or has_characters(name):
            raise InputError(f"Item {shown(item.id)}: metadata cannot be called {shown(name)}.")
        if fits := _fits(value):
            (taken if name in _TAKEN else payload)[name] = value
        if not fits or not _fits(value, _is_read_exactly):
            try:
                as_json[name] = json.dumps(value)
            except (TypeError, ValueError) as error:
                raise InputError(f"Item {item.id!r}: metadata {name!r} cannot be written as JSON: {error}.") from None
    rest = {"metadata": taken, "json": as_json}
    return {**payload, "id": item.id, "text": item.text, OURS: {name: part for name, part in rest.items() if part}}


def _fits(value: Any, number: Callable[[float], bool] = math.isfinite) -> bool:
    """Whether a payload can hold a value: whole numbers of 64 bits, no NaN, no lone surrogate."""
    if isinstance(value, str):
        return not has_characters(value)
    if isinstance(value, list):
        return all(_fits(one, number) for one in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _fits(name) and _fits(one, number) for name, one in value.items())
    if isinstance(value, float):
        return number(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and value in _INT64)


def _is_read_exactly(value: float) -> bool:
    # Qdrant reads decimals by one multiplication of doubles, which is exact for these.
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    return int("".join(map(str, digits))) < 2**53 and abs(int(exponent)) <= 22


def _path(name: str) -> str:
    """A name as a path into a payload, where dots and brackets would lead inside."""
    if not isinstance(name, str) or not name or '"' in name or has_characters(name):
        raise InputError(f"Qdrant cannot filter by a field called {shown(name)}.")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _key(id_: Any) -> Key:
    return id_ if isinstance(id_, int) else str(id_)


def _point_id(key: Key) -> Key:
    if isinstance(key, str):
        try:
            return str(uuid.UUID(key))
        except ValueError:
            raise InputError(f"Qdrant's ids are whole numbers or UUIDs; got {shown(key)}.") from None
    return int(key)


def _ids(keys: Collection[Key]) -> set[Key]:
    # A thousand keys, several times a round: whole numbers are what they are.
    return {key if type(key) is int else _point_id(key) for key in keys}


def _place(key: Key) -> int:
    """Where an id lies on the line by which Qdrant orders them: numbers, then UUIDs."""
    return key if isinstance(key, int) else _UUIDS_BEGIN + uuid.UUID(str(_point_id(key))).int
