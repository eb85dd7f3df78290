"""One run, one file: the name by which a stored run is found again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["run_name"]

_SHORT = {"budget": "B", "rounds": "R", "anchors": "A", "seed": "s", "k_max": "k"}


def run_name(settings: Mapping[str, Any], *, fingerprint: str, measures: Sequence[str]) -> str:
    """A file name that people can read, with a hash of all that the run depends on."""
    key = json.dumps([fingerprint, dict(settings), sorted(measures)], sort_keys=True)
    digest = hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
    parts = [
        f"{_SHORT[name]}{value}" if name in _SHORT else value if name == "first" else f"{name}{value}"
        for name, value in settings.items()
        if name not in ("method", "k_max")
    ]
    readable = re.sub(r"[^\w.-]+", "_", "-".join(map(str, [settings["method"], *parts])))
    return f"{readable[:120]}-{digest}"
