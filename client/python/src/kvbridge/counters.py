"""What a client counts: fallbacks while the server is down are visible only here."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from typing import Any

# Upper bounds of the duration histogram, seconds: the server's own.
BUCKETS = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04,
    0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class ClientCounters:
    """Thread contract: every method from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._planes: Counter[str] = Counter()
        self._plane_fallbacks: Counter[str] = Counter()
        self._retries = 0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def record(self, outcome: str, reason: str, seconds: float) -> None:
        """One transfer that has ended. outcome: also "cancelled"; `reason` is empty when it was applied."""
        with self._lock:
            self._requests[outcome] += 1
            if reason:
                self._fallbacks[reason] += 1
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self._sum += seconds

    def record_plane(self, plane: str, reason: str) -> None:
        """How one transfer's bytes travelled, and why not in shared memory."""
        with self._lock:
            self._planes[plane] += 1
            if reason:
                self._plane_fallbacks[reason] += 1

    def record_retry(self) -> None:
        """One more attempt at a transfer."""
        with self._lock:
            self._retries += 1

    def snapshot(self) -> dict[str, Any]:
        """Metric name to value by label; the histogram as Prometheus counts it, cumulative by `le`."""
        with self._lock:
            total = 0
            cumulative: dict[str, int] = {}
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._buckets):
                total += count
                cumulative[bound] = total
            return {
                "kvbridge_client_requests_total": dict(self._requests),
                "kvbridge_client_fallbacks_total": dict(self._fallbacks),
                "kvbridge_client_planes_total": dict(self._planes),
                "kvbridge_client_plane_fallbacks_total": dict(self._plane_fallbacks),
                "kvbridge_client_retries_total": self._retries,
                "kvbridge_client_request_duration_seconds": {
                    "bucket": cumulative,
                    "sum": self._sum,
                    "count": total,
                },
            }
