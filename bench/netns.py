"""Two hosts on one machine: network namespaces joined by a veth pair, or by a relay that delays and loses packets.

Needs root, and for the relay /dev/net/tun. Used by bench/between_hosts.py and tests/python/test_ucx.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_CLONE_NEWNET = 0x40000000
_MTU = 1500


def why_not() -> str | None:
    """Why this machine can't play two hosts; None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's ip"
    probe = f"kvbprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=False)
    return None


def why_no_relay() -> str | None:
    """Why this machine can't delay and lose packets; None when it can."""
    return None if Path("/dev/net/tun").exists() else "the relay needs /dev/net/tun"


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _wait_until_it_carries(host: str) -> None:
    """UCX looks at interfaces once, when it starts, and only at those that run."""
    deadline = time.monotonic() + 10
    while "LOWER_UP" not in _ip("-n", host, "link", "show", "link0"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"link0 of {host} does not come up")
        time.sleep(0.01)


class TwoHosts:
    """Context manager. `left` and `right` are names of namespaces, with the addresses below.

    delay: seconds that a packet takes, one way; loss: share of packets that never arrive. Either makes the link a
    relay in this process, which `cut()` stops for good; without, it is a veth pair, which `cut()` takes down.
    """

    left_address = "10.77.0.1"
    right_address = "10.77.0.2"

    def __init__(self, *, delay: float = 0.0, loss: float = 0.0, seed: int = 1) -> None:
        self.left = f"kvb{os.getpid()}l"
        self.right = f"kvb{os.getpid()}r"
        self._relay = _Relay(delay, loss, seed) if delay or loss else None

    def __enter__(self) -> TwoHosts:
        try:
            for name in (self.left, self.right):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            if self._relay is None:
                _ip("-n", self.left, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", self.right)
            else:
                self._relay.start(self.left, self.right)
            for name, address in ((self.left, self.left_address), (self.right, self.right_address)):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "link0")
                _ip("-n", name, "link", "set", "link0", "up")
            for name in (self.left, self.right):
                _wait_until_it_carries(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._relay is not None:
            self._relay.stop()
        for name in (self.left, self.right):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def cut(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        if self._relay is not None:
            self._relay.cut()
        else:
            _ip("-n", self.left, "link", "set", "link0", "down")

    def popen(self, host: str, command: list[str], **options: object) -> subprocess.Popen[str]:
        """Starts `command` on the host self.left or self.right."""
        return subprocess.Popen(["ip", "netns", "exec", host, *command], text=True, **options)  # type: ignore[call-overload]

    def wrapper(self, host: str, binary: str | os.PathLike[str], folder: Path) -> Path:
        """An executable file that runs `binary` on the host."""
        script = folder / f"{host}-{Path(binary).name}"
        script.write_text(f'#!/bin/sh\nexec ip netns exec {host} "{Path(binary).resolve()}" "$@"\n')
        script.chmod(0o755)
        return script


class _Relay:
    """Carries packets between two TUN devices, each after `delay` or, by chance, never."""

    def __init__(self, delay: float, loss: float, seed: int) -> None:
        self._delay = delay
        self._loss = loss
        self._chance = random.Random(seed)
        self._ends: list[int] = []
        self._wake = os.eventfd(0)
        self._cut = self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, left: str, right: str) -> None:
        failure: list[BaseException] = []

        def open_and_run() -> None:  # in its own thread: the namespace is the thread's
            try:
                self._ends = [_open_tun(name) for name in (left, right)]
            except BaseException as error:  # reported by the caller
                failure.append(error)
            opened.set()
            if not failure:
                self._run()

        opened = threading.Event()
        self._thread = threading.Thread(target=open_and_run, daemon=True)
        self._thread.start()
        opened.wait()
        if failure:
            raise failure[0]

    def cut(self) -> None:
        self._cut = True

    def stop(self) -> None:
        self._stopped = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for end in [*self._ends, self._wake]:
            os.close(end)

    def _run(self) -> None:
        left, right = self._ends
        other = {left: right, right: left}
        waiting: list[tuple[float, int, int, bytes]] = []  # when, order, to, packet
        order = 0
        while not self._stopped:
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select([left, right, self._wake], [], [], timeout)
            now = time.monotonic()
            for end in readable:
                if end == self._wake:
                    continue
                packet = os.read(end, _MTU)
                if self._chance.random() >= self._loss:
                    heapq.heappush(waiting, (now + self._delay, order, other[end], packet))
                    order += 1
            while waiting and waiting[0][0] <= now:
                _, _, end, packet = heapq.heappop(waiting)
                if not self._cut:
                    with contextlib.suppress(OSError):  # a device that isn't up yet takes none
                        os.write(end, packet)


def _open_tun(namespace: str) -> int:
    """A TUN device link0 in the namespace, which this thread stays in."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", b"link0", _IFF_TUN_NO_PI))
    return end
