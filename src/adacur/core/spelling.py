"""Help for names that are nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' where one known name is near, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f" Did you mean {near[0]!r}?" if near else ""
