from __future__ import annotations

from collections.abc import Iterator

import pytest

from adacur.extras.engines import checked_store


@pytest.fixture(scope="module", autouse=True)
def no_waits() -> Iterator[None]:
    """Between tries: nothing here needs time to recover."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_store, "WAITS", (0.01, 0.01))
        yield
