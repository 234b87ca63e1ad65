"""The commands for operators against the real kvbridged."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess

import numpy as np
import pytest
from certificates import Pki
from conftest import ROUTE, binary, family_spec, random_cache
from kvbridge import CacheFile, Client, read_cache, write_cache
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2_grpc
from secure_server import SecureServer
from test_attacks import answer, connect, field, header

TOKEN = "operator-token-0123456789abcdef"
WATCHED = 'kvbridge_events_total{result="ok",sink="watch"}'


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
    assert listed(server)["stage"] == "live"
    done = run("routes", "set", "pair", "--server", server.address, "--stage", "canary", "--canary-share", "0.25")
    assert done.returncode == 0 and "live -> canary" in done.stdout
    assert listed(server)["stage"] == "canary"
    assert run("routes", "set", "pair", "--server", server.address, "--circuit", "open").returncode == 0
    route = listed(server)
    assert route["circuit"] == "open" and route["stage"] == "canary"
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
        event = json.loads(line)
        assert event["pair"] == "pair" and event["outcome"] == "applied"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=30) == 0
    finally:
        tail.kill()


# --- bench

CONFIGS = ["--source-config", ROUTE["source_config"], "--target-config", ROUTE["target_config"]]
LOCALLY = ["--artifact", ROUTE["artifact"], *CONFIGS, "--allow-unproven"]


def bench(*arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = run("bench", "--format", "json", "--repetitions", "3", "--warm-up", "1", *arguments)
    return done, json.loads(done.stdout) if done.stdout else {}


@pytest.mark.parametrize("plane", ["region", "inline"])
def test_bench_times_a_route_of_a_server(server, plane):
    done, report = bench("--server", server.address, "--route", "pair", "--tokens", "16,40", "--plane", plane)
    assert done.returncode == 0, done.stderr
    assert report["schema"] == "kvbridge.bench/v1" and report["plane"] == plane and report["subject"] == "pair"
    assert [row["tokens"] for row in report["rows"]] == [16, 40]
    for row in report["rows"]:
        assert row["applied"] == 3 and row["fallbacks"] == {}
        assert 0 < row["p50_seconds"] <= row["p90_seconds"] <= row["p99_seconds"]
        assert row["bytes_per_second"] == pytest.approx(row["bytes"] / row["p50_seconds"])
        assert 0 < row["stage_p50_seconds"]["map"] < row["p50_seconds"]
    assert report["rows"][1]["bytes"] > report["rows"][0]["bytes"] > 0


def test_bench_says_why_nothing_was_applied(server):
    assert run("routes", "set", "pair", "--server", server.address, "--stage", "off").returncode == 0
    done, report = bench("--server", server.address, "--route", "pair", "--tokens", "16,40")
    assert done.returncode == 1 and "16 tokens: route_disabled: " in done.stderr
    assert [row["fallbacks"] for row in report["rows"]] == [{"route_disabled": 1}] * 2
    assert [row["p50_seconds"] for row in report["rows"]] == [0, 0]
    assert bench("--server", server.address, "--route", "nowhere")[0].returncode == 3


def test_bench_compares_with_a_baseline(tmp_path):
    file = tmp_path / "base.json"
    done, _ = bench(*LOCALLY, "--tokens", "16,40", "--output", str(file))
    assert done.returncode == 0, done.stderr
    base = json.loads(file.read_text())
    before = {row["tokens"]: row["p50_seconds"] for row in base["rows"]}

    def against(scale: float, *more: str, **changed) -> tuple[subprocess.CompletedProcess[str], dict]:
        rows = [{**row, "p50_seconds": row["p50_seconds"] * scale} for row in base["rows"]]
        file.write_text(json.dumps({**base, "rows": rows, **changed}))
        return bench(*LOCALLY, "--tokens", "40,80", "--baseline", str(file), *more)

    done, report = against(1000)
    assert done.returncode == 0 and report["baseline"]["slower"] is False
    (row,) = report["baseline"]["rows"]  # 16 and 80 were measured once
    assert row["tokens"] == 40
    now = {row["tokens"]: row["p50_seconds"] for row in report["rows"]}[40]
    assert row["p50_ratio"] == pytest.approx(now / (before[40] * 1000))
    done, report = against(0.001)
    assert done.returncode == 1 and report["baseline"]["slower"] is True
    assert against(0.001, "--fail-if-slower", "10000000%")[0].returncode == 2
    assert against(0.001, "--fail-if-slower", "900000%")[0].returncode == 0
    done, report = against(1000, backend="abacus")
    assert "the baseline is of another backend: abacus, now " in done.stderr
    assert run("bench", *LOCALLY, "--tokens", "40", "--repetitions", "1", "--baseline", str(file)).returncode == 0


def test_a_baseline_that_cannot_be_used_is_refused_first(tmp_path):
    file = tmp_path / "base.json"
    for content, expected in (
        (None, f"--baseline: open {file}: "),
        ("{}", "schema"),
        ('{"schema": "kvbridge.plan/v1"}', "expected kvbridge.bench/v1"),
    ):
        if content is not None:
            file.write_text(content)
        done, _ = bench("--artifact", "nowhere", "--baseline", str(file))
        assert done.returncode == 3 and expected in done.stderr, done.stderr
    for percent in ("10", "-1%", "x%"):
        assert bench(*LOCALLY, "--baseline", str(file), "--fail-if-slower", percent)[0].returncode == 2
    assert bench(*LOCALLY, "--fail-if-slower", "10%")[0].returncode == 2
    assert bench(*LOCALLY, "--tokens", "0")[0].returncode == 2


def test_bench_shows_how_far_it_is_and_stops_when_interrupted(server):
    running = subprocess.Popen(
        [binary("KVBRIDGE_CLI"), "bench", "--server", server.address, "--route", "pair", "--tokens", "16",
         "--repetitions", "1000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert re.fullmatch(r"16 tokens, \d+ of 1000000: \d+ s\n", running.stderr.readline())
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 130
        assert running.stdout.read() == ""
    finally:
        running.kill()


# --- getting in


class Guarded:
    """What it takes to be let in by a server that asks for everything, as flags."""

    def __init__(self, pki: Pki) -> None:
        me = pki.clients.issue("DNS:operator")
        contents = {
            "--ca-file": pki.servers.certificate,
            "--cert-file": me.certificate,
            "--key-file": me.key,
            "--token-file": f"{TOKEN}\n".encode(),
        }
        self.flags = {}
        for flag, content in contents.items():
            path = pki.folder / flag.strip("-")
            path.write_bytes(content)
            self.flags[flag] = str(path)
        tokens = pki.folder / "tokens"
        tokens.write_text(f"{TOKEN} operators transfer,plan,memory,admin\n")
        tokens.chmod(0o600)
        self.server = SecureServer(pki.mutual(), [ROUTE], auth={"tokens_file": str(tokens)})

    def run(self, *arguments: str, without: str = "", **changed: str) -> subprocess.CompletedProcess[str]:
        flags = {**self.flags, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
        flags.pop(without, None)
        shown = [part for pair in flags.items() for part in pair]
        return run(*arguments, "--server", f"localhost:{self.server.port}", *shown)


@pytest.fixture
def guarded(pki: Pki):
    guarded = Guarded(pki)
    with guarded.server:
        yield guarded


def test_every_command_gets_in_by_the_same_flags(guarded, tmp_path):
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    write_cache(source, CacheFile(family_spec("small"), *random_cache(24), np.arange(24)))
    route = ("--route", "pair")
    for arguments in (
        ("health",),
        ("routes", "list"),
        ("routes", "set", "pair", "--stage", "live"),
        ("artifact", "list"),
        ("artifact", "load", *route),
        ("plan", *route, "--prompt-tokens", "100"),
        ("transfer", *route, "--in", str(source), "--out", str(target), "--fail-on-fallback"),
        ("artifact", "unload", *route),
    ):
        done = guarded.run(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        strange = guarded.run(*arguments, without="--token-file")
        assert strange.returncode == 3 and "bearer token" in strange.stderr, (arguments, strange)
    assert read_cache(target).keys.shape[2] == 23
    assert "version 0." in guarded.run("doctor").stdout


def test_a_drill_is_named_wherever_an_operator_looks():
    route = {**ROUTE, "drill": {"reason": "overload", "share": 0.5}}
    sentence = "drill: 50 % of transfers fall back with overload"
    with LocalServer(binary("KVBRIDGED"), [route]) as server:
        for command in (("routes", "list"), ("top", "--once", "--interval", "0.1"), ("doctor",)):
            assert sentence in run(*command, "--server", server.address).stdout, command


def test_what_keeps_a_command_out_is_said_by_its_flag(guarded, tmp_path):
    nowhere, empty = str(tmp_path / "nowhere"), tmp_path / "empty"
    empty.write_text("\n")
    for flag in guarded.flags:
        missing = guarded.run("health", **{flag.strip("-").replace("-", "_"): nowhere})
        assert missing.returncode == 3 and f"{flag}: open {nowhere}: " in missing.stderr, missing
    nothing = guarded.run("health", token_file=str(empty))
    assert nothing.returncode == 3 and "--token-file" in nothing.stderr
    empty.write_text("secret\nsecond line")
    two = guarded.run("health", token_file=str(empty))
    assert two.returncode == 3 and "expected one line of printable ASCII" in two.stderr and "secret" not in two.stderr
    # The certificate is for localhost.
    stranger = guarded.run("health", server_name="elsewhere")
    assert stranger.returncode == 5 and f"--server localhost:{guarded.server.port}: " in stranger.stderr
    for flag in ("--cert-file", "--key-file"):
        half = guarded.run("health", without=flag)
        assert half.returncode == 2 and flag in half.stderr
    abroad = run("health", "--server", "192.0.2.1:50061", "--token-file", guarded.flags["--token-file"])
    assert abroad.returncode == 3 and "--ca-file" in abroad.stderr
    plain = run("health", "--server", f"localhost:{guarded.server.port}")
    assert plain.returncode == 5


def test_a_server_that_says_nothing_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run("health", "--server", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
    assert done.returncode == 5 and "--server 127.0.0.1:" in done.stderr


def test_a_token_is_enough_on_a_socket_of_this_host(tmp_path):
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text(f"{TOKEN} operators admin,plan\n")
    mine.write_text(TOKEN + "\n")
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"auth": {"tokens_file": str(tokens)}}) as server:
        assert run("routes", "list", "--server", server.address).returncode == 3
        assert listed(server, "--token-file", str(mine))["stage"] == "live"


@pytest.fixture
def by_grant(tmp_path):
    """A server where callers have some groups each, and the flags of one: granted("transfer", "plan")."""
    made, tokens = {}, tmp_path / "tokens"
    lines = []
    for groups in (("plan",), ("transfer",), ("memory",)):
        made[groups] = tmp_path / "-".join(groups)
        made[groups].write_text("-".join(groups) + "-0123456789abcdef")
        lines.append(f"{made[groups].read_text()} tenant {','.join(groups)}")
    tokens.write_text("\n".join(lines))
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"auth": {"tokens_file": str(tokens)}}) as server:
        yield lambda *groups: ("--server", server.address, "--token-file", str(made[groups]))


@pytest.mark.parametrize(
    ("command", "has", "lacks"),
    [
        (("transfer", "--route", "pair", "--in", "IN", "--out", "OUT"), "plan", "transfer"),
        (("bench", "--route", "pair", "--tokens", "16", "--repetitions", "1"), "plan", "transfer"),
        (("health",), "transfer", "plan"),
        (("plan", "--route", "pair", "--prompt-tokens", "100"), "memory", "plan"),
        (("events", "tail"), "transfer", "plan"),
        (("top", "--once", "--interval", "0.1"), "transfer", "plan"),
        (("routes", "set", "pair", "--stage", "off"), "plan", "admin"),
        (("artifact", "list"), "plan", "admin"),
    ],
)
def test_a_caller_without_a_grant_is_told_which(by_grant, tmp_path, command, has, lacks):
    write_cache(tmp_path / "IN", CacheFile(family_spec("small"), *random_cache(24), np.arange(24)))
    done = run(*(str(tmp_path / word) if word in ("IN", "OUT") else word for word in command), *by_grant(has))
    assert done.returncode == 3, done
    assert f"expected a caller that is granted {lacks}, got one that is granted {has}" in done.stdout + done.stderr


def test_a_doctor_tells_a_closed_door_from_an_empty_house(by_grant):
    done = run("doctor", *by_grant("transfer"))
    assert "expected a caller that is granted plan" in done.stdout and "--token-file" in done.stdout


def test_a_port_for_health_only_is_named():
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"listen": {"health": "127.0.0.1:0"}}) as server:
        port = json.loads((server.folder / "ports.json").read_text())["health"]
        done = run("health", "--server", port)
    assert done.returncode == 5 and f"kvbridge: --server {port}: there is no such method" in done.stderr
    assert "listen.grpc" in done.stderr


HOSTILE = "\x1b[2J\u202e\u009b31m\u2066"


def test_what_a_caller_writes_cannot_drive_the_terminal_of_who_watches():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server, connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        for form in ("table", "json"):
            command = [binary("KVBRIDGE_CLI"), "events", "tail", "--server", server.address, "--format", form]
            tail = subprocess.Popen(command, stdout=subprocess.PIPE)
            sent = server.metrics()[WATCHED]
            while server.metrics()[WATCHED] == sent:
                answer(stub, [header(1, field("request_id", f"x{HOSTILE}y"))])
            line = tail.stdout.readline().decode()
            tail.kill()
            tail.wait()
            assert not [mark for mark in HOSTILE if mark in line and not mark.isprintable()], ascii(line)
            if form == "json":
                assert json.loads(line)["request_id"] == f"x{HOSTILE}y"


def test_output_that_goes_nowhere_is_an_error():
    done = subprocess.run(["sh", "-c", '"$0" version >&-', binary("KVBRIDGE_CLI")], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.startswith("kvbridge: stdout: "), done
