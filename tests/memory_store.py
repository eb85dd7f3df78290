"""A vector store in the memory of this process: the contract in its plainest form, to compare the others with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import InputError
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item, field_of


class MemoryStore(VectorStore):
    """Items with their vectors by name, under the keys 0, 1, 2, …"""

    def __init__(self, items: Sequence[Item], vectors: Mapping[str, FloatArray], *, name: str = "things") -> None:
        self._name = name
        self._there = _Collection({name: rows.shape[1] for name, rows in vectors.items()})
        self.put(items, vectors)

    @property
    def name(self) -> str:
        return f"memory://{self._name}"

    def put(self, items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        """Add items after those that are there."""
        for at, item in enumerate(items):
            self._there.put(len(self._there.keys), item, {name: rows[at] for name, rows in vectors.items()})

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

    def close(self) -> None:
        return


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
    value = field_of(item.metadata, name, missing := object())
    return list(value) if isinstance(value, list | tuple) else [] if value is missing else [value]


def _is_one_of(value: Any, wanted: Collection[Any]) -> bool:
    # In JSON true is not 1.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)
