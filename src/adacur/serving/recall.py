"""Recall against budget, computed in the background from what the index holds already."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from adacur.core.errors import AdacurError
from adacur.evaluation import top_k_recall
from adacur.search import AnchorIndex
from adacur.search.tuning import FEWEST_QUERIES, prediction_of
from adacur.serving.failures import Refusal

__all__ = ["RecallCurves", "tunings_of"]

_BUDGETS = (10, 20, 50, 100, 200, 500, 1000)
_MOST_CURVES = 100


class RecallCurves:
    """Curves by index, k and method; each is computed once, one after the other, in a thread beside the searches."""

    def __init__(self, *, queries: int, max_budget: int) -> None:
        self._queries = queries
        self._max_budget = max_budget
        self._thread = ThreadPoolExecutor(1, "adacur-recall")
        self._curves: dict[tuple[str, int, str], Future[dict[str, Any]]] = {}
        self._stopping = threading.Event()

    def curve(self, name: str, index: AnchorIndex, *, k: int, method: str) -> dict[str, Any] | None:
        """The curve, or None while it is computed."""
        key = (name, k, method)
        if key not in self._curves:
            self._check(index, k=k)
            if len(self._curves) >= _MOST_CURVES:
                # Whoever asks for every k there is gets them, but they are not all kept.
                oldest = next((one for one, curve in self._curves.items() if curve.done()), None)
                if oldest is None:
                    raise Refusal(429, "too_busy", "Too many curves are being computed.", headers={"Retry-After": "10"})
                del self._curves[oldest]
            self._curves[key] = self._thread.submit(self._computed, index, k, method)
        future = self._curves[key]
        if not future.done():
            return None
        if (error := future.exception()) is not None:
            if isinstance(error, AdacurError):
                raise Refusal(404, "no_recall", str(error))
            raise error
        return future.result()

    def stop(self) -> None:
        """End after the search under way."""
        self._stopping.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check(self, index: AnchorIndex, *, k: int) -> None:
        if len(index.anchor_queries) < FEWEST_QUERIES:
            raise Refusal(
                404,
                "no_recall",
                f"Recall is measured on anchor queries, at least {FEWEST_QUERIES} of them; this index has "
                f"{len(index.anchor_queries)}.",
            )
        cells = index.exact_cells()
        if cells is not None and not cells.all():
            raise Refusal(
                404, "no_recall", "Some scores of this index are predicted; recall cannot be measured against those."
            )
        if not self._budgets(index, k):
            raise Refusal(
                404, "no_recall", f"k={k} is more than the largest budget that can be searched with, or than the items."
            )

    def _budgets(self, index: AnchorIndex, k: int) -> list[int]:
        most = min(self._max_budget, len(index))
        if k > most:
            return []
        return sorted(
            {budget for budget in (*_BUDGETS, 2 * k) if k <= budget <= most} | ({most} if most < 20 else set())
        )

    def _computed(self, index: AnchorIndex, k: int, method: str) -> dict[str, Any]:
        n_anchors = len(index.anchor_queries)
        chosen = np.linspace(0, n_anchors - 1, min(self._queries, n_anchors)).astype(int).tolist()
        queries = [index.anchor_queries[at] for at in chosen]
        scores = np.ascontiguousarray(index.matrix[:, chosen].T)
        points = []
        for budget in self._budgets(index, k):
            if self._stopping.is_set():
                break
            found = index.replay(queries, k, budget=budget, method=method)
            expected = prediction_of(method, top_k_recall(found, scores, k=k))
            points.append({"budget": budget, "recall": expected.recall, "low": expected.low, "high": expected.high})
        return {"k": k, "method": method, "n_queries": len(queries), "points": points}


def tunings_of(index: AnchorIndex) -> list[Mapping[str, Any]]:
    """What an index is tuned for."""
    return [
        {
            "k": tuning.k,
            "budget": tuning.budget,
            "first": tuning.first,
            "n_queries": tuning.n_queries,
            "predictions": [
                {"method": one.method, "recall": one.recall, "low": one.low, "high": one.high}
                for one in tuning.predictions
            ],
        }
        for tuning in index.tunings
    ]
