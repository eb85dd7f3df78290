"""Items on their way through an encoder, and how far they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized

from adacur.core.records import Item

__all__ = ["blocks_to_encode"]

_FIRST_BLOCK, _LARGEST_BLOCK = 16, 128


def blocks_to_encode(items: Iterable[Item], *, progress: str | None) -> Iterator[list[Item]]:
    """The items in blocks, small ones first; a bar of the name `progress` counts those that have been encoded.

    How items are cut into blocks depends on their number alone, so that the vectors do not depend on the machine.
    """
    from tqdm.auto import tqdm

    rest, size = iter(items), _FIRST_BLOCK
    total = len(items) if isinstance(items, Sized) else None
    with tqdm(total=total, desc=progress, unit="item", disable=progress is None) as bar:
        while block := list(itertools.islice(rest, size)):
            yield block
            # Whoever took the block comes back when it is encoded.
            bar.update(len(block))
            size = min(2 * size, _LARGEST_BLOCK)
