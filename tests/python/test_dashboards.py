"""deploy/grafana: dashboards that say what they show, name metrics that exist, and show something when kvbridge works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import ROOT, binary, random_cache
from forced_reasons import SETTINGS, TOKENS, all_routes, certificate, overload, streams
from kvbridge import Client, prometheus_text
from kvbridge.testing import LocalServer
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, plan_pb2, transfer_pb2, transfer_pb2_grpc
from operations import DEPLOY, base_name, client_metrics, listed_metrics, metrics_in
from prometheus_server import Prometheus
from test_attacks import SOURCE, TARGET, Paused, answer, cache, connect, field, header
from test_rules import RULES, RUNBOOKS, rules

GRAFANA = DEPLOY / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}
QUERIES = [
    pytest.param(panel, target, id=f"{uid}: {panel['title']}: {target['legendFormat']}")
    for uid, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel.get("targets", [])
]
# What Prometheus and Grafana add to the labels in code.
ADDED_LABELS = {"namespace", "job", "instance", "le"}


def recorded():
    return {rule["record"] for rule in rules(RULES[0])}


def substituted(expression):
    """As Grafana sends it when everything is chosen."""
    for variable in ("namespace", "job", "pair", "instance"):
        expression = expression.replace(f"${variable}", ".*")
    return expression.replace("$__rate_interval", "8s").replace("$__range", "60s")


def test_files_are_what_the_description_says():
    done = subprocess.run([sys.executable, GRAFANA / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_there_are_four():
    assert set(DASHBOARDS) == {f"kvbridge-{name}" for name in ("overview", "quality", "capacity", "fleet")}


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_dashboard_fits_any_grafana(uid):
    made = DASHBOARDS[uid]
    assert made["id"] is None and made["uid"] == uid and made["tags"] == ["kvbridge"]
    assert 39 <= made["schemaVersion"] <= 41
    assert (made["graphTooltip"], made["timezone"], made["refresh"]) == (1, "browser", "30s")
    names = [variable["name"] for variable in made["templating"]["list"]]
    assert names == ["datasource", "namespace", "job", "pair", "instance"]
    assert all(v["multi"] and v["includeAll"] for v in made["templating"]["list"][1:])
    assert "__inputs" not in made and '"interval"' not in json.dumps(made)
    assert any(link["url"].endswith("docs/runbooks/") for link in made["links"] if link["type"] == "link")
    assert made["annotations"]["list"]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_lie_in_the_grid_and_not_on_each_other(uid):
    taken = set()
    for panel in DASHBOARDS[uid]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel,target", QUERIES)
def test_query_names_metrics_and_labels_that_exist_and_the_panel_says_which(panel, target):
    metrics, expression = {**listed_metrics(), **client_metrics()}, target["expr"]
    for series in metrics_in(expression):
        name = base_name(series, metrics)
        assert name in metrics, name
        assert name in panel["description"]
        for selector in re.findall(rf"\b{series}\{{([^}}]*)\}}", expression):
            labels = set(re.findall(r"(\w+)\s*[=!]~?", re.sub(r'"[^"]*"', "", selector)))
            assert labels <= metrics[name].labels | ADDED_LABELS, selector
    assert set(re.findall(r"[a-z_]*:\w+:\w+", expression)) <= recorded()
    assert not re.search(r"\[\d+[sm]\]", expression), "expected $__rate_interval for a rate of the moment"
    if panel["type"] not in ("table", "stat", "state-timeline", "heatmap"):
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_recorded_series_is_read():
    readers = " ".join(rule["expr"] for path in RULES for rule in rules(path))
    readers += " ".join(target["expr"] for _, target in (query.values for query in QUERIES))
    assert [name for name in recorded() if not re.search(name + r"\b", readers)] == []


def test_every_metric_is_shown_or_explained():
    metrics = listed_metrics()
    shown = {base_name(s, metrics) for q in QUERIES for s in metrics_in(q.values[1]["expr"])}
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
    assert set(metrics) - shown - explained == set()


# --- a real Prometheus that scrapes a real kvbridged


def report_quality(stub, digest):
    """What a router does that prefilled as well, as it was asked to."""
    request_id = uuid.uuid4().hex
    assert answer(stub, [header(TOKENS, field("request_id", request_id)), *cache(TOKENS)])[0] == "applied"
    stub.ReportQuality(
        transfer_pb2.ReportQualityRequest(
            request_id=request_id, route="pair", artifact_digest=digest, kl_nats=0.05, top1_agreement=0.9, positions=64
        )
    )


def load_for(server, router, seconds):
    """Every reason again and again; returns those that were answered."""
    seen = set()
    with connect(server) as channel:
        stub, admin = transfer_pb2_grpc.KvBridgeStub(channel), admin_pb2_grpc.AdminStub(channel)
        resident = admin.ListArtifacts(admin_pb2.ListArtifactsRequest()).artifacts
        digest = next(artifact.digest for artifact in resident if artifact.route == "pair")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            round_started = time.monotonic()
            for stream in streams().values():
                seen.add(answer(stub, stream)[0])
            seen.add(answer(stub, streams()["applied"], timeout=0.0001)[0].lower())
            seen.add(overload(stub))
            answer(stub, [None])
            stub.Plan(plan_pb2.PlanRequest(route="pair", prompt_tokens=64))
            report_quality(stub, digest)
            seen |= {router.asks() for _ in range(3)}
            time.sleep(max(0, 0.5 - (time.monotonic() - round_started)))
    return seen


class Router:
    """Somebody whose server is gone, and their counters on a page: only there these fallbacks are seen."""

    def __init__(self, folder):
        client = self._client = Client(f"unix:{folder}/nobody.sock", circuit_threshold=2, circuit_cooldown=1)

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(prometheus_text(client.metrics()).encode())

            def log_message(self, *_):
                pass

        self._page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.target = f"127.0.0.1:{self._page.server_port}"

    def __enter__(self):
        threading.Thread(target=self._page.serve_forever).start()
        return self

    def __exit__(self, *_):
        self._page.shutdown()
        self._page.server_close()
        self._client.close()

    def asks(self):
        keys, values = random_cache(2)
        return self._client.transfer(keys=keys, values=values, route="pair", source=SOURCE, target=TARGET).reason


def evaluated_at_once(folder):
    """The recording rules, without waiting minutes for the first evaluation of the slow ones."""
    path = folder / "recording.yaml"
    path.write_text(re.sub(r"^ +interval: .*\n", "", RULES[0].read_text(), flags=re.M))
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """(Prometheus, kvbridged, reasons that were answered), after some seconds of load."""
    folder = tmp_path_factory.mktemp("live")
    settings = {"listen": {"tls": certificate(folder)}, **SETTINGS}
    with LocalServer(binary("KVBRIDGED"), all_routes(folder), settings) as server:
        rule_files = [evaluated_at_once(folder), RULES[1]]
        with Router(folder) as router, Prometheus(folder, server.admin, rule_files, router.target) as prometheus:
            seen = load_for(server, router, 12)
            yield prometheus, server, seen


def test_load_brings_about_every_reason(live):
    _, server, seen = live
    assert {*streams(), "overload", "deadline_exceeded", "unreachable", "circuit_open"} <= seen
    counted = {
        re.search(r'reason="(\w+)"', name)[1]
        for name, value in server.metrics().items()
        if name.startswith("kvbridge_fallbacks_total") and value > 0
    }
    known = {
        re.search(r'reason="(\w+)"', name)[1]
        for name in server.metrics()
        if name.startswith("kvbridge_fallbacks_total")
    }
    assert known == counted


@pytest.mark.parametrize("panel,target", QUERIES)
def test_panel_has_data(live, panel, target):
    prometheus = live[0]
    expression = substituted(target["expr"])
    if target["instant"]:
        values = [series["value"][1] for series in prometheus.query(expression)]
    else:
        values = [value for series in prometheus.query_range(expression, 10) for _, value in series["values"]]
    assert any(value not in ("NaN", "+Inf", "-Inf") for value in values), expression


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_prometheus_takes_the_queries_of_a_runbook(live, page):
    for query in re.findall(r"^```promql\n(.*?)^```", page.read_text(), re.M | re.S):
        live[0].query(query)


def test_alerts_of_this_load_are_written_as_their_authors_meant(live):
    alerts = {alert["labels"]["alertname"]: alert["annotations"] for alert in live[0].alerts()}
    assert "KvbridgeNonFinite" in alerts
    assert alerts["KvbridgeNonFinite"]["summary"] == "A cache of pair pair held NaN or infinity."
    assert not [text for notes in alerts.values() for text in notes.values() if "<no value>" in text or "%!" in text]


def test_who_drains_says_draining(live):
    _, server, _ = live
    with connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        paused = Paused(stub, timeout=60)
        admin_pb2_grpc.AdminStub(channel).Drain(admin_pb2.DrainRequest())
        deadline = time.monotonic() + 4
        while (got := answer(stub, streams()["applied"])[0]) != "draining" and time.monotonic() < deadline:
            pass
        paused.cancel()
    assert got == "draining"
