"""What tests of two hosts share: a kvbridged on either, and a Transfer call made step by step."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import time
from pathlib import Path

import grpc
import numpy as np
from conftest import ROOT, binary
from kvbridge import Client, PagedCache
from kvbridge.v1 import transfer_pb2, types_pb2

sys.path.insert(0, str(ROOT / "bench"))

import netns  # noqa: E402

__all__ = ["GIVE_UP", "PAGE", "TOKENS", "Call", "Kvbridged", "holds", "netns", "pages_of", "same"]

TOKENS = 600  # of the tests' transfers
PAGE = 64  # tokens; the last page of TOKENS is partial
GIVE_UP = 2.0  # seconds that a frame may be under way


class Kvbridged:
    """On one of the hosts; reached from here over a unix socket, and from the other host at `port`."""

    port = 50061

    def __init__(self, hosts: netns.TwoHosts, host: str, folder: Path, **settings: object) -> None:
        address = hosts.left_address if host == hosts.left else hosts.right_address
        self.socket = f"unix:{folder}/{host}.sock"
        config = {
            "listen": {
                "grpc": [self.socket, f"{address}:{self.port}"],
                "admin": "127.0.0.1:9464",
                "allow_plaintext_off_host": True,
            },
            "ucx": {"allow_plaintext_off_host": True, "timeout": f"{GIVE_UP}s"},
            "drain": {"delay": "0s", "deadline": "1s"},
            "log": {"format": "json"},
        }
        for section, values in settings.items():
            merge = isinstance(values, dict)
            config[section] = {**config.get(section, {}), **values} if merge else values  # type: ignore[dict-item]
        path = folder / f"{host}.json"
        path.write_text(json.dumps(config))
        self._hosts, self._host = hosts, host
        self._log = folder / f"{host}.log"
        with self._log.open("wb") as log:
            command = [binary("KVBRIDGED"), "--config", str(path)]
            self.process = hosts.popen(host, command, stdout=log, stderr=subprocess.STDOUT)
        self.channel = grpc.insecure_channel(self.socket, [("grpc.use_local_subchannel_pool", 1)])
        grpc.channel_ready_future(self.channel).result(timeout=30)
        while '"to":"ready"' not in self._log.read_text():
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.02)

    def __enter__(self) -> Kvbridged:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def metric(self, name: str) -> float:
        script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
        page = self._hosts.popen(self._host, [sys.executable, "-c", script], stdout=subprocess.PIPE).communicate()[0]
        return sum(float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}\b", line))


class Call:
    """A Transfer whose chunks are sent one by one."""

    def __init__(self, server: Kvbridged, first: transfer_pb2.TransferRequest) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.send(first.SerializeToString())
        method = server.channel.stream_stream(
            "/kvbridge.v1.KvBridge/Transfer", response_deserializer=transfer_pb2.TransferEvent.FromString
        )
        self._events = method(iter(self._messages.get, None), timeout=60)

    def send(self, message: bytes) -> None:
        self._messages.put(message)

    def finish(self) -> None:
        self._messages.put(None)

    def next(self) -> transfer_pb2.TransferEvent:
        return next(self._events)

    def rest(self) -> tuple[list[transfer_pb2.TransferChunk], transfer_pb2.Decision]:
        """What is left: chunks, and the decision."""
        chunks = []
        for event in self._events:
            if event.HasField("chunk"):
                chunks.append(event.chunk)
            if event.HasField("completed"):
                return chunks, event.completed.decision
        raise AssertionError("the stream ended without a decision")


def same(a, b) -> bool:
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(a, b, strict=True))


def pages_of(client: Client, spec: types_pb2.ModelSpec, seed: int) -> PagedCache:
    """Pages, out of order, of a pool of the client's own."""
    memory = client.memory()
    arena = memory.arena(32 << 20)
    layers = [arena.empty((16, PAGE, 2, 64), np.float32) for _ in range(2 * spec.geometry.layers)]
    for layer in layers:
        layer.fill(np.nan)
    pool = memory.pool(spec, layers[::2], layers[1::2])
    return pool.select(np.random.default_rng(seed).permutation(16)[: -(-TOKENS // PAGE)], TOKENS)


def holds(pages: PagedCache, expected: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether these are the answer's tokens, and zeros after them."""
    got = [np.stack(part) for part in pages.gather()]
    covered = expected[0].shape[2]
    return same([part[:, :, :covered] for part in got], expected) and not any(p[:, :, covered:].any() for p in got)
