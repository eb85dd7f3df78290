"""What needs an extra of its own; the core imports none of it, and knows it by the lines of `adacur.names`.

`server`, `engines`, `train`, `kernels` and `ray` are folders; `langchain`, `llama_index`, `haystack` and `pyterrier`
put an index into the words of other libraries, over what they share (`host_bridge`).
"""

from __future__ import annotations

import importlib
from types import ModuleType

_EXTRAS = ("engines", "haystack", "kernels", "langchain", "llama_index", "pyterrier", "ray", "server", "train")


def __getattr__(name: str) -> ModuleType:
    if name in _EXTRAS:
        return importlib.import_module(f"adacur.extras.{name}")
    raise AttributeError(f"module 'adacur.extras' has no attribute {name!r}")
