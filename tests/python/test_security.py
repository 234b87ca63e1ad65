"""Who may reach kvbridged, over real connections: TLS, client certificates, and their replacement while it serves."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from pathlib import Path

import grpc
import numpy as np
import pytest
from certificates import Authority, Pki
from conftest import ROUTE, binary, family_spec
from kvbridge import CacheFile, write_cache
from kvbridge.testing import LocalServer
from kvbridge.v1 import admin_pb2, memory_pb2, transfer_pb2, transfer_pb2_grpc
from secure_server import SecureServer
from test_attacks import answer, connect, field, header

PATIENCE = 30.0


def health(channel: grpc.Channel, timeout: float = 5.0) -> transfer_pb2.HealthResponse:
    return transfer_pb2_grpc.KvBridgeStub(channel).Health(transfer_pb2.HealthRequest(), timeout=timeout)


def status(channel: grpc.Channel) -> grpc.StatusCode:
    """Of a health call."""
    try:
        health(channel)
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# --- TLS


def test_a_tcp_address_speaks_tls_only_and_the_unix_socket_plaintext(pki):
    with SecureServer(pki.tls(), [ROUTE]) as server:
        with server.channel(pki.servers.certificate) as channel:
            assert health(channel).routes[0].serving
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert status(channel) == grpc.StatusCode.UNAVAILABLE
        with grpc.insecure_channel(server.address) as channel:
            assert status(channel) == grpc.StatusCode.OK


def test_a_client_refuses_a_server_of_another_authority_or_name(pki):
    with SecureServer(pki.tls()) as server:
        for root, name in ((pki.clients.certificate, "localhost"), (pki.servers.certificate, "elsewhere")):
            with server.channel(root, name=name) as channel:
                assert status(channel) == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("newest", "spoken"), [("TLSv1_1", False), ("TLSv1_2", True)])
def test_the_old_protocols_are_not_spoken(pki, newest, spoken):
    context = ssl.create_default_context(cadata=pki.servers.certificate.decode())
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion[newest]
    with SecureServer(pki.tls()) as server, socket.create_connection(("127.0.0.1", server.port)) as plain:
        try:
            context.wrap_socket(plain, server_hostname="localhost").close()
            assert spoken
        except OSError:
            assert not spoken


def test_client_certificates_must_be_there_valid_and_of_the_authority(pki):
    good = pki.clients.issue("URI:spiffe://test/router")
    expired = pki.clients.issue("URI:spiffe://test/router", days=-1)
    stranger = pki.servers.issue("URI:spiffe://test/router")
    with SecureServer(pki.mutual()) as server:
        for client, expected in (
            (good, grpc.StatusCode.OK),
            (None, grpc.StatusCode.UNAVAILABLE),
            (expired, grpc.StatusCode.UNAVAILABLE),
            (stranger, grpc.StatusCode.UNAVAILABLE),
        ):
            counted = failures(server, "handshake")
            with server.channel(pki.servers.certificate, client) as channel:
                assert status(channel) == expected
            if expected != grpc.StatusCode.OK:
                until(lambda counted=counted: failures(server, "handshake") > counted)
        with server.channel(pki.servers.certificate, good) as channel:
            assert status(channel) == grpc.StatusCode.OK


def test_client_certificates_may_be_left_out_where_they_are_not_required(pki):
    with SecureServer(pki.mutual(require_client_cert=False)) as server:
        with server.channel(pki.servers.certificate) as channel:
            assert status(channel) == grpc.StatusCode.OK
        with server.channel(pki.servers.certificate, pki.servers.issue("DNS:x")) as channel:
            assert status(channel) == grpc.StatusCode.UNAVAILABLE


# --- replacement


class Load:
    """Calls on a connection that stays and on ever new ones, from several threads, until stopped."""

    def __init__(self, server: SecureServer, pki: Pki) -> None:
        self.failures: list[str] = []
        self.calls = 0
        self._stop = threading.Event()
        self._root = pki.servers.certificate
        self._client = pki.clients.issue("URI:spiffe://test/router")
        self._threads = [
            threading.Thread(target=self._run, args=(server, fresh)) for fresh in (False, True, True)
        ]

    def _run(self, server: SecureServer, fresh: bool) -> None:
        channel = server.channel(self._root, self._client)
        while not self._stop.is_set():
            if fresh:
                channel.close()
                channel = server.channel(self._root, self._client)
            try:
                health(channel)
                self.calls += 1
            except grpc.RpcError as error:
                self.failures.append(f"{error.code()}: {error.details()}")
        channel.close()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_certificates_are_replaced_under_load_without_a_failed_call(pki):
    with SecureServer(pki.mutual()) as server, Load(server, pki) as load:
        for expected in (2, 3, 4):
            before = load.calls
            pki.renew()
            until(lambda expected=expected: server.serial() == expected)
            until(lambda before=before: load.calls > before + 20)
    assert load.failures == []


def test_a_signal_replaces_them_at_once(pki):
    with SecureServer(pki.tls(refresh_interval="1h")) as server:
        pki.renew()
        assert server.serial() == 1
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: server.serial() == 2)


def test_a_bad_set_is_not_used_and_the_next_good_one_is(pki):
    with SecureServer(pki.tls()) as server:
        pki.renew(key=pki.servers.issue("DNS:localhost").key)
        until(lambda: server.logged("the certificates in use are kept"))
        assert server.logged("listen.tls.key_file")
        assert server.serial() == 1
        pki.renew()
        until(lambda: server.serial() == 4)
        assert not server.logged("PRIVATE KEY")


def test_a_new_authority_of_clients_replaces_the_old_one(pki, tmp_path):
    others = Authority(tmp_path, "others")
    old, new = pki.clients.issue("DNS:a"), others.issue("DNS:a")
    with SecureServer(pki.mutual()) as server:
        pki.renew(ca=others.certificate)
        until(lambda: server.logged("certificates were replaced"))
        for client, expected in ((new, grpc.StatusCode.OK), (old, grpc.StatusCode.UNAVAILABLE)):
            with server.channel(pki.servers.certificate, client) as channel:
                assert status(channel) == expected


def test_the_expiry_is_a_metric(pki):
    name = "kvbridge_tls_certificate_expiry_timestamp_seconds"
    with SecureServer(pki.mutual()) as server:
        left = {role: server.metrics()[f'{name}{{role="{role}"}}'] - time.time() for role in ("server", "ca")}
    assert left["server"] == pytest.approx(20 * 86400, abs=600)
    assert left["ca"] == pytest.approx(30 * 86400, abs=600)


# --- startup


def check_config(folder: Path, tls: dict[str, object]) -> subprocess.CompletedProcess[str]:
    path = folder / "check.json"
    path.write_text(json.dumps({"listen": {"grpc": ["0.0.0.0:0"], "tls": tls}}))
    return subprocess.run([binary("KVBRIDGED"), "--config", path, "--check-config"], capture_output=True, text=True)


def test_a_good_set_may_listen_to_other_hosts(pki):
    checked = check_config(pki.folder, pki.mutual())
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("setting", "content", "reason"),
    [
        ("cert_file", b"hello", "expected PEM certificates, got none"),
        ("key_file", b"hello", "expected an unencrypted private key in PEM, got none"),
        ("client_ca_file", b"", "expected PEM certificates, got none"),
        ("cert_file", None, "No such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(pki, setting, content, reason):
    bad = pki.folder / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
    checked = check_config(pki.folder, pki.mutual(**{setting: str(bad)}))
    assert checked.returncode == 2
    assert f"listen.tls.{setting}: {bad}: " in checked.stderr and reason in checked.stderr


def test_a_key_of_another_certificate_is_refused(pki):
    pki.renew(key=pki.servers.issue("DNS:localhost").key)
    checked = check_config(pki.folder, pki.tls())
    assert checked.returncode == 2
    assert "expected the private key of the first certificate, got another" in checked.stderr


def test_an_expired_certificate_is_a_warning(pki):
    expired = pki.servers.issue("DNS:localhost", days=-1)
    pki.renew(cert=expired.certificate, key=expired.key)
    checked = check_config(pki.folder, pki.tls())
    assert checked.returncode == 0 and "a certificate expired at" in checked.stderr


# --- the health listener


def test_the_health_listener_speaks_health_and_nothing_else(pki):
    check = "/grpc.health.v1.Health/Check"
    reflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with SecureServer(pki.mutual(), [ROUTE]) as server, grpc.insecure_channel(server.ports["health"]) as channel:
        for service, serving in ((b"", b"\x08\x01"), (b"kvbridge.route/pair", b"\x08\x01")):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert channel.unary_unary(check)(request, timeout=5) == serving
        assert status(channel) == grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.stream_stream(reflect)(iter([b""]), timeout=5))
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


# --- tokens and names

TOKENS = {name: f"{name}-token-0123456789abcdef" for name in ("router", "planner", "operator", "next")}
TOKENS_FILE = f"""# of tests
{TOKENS["router"]} router transfer,plan
{TOKENS["planner"]} planner plan
{TOKENS["operator"]} operators admin
"""
ANYTHING = b""  # an empty message is a valid request of every method
UNKNOWN, FORBIDDEN = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


def methods() -> list[tuple[str, str]]:
    """Every method of kvbridge.v1 with its service's group."""
    groups = {"KvBridge": "plan", "Memory": "memory", "Admin": "admin"}
    special = {"Transfer": "transfer", "ReportQuality": "transfer"}
    found = []
    for file in (transfer_pb2, memory_pb2, admin_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                group = special.get(method.name, groups[service.name])
                found.append((f"/{service.full_name}/{method.name}", group))
    assert len(found) > 10
    return found


def code(channel: grpc.Channel, method: str, token: str | None = None) -> grpc.StatusCode:
    """Of a call with an empty request."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    call = channel.stream_stream(method)(iter([ANYTHING]), metadata=metadata, timeout=10)
    try:
        list(call)
    except grpc.RpcError:
        pass
    return call.code()


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(TOKENS_FILE)
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(tokens_file: Path):
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"auth": {"tokens_file": str(tokens_file)}}) as server:
        yield server


def failures(server: LocalServer, reason: str) -> float:
    return server.metrics()[f'kvbridge_auth_failures_total{{reason="{reason}"}}']


def test_no_method_answers_a_caller_without_a_token(guarded):
    with grpc.insecure_channel(guarded.address) as channel:
        reflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        names = [name for name, _ in methods()] + [reflect, "/kvbridge.v1.Later/Method"]
        for name in names:
            assert code(channel, name) == UNKNOWN, name
            assert code(channel, name, "x" * 32) == UNKNOWN, name
    assert failures(guarded, "missing") == failures(guarded, "bad_token") == len(names)


def test_a_token_opens_its_groups_and_no_others(guarded):
    granted = {"router": {"transfer", "plan"}, "planner": {"plan"}, "operator": {"admin"}}
    with grpc.insecure_channel(guarded.address) as channel:
        for name, group in methods():
            if name.endswith(("/Drain", "/WatchEvents", "/OpenSession")):
                continue
            for holder, groups in granted.items():
                got = code(channel, name, TOKENS[holder])
                assert (got in (UNKNOWN, FORBIDDEN)) == (group not in groups), (name, holder, got)


def test_health_needs_no_token(guarded):
    with grpc.insecure_channel(guarded.address) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5) == b"\x08\x01"


def test_tokens_are_replaced_while_it_serves(guarded, tokens_file):
    health_method = "/kvbridge.v1.KvBridge/Health"
    with grpc.insecure_channel(guarded.address) as channel:
        tokens_file.write_text(TOKENS_FILE + f"{TOKENS['next']} router plan\n")
        os.kill(guarded.pid, signal.SIGHUP)
        until(lambda: code(channel, health_method, TOKENS["next"]) != UNKNOWN)
        assert code(channel, health_method, TOKENS["router"]) != UNKNOWN
        tokens_file.write_text(f"{TOKENS['next']} router plan\n")
        until(lambda: code(channel, health_method, TOKENS["router"]) == UNKNOWN)
        tokens_file.write_text("broken\n")
        until(lambda: "the tokens in use are kept" in guarded.log.read_text())
        assert code(channel, health_method, TOKENS["next"]) != UNKNOWN


def test_secrets_are_in_no_log_page_or_metric(guarded):
    with grpc.insecure_channel(guarded.address) as channel:
        for token in (*TOKENS.values(), "wrong-token-0123456789"):
            code(channel, "/kvbridge.v1.KvBridge/Plan", token)
    seen = guarded.log.read_text() + guarded.get("/configz") + guarded.get("/metrics")
    assert "-token-" not in seen and "operators" not in seen


# Of a cache: four BF16 elements below 1, and how gRPC's traces would show them.
MARK = b"P?A>Y?L>"
TRACED = "50 3f 41 3e 59 3f 4c 3e"


def test_nothing_of_a_call_is_in_the_log_whatever_grpc_is_told_to_trace(tokens_file, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    monkeypatch.setenv("GRPC_TRACE", "all")
    settings = {"auth": {"tokens_file": str(tokens_file)}, "log": {"format": "json", "level": "debug"}}
    cells = np.tile(np.frombuffer(MARK, np.uint16), 4 * 2 * 24 * 64 * 2 // len(MARK)).reshape(4, 2, 24, 64)
    spec = family_spec("small", "bf16")
    write_cache(tmp_path / "in", CacheFile(spec, cells, cells, np.arange(24), token_ids=np.full(24, 31337)))
    mine = tmp_path / "mine"
    mine.write_text(TOKENS["router"])
    with LocalServer(binary("KVBRIDGED"), [ROUTE], settings) as server:
        command = [binary("KVBRIDGE_CLI"), "transfer", "--server", server.address, "--token-file", mine]
        command += ["--route", "pair", "--plane", "inline", "--in", tmp_path / "in", "--out", tmp_path / "out"]
        client = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
        assert "applied" in client.stdout, client.stdout + client.stderr[-2000:]
        assert server.stop() == 0
        log = server.log.read_text(errors="replace")
    # What the same environment has gRPC tell where nobody keeps it from doing so.
    assert TOKENS["router"] in client.stderr and TRACED in client.stderr
    for secret in (TOKENS["router"], MARK.decode(), TRACED, "31337", "operators"):
        assert secret not in log, secret
    for line in log.splitlines():
        json.loads(line)


def test_names_in_certificates_open_their_groups(pki):
    grants = [
        {"name": "spiffe://test/router", "tenant": "router", "groups": ["transfer", "plan"]},
        {"name": "spiffe://test/operator", "groups": ["admin"]},
    ]
    expected = {
        "spiffe://test/router": (grpc.StatusCode.OK, FORBIDDEN),
        "spiffe://test/operator": (FORBIDDEN, grpc.StatusCode.OK),
        "spiffe://test/stranger": (UNKNOWN, UNKNOWN),
    }
    with SecureServer(pki.mutual(), [ROUTE], auth={"san": grants}) as server:
        for name, codes in expected.items():
            with server.channel(pki.servers.certificate, pki.clients.issue(f"URI:{name}")) as channel:
                got = tuple(
                    code(channel, method)
                    for method in ("/kvbridge.v1.KvBridge/Health", "/kvbridge.v1.Admin/ListArtifacts")
                )
                assert got == codes, name
        assert failures(server, "unknown_name") == 2 and failures(server, "no_grant") == 2


def test_check_config_reads_the_tokens(tmp_path):
    tokens, config = tmp_path / "tokens", tmp_path / "config.json"
    tokens.write_text("secret-0123456789abcdef router everything\n")
    config.write_text(json.dumps({"auth": {"tokens_file": str(tokens)}}))
    command = [binary("KVBRIDGED"), "--config", config, "--check-config"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 2
    assert f"auth.tokens_file: {tokens}: line 1: expected groups among" in checked.stderr
    assert "secret" not in checked.stderr


# --- tenants


def test_the_grant_tells_the_tenant_and_another_is_refused(guarded):
    with grpc.insecure_channel(guarded.address) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)

        def header(tenant: str) -> tuple[grpc.StatusCode, str]:
            request = transfer_pb2.TransferRequest(header=transfer_pb2.TransferHeader(route="pair", tenant=tenant))
            metadata = [("authorization", f"Bearer {TOKENS['router']}")]
            call = stub.Transfer(iter([request]), metadata=metadata, timeout=10)
            try:
                list(call)
            except grpc.RpcError:
                pass
            return call.code(), call.details()

        assert header("")[0] == header("router")[0] == grpc.StatusCode.OK
        assert header("planner") == (FORBIDDEN, "header.tenant: expected the caller's own tenant or none, got another")
    assert failures(guarded, "wrong_tenant") == 1


# Other bytes would abort the process that sends them, and gRPC would log them first.
@pytest.mark.parametrize("token", [b"one\ntwo", b"to\x01k", "té".encode(), b" \n"])
def test_a_token_that_no_call_can_carry_goes_to_no_peer(tmp_path, token):
    (tmp_path / "token").write_bytes(token)
    peers = [{"name": "b", "address": "127.0.0.1:9", "token_file": str(tmp_path / "token")}]
    with LocalServer(binary("KVBRIDGED"), [], {"peers": peers}) as server, connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        reason, detail = answer(stub, [header(change=field("peer", "b"))])
        assert reason == "transport"
        assert detail == "peer b: token_file: expected one line of printable ASCII"
