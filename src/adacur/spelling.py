"""Help for names that are nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHORTEST_START = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' where one known name is near, or begins as this one does; else nothing."""
    names = [str(one) for one in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    near = near or [one for one in names if len(name) >= _SHORTEST_START and one.lower().startswith(name.lower())]
    return f" Did you mean {near[0]!r}?" if near else ""
