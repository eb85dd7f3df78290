"""Where item vectors live outside this process: what a search asks of an engine that holds them.

An engine is asked for the best items by inner product, and for the vectors and texts of a few. Qdrant, LanceDB and
Postgres answer the same contract test (tests/contracts/test_vector_stores.py). `CheckedStore` is the door where the
answers of any store arrive, and `EngineStore` is what our own stores have in common.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import AdacurError, EngineRefused, EngineUnavailable, InputError, UnknownName
from adacur.core.records import Item, check_texts

# An engine's own id of an item.
Key = int | str
# Metadata that an item must have: {"lang": "en", "year": [2023, 2024]}, where a list means any of these, and an item's
# own list has each of its values. Or what the engine itself takes for a filter: a Qdrant `Filter`, an SQL condition.
Where = Mapping[str, Any] | Any | None

# Between the name of a collection and that of what is written beside it.
BESIDE = "--"
TEXT_FIELD = "text"

# Lone surrogates cannot be encoded as UTF-8, and some engines refuse NUL.
SURROGATES, SURROGATES_OR_NUL = re.compile("[\ud800-\udfff]"), re.compile("[\0\ud800-\udfff]")
_SHOWN = 60
_MOST_ITEMS = 2**62
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """A question to a store: the n items whose vectors have the largest inner product with `weights`.

    - `without`: items that must not be among them;
    - `within`: only these items, where given.
    """

    weights: FloatArray
    n: int
    without: Collection[Key] = ()
    within: Collection[Key] | None = None


class Found(NamedTuple):
    """The answer: keys of items and weights · vector of each, best first, no key twice."""

    keys: tuple[Key, ...]
    values: FloatArray


class VectorStore(Protocol):
    """Items in an engine: a collection or table with texts, metadata, and one or more vectors of each item.

    `name` tells people and traces which: a URL without credentials, by which `open_store` finds the same collection.
    Reads are tried again where the engine does not answer; what then still fails is an `EngineUnavailable`. What the
    engine says is checked: a collection that is missing, a vector of another name, size or metric, and a filter that it
    cannot express are an `InputError`.
    """

    @property
    def name(self) -> str: ...

    # The vector that its URL names, to search by; None where it names none.
    vector: str | None = None

    def exists(self) -> bool:
        """Whether the collection is there."""
        ...

    def dimensions(self) -> dict[str, int]:
        """The vectors that can be searched by inner product, and their sizes.

        One vector without a name is called "". Vectors of unit length may be compared by cosine; `best` undoes that.
        """
        ...

    def count(self, where: Where = None) -> int:
        """How many items there are, or have this metadata."""
        ...

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        """Answers to all questions, in one call where the engine can.

        `exact=False` allows an index that may miss some. A question with `within` is answered exactly all the same.
        """
        ...

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        """The vectors of these items, float32; those that are no longer there are left out."""
        ...

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """Texts and metadata of these items; those that are no longer there are left out."""
        ...

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        """The n best items by the engine's own search for words; an `InputError` where it has none."""
        ...

    def sample(self, n: int) -> tuple[Key, ...]:
        """Keys of n items, or all, spread over the collection; the same each time while it does not change."""
        ...

    def scan(self) -> Iterator[Item]:
        """Every item, read some at a time."""
        ...

    def beside(self, suffix: str) -> VectorStore:
        """The collection called NAME--suffix of the same engine, which need not exist yet.

        A suffix with "--" in it, or with "-" at its beginning, is refused: it would belong to another name too.
        """
        ...

    def create(self, dimensions: Mapping[str, int]) -> None:
        """Make the collection, with vectors of these sizes compared by inner product, exactly as they are.

        One that exists is refused.
        """
        ...

    def put(self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        """Write items under these whole numbers, over what is there. Returns when they are durable.

        A collection that `create` did not make is refused.
        """
        ...

    def drop(self) -> None:
        """Remove the collection, if it is there. One that `create` did not make is refused, empty or not."""
        ...

    def close(self) -> None:
        """Let go of connections and files; a store that came from `beside` leaves that to the one that opened it.

        A closed store opens again when it is next used. What only lived in memory is gone, unless the caller has it.
        """
        ...


class EngineStore(VectorStore):
    """What our stores have in common: only a collection that `create` made is written to or dropped.

    A store remembers the description of its collection; after `_forget` it asks for it again.
    """

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def _made_with(self) -> Mapping[str, int] | None:
        """The sizes of all vectors of a collection that `create` made; None for any other, empty or not."""

    @abstractmethod
    def _make(self, dimensions: Mapping[str, int]) -> None: ...

    @abstractmethod
    def _write(self, keys: list[int], items: list[Item], vectors: dict[str, FloatArray]) -> None: ...

    @abstractmethod
    def _remove(self) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def create(self, dimensions: Mapping[str, int]) -> None:
        for name, size in dimensions.items():
            check_name("vector", name)
            if size < 1:
                raise InputError(f"Vector {shown(name)} must have at least one number; got {size}.")
        if self.exists():
            raise InputError(f"{self.name} exists already. Drop it first, or take another name.")
        self._make(dimensions)
        self._forget()

    def put(self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        sizes = self._checked_sizes()
        if set(vectors) != set(sizes):
            raise InputError(f"Every item of {self.name} has the vectors {list(sizes)}; got {list(vectors)}.")
        # Of a key that occurs twice, what comes last is written.
        last = {_whole(key): at for at, key in enumerate(keys)}
        if len(items) != len(keys):
            raise InputError(f"There must be one item for each key; got {len(keys)} keys and {len(items)} items.")
        rows = {name: np.asarray(vectors[name], dtype=np.float32) for name in sizes}
        for name, array in rows.items():
            if array.shape != (shape := (len(keys), sizes[name])):
                raise InputError(f"Vectors {name!r} of {self.name} must be {shape}; got {array.shape}.")
            if not np.isfinite(array).all():
                raise InputError(f"Vectors {name!r} must be finite; got a NaN or an infinity.")
        places = list(last.values())
        if places:
            self._write(list(last), [items[at] for at in places], {name: array[places] for name, array in rows.items()})

    def drop(self) -> None:
        if self.exists():
            # As it is now: somebody may have put a collection of their own in its place.
            self._forget()
            self._checked_sizes()
            self._remove()
            self._forget()

    def _checked_sizes(self) -> Mapping[str, int]:
        sizes = self._made_with()
        if sizes is None:
            raise InputError(f"{self.name} was not made by adacur, which only changes collections that it made itself.")
        return sizes


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
        return bool(self._ask(self.store.exists))

    def dimensions(self) -> dict[str, int]:
        sizes = dict(self._ask(self.store.dimensions))
        if not all(isinstance(name, str) and isinstance(size, int) and size > 0 for name, size in sizes.items()):
            raise self._invalid(f"its vectors are said to be {sizes!r}")
        return sizes

    def count(self, where: Where = None) -> int:
        count = self._ask(self.store.count, where)
        if not isinstance(count, int) or not 0 <= count < _MOST_ITEMS:
            raise self._invalid(f"it counts {count!r} items")
        return count

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        answers = self._ask(self.store.best, vector, questions, where=where, exact=exact)
        if len(answers) != len(questions):
            raise self._invalid(f"{len(answers)} answers to {len(questions)} questions")
        return [self._checked(found, question) for found, question in zip(answers, questions, strict=True)]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        asked = set(keys)
        rows = {key: np.asarray(row) for key, row in self._ask(self.store.rows, vector, keys).items() if key in asked}
        if len({row.shape for row in rows.values()}) > 1 or any(row.ndim != 1 for row in rows.values()):
            raise self._invalid(f"its vectors {vector!r} have different sizes")
        wrong = next((key for key, row in rows.items() if not np.isfinite(row).all()), None)
        if wrong is not None:
            raise self._invalid(f"the vector {vector!r} of {wrong!r} holds NaN or infinity")
        return rows

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        asked = set(keys)
        items = {key: item for key, item in self._ask(self.store.items, keys).items() if key in asked}
        for item in items.values():
            check_texts("Item", item.id, item.text)
        return items

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        # Lone surrogates cannot be sent, and no stored text has any.
        sent = text.encode(errors="replace").decode().replace("\0", " ")
        return self._checked(self._ask(self.store.words, sent, n, where=where), Nearest(np.empty(0), n))

    def sample(self, n: int) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(self._ask(self.store.sample, n)))[:n]

    def scan(self) -> Iterator[Item]:
        return self._ask(self.store.scan)

    def beside(self, suffix: str) -> CheckedStore:
        return CheckedStore(self.store.beside(suffix))

    def create(self, dimensions: Mapping[str, int]) -> None:
        self._ask(self.store.create, dimensions)

    def put(self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> None:
        self._ask(self.store.put, keys, items, vectors)

    def drop(self) -> None:
        self._ask(self.store.drop)

    def close(self) -> None:
        self.store.close()

    def _ask(self, ask: Callable[..., Answer], *given: Any, **options: Any) -> Answer:
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
            raise self._invalid("its values are not finite numbers, one for each key")
        without = set(question.without)
        within = None if question.within is None else set(question.within)
        kept: dict[Key, float] = {}
        for key, value in zip(found.keys, values.tolist(), strict=True):
            if key in without or (within is not None and key not in within):
                raise self._invalid(f"{key!r}, which was not asked for")
            kept.setdefault(key, value)
        order = sorted(kept.items(), key=lambda one: -one[1])[: question.n]
        return Found(tuple(key for key, _ in order), np.array([value for _, value in order]))

    def _invalid(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self.name} gave an invalid answer: {what}.")


def shown(value: object) -> str:
    """A value as an error repeats it: the beginning."""
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def has_characters(value: object, unfit: re.Pattern[str] = SURROGATES) -> bool:
    """Whether a text, or one within lists and dictionaries, has an unfit character: by default a lone surrogate."""
    if isinstance(value, str):
        return not (value.isascii() and unfit is SURROGATES) and unfit.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_characters(name, unfit) or has_characters(one, unfit) for name, one in value.items())
    return isinstance(value, list | tuple | set | frozenset) and any(has_characters(one, unfit) for one in value)


def check_name(what: str, name: str) -> str:
    """The name of a collection, table or vector, if an engine could have it."""
    if has_characters(name, SURROGATES_OR_NUL):
        raise InputError(
            f"The name of a {what} must be Unicode text without NUL or lone surrogates; got {shown(name)}."
        )
    return name


def check_kept(item: Item, unfit: re.Pattern[str] = SURROGATES) -> None:
    """Refuse an item with characters that an engine cannot keep."""
    if any(has_characters(part, unfit) for part in (item.id, item.text, item.metadata)):
        nul = " or NUL" if unfit is SURROGATES_OR_NUL else ""
        raise InputError(f"Item {shown(item.id)} contains a lone surrogate{nul}, which cannot be stored here.")
    check_texts("Item", item.id, item.text)


def beside_name(name: str, suffix: str) -> str:
    """NAME--suffix."""
    check_name("collection", suffix)
    if not suffix or BESIDE in suffix or suffix.startswith("-"):
        raise InputError(
            f"What follows {name}{BESIDE} must not be empty, hold '{BESIDE}' or begin with '-': {shown(suffix)}."
        )
    return f"{name}{BESIDE}{suffix}"


def weights_of(question: Nearest, size: int, *, vector: str, store: str) -> FloatArray:
    """The weights of a question as float32, if they are as many finite numbers as the vector has."""
    weights = np.asarray(question.weights, dtype=np.float32)
    if weights.shape != (size,):
        raise InputError(f"Vector {vector!r} of {store} has {size} numbers; got weights of {weights.shape}.")
    if not np.isfinite(weights).all():
        raise InputError(f"Weights must be finite; those for vector {vector!r} of {store} are not.")
    return weights


def found(store: str, pairs: Iterable[tuple[Key, float]], n: int) -> Found:
    """The best n of these keys and values, best first; of a key that occurs twice, the better."""
    distinct: dict[Key, float] = {}
    for key, value in sorted(pairs, key=lambda pair: -pair[1]):
        distinct.setdefault(key, value)
    best = list(distinct.items())[: max(0, n)]
    values = np.array([value for _, value in best], dtype=np.float32)
    if not np.isfinite(values).all():
        raise EngineUnavailable(f"{store} answered with a value that is not finite.")
    return Found(tuple(key for key, _ in best), values)


def _whole(key: object) -> int:
    if isinstance(key, bool) or not isinstance(key, int | np.integer) or not -(2**63) <= key < 2**63:
        raise InputError(f"Keys to write under are whole numbers of 64 bits; got {key!r}.")
    return int(key)
