"""The commands for operators against the real kvbridged."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from conftest import ROUTE, binary, family_spec, random_cache
from kvbridge import Client
from kvbridge.testing import LocalServer

TOKEN = "operator-token-0123456789abcdef"


@pytest.fixture
def server():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as running:
        yield running


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("KVBRIDGE_CLI"), *arguments], capture_output=True, text=True, timeout=60)


def listed(server, *more: str) -> dict:
    done = run("routes", "list", "--server", server.address, "--format", "json", *more)
    assert done.returncode == 0, done.stderr
    (route,) = json.loads(done.stdout)["routes"]
    return route


def test_a_route_is_listed_and_set(server):
    assert listed(server)["stage"] == "ROUTE_STAGE_LIVE"
    done = run("routes", "set", "pair", "--server", server.address, "--stage", "canary", "--canary-share", "0.25")
    assert done.returncode == 0 and "live -> canary" in done.stdout
    assert listed(server)["stage"] == "ROUTE_STAGE_CANARY"
    assert run("routes", "set", "pair", "--server", server.address, "--circuit", "open").returncode == 0
    route = listed(server)
    assert route["circuit"] == "CIRCUIT_STATE_OPEN" and route["stage"] == "ROUTE_STAGE_CANARY"
    table = run("routes", "list", "--server", server.address).stdout
    assert "CIRCUIT" in table and "canary" in table


def test_what_cannot_be_set_is_said(server):
    assert run("routes", "set", "nowhere", "--server", server.address, "--stage", "off").returncode == 3
    assert run("routes", "set", "pair", "--server", server.address, "--stage", "on").returncode == 2
    assert run("routes", "set", "pair", "--server", server.address).returncode != 0


def test_events_are_tailed_until_interrupted(server):
    tail = subprocess.Popen(
        [binary("KVBRIDGE_CLI"), "events", "tail", "--server", server.address, "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    keys, values = random_cache(24)
    try:
        with Client(server.address) as client:
            line = None
            while line is None:
                client.transfer(
                    keys=keys, values=values, route="pair", source=family_spec("small"), target=family_spec("large")
                )
                if server.metrics()['kvbridge_events_total{result="ok",sink="watch"}'] > 0:
                    line = tail.stdout.readline()
        event = json.loads(line)["event"]
        assert event["pair"] == "pair" and event["outcome"] == "OUTCOME_APPLIED"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=30) == 0
    finally:
        tail.kill()


def test_a_token_is_shown_from_a_file(tmp_path):
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text(f"{TOKEN} operators admin,plan\n")
    mine.write_text(TOKEN + "\n")
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"auth": {"tokens_file": str(tokens)}}) as server:
        assert run("routes", "list", "--server", server.address).returncode != 0
        assert listed(server, "--token-file", str(mine))["stage"] == "ROUTE_STAGE_LIVE"
