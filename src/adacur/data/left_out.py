"""What a reader left out or made up, told as a warning: the file has it, or lacks it, and the collection differs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

__all__ = ["DataWarning", "warn_left_out"]

_IDS_NAMED = 5


class DataWarning(UserWarning):
    """Records were left out because they have no text, or line numbers became ids because there are no others."""


def warn_left_out(
    source: str | Path, ids: Sequence[str], *, kind: str = "item", kinds: str = "items", stacklevel: int = 2
) -> None:
    """Warn that the records with these ids have no text and were left out; nothing where there are none.

    `stacklevel` counts from the function that calls this one: 2 is its caller.
    """
    if ids:
        named = ", ".join(ids[:_IDS_NAMED]) + (", …" if len(ids) > _IDS_NAMED else "")
        what = f"1 {kind} without text was" if len(ids) == 1 else f"{len(ids):,} {kinds} without text were"
        warnings.warn(f"{source}: {what} left out: {named}.", DataWarning, stacklevel=stacklevel + 1)
