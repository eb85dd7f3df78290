"""A collection with queries and judgements, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adacur.core.errors import DuplicateId, EmptyInput, InputError
from adacur.core.records import Item, Query, first_repeat


@dataclass(frozen=True, slots=True, eq=False)
class JudgedCollection:
    """Items, queries and grades by query id and item id, which tell what is relevant to whom.

    Not every query need be judged, and `qrels` is empty where none is. Judgements of absent queries or items, which
    real collections have, are kept.
    """

    name: str
    items: Sequence[Item] = field(repr=False)
    queries: Sequence[Query] = field(repr=False)
    qrels: Mapping[str, Mapping[str, int]] = field(repr=False)

    def __post_init__(self) -> None:
        for kind, records in (("item", self.items), ("query", self.queries)):
            ids = [record.id for record in records]
            if not ids:
                raise EmptyInput(f"The collection {self.name!r} has no {kind}. Give at least one.")
            if len(set(ids)) < len(ids):
                raise DuplicateId(
                    f"Ids must be unique; in {self.name!r} the {kind} {first_repeat(ids)!r} occurs twice."
                )
        if self.qrels and not self.judged:
            raise InputError(
                f"None of the {len(self.qrels)} judged query ids of {self.name!r} is among its {len(self.queries)} "
                "queries. Check that both come from the same collection."
            )

    @property
    def judged(self) -> list[Query]:
        """The queries with judgements, in their order."""
        return [query for query in self.queries if self.qrels.get(query.id)]
