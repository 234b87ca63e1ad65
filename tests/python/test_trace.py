"""W3C trace context: what a caller sends is in its answer, in events and logs, and at the peer."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial

import numpy as np
import pytest
from conftest import ROUTE, binary, random_cache
from kvbridge import CacheFile, Client, write_cache
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc
from test_attacks import SOURCE, TARGET, TOKENS, cache, connect, field, header, request
from test_hardship import until

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture(scope="module")
def server():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as running:
        yield running


def spans(lines: list[str]) -> list[tuple[str, str]]:
    """(trace, span) of each decision in a log; empty words where there is none."""
    events = (json.loads(line) for line in lines if '"kvbridge_handoff"' in line)
    return [(event.get("trace_id", ""), event.get("span_id", "")) for event in events]


def last_span(server: LocalServer) -> tuple[str, str]:
    """Of the last decision, once it is in the log."""
    count = sum(v for k, v in server.metrics().items() if k.startswith("kvbridge_transfers_total"))
    until(lambda: len(spans(server.log.read_text().splitlines())) == count, "the event in the log")
    return spans(server.log.read_text().splitlines())[-1]


def traced(server: LocalServer, metadata, change=lambda made: None) -> dict[str, str]:
    """A transfer that is applied; the trailing metadata of its answer."""
    with connect(server) as channel:
        stream = map(request, [header(TOKENS, change), *cache(TOKENS)])
        call = transfer_pb2_grpc.KvBridgeStub(channel).Transfer(stream, metadata=metadata, timeout=60)
        assert list(call)[-1].completed.decision.covered_tokens == TOKENS - 1
        return dict(call.trailing_metadata())


def test_a_trace_goes_on_in_the_answer_the_event_and_the_log(server):
    with connect(server) as channel:
        watcher = transfer_pb2_grpc.KvBridgeStub(channel).WatchEvents(transfer_pb2.WatchEventsRequest(), timeout=60)
        watcher.initial_metadata()
        answered = traced(server, [("traceparent", PARENT), ("tracestate", "vendor=x")])["traceparent"]
        event = next(watcher).event
        watcher.cancel()
    version, trace, span, flags = answered.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01") and len(span) == 16 and span != CALLER
    assert (event.trace_id, event.span_id) == (TRACE, span)
    assert last_span(server) == (TRACE, span)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("tracestate", "vendor=x")],
        [("traceparent", "00-" + "0" * 32 + f"-{CALLER}-01")],
        [("traceparent", f"00-{TRACE}-" + "0" * 16 + "-01")],
        [("traceparent", PARENT.upper())],
        [("traceparent", "x" * 10_000)],
    ],
    ids=["none", "a state alone", "trace of zeros", "parent of zeros", "upper case", "long"],
)
def test_what_is_no_trace_begins_none(server, metadata):
    assert "traceparent" not in traced(server, metadata)
    assert last_span(server) == ("", "")


# --- from clients


@pytest.mark.parametrize("plane", ["inline", "region"])
@pytest.mark.parametrize("hops", [0, 1], ids=["applied", "refused"])
def test_a_python_client_passes_the_callers_trace_on_and_gets_the_servers_span(server, plane, hops):
    keys, values = random_cache(TOKENS)
    with Client(server.address, plane=plane) as client:
        send = partial(client.transfer, keys=keys, values=values, route="pair", source=SOURCE, target=TARGET, hops=hops)
        assert send().trace_id == ""
        result = send(traceparent=PARENT, tracestate="vendor=x")
    assert result.applied == (hops == 0) and result.trace_id == TRACE
    assert (result.trace_id, result.span_id) == last_span(server)


def test_a_python_client_refuses_what_is_no_trace(server):
    keys, values = random_cache(TOKENS)
    bad = [{"traceparent": PARENT.upper()}, {"traceparent": f"{PARENT}-more"}, {"traceparent": "x\n"},
           {"tracestate": "vendor=x"}, {"traceparent": PARENT, "tracestate": "x" * 513}]  # fmt: skip
    with Client(server.address) as client:
        for context in bad:
            with pytest.raises(ValueError, match="trace"):
                client.transfer(keys=keys, values=values, source=SOURCE, target=TARGET, **context)


@pytest.fixture(scope="module")
def command(server, tmp_path_factory):
    """`kvbridge transfer` at that server: its end, and its document."""
    folder = tmp_path_factory.mktemp("caches")
    keys, values = random_cache(TOKENS)
    write_cache(folder / "in", CacheFile(SOURCE, keys, values, np.arange(TOKENS)))

    def run(*more: str, **environment: str):
        arguments = ("--in", str(folder / "in"), "--out", str(folder / "out"), "--format", "json", *more)
        command = [binary("KVBRIDGE_CLI"), "transfer", "--server", server.address, "--route", "pair", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        return done, json.loads(done.stdout or "{}")

    return run


@pytest.mark.parametrize("how", ["flag", "environment", "both"])
def test_the_command_passes_the_callers_trace_on(server, command, how):
    other = PARENT.replace("4bf9", "5cf9")
    flag = () if how == "environment" else ("--trace-parent", PARENT)
    environment = {"flag": {}, "environment": {"TRACEPARENT": PARENT}, "both": {"TRACEPARENT": other}}[how]
    done, document = command(*flag, **environment)
    assert done.returncode == 0, done.stderr
    assert document["trace_id"] == TRACE
    assert (document["trace_id"], document["span_id"]) == last_span(server)


def test_the_command_refuses_a_flag_and_ignores_a_variable_that_is_no_trace(command):
    done, _ = command("--trace-parent", "00-abc")
    assert done.returncode == 2 and "--trace-parent" in done.stderr
    done, document = command(TRACEPARENT="00-abc")
    assert done.returncode == 0 and document["trace_id"] == "" and "TRACEPARENT is ignored" in done.stderr


@pytest.mark.parametrize("ucx", [False, True], ids=["chunks", "ucx"])
def test_the_peer_goes_on_with_the_edges_span(ucx):
    listen = {"ucx": {"listen": "127.0.0.1:0"}} if ucx else {}
    with LocalServer(binary("KVBRIDGED"), [ROUTE], listen) as peer:
        peers = [{"name": "beside-target", "address": peer.address}]
        with LocalServer(binary("KVBRIDGED"), [], {"peers": peers}) as edge:
            answered = traced(edge, [("traceparent", PARENT), ("tracestate", "v=x")], field("peer", "beside-target"))
            both = (edge, peer)
            until(lambda: all(spans(each.log.read_text().splitlines()) for each in both), "both events in the logs")
            edges, peers_ = (spans(each.log.read_text().splitlines()) for each in both)
    assert [trace for trace, _ in edges + peers_] == [TRACE, TRACE]
    assert answered["traceparent"] == f"00-{TRACE}-{edges[0][1]}-01"
    assert edges[0][1] != peers_[0][1] != ""
