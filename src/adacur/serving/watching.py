"""Checks that scorers are still those the served indexes were built with: a service may change its model any day."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from adacur.index import Drift, drift_now
from adacur.serving.failures import Refusal
from adacur.serving.indexes import Served
from adacur.serving.metrics import Metrics
from adacur.serving.scoring import uncached
from adacur.serving.settings import ServerSettings

# Scorer calls of a check.
_PAIRS = 8


class ScorerWatch:
    """Compares the scorer of each index with a few of the stored scores, periodically and on demand.

    Each check is counted in `metrics` and logged as one line. `sleep` waits between checks.
    """

    def __init__(
        self,
        served: Mapping[str, Served],
        *,
        settings: ServerSettings,
        metrics: Metrics,
        log: Any,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._served, self._settings, self._metrics, self._log, self._sleep = served, settings, metrics, log, sleep
        self._changed: set[str] = set()
        self._turns = {name: asyncio.Lock() for name in served}

    async def run(self) -> None:
        """Check all scorers that can change, until cancelled."""
        while self._settings.probe_seconds:
            await self._sleep(self._settings.probe_seconds)
            for one in self._served.values():
                # A failure has been counted and logged, and may be temporary.
                with suppress(Exception):
                    if await asyncio.to_thread(_can_change, one):
                        await self.check(one)

    async def check(self, one: Served) -> Drift:
        """How far the scorer has drifted from the index, for 8 scorer calls."""
        if not one.index.anchor_queries:
            message = "This index stores no scores to compare with, so any scorer fits it."
            raise Refusal(422, "nothing_to_probe", message)
        async with self._turns[one.name]:
            try:
                # In a thread, since the scorer may have to be opened first.
                drift = await asyncio.to_thread(
                    lambda: drift_now(one.index.anchors, uncached(one.index.scorer), n=_PAIRS)
                )
            except Exception as error:
                self._metrics.scorer_probes.labels(one.name, "failed").inc()
                self._log.error("scorer not probed", index=one.name, exc_info=error)
                raise
        outcome = "same" if drift.same else "near" if drift.allowed else "changed"
        self._metrics.scorer_probes.labels(one.name, outcome).inc()
        self._metrics.scorer_drift.labels(one.name).set(drift.rms_over_std)
        write = self._log.info if drift.allowed else self._log.error
        write("scorer probed", index=one.name, outcome=outcome, drift=drift.in_words())
        (self._changed.discard if drift.allowed else self._changed.add)(one.name)
        return drift

    def refuse_if_changed(self, one: Served) -> None:
        """Refuse a search whose scorer has changed, where the settings ask for it."""
        if self._settings.refuse_drift and one.name in self._changed:
            message = (
                "The scorer of this index has changed since the index was built. Searches are refused until the "
                "scorer is restored or the index is rebuilt."
            )
            raise Refusal(503, "scorer_changed", message)


def _can_change(one: Served) -> bool:
    """Whether the scorer has no known weights, as a service has none."""
    return bool(one.index.anchor_queries) and one.index.scorer.card.weights is None
