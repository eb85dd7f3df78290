"""What is asked of Qdrant's points: their payloads as items, filters over these, samples and pages."""

from __future__ import annotations

import math
import re
import threading
import uuid
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EngineUnavailable, InputError
from adacur.extras.engines.vector_store import (
    Found,
    Key,
    Nearest,
    VectorStore,
    Where,
    found,
    has_characters,
    shown,
    weights_of,
)
from adacur.records import Item, field_names, field_of
from adacur.requirements import require
from adacur.spelling import did_you_mean

_INT64 = range(-(2**63), 2**63)
_BATCH = 256
_STOPS = 64
_FIELDS_SHOWN = 500
_UUIDS_BEGIN = 2**64


class Vector(NamedTuple):
    """A named vector of a collection; metric "Dot", "Cosine", "Euclid", "Manhattan", "sparse" or "multivector"."""

    size: int
    metric: str


class Opened:
    """A client that is opened when it is first used, and again after `close`."""

    def __init__(self, open_: Callable[[], Any]) -> None:
        self._open = open_
        self._held: Any = None
        self._lock = threading.Lock()

    def get(self) -> Any:
        """The client."""
        with self._lock:
            if self._held is None:
                self._held = self._open()
            return self._held

    def close(self) -> None:
        """Close it, if it is open."""
        with self._lock:
            if self._held is not None:
                self._held.close()
                self._held = None


class PointStore(VectorStore):
    """A collection of points; what a question looks like to the client is left to `QdrantStore`.

    `text` names the payload field of an item's text, or several that are joined, and `id_field` that of its id, by
    default the point's own; all other fields are metadata. "metadata.title" is the title in the dictionary metadata, as
    in filters.
    """

    _models: Any

    def __init__(
        self, opened: Opened, *, owns: bool, text: str | Sequence[str], id_field: str | None, vector: str | None
    ) -> None:
        self._opened, self._owns_opened = opened, owns
        self._text = self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self._id_field, self.vector = id_field, vector
        self._known: dict[str, Vector] | None = None
        if not self._text:
            raise InputError("text must name at least one payload field.")

    @abstractmethod
    def _describe(self) -> dict[str, Vector]: ...

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
    def _has_id(self, ids: Collection[Key]) -> Any: ...

    @abstractmethod
    def _equals(self, value: str | bool | int) -> Any: ...

    @abstractmethod
    def _between(self, low: float, high: float) -> Any: ...

    def close(self) -> None:
        if self._owns_opened:
            self._opened.close()

    def dimensions(self) -> dict[str, int]:
        return {name: size for name, (size, metric) in self._described.items() if metric in ("Dot", "Cosine")}

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
        for name, (_, metric) in self._described.items():
            if metric == "sparse" and "bm25" in name.lower():
                query = require("qdrant_edge", extra="qdrant").Bm25().embed_query(text)
                return self._found(self._search_sparse(name, query.indices, query.values, n, filter_), n)
        refusals = []
        for field in self._text:
            try:
                return self._found(self._search_words(_inside(field) or _path(field), text, n, filter_), n)
            except InputError as error:
                refusals.append(str(error))
        raise InputError(
            f"{self.name} has no ranked search for words. Give {self._text[0]!r} a text index with scoring (Qdrant "
            f"1.20 or later), or the collection a sparse vector 'bm25' with IDF. It said: {' '.join(refusals)}"
        )

    def sample(self, n: int) -> tuple[Key, ...]:
        """Evenly over the ids of a collection that has 0, 1, 2, …

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
    def _described(self) -> dict[str, Vector]:
        if self._known is None:
            self._known = self._describe()
        return self._known

    def _searchable(self, vector: str) -> Vector:
        vectors = self._described
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
        texts = [str(text) for field in self._text if (text := field_of(payload, field)) is not None]
        id_ = field_of(payload, self._id_field) if self._id_field else _key(point.id)
        if id_ is None:
            held = ", ".join(map(repr, field_names(payload)))[:_FIELDS_SHOWN] or "none"
            raise InputError(
                f"Every point of {self.name} must have the field {self._id_field!r} that id_field= (?id= in a URL) "
                f"names; {_key(point.id)!r} has {held}."
            )
        rest = {name: value for name, value in payload.items() if name not in (*self._text, self._id_field)}
        return Item(str(id_), " ".join(texts), rest)

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
        m = self._models
        here = self._is_any(_path(name), values)
        inside = _inside(name)
        if inside is None:
            return here
        lacks = m.FieldCondition(key=_path(name), is_empty=True)
        return m.Filter(should=[here, m.Filter(must=[lacks, self._is_any(inside, values)])])

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


def _fits(value: Any) -> bool:
    """Whether a payload can hold a value: whole numbers of 64 bits, no NaN, no lone surrogate."""
    if isinstance(value, str):
        return not has_characters(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and value in _INT64)


def _path(name: str) -> str:
    """A name as a path into a payload, where dots and brackets would lead inside."""
    if not isinstance(name, str) or not name or '"' in name or has_characters(name):
        raise InputError(f"Qdrant cannot filter by a field called {shown(name)}.")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _inside(name: str) -> str | None:
    """A name with dots as a path through dictionaries."""
    parts = name.split(".")
    return ".".join(map(_path, parts)) if len(parts) > 1 and all(parts) else None


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
