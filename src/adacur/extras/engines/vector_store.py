"""Where item vectors live outside this process: what a search asks of an engine that holds them.

An engine is asked for the best items by inner product, and for the vectors and texts of a few. All answer one contract
test (tests/extras/engines/test_vector_stores.py). `CheckedStore` is the door where the answers of any store arrive.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, EngineRefused, EngineUnavailable, InputError, UnknownName
from adacur.records import Item, check_texts

# An engine's own id of an item.
Key = int | str
# Metadata that an item must have: {"lang": "en", "year": [2023, 2024]}, where a list means any of these, and an item's
# own list has each of its values. Or what the engine itself takes for a filter: a Qdrant `Filter`, an SQL condition.
Where = Mapping[str, Any] | Any | None

TEXT_FIELD = "text"

# Lone surrogates cannot be encoded as UTF-8, and some engines refuse NUL.
SURROGATES, SURROGATES_OR_NUL = re.compile("[\ud800-\udfff]"), re.compile("[\0\ud800-\udfff]")
_USER_IN_URL = re.compile(r"//\S*@")
_SECRET_VALUE = re.compile(
    r"""((?:key|password|passwd|pwd|token|secret|authorization)["']?\s*[=:]\s*)(?:bearer\s+)?("[^"]*"|'[^']*'|[^\s,;&)]+)""",
    re.IGNORECASE,
)
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
    Nothing is written to it. Reads are tried again where the engine does not answer; what then still fails is an
    `EngineUnavailable`. What the engine says is checked: a collection that is missing, a vector of another name, size
    or metric, and a filter that it cannot express are an `InputError`.
    """

    @property
    def name(self) -> str: ...

    # The vector that its URL names, to search by; None where it names none.
    vector: str | None = None

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

    def close(self) -> None:
        """Let go of connections and files; a closed store opens them again when it is next used."""
        ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _of_its_shape(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Report an answer of another type than the contract's, such as None."""

    @functools.wraps(method)
    def checked(store: CheckedStore, *given: Any, **options: Any) -> Answer:
        try:
            return method(store, *given, **options)
        except AdacurError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise store._invalid(f"{method.__name__}() returned what VectorStore does not allow ({error})") from error

    return checked


class CheckedStore(VectorStore):
    """A store whose answers are checked: keys that nobody asked for, repeats, NaN and rows of another size.

    What a store refuses is an `EngineRefused`, and whatever else it raises an `EngineUnavailable`; no error repeats a
    password.
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

    @_of_its_shape
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

    @_of_its_shape
    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        answers = self._ask(self.store.best, vector, questions, where=where, exact=exact)
        if len(answers) != len(questions):
            raise self._invalid(f"{len(answers)} answers to {len(questions)} questions")
        return [self._checked(found, question) for found, question in zip(answers, questions, strict=True)]

    @_of_its_shape
    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        asked = set(keys)
        rows = {key: np.asarray(row) for key, row in self._ask(self.store.rows, vector, keys).items() if key in asked}
        if len({row.shape for row in rows.values()}) > 1 or any(row.ndim != 1 for row in rows.values()):
            raise self._invalid(f"its vectors {vector!r} have different sizes")
        wrong = next((key for key, row in rows.items() if not np.isfinite(row).all()), None)
        if wrong is not None:
            raise self._invalid(f"the vector {vector!r} of {wrong!r} holds NaN or infinity")
        return rows

    @_of_its_shape
    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        asked = set(keys)
        items = {key: item for key, item in self._ask(self.store.items, keys).items() if key in asked}
        for item in items.values():
            check_texts("Item", item.id, item.text)
        return items

    @_of_its_shape
    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        # Lone surrogates cannot be sent, and no stored text has any.
        sent = text.encode(errors="replace").decode().replace("\0", " ")
        return self._checked(self._ask(self.store.words, sent, n, where=where), Nearest(np.empty(0), n))

    @_of_its_shape
    def sample(self, n: int) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(self._ask(self.store.sample, n)))[:n]

    def scan(self) -> Iterator[Item]:
        return self._ask(lambda: iter(self.store.scan()))

    def close(self) -> None:
        self.store.close()

    def _ask(self, ask: Callable[..., Answer], *given: Any, **options: Any) -> Answer:
        try:
            return ask(*given, **options)
        except BaseException as error:
            refused = isinstance(error, InputError | UnknownName)
            # What Rust libraries raise when they panic is no Exception.
            ours = isinstance(error, AdacurError) and not refused
            if ours or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
                raise
            said = without_secrets(str(error))
            # A traceback would show the cause's own words.
            cause = error if said == str(error) else None
            if refused:
                raise EngineRefused(said) from cause
            raise EngineUnavailable(f"{self.name} failed with {type(error).__name__}: {said[:200]}") from cause

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


def without_secrets(text: str) -> str:
    """A text without the user and password of URLs in it, and without values that are called password, key or so."""
    return _SECRET_VALUE.sub(r"\1…", _USER_IN_URL.sub("//…@", text))


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
