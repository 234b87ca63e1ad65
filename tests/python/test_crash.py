"""What a crash of kvbridged leaves behind."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import binary
from kvbridge.testing import LocalServer


@pytest.mark.parametrize("fault", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_leaves_its_stack_in_the_log_and_ends_the_process(fault):
    with LocalServer(binary("KVBRIDGED"), []) as server:
        os.kill(server.pid, fault)
        assert server.stop() == -fault
        log = server.log.read_text()
    assert f"*** {fault.name} received" in log
    assert "PC: @" in log
