"""POSIX shared memory that the real kvbridged opens by its name: an engine's segment gives what chunks give, and one
that is cut short while it serves costs a transfer, never a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import grpc
import numpy as np
import pytest
from conftest import ROUTE, binary
from kvbridge import Client, MemoryUnavailable, SourceProgress
from kvbridge.region import RegionArena
from kvbridge.testing import LocalServer
from kvbridge.v1 import memory_pb2, memory_pb2_grpc
from test_region import PAGE, SPECS, TOKENS, make_pool, random_cache, send, start, until, used

PREFIX = f"kvbridge-test-{os.getpid()}-"
NAMED = [{"prefix": PREFIX}, {"tenant": "ben", "prefix": f"ben-{PREFIX}"}]


@pytest.fixture(scope="module")
def server():
    with start(named_shm=NAMED) as running:
        yield running


@pytest.fixture
def segment():
    """What an engine made. Views of it are dropped before it is closed."""
    made = SharedMemory(f"{PREFIX}engine", create=True, size=64 << 20)
    yield made
    made.close()
    made.unlink()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_engines_segment_gets_the_bytes_that_chunks_get(server, segment, kind):
    with Client(server.address, plane="inline") as client:
        expected = send(client)
    with Client(server.address, plane="region") as client:
        memory = client.memory()
        arena = RegionArena(memory.named(segment.name))
        pools = [make_pool(memory, arena, side, "vllm-2-blocks-nhd", kind) for side in SPECS]
        pages = range(TOKENS // PAGE)
        source, target = (pool.select(pages, TOKENS) for pool, _ in pools)
        source.scatter(*random_cache(TOKENS))
        result = client.transfer(source_pages=source, target_pages=target, route="pair", **SPECS)
        assert (result.outcome, result.plane, result.keys) == ("applied", "region", None), result
        for got, wanted in zip(target.gather(), (expected.keys, expected.values)):
            np.testing.assert_array_equal(np.stack(got)[:, :, : TOKENS - 1], wanted)
        begin = pools[1][1][0].ctypes.data if kind == "numpy" else pools[1][1][0].data_ptr()
        offset = begin - arena.region.address
        row = np.frombuffer(segment.buf, np.float32, 64, offset).copy()
        np.testing.assert_array_equal(row, expected.keys[0, 0, 0], "in the engine's own mapping")
    assert Path("/dev/shm", segment.name).exists(), "it is the engine's to unlink"


def held(pid: int) -> tuple[int, int]:
    """Maps and descriptors of named segments that a server has."""
    fds = Path(f"/proc/{pid}/fd")
    names = [os.readlink(fd) for fd in fds.iterdir() if os.path.lexists(fd)]
    return Path(f"/proc/{pid}/maps").read_text().count(PREFIX), sum(PREFIX in name for name in names)


def test_a_segment_that_is_cut_short_while_it_serves_costs_its_transfer_and_nothing_else(server, segment):
    before = used(server)
    with Client(server.address, plane="region") as client:
        memory = client.memory()
        region = memory.named(segment.name)
        pool, _ = make_pool(memory, RegionArena(region), "source", "vllm-2-blocks-nhd", "numpy")
        source = pool.select(range(TOKENS // PAGE), TOKENS)
        source.scatter(*random_cache(TOKENS))
        assert client.transfer(source_pages=source, route="pair", **SPECS).applied
        progress = SourceProgress()
        progress.ready(TOKENS // 2)

        def cut():
            until(lambda: server.metrics()["kvbridge_inflight_transfers"] > 0, "the transfer")
            os.truncate(f"/dev/shm/{segment.name}", 0)
            progress.ready(TOKENS)

        owner = threading.Thread(target=cut)
        owner.start()
        result = client.transfer(source_pages=source, ready=progress, route="pair", **SPECS)
        owner.join()
        assert (result.outcome, result.reason) == ("fallback_reprefill", "transport"), result
        assert result.detail == "source_selection.pool: its owner cut the shared memory short"
        again = client.transfer(source_pages=source, route="pair", **SPECS)
        assert (again.outcome, again.reason) == ("fallback_reprefill", "transport"), again
        assert send(client).applied, "others are served"
        assert held(server.pid)[1] == 1
        memory.release(region)
        assert held(server.pid) == (0, 0)
    until(lambda: used(server) == before, "what the server held")


def test_another_tenants_name_is_refused_and_chunks_go(server):
    theirs = SharedMemory(f"ben-{PREFIX}cache", create=True, size=16 << 20)
    try:
        with Client(server.address) as client:
            memory = client.memory()
            arena = RegionArena(memory.named(theirs.name))
            pool, _ = make_pool(memory, arena, "source", "vllm-2-blocks-nhd", "numpy")
            source = pool.select(range(TOKENS // PAGE), TOKENS)
            source.scatter(*random_cache(TOKENS))
            with pytest.raises(MemoryUnavailable, match="refused: PERMISSION_DENIED: shm_name: no segment"):
                memory.locate(source)
            result = client.transfer(source_pages=source, route="pair", **SPECS)
            assert (result.outcome, result.plane, result.plane_reason) == ("applied", "inline", "refused"), result
            assert memory.still_there(), "the session is none the worse"
    finally:
        theirs.close()
        theirs.unlink()


def test_without_the_setting_no_name_is_taken(segment):
    with start() as server, Client(server.address) as client:
        memory = client.memory()
        pool, _ = make_pool(memory, RegionArena(memory.named(segment.name)), "source", "vllm-2-blocks-nhd", "numpy")
        with pytest.raises(MemoryUnavailable, match="not_offered: UNIMPLEMENTED: shm_name: this server takes no"):
            memory.locate(pool.select([0], 1))


def test_a_name_of_nothing_is_said_here(server):
    with Client(server.address) as client, pytest.raises(ValueError, match=f"{PREFIX}none: .*No such file"):
        client.memory().named(f"/{PREFIX}none")


def test_doctor_says_whether_it_is_on(server):
    command = [binary("KVBRIDGE_CLI"), "doctor", "--server"]
    told = subprocess.run([*command, server.address], capture_output=True, text=True).stdout
    assert "named_shm" in told and "on for the names in memory.named_shm" in told
    with start() as without:
        told = subprocess.run([*command, without.address], capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in told.splitlines() if " named_shm " in line] == ["off"]


def test_a_sparse_segment_on_a_full_dev_shm_is_refused(tmp_path):
    script = tmp_path / "kvbridged"
    script.write_text(
        "#!/bin/sh\nexec unshare --mount sh -c '"
        'mount -t tmpfs -o size=64k none /dev/shm && exec "$0" "$@"\' "{}" "$@"\n'.format(binary("KVBRIDGED"))
    )
    script.chmod(0o755)
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /dev/shm of the server's own needs root and unshare")
    with LocalServer(script, [ROUTE], memory={"named_shm": NAMED}) as server, Client(server.address) as client:
        path = Path("/proc", str(server.pid), "root/dev/shm", f"{PREFIX}sparse")
        path.touch(0o600)
        os.truncate(path, 1 << 20)
        request = memory_pb2.RegisterRegionRequest(
            session_id=client.memory().lease().session_id, bytes=1 << 20, writable=True, shm_name=path.name
        )
        before = used(server)
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
            memory_pb2_grpc.MemoryStub(channel).RegisterRegion(request, timeout=10)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
        assert (used(server), held(server.pid)) == (before, (0, 0))
        assert send(client).applied
