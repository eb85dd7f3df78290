"""Curves of recall against budget, computed in the background from the scores of the index."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from adacur.errors import AdacurError
from adacur.extras.server.failures import Refusal
from adacur.extras.server.server_settings import ServerSettings
from adacur.replay import replay, top_k_recall
from adacur.replay.chosen_settings import prediction_of
from adacur.replay.measures import FEWEST_QUERIES
from adacur.results import Hits
from adacur.search import AnchorIndex

_BUDGETS = (10, 20, 50, 100, 200, 500, 1000, 2000)
_MOST_CURVES = 100
# Curves begin where most budgets are.
_USUAL_BUDGET = 100
_QUERIES = 50
# Of 50, ten at a time cost 1.4 times as much as all at once, and two at a time 3.5 times.
_QUERIES_AT_ONCE = 10
_PAUSE, _MOST_PAUSES = 0.02, 100


class RecallCurves:
    """Curves by index, k, method and first stage; each is computed once, one after the other.

    Searches come first: the next few queries are measured when the server `is_idle`, or after two seconds.
    """

    def __init__(self, settings: ServerSettings, *, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "adacur-recall")
        self._curves: dict[tuple[str, int, int, str, str], tuple[dict[str, Any], Future[None]]] = {}
        self._stopping = threading.Event()

    def curve(self, name: str, index: AnchorIndex, *, k: int, method: str, first: str | None = None) -> dict[str, Any]:
        """The curve; one that is being computed has its points so far, and `state` says so."""
        if first is None:
            budget = self._settings.defaults()["budget"]
            first = index.snapshot.chosen_first(k=k, budget=max(k, budget), method=method)
        key = (name, index.version, k, method, first)
        if key not in self._curves:
            budgets = self._budgets(index, k, first)
            if len(self._curves) >= _MOST_CURVES:
                self._curves.pop(next(iter(self._curves)))[1].cancel()
            begun = {"k": k, "method": method, "first": first, "n_queries": 0, "points": ()}
            self._curves[key] = begun, self._thread.submit(self._compute, begun, index, budgets)
        curve, future = self._curves[key]
        if not future.done():
            return {"state": "computing", **curve}
        try:
            future.result()
        except AdacurError as error:
            raise Refusal(404, "no_recall", str(error)) from error
        return curve

    def stop(self) -> None:
        """End after the search under way."""
        self._stopping.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _budgets(self, index: AnchorIndex, k: int, first: str) -> list[int]:
        """The budgets to measure, from the smallest that a search may have up to the limits."""
        # Refuses an unknown first stage.
        index.snapshot.stage(first)
        most, n_anchors = min(self._settings.max_budget, len(index)), len(index.anchor_queries)
        if not index.snapshot.in_memory:
            reason = "Recall is measured on the folder of an index; this one is in an engine."
        elif n_anchors < FEWEST_QUERIES:
            reason = f"Recall is measured on at least {FEWEST_QUERIES} anchor queries; this index has {n_anchors}."
        elif (cells := index.snapshot.exact_cells()) is not None and not cells.all():
            reason = "Some scores of this index are predicted; recall can be measured against exact scores only."
        elif k > most:
            reason = f"k={k} is more than the largest budget or the number of items, {most}."
        else:
            budgets = (*_BUDGETS, k, 2 * k, min(most, max(_BUDGETS[-1], k)))
            return sorted({budget for budget in budgets if k <= budget <= most})
        raise Refusal(404, "no_recall", reason)

    def _compute(self, curve: dict[str, Any], index: AnchorIndex, budgets: list[int]) -> None:
        k, method, first = curve["k"], curve["method"], curve["first"]
        n_anchors = len(index.anchor_queries)
        rows = np.linspace(0, n_anchors - 1, min(_QUERIES, n_anchors)).astype(int).tolist()
        queries = [index.anchor_queries[row] for row in rows]
        scores = np.ascontiguousarray(index.matrix[:, rows].T)
        curve["n_queries"] = len(queries)
        for budget in sorted(budgets, key=lambda budget: abs(math.log(budget / _USUAL_BUDGET))):
            hits: list[Hits] = []
            while len(hits) < len(queries):
                if not self._may_go_on():
                    return
                some = queries[len(hits) : len(hits) + _QUERIES_AT_ONCE]
                hits += replay(index, some, k, budget=budget, method=method, first=first)
            expected = prediction_of(method, top_k_recall(hits, scores, k=k))
            point = {"budget": budget, "recall": expected.recall, "low": expected.low, "high": expected.high}
            # Replaced rather than appended to: a request may be reading it.
            curve["points"] = sorted([*curve["points"], point], key=lambda one: one["budget"])

    def _may_go_on(self) -> bool:
        """Wait for a pause between searches, but not for ever; False when the server stops."""
        for _ in range(_MOST_PAUSES):
            if self._stopping.wait(_PAUSE) or self._is_idle():
                break
        return not self._stopping.is_set()
