"""The door where an engine's answers arrive: whatever a store says, searches get what the contract promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import AdacurError, EngineRefused, EngineUnavailable, InputError, UnknownName
from adacur.core.records import Item, check_texts
from adacur.engines.vector_store import Found, Key, Nearest, VectorStore, Where

Answer = TypeVar("Answer")
_MOST_ITEMS = 2**62


class CheckedStore(VectorStore):
    """A store whose answers are checked: keys that nobody asked for, repeats, NaN and rows of another size.

    What a store refuses is an `EngineRefused`, and whatever else it raises an `EngineUnavailable`.
    """

    def __init__(self, store: VectorStore) -> None:
        self.store = store
        self.vector = getattr(store, "vector", None)
        # The fields that an item's text is made of, of stores that have some.
        self.text_fields: tuple[str, ...] | None = getattr(store, "text_fields", None)

    @classmethod
    def of(cls, store: VectorStore) -> CheckedStore:
        """This store, checked once."""
        return store if isinstance(store, CheckedStore) else cls(store)

    @property
    def name(self) -> str:
        return self.store.name

    def exists(self) -> bool:
        return bool(self._asked(self.store.exists))

    def dimensions(self) -> dict[str, int]:
        sizes = dict(self._asked(self.store.dimensions))
        if not all(isinstance(name, str) and isinstance(size, int) and size > 0 for name, size in sizes.items()):
            raise self._nonsense(f"it says that its vectors are {sizes!r}")
        return sizes

    def count(self, where: Where = None) -> int:
        count = self._asked(self.store.count, where)
        if not isinstance(count, int) or not 0 <= count < _MOST_ITEMS:
            raise self._nonsense(f"it says that it holds {count!r} items")
        return count

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        answers = self._asked(self.store.best, vector, questions, where=where, exact=exact)
        if len(answers) != len(questions):
            raise self._nonsense(f"it gave {len(answers)} answers to {len(questions)} questions")
        return [self._checked(found, question) for found, question in zip(answers, questions, strict=True)]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        asked = set(keys)
        rows = {key: np.asarray(row) for key, row in self._asked(self.store.rows, vector, keys).items() if key in asked}
        if len({row.shape for row in rows.values()}) > 1 or any(row.ndim != 1 for row in rows.values()):
            raise self._nonsense(f"its vectors {vector!r} have different sizes")
        wrong = next((key for key, row in rows.items() if not np.isfinite(row).all()), None)
        if wrong is not None:
            raise self._nonsense(f"the vector {vector!r} of {wrong!r} holds NaN or infinity")
        return rows

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        asked = set(keys)
        items = {key: item for key, item in self._asked(self.store.items, keys).items() if key in asked}
        for item in items.values():
            check_texts("Item", item.id, item.text)
        return items

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        # Half of a character cannot be sent, and no text has it.
        sent = text.encode(errors="replace").decode().replace("\0", " ")
        return self._checked(self._asked(self.store.words, sent, n, where=where), Nearest(np.empty(0), n))

    def sample(self, n: int) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(self._asked(self.store.sample, n)))[:n]

    def scan(self) -> Iterator[Item]:
        return self._asked(self.store.scan)

    def beside(self, suffix: str) -> CheckedStore:
        return CheckedStore(self.store.beside(suffix))

    def siblings(self) -> tuple[str, ...]:
        return self._asked(self.store.siblings)

    def create(self, dimensions: Mapping[str, int]) -> None:
        self._asked(self.store.create, dimensions)

    def put(self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        self._asked(self.store.put, keys, items, vectors)

    def drop(self) -> None:
        self._asked(self.store.drop)

    def close(self) -> None:
        self.store.close()

    def _asked(self, ask: Callable[..., Answer], *given: Any, **options: Any) -> Answer:
        try:
            return ask(*given, **options)
        except EngineUnavailable:
            raise
        except (InputError, UnknownName) as error:
            raise EngineRefused(str(error)) from error
        except AdacurError:
            raise
        except Exception as error:
            raise EngineUnavailable(f"{self.name} failed with {type(error).__name__}: {str(error)[:200]}") from error
        except BaseException as error:
            # What Rust libraries raise when they panic is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise EngineUnavailable(f"{self.name} failed: {str(error)[:200]}") from error

    def _checked(self, found: Found, question: Nearest) -> Found:
        values = np.asarray(found.values, dtype=np.float64)
        if values.shape != (len(found.keys),) or not np.isfinite(values).all():
            raise self._nonsense("its values are not finite numbers, one for each key")
        without = set(question.without)
        within = None if question.within is None else set(question.within)
        kept: dict[Key, float] = {}
        for key, value in zip(found.keys, values.tolist(), strict=True):
            if key in without or (within is not None and key not in within):
                raise self._nonsense(f"it answered with {key!r}, which was not asked for")
            kept.setdefault(key, value)
        order = sorted(kept.items(), key=lambda one: -one[1])[: question.n]
        return Found(tuple(key for key, _ in order), np.array([value for _, value in order]))

    def _nonsense(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self.name} answered nonsense: {what}.")
