"""A kvbridged of one's own, for tests, demonstrations and measurements: a child process on a unix socket."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class LocalServer:
    """Starts kvbridged with the given routes and stops it again. Use as a context manager.

    binary: path of kvbridged. routes: RouteConfig messages as dicts (config.proto). settings: the rest of the
    configuration, e.g. {"engine": {"threads": 2}}. memory: settings of shared memory, which is offered on a side
    socket in `folder`; that is temporary, and holds all its files, log included.
    """

    def __init__(
        self,
        binary: str | os.PathLike[str],
        routes: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._binary = Path(binary).resolve()
        self._routes = [dict(route) for route in routes]
        self._settings = dict(settings or {})
        self._memory = dict(memory or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="kvbridge-")
        self.folder = Path(self._temporary.name)
        self.address = f"unix:{self.folder}/kvbridged.sock"
        self.log = self.folder / "kvbridged.log"
        self._ports = self.folder / "ports.json"

    def __enter__(self) -> LocalServer:
        config: dict[str, Any] = {
            "listen": {"grpc": [self.address], "admin": "127.0.0.1:0"},
            "drain": {"delay": "0s", "deadline": "5s"},
            "log": {"format": "json"},
            "memory": {"socket": f"{self.folder}/memory.sock", **self._memory},
            "routes": self._routes,
        }
        for section, settings in self._settings.items():
            mergeable = isinstance(settings, Mapping)
            config[section] = {**config.get(section, {}), **settings} if mergeable else settings
        path = self.folder / "kvbridged.json"
        path.write_text(json.dumps(config, indent=1))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._binary, "--config", path, "--ports-file", self._ports],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.stop()
        self._temporary.cleanup()

    def stop(self) -> int:
        """Asks it to drain and waits; its exit status. Idempotent."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def admin(self) -> str:
        """host:port of its admin HTTP."""
        return str(json.loads(self._ports.read_text())["admin"])

    def get(self, path: str) -> str:
        """A page of its admin HTTP, e.g. "/metrics"."""
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as page:
            return str(page.read().decode())

    def metrics(self) -> dict[str, float]:
        """The server's counters and gauges by name with labels, as /metrics prints them."""
        lines = self.get("/metrics").splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def _wait_until_it_serves(self, seconds: float = 60.0) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        # Ports are bound before artifacts are loaded.
        while not self._ports.exists() or self._starting():
            status = self._process.poll()
            if status is not None:
                raise RuntimeError(f"kvbridged exited with {status}:\n{self.log.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"kvbridged does not serve after {seconds} s")
            time.sleep(0.02)

    def _starting(self) -> bool:
        """Whether artifacts are still being loaded; a route that can't be served doesn't keep it starting."""
        try:
            states = {k: v for k, v in self.metrics().items() if k.startswith("kvbridge_state{")}
        except OSError:
            return True
        return states.get('kvbridge_state{state="starting"}') != 0
