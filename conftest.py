"""Which tests run in one worker of pytest-xdist."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, tests that share a fixture run in one worker, so that each fixture is made once.

    A fixture of a module or of the session is shared; tests that share any are one group, and so are their sharers.
    """
    leader: dict[str, str] = {}

    def root(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    shared: list[list[str]] = []
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        wide = [
            f"{one.baseid}::{one.argname}"
            for defined in (fixtures.name2fixturedefs.values() if fixtures else ())
            for one in defined[-1:]
            # Those of plugins have no place in the tree and cost nothing.
            if one.scope in ("module", "session") and one.baseid
        ]
        shared.append(wide)
        for other in wide[1:]:
            leader[root(other)] = root(wide[0])
    for item, wide in zip(items, shared, strict=True):
        if wide:
            item.add_marker(pytest.mark.xdist_group(root(wide[0])))
