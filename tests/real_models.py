"""The real models, fetched once into the cache that users have too."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from adacur.data import cache_folder, fetch


def torch_cross_encoder() -> Path:
    """The cross-encoder as a transformers checkpoint, dequantised from the int8 file."""
    dequantise = pytest.importorskip("adacur_lab.dequantise").dequantise
    target = cache_folder() / "dequantised" / "ms-marco-MiniLM-L-12-v2"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not (target / "vocab.txt").exists():
            dequantise(fetch("ms-marco-MiniLM-L-12-v2"), target)
    return target
