from __future__ import annotations

import numpy as np

from adacur import AdaCUR, AnchorIndex, Hits, Query, Trace
from adacur.results import Round
from adacur_lab.measures import search_cost


def searched(*rounds: tuple[int, dict[str, float]]) -> Hits:
    trace = Trace(
        rounds=tuple(
            Round(number=number, positions=np.arange(calls), exact=np.zeros(calls), seconds=seconds)
            for number, (calls, seconds) in enumerate(rounds, 1)
        )
    )
    return Hits(Query("q", "q"), (), np.empty(0), trace=trace)


def test_calls_and_seconds_are_summed_over_the_rounds_of_each_query() -> None:
    found = [searched((3, {"first": 1.0, "score": 2.0}), (2, {"score": 4.0, "predict": 8.0})), searched()]
    cost = {name: values.tolist() for name, values in search_cost(found, index_calls=600).items()}
    assert cost == {
        "calls": [5, 0],
        "index_calls": [600, 600],
        "seconds.first": [1, 0],
        "seconds.score": [6, 0],
        "seconds.predict": [8, 0],
    }


def test_a_search_tells_every_step(world) -> None:
    found = AnchorIndex(world.index, scorer=world.scorer).search(world.test, k=3, budget=20, method=AdaCUR())
    cost = search_cost(found)
    assert cost["calls"].tolist() == [20] * len(world.test)
    assert {name for name in cost if name.startswith("seconds.")} == {
        "seconds.first",
        "seconds.choose",
        "seconds.score",
        "seconds.solve",
        "seconds.predict",
    }
    assert search_cost([])["calls"].tolist() == []
