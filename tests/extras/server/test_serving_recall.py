from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from adacur import AnchorIndex
from adacur.extras.server import ServerSettings, recall
from adacur.extras.server.recall import RecallCurves
from tests.serving_world import world_index


@contextmanager
def curves(is_idle: Callable[[], bool] = lambda: True) -> Iterator[RecallCurves]:
    made = RecallCurves(ServerSettings(max_budget=20), is_idle=is_idle)
    try:
        yield made
    finally:
        made.stop()


def measured(made: RecallCurves, index: AnchorIndex) -> dict[str, Any]:
    while "state" in (curve := made.curve("w", index, k=5, method="gaussian")):
        time.sleep(0.01)
    return curve


def test_a_curve_waits_while_somebody_searches_but_not_for_ever(monkeypatch):
    index, is_quiet = world_index(), threading.Event()
    with curves() as alone:
        expected = measured(alone, index)
    with curves(is_idle=is_quiet.is_set) as waiting:
        assert waiting.curve("w", index, k=5, method="gaussian")["state"] == "computing"
        time.sleep(0.3)
        assert waiting.curve("w", index, k=5, method="gaussian")["points"] == ()
        is_quiet.set()
        assert measured(waiting, index) == expected
    monkeypatch.setattr(recall, "_MOST_PAUSES", 1)
    with curves(is_idle=lambda: False) as crowded:
        assert measured(crowded, index) == expected


def test_a_curve_that_waits_ends_with_its_server():
    before = threading.active_count()
    with curves(is_idle=lambda: False) as waiting:
        assert waiting.curve("w", world_index(), k=5, method="gaussian")["state"] == "computing"
    until = time.monotonic() + 10
    while threading.active_count() > before:
        if time.monotonic() > until:
            pytest.fail("its thread is still there")
        time.sleep(0.01)


def test_a_curve_shows_the_usual_budget_first_and_the_points_so_far(monkeypatch):
    index, replay = world_index(), recall.replay
    budgets: list[int] = []
    second, go_on = threading.Event(), threading.Event()

    def slow(*given: Any, budget: int, **options: Any) -> Any:
        budgets.append(budget)
        if budget != budgets[0]:
            second.set()
            assert go_on.wait(10)
        return replay(*given, budget=budget, **options)

    monkeypatch.setattr(recall, "replay", slow)
    with curves() as made:
        assert made.curve("w", index, k=5, method="gaussian")["points"] == ()
        assert second.wait(10)
        (point,) = made.curve("w", index, k=5, method="gaussian")["points"]
        go_on.set()
        whole = measured(made, index)
    assert point["budget"] == budgets[0] == 20
    assert [one["budget"] for one in whole["points"]] == [5, 10, 20]
    assert point in whole["points"]
