"""W3C trace context: what a caller sends is in its answer, in events and logs, and at the peer."""

from __future__ import annotations

import json

import pytest
from conftest import ROUTE, binary
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc
from test_attacks import TOKENS, cache, connect, field, header, request
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
    until(lambda: spans(server.log.read_text().splitlines()), "the event in the log")
    version, trace, span, flags = answered.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01") and len(span) == 16 and span != CALLER
    assert (event.trace_id, event.span_id) == (TRACE, span)
    assert spans(server.log.read_text().splitlines())[-1] == (TRACE, span)


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
    assert spans(server.log.read_text().splitlines())[-1] == ("", "")


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
