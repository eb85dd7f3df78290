"""Optional dependencies: imported where they are needed, with the install line when absent."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from adacur.errors import MissingExtra


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses one of its own dependencies must not be reported as absent.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(
            f"{module} is not installed. Install it with: {install_command(extra)}", name=module
        ) from error


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, be it a clone, a wheel file or a published package."""
    return f"pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    try:
        origin = json.loads(distribution("adacur").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    address = urlsplit(origin.get("url", ""))
    path = Path(url2pathname(address.path))
    if address.scheme != "file" or not path.exists():
        return f"'adacur[{extra}]'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"{editable}'{path}[{extra}]'"
