"""Which tests run in one worker of pytest-xdist."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
# What several files share, by a word in their source: a cluster, an object store, the import of a trainer.
_FOR_SEVERAL_FILES = ("ray_cluster", "s3_url", "adacur.training")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep files whose tests share a fixture in one worker, so that a trained model or a server is made once.

    The tests of other files go wherever there is room. `--dist loadgroup` would do the same, but groups nothing with
    pytest 9.2 (pytest-xdist issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_by(nodeid.partition("::")[0]) or nodeid

    return ByFixture(config, log)


@functools.cache
def shared_by(file: str) -> str | None:
    """The word, or else the file, that keeps the tests of a file together; None where nothing does."""
    source = (ROOT / file).read_text(encoding="utf-8")
    for name in _FOR_SEVERAL_FILES:
        if name in source:
            return name
    return file if 'scope="module"' in source or 'scope="session"' in source else None
