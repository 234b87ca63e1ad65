"""docs/events.schema.json against every event of a real kvbridged, wherever it prints one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ARTIFACT, ROOT, binary
from forced_reasons import SETTINGS, all_routes, overload, streams
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, transfer_pb2, transfer_pb2_grpc, types_pb2
from test_attacks import Paused, answer, connect, field, header, request
from test_reload import Reloading

OPERATIONS = os.environ.get("KVBRIDGE_OPERATIONS")
if not OPERATIONS:
    pytest.skip("KVBRIDGE_OPERATIONS is not set", allow_module_level=True)
sys.path.append(OPERATIONS)

import jsonschema  # noqa: E402

SCHEMA = json.loads((ROOT / "docs/events.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
DECISION = SCHEMA["$defs"]["decision"]
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def words(enum, prefix):
    return {name.removeprefix(prefix).lower() for name in enum.keys()} - {"unspecified"}


class Tail:
    """`kvbridge events tail` in the background."""

    def __init__(self, server):
        command = [binary("KVBRIDGE_CLI"), "events", "tail", "--server", server.address, "--format", "json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def until(self, last):
        """Its events up to the one that `last` knows."""
        seen = []
        for line in self._process.stdout:
            seen.append(json.loads(line))
            if last(seen[-1]):
                return seen
        raise AssertionError("the stream ended early")

    def end(self):
        self._process.kill()
        self._process.wait()


def change_routes(admin):
    """Changes of stages and circuits, and artifacts that come and go."""
    stages = (transfer_pb2.ROUTE_STAGE_SHADOW, transfer_pb2.ROUTE_STAGE_CANARY, transfer_pb2.ROUTE_STAGE_LIVE)
    for stage in (transfer_pb2.ROUTE_STAGE_OFF, *stages):
        admin.SetRoute(admin_pb2.SetRouteRequest(route="pair", stage=stage, canary_share=0.5))
    for circuit in (admin_pb2.CIRCUIT_OVERRIDE_FORCE_OPEN, admin_pb2.CIRCUIT_OVERRIDE_AUTO):
        admin.SetRoute(admin_pb2.SetRouteRequest(route="pair", circuit=circuit))
    admin.LoadArtifact(admin_pb2.LoadArtifactRequest(route="missing", path=str(ARTIFACT)))
    admin.UnloadArtifact(admin_pb2.UnloadArtifactRequest(route="missing"))


def rehearse(server, routes):
    """A drill that begins, grows and ends."""
    for drill in ({"reason": "overload", "share": 0.1}, {"reason": "overload", "share": 0.2}, {"share": 0}):
        assert server.change(routes=[{**routes[0], "drill": drill}, *routes[1:]]) == 1


def nobodys():
    """A header of two models that no route is for."""
    made = header(change=field("target.identity.revision", "2"))
    made.ClearField("route")
    return made


def miss_deadlines(server, stub):
    """Until the server was the first to notice."""
    while "deadline_exceeded" not in server.get("/eventz"):
        answer(stub, streams()["applied"], timeout=0.002)


def drain(server, stub, admin):
    """What a transfer is told meanwhile; returns what still has to end."""
    paused = Paused(stub, timeout=60)
    admin.Drain(admin_pb2.DrainRequest())
    while answer(stub, streams()["applied"])[0] != "draining":
        pass
    return paused


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Events by where they were printed, of a server that gave every reason."""
    routes = all_routes(tmp_path_factory.mktemp("events"))
    settings = {**SETTINGS, "drain": {"delay": "0s", "deadline": "10s"}}
    with Reloading(binary("KVBRIDGED"), routes, settings) as server, connect(server) as channel:
        stub, admin = transfer_pb2_grpc.KvBridgeStub(channel), admin_pb2_grpc.AdminStub(channel)
        tail = Tail(server)
        while not server.metrics()['kvbridge_events_total{result="ok",sink="watch"}']:
            answer(stub, streams()["applied"])
        for reason, stream in streams().items():
            assert answer(stub, stream)[0] == reason
        assert answer(stub, [nobodys()])[0] == "artifact_unavailable"
        list(stub.Transfer(map(request, streams()["app_gate"]), metadata=[("traceparent", TRACE)]))
        miss_deadlines(server, stub)
        assert overload(stub) == "overload"
        change_routes(admin)
        rehearse(server, routes)
        paused = drain(server, stub, admin)
        lines = tail.until(lambda event: event.get("detail") == "the server is shutting down")
        pages = json.loads(server.get("/eventz"))["events"]
        paused.cancel()
        tail.end()
        server.stop()
        log = [json.loads(line) for line in server.log.read_text().splitlines() if '"event":"kvbridge_' in line]
    return {"/eventz": pages, "events tail": lines, "log": log}


def problems(event):
    kind = SCHEMA["$defs"]["route" if event.get("event") == "kvbridge_route" else "decision"]
    one = jsonschema.Draft202012Validator({**kind, "$defs": SCHEMA["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in one.iter_errors(event)]


@pytest.mark.parametrize("where", ["/eventz", "events tail", "log"])
def test_every_event_is_as_the_schema_says(printed, where):
    assert len(printed[where]) > 20
    for event in printed[where]:
        assert problems(event) == [], event
        assert VALIDATOR.is_valid(event)


@pytest.mark.parametrize("where", ["events tail", "log"])
def test_every_reason_and_change_was_among_them(printed, where):
    events = printed[where]
    reasons = {event["reason"] for event in events if "reason" in event}
    assert words(types_pb2.Reason, "REASON_") == reasons
    assert {event["outcome"] for event in events if "outcome" in event} == words(types_pb2.Outcome, "OUTCOME_")
    changes = [(event["what"], event["from"], event["to"]) for event in events if "what" in event]
    assert changes == [
        ("stage", "live", "off"),
        ("stage", "off", "shadow"),
        ("stage", "shadow", "canary"),
        ("stage", "canary", "live"),
        ("circuit", "closed", "open"),
        ("circuit", "open", "closed"),
        ("drill", "off", "overload"),
        ("drill", "overload", "overload"),
        ("drill", "overload", "off"),
    ]
    assert [event["trace_id"] for event in events if "trace_id" in event] == [TRACE.split("-")[1]]


def test_an_event_is_the_same_wherever_it_is_printed(printed):
    of_log = [{k: v for k, v in event.items() if k not in ("ts", "level", "msg")} for event in printed["log"]]
    for where in ("/eventz", "events tail"):
        assert all(event in of_log for event in printed[where])


def test_the_words_are_those_of_the_wire():
    properties = DECISION["properties"]
    assert set(properties["reason"]["enum"]) == words(types_pb2.Reason, "REASON_")
    assert set(properties["class"]["enum"]) == words(types_pb2.ReasonClass, "REASON_CLASS_")
    assert set(properties["outcome"]["enum"]) == words(types_pb2.Outcome, "OUTCOME_")
    assert set(SCHEMA["$defs"]["stage"]["enum"]) == words(transfer_pb2.RouteStage, "ROUTE_STAGE_")
    assert set(SCHEMA["$defs"]["circuit"]["enum"]) == words(transfer_pb2.CircuitState, "CIRCUIT_STATE_")


def test_what_the_schema_does_not_know_fails(printed):
    VALIDATOR.check_schema(SCHEMA)
    kinds = [next(e for e in printed["log"] if e.get("outcome") == "applied"),
             next(e for e in printed["log"] if "reason" in e), next(e for e in printed["log"] if "what" in e)]  # fmt: skip
    for event in kinds:
        assert VALIDATOR.is_valid(event)
        assert not VALIDATOR.is_valid({**event, "tenant": "t"})
        for name in set(event) - {"ts", "level", "msg", "trace_id"}:
            assert not VALIDATOR.is_valid({k: v for k, v in event.items() if k != name}), name
    applied, fell_back, change = kinds
    assert not VALIDATOR.is_valid({**applied, "reason": "overload", "class": "capacity", "detail": ""})
    assert not VALIDATOR.is_valid({**fell_back, "reason": "mood"})
    assert not VALIDATOR.is_valid({**applied, "stage_ms": {"tea": 1.0}})
    assert not VALIDATOR.is_valid({**change, "to": "half_open"})
