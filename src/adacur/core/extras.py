"""Optional dependencies: imported where they are needed, with the install line when absent."""

from __future__ import annotations

import importlib
from types import ModuleType

from adacur.core.errors import MissingExtra

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses one of its own dependencies must not be reported as absent.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(
            f"{module} is not installed. Install it with: pip install 'adacur[{extra}]'", name=module
        ) from error
