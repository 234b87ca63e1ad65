"""What a crash of kvbridged leaves behind, and what a look into its memory shows."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROUTE, binary
from kvbridge.testing import LocalServer
from test_security import until

NOBODY = 65534


@pytest.mark.parametrize("fault", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_leaves_its_stack_in_the_log_and_ends_the_process(fault):
    with LocalServer(binary("KVBRIDGED"), []) as server:
        os.kill(server.pid, fault)
        assert server.stop() == -fault
        log = server.log.read_text()
    assert f"*** {fault.name} received" in log
    assert "PC: @" in log


def test_a_crash_leaves_no_core(tmp_path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    monkeypatch.chdir(tmp_path)
    try:
        with LocalServer(binary("KVBRIDGED"), []) as server:
            os.kill(server.pid, signal.SIGABRT)
            _, ended = os.waitpid(server.pid, 0)
            assert os.WTERMSIG(ended) == signal.SIGABRT and not os.WCOREDUMP(ended)
            assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


# Prints what a process of user argv[1] can see of process argv[2].
PEEK = """
import os, sys
user, process = map(int, sys.argv[1:])
os.getuid() == user or os.setuid(user)
for name in ("mem", "maps", "environ"):
    try:
        open(f"/proc/{process}/{name}", "rb").close()
        print(name, "open")
    except PermissionError:
        print(name, "refused")
"""


def seen_of(process: int, user: int) -> set[str]:
    command = [sys.executable, "-c", PEEK, str(user), str(process)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def as_another_user(folder: Path, program: str) -> str:
    """The program under a user id other than root's; skips where there is none to be had."""
    if os.geteuid() != 0:
        return program
    setpriv = shutil.which("setpriv") or pytest.skip("setpriv is not installed")
    wrapper = folder / Path(program).name
    wrapper.write_text(f'#!/bin/sh\nexec {setpriv} --reuid={NOBODY} --clear-groups -- {program} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def test_processes_of_its_own_user_do_not_read_its_memory(tmp_path):
    user = os.geteuid() or NOBODY
    server = LocalServer(as_another_user(tmp_path, binary("KVBRIDGED")), [ROUTE])
    server.folder.chmod(0o777)
    with server, subprocess.Popen([as_another_user(tmp_path, shutil.which("cat"))], stdin=subprocess.PIPE) as other:
        assert server.folder.joinpath("ports.json").stat().st_uid == user
        assert seen_of(server.pid, user) == {"mem refused", "maps refused", "environ refused"}
        until(lambda: "maps open" in seen_of(other.pid, user))  # as it would of any other process
        other.stdin.close()
