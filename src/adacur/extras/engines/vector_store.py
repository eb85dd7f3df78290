"""What a search asks of an engine that holds items and their vectors outside this process: six questions.

`CheckedStore` (checked_store.py) stands between a search and any store: it checks what is asked and what is answered,
asks again where an engine is silent, and hides secrets in errors. So a store only has to ask its engine: its answers
may come in any order, and be more than n. Stores of tables share sql_tables.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from adacur.arrays import FloatArray
from adacur.errors import AdacurError
from adacur.records import Item

# An engine's own id of an item.
Key = int | str
# Metadata that an item must have: {"lang": "en", "year": [2023, 2024]}, where a list means any of these, and an item's
# own list has each of its values. Or what the engine itself takes for a filter: a Qdrant `Filter`, an SQL condition.
# A store gets a dictionary with a list of plain values under each name, all Unicode text.
Where = Mapping[str, Any] | Any | None


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
    """The answer: keys of items and weights · vector of each. Through `CheckedStore`, best first."""

    keys: Sequence[Key]
    values: FloatArray


class VectorStore(Protocol):
    """A collection or table with the texts, metadata and vectors of items. It is only read.

    A store looks for its collection when it is first asked. It raises `InputError` or `UnknownName` for what it cannot
    answer, and lets the errors of its engine through: `explain` says what they mean.
    """

    # The payload fields or columns that an item's text is made of.
    text_fields: Sequence[str] = ()
    # The vector that its URL names, to search by; None where it names none.
    vector: str | None = None
    # Words that no message may repeat, such as a password.
    secrets: Sequence[str] = ()
    # Whether `words` adds up what each word of a text adds to an item, as BM25 does.
    adds_words: bool = False

    @property
    def name(self) -> str:
        """A URL without credentials, by which `open_store` finds the same collection."""
        ...

    def dimensions(self) -> Mapping[str, int]:
        """The vectors that can be searched by inner product, and their sizes; a vector without a name is "".

        Vectors of unit length may be compared by cosine; `best` undoes that.
        """
        ...

    def count(self, where: Where = None) -> int:
        """How many items there are, or have this metadata."""
        ...

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> Sequence[Found]:
        """An answer to each question, in one call where the engine can.

        `exact=False` allows an index that may miss some. A question with `within` is answered exactly all the same.
        """
        ...

    def rows(self, vector: str, keys: Sequence[Key]) -> Mapping[Key, FloatArray]:
        """The vectors of these items; those that are no longer there are left out."""
        ...

    def items(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        """Texts and metadata of these items; those that are no longer there are left out."""
        ...

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        """The n best items by the engine's own search for words; an `InputError` where it has none."""
        ...

    def sample(self, n: int) -> Sequence[Key]:
        """Keys of n items, or all, spread over the collection; the same each time while it does not change."""
        ...

    def close(self) -> None:
        """Close connections and files that the store opened itself."""

    def explain(self, error: Exception) -> AdacurError | None:
        """What an error of the engine's client means, in words.

        An `EngineUnavailable` where it may answer when asked again, an `InputError` where it refuses; None for errors
        that are not the client's.
        """
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
