from __future__ import annotations

import asyncio
import time

from adacur import Item, Query
from adacur.extras.server.metrics import Metrics
from adacur.extras.server.scoring import ServedScorers
from adacur.scorers import FunctionScorer
from adacur.scorers.calling import ascore
from tests.serving_world import TextScorer


def pairs_of(caller: int) -> list[tuple[Query, Item]]:
    return [(Query(f"q{caller}", f"question {caller}"), Item(f"i{at}", f"item {at}")) for at in range(3)]


class Functions:
    """A function over pairs, plain or async, that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.at_once = 0
        self._now = 0

    def plain(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.calls += 1
        # Long enough for the others to come meanwhile.
        time.sleep(0.01)
        return [float(len(query) + len(item)) for query, item in pairs]

    async def awaited(self, pairs: list[tuple[str, str]]) -> list[float]:
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        await asyncio.sleep(0.01)
        self._now -= 1
        return self.plain(pairs)


async def asked_by_twenty(scorer: object) -> Metrics:
    metrics = Metrics()
    served = ServedScorers(metrics=metrics).of(scorer)  # type: ignore[arg-type]
    found = await asyncio.gather(*(ascore(served, pairs_of(caller)) for caller in range(20)))
    for caller, scores in enumerate(found):
        assert scores.tolist() == [float(len(q.text) + len(i.text)) for q, i in pairs_of(caller)]
    return metrics


def counted(metrics: Metrics, name: str) -> float:
    value = metrics.registry.get_sample_value("adacur_scorer_calls_total", {"scorer": name})
    assert value is not None
    return value


async def test_what_runs_side_by_side_by_itself_is_left_to():
    functions = Functions()
    metrics = await asked_by_twenty(FunctionScorer(functions.awaited, name="f"))
    assert counted(metrics, "f") == functions.calls == 20
    assert functions.at_once > 1


def test_one_scorer_is_served_as_one_object():
    scorers = ServedScorers(metrics=Metrics())
    one, other = TextScorer(), TextScorer()
    assert scorers.of(one) is scorers.of(one)
    assert scorers.of(one) is not scorers.of(other)
