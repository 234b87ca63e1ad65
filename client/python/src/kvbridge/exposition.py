"""A client's counters as Prometheus reads them, for the /metrics page of whoever holds the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Name: type, the label that its values are by ("" = none), help.
METRICS = {
    "kvbridge_client_requests_total": ("counter", "outcome", "Transfers by how they ended."),
    "kvbridge_client_fallbacks_total": ("counter", "reason", "Transfers that were not applied, by reason."),
    "kvbridge_client_planes_total": ("counter", "plane", "Transfers by how their bytes travelled."),
    "kvbridge_client_plane_fallbacks_total": ("counter", "reason", "Why bytes did not travel in shared memory."),
    "kvbridge_client_retries_total": ("counter", "", "Attempts after the first."),
    "kvbridge_client_request_duration_seconds": ("histogram", "le", "Seconds of transfers, as callers saw them."),
    "kvbridge_client_circuit_state": ("gauge", "", "0 closed, 1 half open, 2 open."),
}


def prometheus_text(metrics: Mapping[str, Any]) -> str:
    """`metrics`: of Client.metrics(). Text format 0.0.4."""
    return "".join(f"{line}\n" for name in METRICS if name in metrics for line in _lines(name, metrics[name]))


def _lines(name: str, value: Any) -> Iterator[str]:
    kind, label, about = METRICS[name]
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    if kind == "histogram":
        yield from (f'{name}_bucket{{{label}="{bound}"}} {count}' for bound, count in value["bucket"].items())
        yield f"{name}_sum {value['sum']}"
        yield f"{name}_count {value['count']}"
    elif label:
        yield from (f'{name}{{{label}="{of}"}} {count}' for of, count in sorted(value.items()))
    else:
        yield f"{name} {value}"
