"""`kvbridge top` against a real kvbridged, on a pipe and on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios

import pytest
from certificates import Pki
from conftest import ROUTE, binary
from forced_reasons import streams
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2_grpc
from secure_server import SecureServer
from test_attacks import answer, connect

TOKEN = "operator-token-0123456789abcdef"


@pytest.fixture
def server():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as running:
        yield running


def command(server, *more):
    return [binary("KVBRIDGE_CLI"), "top", "--server", server.address, *more]


def run(server, *more):
    return subprocess.run(command(server, *more), capture_output=True, text=True, timeout=60)


def watched(server):
    return server.metrics()['kvbridge_events_total{result="ok",sink="watch"}']


def decide(server, stub):
    """One transfer that is applied and one that falls back, until a watcher was told."""
    before = watched(server)
    while watched(server) < before + 2:
        assert answer(stub, streams()["applied"])[0] == "applied"
        assert answer(stub, streams()["app_gate"])[0] == "app_gate"


def test_a_pipe_gets_blocks_that_count_what_happened(server):
    top = subprocess.Popen(
        command(server, "--format", "json", "--interval", "0.2", "--admin", server.admin),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with connect(server) as channel:
            decide(server, transfer_pb2_grpc.KvBridgeStub(channel))
        for line in top.stdout:
            frame = json.loads(line)
            if frame["total"]["fell_back"]:
                break
        (route,) = frame["routes"]
        assert frame["schema"] == "kvbridge.top/v1" and frame["state"] == "ready"
        assert (route["route"], route["stage"], route["circuit"]) == ("pair", "live", "closed")
        assert route["last_reason"] == "app_gate" and route["p50_ms"] > 0 and route["tokens_per_second"] > 0
        assert 0 < route["fallback_share"] < 1
        assert frame["inflight_transfers"] == 0 and frame["queue_limit"] > 0
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        assert top.wait(timeout=30) == 0
    finally:
        top.kill()


def test_once_prints_one_block_without_codes(server):
    done = run(server, "--once", "--interval", "0.1")
    assert done.returncode == 0 and done.stderr == ""
    head, _, table = done.stdout.partition("\n\n")
    assert "ready" in head and table.splitlines()[0].startswith("ROUTE")
    assert "\x1b" not in done.stdout
    document = json.loads(run(server, "--once", "--interval", "0.1", "--format", "json").stdout)
    assert document["queue_depth"] is None and document["total"]["p50_ms"] is None


def test_on_a_terminal_the_picture_changes_in_place_and_the_terminal_comes_back(server):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 40, 0, 0))
    before = termios.tcgetattr(theirs)
    top = subprocess.Popen(command(server, "--interval", "0.1"), stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(ours, 65536)
        top.send_signal(signal.SIGINT)
        assert top.wait(timeout=30) == 0
        while not seen.endswith(b"\x1b[?25h\x1b[?1049l"):
            seen += os.read(ours, 65536)
        assert termios.tcgetattr(theirs) == before
    finally:
        top.kill()
        os.close(theirs)
        os.close(ours)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H")
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
    picture = seen.split(b"\x1b[H")[1]
    lines = picture.replace(b"\x1b[K", b"").replace(b"\x1b[J", b"").split(b"\r\n")
    assert len(lines) <= 6 and lines[0].startswith(b"kvbridged ")
    assert all(len(line.replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"")) <= 40 for line in lines)


def test_interrupted_before_it_printed_is_told(server):
    top = subprocess.Popen(command(server, "--once", "--interval", "60"), stderr=subprocess.PIPE, text=True)
    try:
        with connect(server) as channel:
            decide(server, transfer_pb2_grpc.KvBridgeStub(channel))
        top.send_signal(signal.SIGINT)
        assert top.wait(timeout=30) == 130
    finally:
        top.kill()


def test_what_goes_wrong_has_its_exit_code(server, tmp_path):
    gone = subprocess.run(
        [binary("KVBRIDGE_CLI"), "top", "--server", f"unix:{tmp_path}/none", "--once", "--interval", "0.1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert gone.returncode == 5, gone.stderr
    assert run(server, "--interval", "0").returncode == 2
    assert run(server, "--once", "--interval", "0.1", "--admin", "nowhere").returncode == 3
    closed = run(server, "--once", "--interval", "0.1", "--admin", "127.0.0.1:1")
    assert closed.returncode == 5 and "127.0.0.1:1" in closed.stderr


def test_a_server_that_stops_ends_it(server):
    top = subprocess.Popen(command(server, "--interval", "0.1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    top.stdout.readline()
    server.stop()
    assert top.communicate(timeout=30) and top.returncode == 5


def test_it_reaches_a_server_over_tls_with_a_token(tmp_path):
    pki = Pki(tmp_path)
    tokens, mine, authority = tmp_path / "tokens", tmp_path / "mine", tmp_path / "servers.pem"
    tokens.write_text(f"{TOKEN} operators plan\n")
    mine.write_text(TOKEN)
    with SecureServer(pki.tls(), [ROUTE], auth={"tokens_file": str(tokens)}) as server:
        top = [binary("KVBRIDGE_CLI"), "top", "--server", f"localhost:{server.port}", "--once", "--interval", "0.1"]
        top += ["--ca-file", str(authority)]
        assert subprocess.run(top, capture_output=True, timeout=60).returncode != 0
        done = subprocess.run([*top, "--token-file", str(mine)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pair" in done.stdout
