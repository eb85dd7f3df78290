"""Where fetched files are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$ADACUR_CACHE, else adacur in the user's cache folder."""
    if chosen := os.environ.get("ADACUR_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adacur"
