"""Which tests run in one worker of pytest-xdist, and in which order."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
# A million objects are imported, and none of them becomes garbage.
gc.disable()
frozen = {"modules": 0}

# Files whose tests run in one worker, one after the other, so that their libraries are imported and their fixtures made
# once; what takes long first. Every other file is a group of its own.
GROUPS = {
    "torch": (
        "tests/extras/hosts/test_integrations.py",
        "tests/contracts/test_scorer_identity.py",
        "tests/contracts/test_scorers.py",
        "tests/extras/train/test_cli_train.py",
        "tests/functional/test_real_model.py",
        "tests/functional/test_threads.py",
        "tests/extras/hosts/",
        "tests/unit/scorers/cross_encoders/",
        "tests/unit/scorers/test_judge.py",
        "tests/unit/scorers/test_more_than_pairs.py",
        "tests/unit/scorers/test_opening_scorers.py",
        "tests/unit/scorers/test_sentence_transformers_scorer.py",
        "tests/extras/train/",
        "lab/tests/test_mteb.py",
    ),
    "documents": ("tests/functional/test_docs.py", "tests/functional/test_notebooks.py"),
    "page": ("tests/extras/server/test_page.py", "tests/functional/test_docs_site.py"),
    "ray": (
        "tests/contracts/test_executors.py",
        "tests/extras/ray/test_ray.py",
        "tests/extras/ray/test_cluster_build.py",
    ),
    "commands": ("tests/functional/test_cli.py",),
    "server": ("tests/functional/test_serve",),
    "tuning": ("tests/unit/replay/",),
}
# Its tests share nothing, so that both workers take them one by one.
APART = "documents"


def group_of(file: str) -> str:
    """The group of a test file, or the file itself."""
    return next((group for group, files in GROUPS.items() if file.startswith(files)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups that take long first, so that no worker ends long after the other."""
    groups = {item: group_of(item.path.relative_to(ROOT).as_posix()) for item in items}
    order = {group: place for place, group in enumerate(dict.fromkeys([*GROUPS, *groups.values()]))}
    items.sort(key=lambda item: order[groups[item]])


def pytest_collection_finish() -> None:
    """Look for garbage again."""
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Look for garbage only among what tests make: scorers do so when they close, accelerate before it trains."""
    if len(sys.modules) > frozen["modules"] + 100:
        gc.collect()
        gc.freeze()
        frozen["modules"] = len(sys.modules)


def pytest_unconfigure() -> None:
    """Triton complains of what is still there at the end."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a group in one worker. `--dist loadgroup` groups nothing with pytest 9.2 (xdist issue 1386)."""
    from xdist.scheduler import LoadScopeScheduling

    # In the order above, not by the number of tests.
    config.option.loadscopereorder = False

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = group_of(nodeid.partition("::")[0])
            return nodeid if group == APART else group

    return ByGroup(config, log)
