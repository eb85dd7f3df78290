"""Where item vectors live outside this process: what a search asks of an engine that holds them.

An engine is asked for the best items by inner product, and for the vectors and texts of a few. Qdrant, LanceDB and
Postgres answer the same contract test (tests/contracts/test_vector_stores.py), and so do arrays in memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.records import Item, check_texts

# An engine's own id of an item.
Key = int | str
# Metadata that an item must have: {"lang": "en", "year": [2023, 2024]}, where a list means any of these, and an item's
# own list has each of its values. Or what the engine itself takes for a filter: a Qdrant `Filter`, an SQL condition.
Where = Mapping[str, Any] | Any | None

# Between the name of a collection and that of what is written beside it.
BESIDE = "--"
TEXT_FIELD = "text"

# Halves of characters, which no file holds; and NUL, which some engines do not take.
HALF, HALF_OR_NUL = re.compile("[\ud800-\udfff]"), re.compile("[\0\ud800-\udfff]")
_SHOWN = 60


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

    def siblings(self) -> tuple[str, ...]:
        """The suffixes of the collections beside this one."""
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


def shown(value: object) -> str:
    """A value as an error repeats it: the beginning."""
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def has_characters(value: object, unfit: re.Pattern[str] = HALF) -> bool:
    """Whether a text, or one within lists and dictionaries, has such a character: by default half of one."""
    if isinstance(value, str):
        return not (value.isascii() and unfit is HALF) and unfit.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_characters(name, unfit) or has_characters(one, unfit) for name, one in value.items())
    return isinstance(value, list | tuple | set | frozenset) and any(has_characters(one, unfit) for one in value)


def check_name(what: str, name: str) -> str:
    """The name of a collection, table or vector, if an engine could have it."""
    if has_characters(name, HALF_OR_NUL):
        raise InputError(f"The name of a {what} is Unicode text without NUL; got {shown(name)}.")
    return name


def check_kept(item: Item, unfit: re.Pattern[str] = HALF) -> None:
    """Refuse an item with characters that an engine cannot keep."""
    if any(has_characters(part, unfit) for part in (item.id, item.text, item.metadata)):
        nul = " or NUL" if unfit is HALF_OR_NUL else ""
        raise InputError(f"Item {shown(item.id)} has half of a character{nul} in it, which cannot be kept here.")
    check_texts("Item", item.id, item.text)


def beside_name(name: str, suffix: str) -> str:
    """NAME--suffix."""
    check_name("collection", suffix)
    if not suffix or BESIDE in suffix or suffix.startswith("-"):
        raise InputError(
            f"What follows {name}{BESIDE} must not be empty, hold '{BESIDE}' or begin with '-': {shown(suffix)}."
        )
    return f"{name}{BESIDE}{suffix}"


def suffixes(name: str, others: Iterable[str]) -> tuple[str, ...]:
    """The suffixes of those that lie beside this name; "arts--x--1" lies beside "arts--x", not beside "arts"."""
    start = name + BESIDE
    after = (other.removeprefix(start) for other in others if other.startswith(start))
    return tuple(sorted(one for one in after if one and BESIDE not in one and not one.startswith("-")))
