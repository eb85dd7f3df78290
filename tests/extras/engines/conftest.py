from __future__ import annotations

from collections.abc import Iterator

import pytest

from adacur.extras.engines import retries


@pytest.fixture(scope="module", autouse=True)
def no_waits() -> Iterator[None]:
    """Between tries: nothing here needs time to recover."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "_WAIT", 0.01)
        patch.setattr(retries, "_JITTER", 0.0)
        yield
