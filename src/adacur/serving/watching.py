"""Whether scorers are still those that the served indexes were built with: a service may change its model any day."""

from __future__ import annotations

import asyncio
import time
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
# Whoever asks again within this many seconds gets the same answer: asking must not be a way to spend.
KEPT_SECONDS = 60.0


class ScorerWatch:
    """Asks the scorer of each index for a few of its stored scores again, every so often and on demand.

    `sleep` is how it waits. A check counts in `metrics` and is one line of the `log`.
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
        self._last: dict[str, tuple[float, Drift]] = {}
        self._turns = {name: asyncio.Lock() for name in served}

    async def run(self) -> None:
        """Check all that can change, for ever."""
        while self._settings.probe_seconds:
            await self._sleep(self._settings.probe_seconds)
            for one in self._served.values():
                # What failed has been counted and logged, and may pass.
                with suppress(Exception):
                    if await asyncio.to_thread(_can_change, one):
                        await self.check(one)

    async def on_demand(self, one: Served) -> tuple[Drift, float]:
        """The last check and how many seconds ago it was, if that is less than a minute; otherwise a new one."""
        async with self._turns[one.name]:
            at, drift = self._last.get(one.name, (0.0, None))
            if drift is None or time.monotonic() - at >= KEPT_SECONDS:
                return await self._check(one), 0.0
            return drift, time.monotonic() - at

    async def check(self, one: Served) -> Drift:
        """Ask again, for 8 scorer calls; how far the scorer is from the index."""
        async with self._turns[one.name]:
            return await self._check(one)

    async def _check(self, one: Served) -> Drift:
        if not one.index.anchor_queries:
            message = "This index stores no scores to compare with: any scorer will do."
            raise Refusal(422, "nothing_to_probe", message)
        try:
            drift = await asyncio.to_thread(_measure, one)
        except Exception as error:
            self._metrics.scorer_probes.labels(one.name, "failed").inc()
            self._log.error("scorer not probed", index=one.name, exc_info=error)
            raise
        self._last[one.name] = time.monotonic(), drift
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
                "The scorer of this index has changed since the index was built. Searches are refused until it is "
                "again as it was, or the index is built anew."
            )
            raise Refusal(503, "scorer_changed", message)


def _can_change(one: Served) -> bool:
    """Whether the scorer is not a model whose weights are known and in this process."""
    return bool(one.index.anchor_queries) and one.index.scorer.card.weights is None


def _measure(one: Served) -> Drift:
    return drift_now(one.index.anchors, uncached(one.index.scorer), n=_PAIRS)
