"""A vector store in the memory of this process: the contract in its plainest form, to compare the others with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray
from adacur.core.errors import InputError
from adacur.core.records import Item
from adacur.engines.vector_store import (
    Found,
    Key,
    Nearest,
    VectorStore,
    Where,
    beside_name,
    check_name,
    shown,
)


class MemoryStore(VectorStore):
    """Collections by name in one dictionary, shared by a store and those beside it."""

    def __init__(
        self, collection: str = "items", *, vector: str | None = None, shelf: dict[str, _Collection] | None = None
    ) -> None:
        self._collection, self.vector = collection, vector
        self._shelf: dict[str, _Collection] = {} if shelf is None else shelf

    @property
    def name(self) -> str:
        return f"memory://{self._collection}"

    def exists(self) -> bool:
        return self._collection in self._shelf

    def dimensions(self) -> dict[str, int]:
        return dict(self._there.dimensions)

    def count(self, where: Where = None) -> int:
        return int(self._there.allowed(where).sum())

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        there = self._there
        rows, allowed = there.matrix(vector), there.allowed(where)
        answers = []
        for question in questions:
            wanted = allowed & there.among(question.within) & ~there.among(question.without)
            positions = np.flatnonzero(wanted)
            values = rows[positions] @ np.asarray(question.weights, dtype=np.float32)
            order = np.argsort(-values, kind="stable")[: question.n]
            answers.append(Found(tuple(there.keys[at] for at in positions[order].tolist()), values[order]))
        return answers

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        there = self._there
        rows = there.matrix(vector)
        return {key: rows[there.place[key]] for key in keys if key in there.place}

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        there = self._there
        return {key: there.items[there.place[key]] for key in keys if key in there.place}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        there, words = self._there, set(text.lower().split())
        shared = np.array([len(words & set(item.text.lower().split())) for item in there.items], dtype=np.float32)
        positions = np.flatnonzero(there.allowed(where) & (shared > 0))
        order = np.argsort(-shared[positions], kind="stable")[:n]
        return Found(tuple(there.keys[at] for at in positions[order].tolist()), shared[positions][order])

    def sample(self, n: int) -> tuple[Key, ...]:
        keys = self._there.keys
        return tuple(keys[at] for at in np.unique(np.linspace(0, len(keys) - 1, min(n, len(keys))).astype(int)))

    def scan(self) -> Iterator[Item]:
        return iter(self._there.items)

    def beside(self, suffix: str) -> MemoryStore:
        return MemoryStore(beside_name(self._collection, suffix), shelf=self._shelf)

    def siblings(self) -> tuple[str, ...]:
        """The suffixes of the collections beside this one; "arts--x--1" lies beside "arts--x", not beside "arts"."""
        after = (name.removeprefix(f"{self._collection}--") for name in self._shelf)
        return tuple(sorted(one for one in after if f"{self._collection}--{one}" in self._shelf and "--" not in one))

    def create(self, dimensions: Mapping[str, int]) -> None:
        if self.exists():
            raise InputError(f"{self.name} exists already, and is left alone.")
        for name in dimensions:
            check_name("vector", name)
        self._shelf[self._collection] = _Collection(dimensions)

    def put(self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        there = self._there
        for at, (key, item) in enumerate(zip(keys, items, strict=True)):
            there.put(key, item, {name: rows[at] for name, rows in vectors.items()})

    def drop(self) -> None:
        self._shelf.pop(self._collection, None)

    def close(self) -> None:
        return

    @property
    def _there(self) -> _Collection:
        if self._collection not in self._shelf:
            raise InputError(f"There is no collection {self._collection!r} in {self.name}.")
        return self._shelf[self._collection]


class _Collection:
    def __init__(self, dimensions: Mapping[str, int]) -> None:
        self.dimensions = dict(dimensions)
        self.keys: list[Key] = []
        self.items: list[Item] = []
        self.place: dict[Key, int] = {}
        self._vectors: dict[str, list[FloatArray]] = {name: [] for name in dimensions}

    def put(self, key: Key, item: Item, vectors: Mapping[str, FloatArray]) -> None:
        at = self.place.setdefault(key, len(self.keys))
        if at == len(self.keys):
            self.keys.append(key)
            self.items.append(item)
            for rows in self._vectors.values():
                rows.append(np.empty(0, dtype=np.float32))
        self.items[at] = item
        for name, row in vectors.items():
            self._vectors[name][at] = np.asarray(row, dtype=np.float32)

    def matrix(self, vector: str) -> FloatArray:
        if vector not in self._vectors:
            known = ", ".join(repr(name) for name in self._vectors)
            raise InputError(f"This collection has no vector {shown(vector)}. It has: {known}.")
        return np.reshape(self._vectors[vector], (len(self.keys), self.dimensions[vector]))

    def among(self, keys: Collection[Key] | None) -> BoolArray:
        if keys is None:
            return np.ones(len(self.keys), dtype=np.bool_)
        wanted = np.zeros(len(self.keys), dtype=np.bool_)
        wanted[[self.place[key] for key in keys if key in self.place]] = True
        return wanted

    def allowed(self, where: Where) -> BoolArray:
        if where is None:
            return np.ones(len(self.keys), dtype=np.bool_)
        if not isinstance(where, Mapping):
            raise InputError(f"A filter must be a dictionary of metadata; got {type(where).__name__}.")
        return np.array([_has(item, where) for item in self.items], dtype=np.bool_)


def _has(item: Item, where: Mapping[str, Any]) -> bool:
    return all(
        any(
            _is_one_of(value, wanted if isinstance(wanted, list | tuple | set | frozenset) else [wanted])
            for value in _values(item, name)
        )
        for name, wanted in where.items()
    )


def _values(item: Item, name: str) -> list[Any]:
    """The values of a field: those of a list, or the one."""
    value = item.metadata.get(name)
    return list(value) if isinstance(value, list | tuple) else [] if name not in item.metadata else [value]


def _is_one_of(value: Any, wanted: Collection[Any]) -> bool:
    # In JSON true is not 1.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)
