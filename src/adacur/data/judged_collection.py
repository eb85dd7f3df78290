"""A collection with queries and judgements, wherever it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from adacur.core.errors import DuplicateId, EmptyInput, InputError
from adacur.core.records import Item, Query, first_repeat

__all__ = ["JudgedCollection"]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedCollection:
    """Items, queries and who is relevant to whom: grades by query id and item id.

    Not every query need be judged. Judgements of absent queries or items, which real collections have, are kept.
    `left_out` has the ids of items that the source has and this does not, since they have no text.
    """

    name: str
    items: Sequence[Item] = field(repr=False)
    queries: Sequence[Query] = field(repr=False)
    qrels: Mapping[str, Mapping[str, int]] = field(repr=False)
    left_out: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for kind, records in (("item", self.items), ("query", self.queries)):
            ids = [record.id for record in records]
            if not ids:
                raise EmptyInput(f"The collection {self.name!r} has no {kind}. Give at least one.")
            if len(set(ids)) < len(ids):
                raise DuplicateId(f"Ids are unique; in {self.name!r} the {kind} {first_repeat(ids)!r} occurs twice.")
        if not self.judged:
            raise InputError(
                f"None of the {len(self.qrels)} judged query ids of {self.name!r} is among its {len(self.queries)} "
                "queries. Check that both come from the same collection."
            )

    @property
    def judged(self) -> list[Query]:
        """The queries with judgements, in their order."""
        return [query for query in self.queries if self.qrels.get(query.id)]

    @property
    def unjudged(self) -> list[Query]:
        """The queries without: anchor queries that cost no test query."""
        return [query for query in self.queries if not self.qrels.get(query.id)]

    def describe(self) -> dict[str, str | int | float]:
        """A row of a table of collections; words are what white space separates, relevant is a grade above zero."""
        judged = self.judged
        item_ids = {item.id for item in self.items}
        relevant = [sum(grade > 0 for grade in self.qrels[query.id].values()) for query in judged]
        return {
            "name": self.name,
            "items": len(self.items),
            "queries": len(self.queries),
            "judged_queries": len(judged),
            "judgements": sum(map(len, self.qrels.values())),
            "relevant_per_query": fmean(relevant),
            "words_per_item": _mean_words(self.items),
            "words_per_query": _mean_words(self.queries),
            "absent_items": len({id_ for grades in self.qrels.values() for id_ in grades} - item_ids),
        }


def _mean_words(records: Iterable[Item | Query]) -> float:
    return fmean(len(record.text.split()) for record in records)
