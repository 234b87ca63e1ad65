"""A configuration that is read again while kvbridged serves: what it takes, what it keeps, and what it says."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import grpc
import pytest
from conftest import ROUTE, binary, family_spec, random_cache
from kvbridge import Client
from kvbridge.testing import LocalServer
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, transfer_pb2

SPECS = {"source": family_spec("small"), "target": family_spec("large")}
RELOADS = 'kvbridge_config_reloads_total{result="%s"}'
SUCCESSFUL = "kvbridge_config_last_reload_successful"


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Reloading(LocalServer):
    """Rewrites its configuration and waits until it was read."""

    @property
    def path(self):
        return self.folder / "kvbridged.json"

    def change(self, *, text: str | None = None, routes=None, **sections) -> float:
        """The result of the reload: 1 or 0. Sections replace those that are there."""
        before = self.reloads()
        if text is None:
            config = json.loads(self.path.read_text())
            config.update(sections)
            if routes is not None:
                config["routes"] = routes
            text = json.dumps(config)
        fresh = self.path.with_suffix(".next")
        fresh.write_text(text)
        os.replace(fresh, self.path)
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: self.reloads() > before)
        return self.metrics()[SUCCESSFUL]

    def reloads(self) -> float:
        metrics = self.metrics()
        return metrics[RELOADS % "ok"] + metrics[RELOADS % "error"]

    def lines(self, message: str) -> list[dict]:
        parsed = (json.loads(line) for line in self.log.read_text().splitlines())
        return [line for line in parsed if line["msg"] == message]


@pytest.fixture
def server():
    with Reloading(binary("KVBRIDGED"), [ROUTE]) as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.address) as connected:
        yield connected


def transfer(client, route="pair"):
    keys, values = random_cache(24)
    return client.transfer(keys=keys, values=values, route=route, **SPECS)


def test_routes_come_change_and_go(server, client):
    assert transfer(client, "second").reason == "invalid_request"
    assert server.change(routes=[ROUTE, {**ROUTE, "name": "second"}]) == 1
    until(lambda: all(route.serving for route in client.health().routes))
    assert transfer(client, "second").applied and transfer(client).applied
    assert server.metrics()['kvbridge_transfers_total{outcome="applied",pair="second"}'] == 1

    assert server.change(routes=[{**ROUTE, "name": "second", "policy": {"max_abs": 1e-6}}]) == 1
    assert transfer(client, "second").reason == "magnitude_bound"
    assert transfer(client).reason == "invalid_request"
    assert not [series for series in server.metrics() if 'pair="pair"' in series]


def test_routes_that_come_and_go_leave_no_series(server, client):
    def series() -> set[str]:
        return {name for name in server.metrics() if 'pair="_other"' not in name and "grpc_" not in name}

    before = series()
    for release in range(70):  # more than pairs may have series of their own
        assert server.change(routes=[ROUTE, {**ROUTE, "name": f"release-{release}", "artifact": "/nowhere"}]) == 1
    assert server.change(routes=[ROUTE]) == 1
    assert series() == before
    assert server.metrics()['kvbridge_metric_series_overflow_total{metric="kvbridge_transfers_total"}'] == 0
    assert transfer(client).applied


def test_what_a_reload_does_to_a_route_is_an_event(server, client):
    drilled = {**ROUTE, "name": "second", "drill": {"reason": "overload", "share": 0.5}}
    assert server.change(routes=[ROUTE, drilled]) == 1
    assert server.change(routes=[{**ROUTE, "stage": "shadow"}, {**drilled, "drill": {"share": 0}}]) == 1
    assert server.change(routes=[{**ROUTE, "stage": "shadow"}, drilled]) == 1
    assert server.change(routes=[{**ROUTE, "stage": "shadow"}]) == 1

    def told():
        events = json.loads(server.get("/eventz"))["events"]
        return [tuple(e[key] for key in ("pair", "what", "from", "to", "cause")) for e in reversed(events) if "what" in e]

    until(lambda: len(told()) == 5)
    assert told() == [
        ("second", "drill", "off", "overload", "reload"),
        ("pair", "stage", "live", "shadow", "reload"),
        ("second", "drill", "overload", "off", "reload"),
        ("second", "drill", "off", "overload", "reload"),
        ("second", "drill", "overload", "off", "reload"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("routes: [", "kvbridged.json"),
        ("routes: [{name: pair, artifact: x, stag: live}]", "unknown field, did you mean stage"),
        ("routes: [{name: pair, artifact: x}]\nlimits: {max_tokens: 0}", "limits.max_tokens: expected at least 1"),
        ("auth: {tokens_file: /nowhere/tokens}", "auth.tokens_file: /nowhere/tokens"),
    ],
)
def test_a_broken_configuration_changes_nothing(server, client, text, said):
    before = json.loads(server.get("/configz"))
    assert server.change(text=text) == 0
    assert server.metrics()[RELOADS % "error"] == 1
    assert json.loads(server.get("/configz")) == before
    assert transfer(client).applied
    (line,) = server.lines("the configuration in use is kept")
    assert said in line["error"]
    assert server.change(text=json.dumps({"routes": [{**ROUTE, "stage": "off"}]})) == 1
    assert transfer(client).reason == "route_disabled"


def test_an_artifact_that_cannot_be_loaded_leaves_the_old_one_in_use(server, client):
    digest = transfer(client).artifact_digest
    assert server.change(routes=[{**ROUTE, "artifact": "/nowhere"}]) == 1
    until(lambda: server.lines("artifact was not loaded"))
    assert transfer(client).artifact_digest == digest


def test_what_needs_a_restart_is_named_and_stays(server, client):
    limits = {"max_tokens": 10}
    assert server.change(limits=limits, log={"format": "json", "level": "debug"}) == 1
    (line,) = server.lines("settings that need a restart stay as they were")
    assert line["settings"] == ["limits.max_tokens"]
    config = json.loads(server.get("/configz"))
    assert config["config"]["limits"]["max_tokens"] == 131072 and config["config"]["log"]["level"] == "debug"
    assert transfer(client).applied


def test_a_stage_that_an_operator_set_outlives_reloads_of_other_things(server, client):
    with grpc.insecure_channel(server.address) as channel:
        shadow = admin_pb2.SetRouteRequest(route="pair", stage=transfer_pb2.ROUTE_STAGE_SHADOW)
        admin_pb2_grpc.AdminStub(channel).SetRoute(shadow)
    assert server.change(routes=[{**ROUTE, "policy": {"max_hops": 2}}]) == 1
    assert transfer(client).reason == "route_disabled"
    assert server.change(routes=[{**ROUTE, "stage": "canary", "canary_share": 1}]) == 1
    assert transfer(client).applied


def test_a_drill_falls_back_for_all_to_see_until_it_ends(server, client):
    assert server.change(routes=[{**ROUTE, "drill": {"reason": "internal", "share": 1}}]) == 1
    rehearsed = [transfer(client) for _ in range(25)]  # more than a circuit waits for
    sentence = "drill: 100 % of transfers fall back with internal"
    assert {(r.reason, r.detail) for r in rehearsed} == {("internal", sentence)}
    (route,) = client.health().routes
    assert (route.detail, route.circuit) == (sentence, transfer_pb2.CIRCUIT_STATE_CLOSED)
    assert [line["level"] for line in server.lines(sentence)] == ["warn"]
    metrics = server.metrics()
    assert metrics['kvbridge_drill_share{pair="pair"}'] == 1
    assert metrics['kvbridge_fallbacks_total{class="internal",pair="pair",reason="internal"}'] == 25

    assert server.change(routes=[{**ROUTE, "drill": {"reason": "internal", "share": 0}}]) == 1
    assert transfer(client).applied
    assert client.health().routes[0].detail == ""
    assert server.metrics()['kvbridge_drill_share{pair="pair"}'] == 0


def test_a_drill_takes_its_share_and_a_retry_gets_the_same_answer(server, client):
    assert server.change(routes=[{**ROUTE, "drill": {"reason": "overload", "share": 0.25}}]) == 1
    keys, values = random_cache(4)

    def ask(number):
        return client.transfer(keys=keys, values=values, route="pair", request_id=f"request-{number}", **SPECS).reason

    first = [ask(number) for number in range(200)]
    assert 25 < first.count("overload") < 75  # four sigma
    assert [ask(number) for number in range(20)] == first[:20]


def test_a_file_that_changes_is_read_without_a_signal(server):
    config = json.loads(server.path.read_text())
    config["routes"][0]["stage"] = "off"
    fresh = server.path.with_suffix(".next")
    fresh.write_text(json.dumps(config))
    os.replace(fresh, server.path)
    until(lambda: server.metrics()[RELOADS % "ok"] == 1)
    assert json.loads(server.get("/artifactz"))["routes"][0]["stage"] == "off"


def test_reloads_fail_no_transfer(server, client):
    stop, failures = threading.Event(), []

    def load():
        while not stop.is_set():
            result = transfer(client)
            if not result.applied:
                failures.append(result)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for hops in range(1, 6):
        server.change(routes=[{**ROUTE, "policy": {"max_hops": hops}}, {**ROUTE, "name": f"other-{hops}"}])
        server.change(text="routes: [")
        server.change(text=json.dumps({"routes": [ROUTE], "log": {"format": "json"}}))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_circuit_opens_half_opens_and_closes(server, client):
    circuit = {"min_transfers": 3, "open_for": "200ms", "probes": 2}
    bad = {**ROUTE, "policy": {"max_abs": 1e-6}, "circuit": circuit}
    state = 'kvbridge_route_circuit_state{pair="pair",state="%s"}'
    server.change(routes=[bad])
    for _ in range(3):
        assert transfer(client).reason == "magnitude_bound"
    assert server.metrics()[state % "open"] == 1
    assert transfer(client).reason == "route_disabled"
    server.change(routes=[{**bad, "policy": {}}])
    until(lambda: transfer(client).applied)
    assert server.metrics()[state % "open"] == 0
    assert transfer(client).applied
    assert server.metrics()[state % "closed"] == 1
    words = [(event["from"], event["to"]) for event in json.loads(server.get("/eventz"))["events"] if "what" in event]
    assert words == [("half_open", "closed"), ("open", "half_open"), ("closed", "open")]
