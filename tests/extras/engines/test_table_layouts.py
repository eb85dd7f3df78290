from __future__ import annotations

import pytest

from adacur.errors import EngineUnavailable
from adacur.extras.engines.vector_store import found


def test_no_key_is_found_twice() -> None:
    best = found("db", [(1, 0.5), (2, 0.9), (1, 0.7), (3, 0.1), (2, 0.2)], 3)
    assert best.keys == (2, 1, 3)
    assert best.values.tolist() == pytest.approx([0.9, 0.7, 0.1])
    assert found("db", [(1, 0.5), (1, 0.4), (2, 0.3)], 1).keys == (1,)


def test_a_value_that_is_not_finite_is_the_engines_fault() -> None:
    with pytest.raises(EngineUnavailable, match="db"):
        found("db", [(1, float("nan"))], 1)
