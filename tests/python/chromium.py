"""A headless Chromium, driven over the DevTools protocol on two pipes: pages as people see them, and what they complain
about or ask the network for."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import pytest
from operations import tool

READ, WRITE = 3, 4  # where Chromium expects its pipes
# Parameters `width,dark` of a test: a phone and a desk, by day and by night.
VIEWS = [pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
         for width in (400, 1200) for dark in (False, True)]  # fmt: skip


@dataclass
class Page:
    """One page, loaded."""

    screenshot: bytes  # PNG of all of it
    overflow: int  # CSS pixels that it is wider than the window
    text: str
    requests: list[str] = field(default_factory=list)  # addresses that it asked for, its own first
    complaints: list[str] = field(default_factory=list)  # of the console, of any level

    def save(self, name: str) -> None:
        """Keeps the picture for a person to look at, where KVBRIDGE_SCREENSHOTS names a folder."""
        if folder := os.environ.get("KVBRIDGE_SCREENSHOTS"):
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"{name}.png"), "wb") as file:
                file.write(self.screenshot)


class Chromium:
    """Starts one. Use as a context manager."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="kvbridge-chromium-", ignore_cleanup_errors=True)
        self._calls = 0
        self._unread = b""
        self._events: list[dict] = []

    def __enter__(self) -> Chromium:
        command = [
            tool("chromium"), "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            f"--user-data-dir={self._profile.name}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        # The ends that Chromium gets are moved out of the way of the numbers that they are to have.
        theirs_read, self._out = os.pipe()
        self._in, theirs_write = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_read, theirs_write)]

        def take_pipes() -> None:
            os.dup2(high[0], READ)
            os.dup2(high[1], WRITE)

        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=take_pipes,
            pass_fds=(READ, WRITE),
        )
        for end in (theirs_read, theirs_write, *high):
            os.close(end)
        return self

    def __exit__(self, *_) -> None:
        try:
            self._call("Browser.close")
        except (OSError, RuntimeError):
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def open(self, address: str, width: int, dark: bool) -> Page:
        """Loads the page in a window of so many CSS pixels."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

        def call(method: str, **parameters):
            return self._call(method, session, **parameters)

        for domain in ("Page", "Runtime", "Log", "Network"):
            call(f"{domain}.enable")
        call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        call("Emulation.setEmulatedMedia", features=[theme])
        self._events.clear()
        call("Page.navigate", url=address)
        self._wait_for("Page.loadEventFired")
        size = call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": size["height"], "scale": 1}
        picture = call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]

        def value(expression: str):
            return call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

        page = Page(
            base64.b64decode(picture),
            value("document.documentElement.scrollWidth") - width,
            value("document.body.innerText"),
        )
        for event in self._events:
            seen = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                page.requests.append(seen["request"]["url"])
            elif event.get("method") == "Log.entryAdded":
                page.complaints.append(seen["entry"]["text"])
            elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                page.complaints.append(json.dumps(seen))
        self._call("Target.closeTarget", targetId=target)
        return page

    def _call(self, method: str, session: str | None = None, **parameters):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._read()
            if got.get("id") == self._calls:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]
            self._events.append(got)

    def _wait_for(self, method: str) -> None:
        while all(event.get("method") != method for event in self._events):
            self._events.append(self._read())

    def _read(self, seconds: float = 60.0) -> dict:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError("Chromium does not answer")
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)
