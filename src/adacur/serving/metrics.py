"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from adacur.core.results import Hits
from adacur.search.tuning import Tuning

__all__ = ["METRICS_TYPE", "Metrics"]

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)
_RECALLS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)


class Metrics:
    """Counters of one server, in a registry of its own: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("adacur_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "adacur_request_seconds",
            "From the first byte in to the last byte out.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refused = Counter(
            "adacur_refused", "Requests refused, by the code of the error.", ["code"], registry=registry
        )
        self.in_flight = Gauge("adacur_searches_in_flight", "Searches and re-rankings under way.", registry=registry)
        self.waiting = Gauge("adacur_searches_waiting", "Requests in line for their turn.", registry=registry)
        self.scorer_calls = Counter("adacur_scorer_calls", "Calls of a scorer.", ["scorer"], registry=registry)
        self.scorer_pairs = Histogram(
            "adacur_scorer_pairs_per_call",
            "Pairs that one call of a scorer answered.",
            ["scorer"],
            buckets=_PAIRS,
            registry=registry,
        )
        self.scorer_seconds = Histogram(
            "adacur_scorer_call_seconds",
            "Seconds of one call of a scorer.",
            ["scorer"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.scorer_failures = Counter(
            "adacur_scorer_failures", "Calls of a scorer that failed.", ["scorer"], registry=registry
        )
        self.pairs_waiting = Gauge(
            "adacur_scorer_pairs_waiting",
            "Pairs asked of a scorer and not answered yet.",
            ["scorer"],
            registry=registry,
        )
        self.search_calls = Counter(
            "adacur_search_calls",
            "Scores that searches paid for from their budgets.",
            ["index", "method"],
            registry=registry,
        )
        self.step_seconds = Counter(
            "adacur_search_step_seconds",
            "Seconds that searches spent in each step.",
            ["index", "step"],
            registry=registry,
        )
        self.stopped = Counter(
            "adacur_searches",
            "Searches that ended, by what ended them.",
            ["index", "method", "stopped"],
            registry=registry,
        )
        self.expected_recall = Histogram(
            "adacur_search_expected_recall",
            "Recall that searches with stop_when expected at their end.",
            ["index"],
            buckets=_RECALLS,
            registry=registry,
        )
        self.predicted_recall = Gauge(
            "adacur_index_predicted_recall",
            "Recall that tuning predicts for this k and budget.",
            ["index", "method", "k", "budget"],
            registry=registry,
        )

    def count_search(self, index: str, method: str, hits: Hits | None, *, stopped: str) -> None:
        """One query's search, at its end; without hits where that came before the first."""
        self.stopped.labels(index, method, stopped).inc()
        if hits is None:
            return
        self.search_calls.labels(index, method).inc(hits.trace.calls)
        for step, seconds in hits.trace.seconds.items():
            self.step_seconds.labels(index, step).inc(max(0.0, seconds))
        for one in reversed(hits.trace.rounds):
            if one.expected_recall is not None:
                self.expected_recall.labels(index).observe(one.expected_recall)
                break

    def tell_tunings(self, index: str, tunings: Iterable[Tuning]) -> None:
        """What an index is expected to find."""
        for tuning in tunings:
            for one in tuning.predictions:
                self.predicted_recall.labels(index, one.method, tuning.k, tuning.budget).set(one.recall)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)
