"""Connections to kvbridged: how old they may get, and how much they may carry."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

import grpc
import pytest
from conftest import ROUTE, binary, family_spec, random_cache
from kvbridge import Client
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc, types_pb2
from secure_server import SecureServer
from test_attacks import Paused
from test_security import PATIENCE, health, status, until

SPECS = {"source": family_spec("small"), "target": family_spec("large")}
STARTED = (
    'grpc_server_started_total{grpc_method="Transfer",grpc_service="kvbridge.v1.KvBridge",grpc_type="bidi_stream"}'
)


def local_ports(port: int) -> set[int]:
    """Of this process's established connections to `port` on this host."""
    tables = (Path("/proc/self/net") / name for name in ("tcp", "tcp6"))  # gRPC takes IPv6 sockets for both
    rows = (line.split() for table in tables for line in table.read_text().splitlines()[1:])
    established = "01"
    return {
        int(row[1].split(":")[1], 16) for row in rows if int(row[2].split(":")[1], 16) == port and row[3] == established
    }


def test_connections_that_grow_old_are_made_anew_without_a_failed_call(pki):
    keys, values = random_cache(16)
    with SecureServer(pki.tls(), [ROUTE], listen={"max_connection_age": "1s"}) as server:
        credentials = grpc.ssl_channel_credentials(pki.servers.certificate)
        with Client(f"localhost:{server.port}", credentials=credentials, plane="inline") as client:
            used: set[int] = set()
            while len(used) < 4:
                result = client.transfer(keys=keys, values=values, route="pair", **SPECS)
                assert result.applied and result.attempts == 1, result
                used |= local_ports(server.port)
            assert client.metrics()["kvbridge_client_requests_total"].keys() == {"applied"}


def test_a_transfer_outlives_its_connections_age(pki):
    server = SecureServer(pki.tls(), [ROUTE], listen={"max_connection_age": "1s"})
    with server, server.channel(pki.servers.certificate) as channel:
        old = Paused(transfer_pb2_grpc.KvBridgeStub(channel), timeout=PATIENCE)
        before = local_ports(server.port)
        until(lambda: health(channel) and local_ports(server.port) - before)
        assert old.finish().outcome == types_pb2.OUTCOME_APPLIED


def test_who_asks_for_signs_of_life_is_not_taken_for_an_attacker():
    """Peers ask every five seconds while a prefill that they wait for takes its time."""
    often = [("grpc.keepalive_time_ms", 3000), ("grpc.http2.max_pings_without_data", 0)]
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        with grpc.insecure_channel(server.address, often) as channel:
            silent = transfer_pb2_grpc.KvBridgeStub(channel).WatchEvents(transfer_pb2.WatchEventsRequest(), timeout=16)
            with pytest.raises(grpc.RpcError) as ended:
                next(silent)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED, ended.value.details()


def settings_of(server: LocalServer) -> dict[int, int]:
    """What the server's first HTTP/2 frame says, by identifier (RFC 9113, 6.5.2)."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(server.address.removeprefix("unix:"))
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        plain.settimeout(PATIENCE)
        read = plain.makefile("rb")
        size, kind = int.from_bytes(read.read(3)), read.read(1)
        read.read(5)
        assert kind == b"\x04", "expected SETTINGS"
        payload = read.read(size)
    return dict(struct.unpack(">HI", payload[at : at + 6]) for at in range(0, size, 6))


def test_streams_and_headers_of_a_connection_are_bounded_and_said():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        said = settings_of(server)
        assert said[3] == 1024 and said[6] == 16 << 10, "MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE"
        options = [("grpc.max_metadata_size", 1 << 20)]
        with grpc.insecure_channel(server.address, options) as channel:
            for size, expected in ((8 << 10, grpc.StatusCode.OK), (32 << 10, grpc.StatusCode.RESOURCE_EXHAUSTED)):
                call = transfer_pb2_grpc.KvBridgeStub(channel).Health.with_call
                try:
                    got = call(transfer_pb2.HealthRequest(), metadata=[("x", "y" * size)], timeout=10)[1].code()
                except grpc.RpcError as error:
                    got = error.code()
                assert got == expected, size


def test_more_streams_than_a_connection_may_have_wait_for_their_turn():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server, grpc.insecure_channel(server.address) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        open_ = threading.Event()
        idle = [stub.Transfer(waiting(open_), timeout=PATIENCE) for _ in range(1024)]
        until(lambda: server.metrics()[STARTED] == 1024)
        turn = stub.Health.future(transfer_pb2.HealthRequest(), timeout=PATIENCE)
        with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as other:
            assert status(other) == grpc.StatusCode.OK
        assert not turn.done()
        idle[0].cancel()
        assert turn.result().version
        open_.set()
        for call in idle:
            call.cancel()


def waiting(event: threading.Event):
    """A stream without a message until the event."""
    event.wait(PATIENCE)
    yield from ()
