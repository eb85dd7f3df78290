"""What every training here pays for."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_garbage_is_looked_for_in_what_is_imported() -> Iterator[None]:
    """Accelerate collects garbage before each training: among all that tests import, longer than a tiny one takes."""
    if "torch" in sys.modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("transformers.trainer")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
