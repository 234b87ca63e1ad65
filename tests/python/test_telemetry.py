"""Whatever becomes of logs, events and scrapes, no transfer fails for it, and none waits."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from conftest import ROUTE, binary
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc
from test_attacks import answer, cache, connect, field, header
from test_hardship import until

TOKENS = 40
TENANTS = 10_000
WATCH_LOST = 'kvbridge_events_dropped_total{sink="watch"}'


@pytest.fixture(scope="module")
def server():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as running:
        yield running


@pytest.fixture
def stub(server):
    with connect(server) as channel:
        yield transfer_pb2_grpc.KvBridgeStub(channel)


def time_of(stub, messages, count: int = 60) -> float:
    """Seconds that a transfer takes, median; each must be applied."""
    times = []
    for _ in range(count):
        started = time.monotonic()
        assert answer(stub, messages) == ("applied", "")
        times.append(time.monotonic() - started)
    return statistics.median(times)


def tell(record_property, what: str, alone: float, with_it: float) -> None:
    """For the reader: a machine that does other work makes any bound a lie."""
    ratio = with_it / alone
    record_property(what, ratio)
    print(f"{what}: {with_it * 1e3:.2f} ms beside {alone * 1e3:.2f} ms, ratio {ratio:.2f}")


# --- scrapes

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
HANGING = {
    "says nothing": b"",
    "says half": SCRAPE[:9],
    "reads nothing": SCRAPE,
    "asks again and again and reads nothing": SCRAPE * 500,
}


def hang(server: LocalServer, said: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    host, port = server.admin.rsplit(":", 1)
    connection.connect((host, int(port)))
    connection.setblocking(False)
    connection.send(said)
    return connection


@pytest.mark.parametrize("how", HANGING)
def test_clients_that_hang_keep_no_probe_and_no_transfer_waiting(server, stub, record_property, how):
    whole = [header(TOKENS), *cache(TOKENS)]
    alone = time_of(stub, whole)
    hanging = [hang(server, HANGING[how]) for _ in range(400)]
    try:
        assert server.get("/livez") == "ok\n"
        tell(record_property, f"a transfer while 400 clients of /metrics hang ({how})", alone, time_of(stub, whole))
        assert server.get("/readyz") == "ok\n"
        assert "kvbridge_transfers_total" in server.get("/metrics")
    finally:
        for connection in hanging:
            connection.close()


def test_a_probe_finds_a_descriptor_where_others_took_all(tmp_path):
    started = tmp_path / "kvbridged"
    started.write_text(f'#!/bin/sh\nulimit -n 64\nexec {binary("KVBRIDGED")} "$@"\n')
    started.chmod(0o755)
    with LocalServer(started, [ROUTE]) as server, contextlib.ExitStack() as idle:
        for _ in range(900):
            idle.enter_context(hang(server, b""))
        assert server.get("/livez") == "ok\n"  # within 10 s, or it raises
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) <= 64


# --- events


class Watcher:
    """Reads events on a connection of its own; `ids` are those of the requests that it was told of."""

    def __init__(self, server: LocalServer) -> None:
        self.ids: list[str] = []
        self._channel = connect(server)
        self._call = transfer_pb2_grpc.KvBridgeStub(self._channel).WatchEvents(transfer_pb2.WatchEventsRequest())
        self._call.initial_metadata()  # from here on it misses nothing

    def read(self) -> Watcher:
        threading.Thread(target=self._run).start()
        return self

    def _run(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for told in self._call:
                self.ids.append(told.event.request_id)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        self._channel.close()


def test_a_watcher_that_does_not_read_loses_events_and_holds_up_nobody(server, stub, record_property):
    whole = [header(TOKENS), *cache(TOKENS)]
    alone = time_of(stub, whole)
    with Watcher(server), Watcher(server).read() as reader:
        sent = 0
        while server.metrics()[WATCH_LOST] == 0:
            assert sent < 50_000, "a queue without end"
            for _ in range(200):
                assert answer(stub, [header(1, field("request_id", f"{sent}"))])[0] == "not_worth_it"
                sent += 1
        tell(record_property, "a transfer beside a watcher that does not read", alone, time_of(stub, whole))
        until(lambda: len(reader.ids) == sent + 60, "every event at the watcher that reads")
        assert reader.ids[:sent] == [f"{i}" for i in range(sent)]


# --- tenants


def resident(server: LocalServer) -> float:
    return server.metrics()["process_resident_memory_bytes"]


def test_ten_thousand_tenants_are_no_series_no_memory_and_no_slowdown(server, record_property):
    with connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        pieces = list(cache(2))

        def messages(tenant: str):
            return [header(2, field("tenant", tenant)), *pieces]

        alone = time_of(stub, messages("one"), 500)
        series, memory = len(server.metrics()), resident(server)
        started = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            ends = set(pool.map(lambda i: answer(stub, messages(f"tenant-{i}")), range(TENANTS)))
        print(f"{TENANTS} tenants: {TENANTS / (time.monotonic() - started):.0f} transfers/s")
        assert ends == {("applied", "")}
        assert len(server.metrics()) == series
        grown = resident(server) - memory
        record_property("MiB for ten thousand tenants", grown / 2**20)
        print(f"memory grew by {grown / 2**20:.1f} MiB")
        assert grown < 64 << 20
        tell(record_property, "a transfer after ten thousand tenants", alone, time_of(stub, messages("one"), 500))
    assert "tenant-" not in server.get("/metrics")
    for line in server.log.read_text().splitlines()[-100:]:
        assert "tenant" not in json.loads(line)
