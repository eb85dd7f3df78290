"""Random searches with random budgets of calls, tokens and money; 100,000 of them: lab/benchmarks/spending.py."""

from __future__ import annotations

import pytest
from lab.benchmarks.spending import run


@pytest.mark.parametrize("seed", range(3))
def test_no_search_exceeds_any_of_its_limits(seed: int) -> None:
    seen = run(800, seed=seed + 1)

    assert seen["calls"] > 1000
    assert (seen["exceeded"], seen["misreported"]) == (0, 0)
