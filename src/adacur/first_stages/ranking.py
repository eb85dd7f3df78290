"""What every first stage checks at its door."""

from __future__ import annotations

from collections.abc import Iterable

from adacur.core.errors import DuplicateId, EmptyInput
from adacur.core.records import first_repeat

__all__ = ["check_ids"]


def check_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """At least one id, none of them twice."""
    ids = tuple(ids)
    if not ids:
        raise EmptyInput("There are no items. Give at least one.")
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Item ids must be unique; {first_repeat(ids)!r} occurs more than once.")
    return ids
