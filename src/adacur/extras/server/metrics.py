"""What a server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from adacur.results import Hits

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)
_DRIFT = "RMS difference from the scores of the index at the last check, in their standard deviations."


class Metrics:
    """Counters of one server, in a separate registry: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"adacur_{name}", meaning, labels, registry=registry)

        def seconds(name: str, meaning: str, *labels: str) -> Histogram:
            return Histogram(f"adacur_{name}_seconds", meaning, labels, buckets=_SECONDS, registry=registry)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = seconds("request", "From the first byte in to the last byte out.", "route")
        self.refused = counter("refused", "Requests refused, by the code of the error.", "code")
        self.in_flight = Gauge("adacur_searches_in_flight", "Searches and re-rankings under way.", registry=registry)
        self.waiting = Gauge("adacur_searches_waiting", "Requests that wait for their turn.", registry=registry)
        self.scorer_calls = counter("scorer_calls", "Calls of a scorer.", "scorer")
        self.scorer_pairs = Histogram(
            "adacur_scorer_pairs_per_call", "Pairs in one scorer call.", ["scorer"], buckets=_PAIRS, registry=registry
        )
        self.scorer_seconds = seconds("scorer_call", "Seconds of one call of a scorer.", "scorer")
        self.scorer_failures = counter("scorer_failures", "Calls of a scorer that failed.", "scorer")
        self.scorer_probes = counter(
            "scorer_probes", "Checks whether a scorer is still that of its index.", "index", "outcome"
        )
        self.scorer_drift = Gauge("adacur_scorer_drift", _DRIFT, ["index"], registry=registry)
        self.search_calls = counter("search_calls", "Scores that searches paid for.", "index", "method")
        self.stopped = counter("searches", "Searches, by what ended them.", "index", "method", "stopped")

    def count_search(self, index: str, method: str, hits: Hits | None, *, stopped: str) -> None:
        """One query's search, at its end; without hits if it ended before the first round."""
        self.stopped.labels(index, method, stopped).inc()
        if hits is not None:
            self.search_calls.labels(index, method).inc(hits.trace.calls)

    def text(self) -> bytes:
        """All counters, as Prometheus reads them."""
        return generate_latest(self.registry)
