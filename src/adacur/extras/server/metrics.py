"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from adacur.results import Hits

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)


class Metrics:
    """Counters of one server, in a separate registry: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"adacur_{name}", meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str, *labels: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(f"adacur_{name}", meaning, labels, buckets=buckets, registry=self.registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"adacur_{name}", meaning, labels, registry=self.registry)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = histogram("request_seconds", "From the first byte in to the last byte out.", "route")
        self.refused = counter("refused", "Requests refused, by the code of the error.", "code")
        self.in_flight = gauge("searches_in_flight", "Searches and re-rankings under way.")
        self.waiting = gauge("searches_waiting", "Requests that wait for their turn.")
        self.scorer_calls = counter("scorer_calls", "Calls of a scorer.", "scorer")
        self.scorer_pairs = histogram("scorer_pairs_per_call", "Pairs in one scorer call.", "scorer", buckets=_PAIRS)
        self.scorer_seconds = histogram("scorer_call_seconds", "Seconds of one call of a scorer.", "scorer")
        self.scorer_failures = counter("scorer_failures", "Calls of a scorer that failed.", "scorer")
        self.scorer_probes = counter(
            "scorer_probes", "Checks whether a scorer is still that of its index.", "index", "outcome"
        )
        self.scorer_drift = gauge(
            "scorer_drift",
            "RMS difference from the scores of the index at the last check, in their standard deviations.",
            "index",
        )
        self.search_calls = counter("search_calls", "Scores that searches paid for.", "index", "method")
        self.step_seconds = counter("search_step_seconds", "Seconds of searches in each step.", "index", "step")
        self.stopped = counter("searches", "Searches, by what ended them.", "index", "method", "stopped")

    def count_search(self, index: str, method: str, hits: Hits | None, *, stopped: str) -> None:
        """One query's search, at its end; without hits if it ended before the first round."""
        self.stopped.labels(index, method, stopped).inc()
        if hits is None:
            return
        self.search_calls.labels(index, method).inc(hits.trace.calls)
        for step, seconds in hits.trace.seconds.items():
            self.step_seconds.labels(index, step).inc(max(0.0, seconds))

    def text(self) -> bytes:
        """All counters, as Prometheus reads them."""
        return generate_latest(self.registry)
