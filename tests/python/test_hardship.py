"""What an operator may do to kvbridged, or its host to it, while transfers run: none is lost that was accepted, and
callers fall back by themselves."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections import Counter

from conftest import ARTIFACT, FAMILY, ROUTE, binary, family_spec, random_cache
from kvbridge import Client
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2_grpc
from test_attacks import answer, cache, connect, header

TOKENS = 40
SPECS = {"source": family_spec("small"), "target": family_spec("large")}
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


# --- no room for files


def limited(limit: int):
    """Before a program starts: files may have this many bytes. What is beyond fails as on a full disk."""

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return limit_files


def run_limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments)]
    return subprocess.run(command, preexec_fn=limited(limit), restore_signals=False, capture_output=True, text=True)


def test_an_artifact_that_has_no_room_leaves_nothing_and_says_why(tmp_path):
    convert = (
        "artifact", "convert", "--source-config", FAMILY / "small/config.json",
        "--target-config", FAMILY / "large/config.json", ARTIFACT, tmp_path / "out",
    )  # fmt: skip
    done = run_limited(100_000, *convert)
    assert done.returncode not in (0, -signal.SIGXFSZ), done
    assert os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert run_limited(1 << 30, *convert).returncode == 0


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
