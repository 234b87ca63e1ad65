"""What the tests of deploy/ share: the list of metrics in code, tools of the host, and where a query names a metric."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

import pytest
from conftest import ROOT
from kvbridge import exposition

DEPLOY = ROOT / "deploy"
# Suffixes that the text format adds to a histogram's name.
HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")


@dataclass(frozen=True)
class Metric:
    """One line of core/metrics/metric_names.h."""

    name: str
    type: str
    labels: frozenset[str]


def listed_metrics() -> dict[str, Metric]:
    """Every metric that kvbridged exports, by name."""
    text = (ROOT / "core/metrics/metric_names.h").read_text()
    metrics = {}
    for body in re.findall(r"constexpr MetricSpec k\w+\{(.*?)\};", text, re.S):
        head, kind, tail = re.fullmatch(r"(.*)MetricType::k(\w+),(.*)", body, re.S).groups()
        name = "".join(re.findall(r'"(.*?)"', head))
        labels = frozenset(re.match(r'\s*"(.*?)"', tail)[1].split(",")) - {""}
        metrics[name] = Metric(name, kind.lower(), labels)
    return metrics


def client_metrics() -> dict[str, Metric]:
    """Every metric that a client exports, by name."""
    added = {"histogram": frozenset(), "gauge": frozenset()}  # "le" is no label of the client's
    return {
        name: Metric(name, kind, added.get(kind, frozenset({label} - {""})))
        for name, (kind, label, _) in exposition.METRICS.items()
    }


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


def tool(name: str) -> str:
    """Path of a program that deploy/setup.sh installs; skips the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path
