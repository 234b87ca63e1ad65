"""What an operator may do to kvbridged, or its host to it, while transfers run: none is lost that was accepted, and
callers fall back by themselves."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import numpy as np
import pytest
from certificates import Authority
from conftest import ARTIFACT, ROUTE, binary, family_spec, limited, random_cache
from kvbridge import CacheFile, Client, write_cache
from kvbridge.shards import Half, Shard, write_shard
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc, types_pb2
from test_attacks import Paused, answer, cache, connect, header
from test_operator_cli import CONFIGS, LOCALLY

TOKENS = 40
SPECS = {"source": family_spec("small"), "target": family_spec("large")}
LOST = 'kvbridge_events_dropped_total{sink="log"}'
WRITTEN = 'kvbridge_events_total{result="ok",sink="log"}'
PATIENCE = 60.0  # only what never comes takes it whole


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)


def send(client: Client, **options):
    keys, values = random_cache(TOKENS)
    return client.transfer(keys=keys, values=values, route="pair", **{**SPECS, **options})


def apply(server: LocalServer, count: int = 20) -> None:
    """So many transfers, one after the other; each must be applied."""
    with connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        for _ in range(count):
            assert answer(stub, [header(TOKENS), *cache(TOKENS)]) == ("applied", "")


class Load:
    """Transfers from several threads until stopped; how they ended."""

    def __init__(self, server: LocalServer, threads: int = 4, **options) -> None:
        self.ended: Counter[str] = Counter()
        self._stop = threading.Event()
        self._server, self._options = server, options
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        with Client(self._server.address, plane="inline", **self._options) as client:
            while not self._stop.is_set():
                result = send(client)
                assert result.applied or (result.outcome == "fallback_reprefill" and result.reason), result
                self.ended[result.reason or "applied"] += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more("applied")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, *ends: str) -> None:
        """Waits until transfers end in each of these ways again."""
        for end in ends:
            before = self.ended[end]
            until(lambda end=end, before=before: self.ended[end] >= before + 5, f"more {end}")


# --- no room for the log


def test_a_full_disk_costs_log_lines_and_nothing_else():
    server = LocalServer(binary("KVBRIDGED"), [ROUTE])
    server.log = Path("/dev/full")
    with server, connect(server) as channel:
        watcher = transfer_pb2_grpc.KvBridgeStub(channel).WatchEvents(transfer_pb2.WatchEventsRequest(), timeout=60)
        watcher.initial_metadata()
        before = server.metrics()[LOST]
        apply(server, 20)
        until(lambda: server.metrics()[LOST] >= before + 20, "lost events, counted")
        assert server.metrics()[WRITTEN] == 0
        assert {next(watcher).event.pair for _ in range(20)} == {"pair"}
        watcher.cancel()
        assert server.stop() == 0


def read_all(descriptor: int) -> bytes:
    """Whatever lies in a pipe."""
    text = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 20):
            text += piece
    return text


@contextlib.contextmanager
def piped_server(folder: Path):
    """(server, descriptor of the reading end of its log). It ends with status 0."""
    server = LocalServer(binary("KVBRIDGED"), [ROUTE])
    server.log = folder / "log"
    os.mkfifo(server.log)
    reader = os.open(server.log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with server:
            yield server, reader
            assert server.stop() == 0
    finally:
        with contextlib.suppress(OSError):
            os.close(reader)


def test_a_log_pipe_whose_reader_left_costs_lines_and_nothing_else(tmp_path):
    with piped_server(tmp_path) as (server, reader):
        os.close(reader)
        before = server.metrics()[LOST]
        apply(server, 20)
        until(lambda: server.metrics()[LOST] >= before + 20, "lost events, counted")


def test_a_log_pipe_that_nobody_reads_holds_up_neither_transfers_nor_the_end(tmp_path):
    with piped_server(tmp_path) as (server, _):
        with connect(server) as channel:
            stub = transfer_pb2_grpc.KvBridgeStub(channel)
            while server.metrics()[LOST] == 0:  # until the pipe is full
                for _ in range(50):
                    assert answer(stub, [header(1)])[0] == "not_worth_it"
        apply(server, 20)
        os.kill(server.pid, signal.SIGHUP)  # says so in the log, which must not keep it from reading
        until(lambda: server.metrics()['kvbridge_config_reloads_total{result="ok"}'] == 1, "the reload")


def test_a_reader_that_comes_back_finds_whole_lines(tmp_path):
    with piped_server(tmp_path) as (server, reader):
        with connect(server) as channel:
            stub = transfer_pb2_grpc.KvBridgeStub(channel)
            while server.metrics()[LOST] == 0:
                for _ in range(50):
                    answer(stub, [header(1)])
        text = read_all(reader)
        apply(server, 1)
        until(lambda: server.metrics()[WRITTEN] > 0, "the next event")
        lines = list(filter(None, (text + read_all(reader)).split(b"\n")))
        decisions = [json.loads(line)["outcome"] for line in lines if b"kvbridge_handoff" in line]
        assert len(decisions) > 50 and decisions[-1] == "applied"


# --- no room for files


def run_limited(limit: int, *arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments)]
    return subprocess.run(
        command, preexec_fn=limited(limit), restore_signals=False, capture_output=True, text=True, cwd=folder
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_shards(folder: Path) -> None:
    """What a capture of two sequences would be, of made-up numbers."""
    folder.mkdir()
    rows, random = 96, np.random.default_rng(0)
    positions = np.arange(rows)

    def half(spec):
        geometry = spec.geometry
        shape = (geometry.layers, geometry.kv_heads, rows, geometry.head_dim)
        return Half(random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32))

    for number in range(2):
        shard = Shard(
            f"sequence-{number}", "made-up", "stripped", SPECS["source"], SPECS["target"],
            half(SPECS["source"]), half(SPECS["target"]), positions, positions + 1000 * number,
        )  # fmt: skip
        write_shard(folder / f"seq_{number}.safetensors", shard)


CONVERT = ["artifact", "convert", *CONFIGS, ARTIFACT, "out"]
TRANSFER = ["transfer", *LOCALLY, "--in", "in", "--out", "out"]
ACCUMULATE = ["fit", "accumulate", "shards", "-o", "out"]
SOLVE = ["fit", "solve", "--moments", "moments", "-o", "out"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with what those commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    write_cache(folder / "in", CacheFile(SPECS["source"], *random_cache(256), np.arange(256)))
    write_shards(folder / "shards")
    assert run_limited(1 << 30, *ACCUMULATE[:-1], "moments", folder=folder).returncode == 0
    return folder


@pytest.mark.parametrize("there", [False, True], ids=["new", "over another"])
@pytest.mark.parametrize("command", [CONVERT, TRANSFER, ACCUMULATE, SOLVE, ["fit", "shards", "-o", "out"]],
                         ids=["convert", "transfer", "accumulate", "solve", "fit"])  # fmt: skip
def test_what_has_no_room_leaves_nothing_of_itself_and_says_why(tmp_path, inputs, command, there):
    folder = tmp_path / "folder"
    shutil.copytree(inputs, folder)
    if command is not TRANSFER and there:
        command = [*command, "--overwrite"]
    if there:
        assert run_limited(1 << 30, *command, folder=folder).returncode == 0
    before = contents(folder)
    done = run_limited(30_000, *command, "--format", "json", folder=folder)
    assert done.returncode == 6, done
    error = json.loads(done.stderr.splitlines()[-1])["message"]
    assert os.strerror(errno.EFBIG) in error or os.strerror(errno.ENOSPC) in error, error
    assert contents(folder) == before and not list(folder.rglob(".*"))
    assert run_limited(1 << 30, *command, folder=folder).returncode == 0


def test_what_has_no_room_on_stdout_says_so():
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary("KVBRIDGE_CLI"), "version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 6 and f"stdout: {os.strerror(errno.ENOSPC)}" in done.stderr


# --- the clock is set


@pytest.fixture
def calendar(tmp_path, monkeypatch):
    """Servers that start read the calendar that set(seconds) puts so far from the machine's. Their steady clock is
    the machine's."""
    library = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
    if not library.exists():
        pytest.skip("libfaketime is not installed")
    said = tmp_path / "calendar"

    def set_calendar(seconds: int) -> None:
        new = tmp_path / "next"
        new.write_text(f"{seconds:+d}\n")
        new.rename(said)

    set_calendar(0)
    for name, value in {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": said,
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    return set_calendar


def logged_day(server: LocalServer) -> str:
    return json.loads(server.log.read_text().splitlines()[-1])["ts"][:10]


@pytest.mark.parametrize("hours", [30, -30])
def test_a_step_of_the_clock_ends_no_transfer_and_no_lease(calendar, hours):
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        with connect(server) as channel, Client(server.address, plane="region") as client:
            assert send(client).plane == "region"
            mapped = server.metrics()['kvbridge_memory_pool_used_bytes{pool="shm"}']
            paused = Paused(transfer_pb2_grpc.KvBridgeStub(channel), timeout=PATIENCE)
            calendar(hours * 3600)
            assert send(client).plane == "region"
            assert paused.finish().outcome == types_pb2.OUTCOME_APPLIED
            expected = time.strftime("%Y-%m-%d", time.gmtime(time.time() + hours * 3600))
            until(lambda: logged_day(server) == expected, "the calendar's day in the log")
            assert server.metrics()['kvbridge_memory_pool_used_bytes{pool="shm"}'] == mapped
            assert client.metrics()["kvbridge_client_plane_fallbacks_total"] == {}
            lines = server.log.read_text().splitlines()
            times = [json.loads(line)["total_ms"] for line in lines if "kvbridge_handoff" in line]
            assert len(times) == 3 and 0 < min(times) and max(times) < PATIENCE * 1000


@pytest.mark.parametrize("hours", [30, -30])
def test_a_step_of_the_clock_moves_no_deadline(calendar, hours):
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server, connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        soon, late = Paused(stub, timeout=2), Paused(stub, timeout=PATIENCE)
        calendar(hours * 3600)
        until(lambda: server.metrics()["kvbridge_inflight_transfers"] == 1, "the end of the one that is due")
        assert late.finish().outcome == types_pb2.OUTCOME_APPLIED
        with pytest.raises(grpc.RpcError) as ended:
            soon.finish()
        assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_step_of_the_clock_ends_no_window_of_a_circuit(calendar):
    route = {**ROUTE, "policy": {"max_abs": 1e-6}, "circuit": {"min_transfers": 3, "window": "60s", "open_for": "60s"}}
    with LocalServer(binary("KVBRIDGED"), [route]) as server, Client(server.address, plane="inline") as client:
        assert [send(client).reason for _ in range(2)] == ["magnitude_bound"] * 2
        calendar(3600)  # what was counted before still counts
        assert [send(client).reason for _ in range(2)] == ["magnitude_bound", "route_disabled"]
        calendar(7200)  # nor does it close early
        assert send(client).reason == "route_disabled"


def test_days_of_certificates_follow_the_calendar(calendar, tmp_path):
    issued = Authority(tmp_path).issue("DNS:localhost", days=20)
    (tmp_path / "cert.pem").write_bytes(issued.certificate)
    (tmp_path / "key.pem").write_bytes(issued.key)
    listen = {"tls": {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}}
    warning = "a certificate expired at"
    with LocalServer(binary("KVBRIDGED"), [], {"listen": listen}) as server:
        assert warning not in server.log.read_text()
    calendar(40 * 86400)
    with LocalServer(binary("KVBRIDGED"), [], {"listen": listen}) as server:
        assert warning in server.log.read_text()


# --- the process stands still, or is gone


def decided(server: LocalServer) -> list[str]:
    """Ids of the requests that the log tells a decision of."""
    lines = server.log.read_text().splitlines()
    return [json.loads(line)["request_id"] for line in lines if '"kvbridge_handoff"' in line]


def test_a_server_that_stands_still_costs_fallbacks_and_goes_on():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        with Load(server, timeout=1.0) as load:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                load.more("deadline_exceeded")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            load.more("applied")
        until(lambda: server.metrics()["kvbridge_inflight_transfers"] == 0, "the end of what stood still")
        assert server.stop() == 0
        told = decided(server)
        assert len(told) == len(set(told)) and len(told) >= load.ended["applied"]
    assert set(load.ended) <= {"applied", "deadline_exceeded"}, load.ended


def test_a_server_that_is_killed_costs_fallbacks_until_another_is_there():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        with Load(server, timeout=10.0, circuit_cooldown=0.2) as load:
            os.kill(server.pid, signal.SIGKILL)
            load.more("unreachable", "circuit_open")
            assert server.stop() == -signal.SIGKILL
            server.__enter__()
            load.more("applied")
        apply(server, 5)
    # transport: it was accepted, and the connection broke.
    assert set(load.ended) <= {"applied", "unreachable", "circuit_open", "transport"}, load.ended


ALL = "0<&- 1>&- 2>&-"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", ALL])
def test_no_socket_takes_the_place_of_a_closed_standard_stream(tmp_path, closed):
    started = tmp_path / "kvbridged"
    started.write_text(f'#!/bin/sh\nexec {binary("KVBRIDGED")} "$@" {closed}\n')
    started.chmod(0o755)
    with LocalServer(started, [ROUTE]) as server:
        names = {fd: os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in range(3)}
        for fd in (1, 2):  # what text is written to; 0 may be what a library opens before main
            if closed.startswith(f"{fd}>") or closed == ALL:
                assert names[fd] == "/dev/null"
        assert not [name for name in names.values() if name.startswith("socket:")]
        apply(server, 3)
        assert server.stop() == 0


WATCHING = {"events tail": ["events", "tail"], "top": ["top", "--interval", "0.1"]}


@pytest.mark.parametrize("command", WATCHING)
def test_who_watches_a_server_that_hangs_is_told_in_time(command):
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server:
        watch = [binary("KVBRIDGE_CLI"), *WATCHING[command], "--server", server.address]
        watching = subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # It watches once it is told of something.
        while not server.metrics()['kvbridge_events_total{result="ok",sink="watch"}']:
            apply(server, 1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            _, said = watching.communicate(timeout=60)
        finally:
            os.kill(server.pid, signal.SIGCONT)
    assert watching.returncode == 5, said
    assert f"kvbridge: --server {server.address}: " in said


def test_a_transfer_to_a_server_that_hangs_does_not_wait_for_its_deadline():
    keys, values = random_cache(24)
    specs = {"source": family_spec("small"), "target": family_spec("large")}
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server, Client(server.address, timeout=60) as client:

        def transfer():
            return client.transfer(keys=keys, values=values, route="pair", plane="inline", **specs)

        assert transfer().applied
        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{server.pid}/stat").read_text().split(") ")[1][0] == "T", "a server that stands")
        try:
            hung = transfer()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (hung.reason, hung.call_status, hung.refused) == ("unreachable", "UNAVAILABLE", False), hung
        # gRPC connects anew after a pause of its own, and until then says at once that it can't.
        until(lambda: transfer().applied, "a transfer by the server that goes on")
