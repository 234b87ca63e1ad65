"""deploy/systemd: a unit that systemd takes and finds well shut off."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest
import yaml
from conftest import ROOT, binary
from kvbridge.testing import LocalServer
from operations import DEPLOY, tool

SYSTEMD = DEPLOY / "systemd"
MOST_EXPOSED = 15  # of 100; systemd calls 20 and less OK
MOST_EXPOSED_WITH_CUDA = 25


@pytest.fixture
def unit(tmp_path):
    """A copy whose programs exist."""
    program = tmp_path / "kvbridged"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / "kvbridged.service"
    path.write_text((SYSTEMD / "kvbridged.service").read_text().replace("/usr/bin/kvbridged", str(program)))
    return path


def analyze(*arguments):
    done = subprocess.run([tool("systemd-analyze"), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def with_cuda(unit):
    folder = unit.parent / "kvbridged.service.d"
    folder.mkdir()
    shutil.copy(SYSTEMD / "cuda.conf", folder)


@pytest.mark.parametrize("prepare", [lambda unit: None, with_cuda], ids=["cpu", "cuda"])
def test_systemd_takes_the_unit(unit, prepare):
    prepare(unit)
    assert analyze("verify", "--man=no", unit) == (0, "")


@pytest.mark.parametrize(
    "prepare,most", [(lambda unit: None, MOST_EXPOSED), (with_cuda, MOST_EXPOSED_WITH_CUDA)], ids=["cpu", "cuda"]
)
def test_little_of_the_host_is_exposed(unit, prepare, most):
    prepare(unit)
    code, text = analyze("security", "--offline=true", f"--threshold={most}", unit)
    assert code == 0, text.splitlines()[-1]


def hear(manager, word):
    """Waits for a message that begins so; others may come before."""
    while not (said := manager.recv(4096).decode()).startswith(word):
        pass
    return said


def test_kvbridged_says_what_it_does(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        with LocalServer(binary("KVBRIDGED"), []) as server:
            hear(manager, "READY=1")
            hear(manager, "WATCHDOG=1")
            os.kill(server.pid, signal.SIGHUP)
            assert "MONOTONIC_USEC=" in hear(manager, "RELOADING=1")
            hear(manager, "READY=1")
            assert server.stop() == 0
            hear(manager, "STOPPING=1")


def test_it_waits_for_a_drain():
    text = (SYSTEMD / "kvbridged.service").read_text()
    drain = yaml.safe_load((ROOT / "configs/full.yaml").read_text())["drain"]
    needed = sum(int(value.removesuffix("s")) for value in drain.values())
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)[1]) > needed


def test_it_tells_systemd_what_it_does():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(SYSTEMD / "kvbridged.service")
    service = parser["Service"]
    assert (service["Type"], service["Restart"], service["WatchdogSec"]) == ("notify", "on-failure", "30")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["LimitCORE"] == "0"


def test_user_and_folders_can_be_made(tmp_path):
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        [tool("systemd-sysusers"), f"--root={tmp_path}", SYSTEMD / "kvbridge.sysusers"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^kvbridge:", (tmp_path / "etc/passwd").read_text(), re.M)
    done = subprocess.run(
        [tool("systemd-tmpfiles"), "--create", f"--root={tmp_path}", SYSTEMD / "kvbridge.tmpfiles"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc/kvbridge").stat().st_mode & 0o7777 == 0o750
