"""What the tests of deploy/ share: the list of metrics in code, tools of the host, and where a query names a metric."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

import pytest
from conftest import ROOT

DEPLOY = ROOT / "deploy"
# Suffixes that the text format adds to a histogram's name.
HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")


@dataclass(frozen=True)
class Metric:
    """One line of core/metrics/metric_names.h."""

    name: str
    type: str
    labels: frozenset[str]


# Agreed on, and not exported yet.
AWAITED = {
    metric.name: metric
    for metric in (
        Metric("kvbridge_config_reloads_total", "counter", frozenset({"result"})),
        Metric("kvbridge_tls_certificate_expiry_timestamp_seconds", "gauge", frozenset({"role"})),
        Metric("kvbridge_auth_failures_total", "counter", frozenset({"reason"})),
        Metric("kvbridge_quality_probes_total", "counter", frozenset({"pair", "result"})),
        Metric("kvbridge_quality_probe_kl_nats", "histogram", frozenset({"pair"})),
        Metric("kvbridge_quality_threshold_nats", "gauge", frozenset({"pair"})),
        Metric("kvbridge_route_circuit_state", "gauge", frozenset({"pair", "state"})),
        Metric("kvbridge_route_circuit_opened_total", "counter", frozenset({"pair"})),
        Metric("kvbridge_route_step_backs_total", "counter", frozenset({"pair"})),
    )
}


def listed_metrics() -> dict[str, Metric]:
    """Every metric that kvbridged exports, by name."""
    text = (ROOT / "core/metrics/metric_names.h").read_text()
    metrics = dict(AWAITED)
    for body in re.findall(r"constexpr MetricSpec k\w+\{(.*?)\};", text, re.S):
        head, kind, tail = re.fullmatch(r"(.*)MetricType::k(\w+),(.*)", body, re.S).groups()
        name = "".join(re.findall(r'"(.*?)"', head))
        labels = frozenset(re.match(r'\s*"(.*?)"', tail)[1].split(",")) - {""}
        metrics[name] = Metric(name, kind.lower(), labels)
    return metrics


def base_name(series: str, metrics: dict[str, Metric]) -> str:
    """The metric that a series of the text format belongs to."""
    for suffix in HISTOGRAM_SUFFIXES:
        stem = series.removesuffix(suffix)
        if stem != series and stem in metrics and metrics[stem].type == "histogram":
            return stem
    return series


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in a PromQL expression, without those that a rule records (they hold a colon)."""
    unquoted = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"(?<![\w:])(?:kvbridge|grpc_server|process)_\w+(?![\w:])", unquoted))
    return names


def everything_is_exported() -> bool:
    text = (ROOT / "core/metrics/metric_names.h").read_text()
    return all(name in text for name in AWAITED)


def skip_if_awaited(expression: str) -> None:
    """Skips a test of what is not exported yet."""
    metrics = (ROOT / "core/metrics/metric_names.h").read_text()
    missing = {name for name in AWAITED if name in expression and name not in metrics}
    if missing:
        pytest.skip(f"not exported yet: {', '.join(sorted(missing))}")


def tool(name: str) -> str:
    """Path of a program that deploy/setup.sh installs; skips the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path
