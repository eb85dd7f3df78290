"""Searches that end where their expected recall reaches a bound, which is what `effort` is built on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adacur import Gaussian
from adacur.search.plan import Plan
from adacur.search.snapshot import Snapshot
from adacur.search.stopping import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Gaussian):
    """Ends a query's search after the round by which its top k is expected to have this recall."""

    stop_when: float

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        return replace(Gaussian.plan(self, base, source, k=k), stop=Stop(self.stop_when))
