"""Shared memory with the real kvbridged: no copy, any layout, and nothing left behind whatever dies."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from conftest import ROOT, ROUTE, binary, family_spec, random_cache
from kvbridge import (
    HEADS_FIRST,
    ONE_PAGE,
    TOKENS_FIRST,
    Client,
    MappedPrefix,
    MemoryUnavailable,
    SourceProgress,
)
from kvbridge.testing import LocalServer
from kvbridge.v1 import memory_pb2, memory_pb2_grpc, types_pb2

SPECS = {"source": family_spec("small"), "target": family_spec("large")}
LAYERS = {"source": 4, "target": 8}
HEADS, DIM = 2, 64
TOKENS = 100


def start(**memory):
    return LocalServer(binary("KVBRIDGED"), [ROUTE], memory=memory)


@pytest.fixture(scope="module")
def server():
    with start() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.address, plane="region") as connected:
        yield connected


@pytest.fixture(scope="module")
def inline(server):
    """What chunks get."""
    with Client(server.address, plane="inline") as connected:
        result = send(connected)
    assert (result.outcome, result.plane) == ("applied", "inline"), result
    return result.keys, result.values


def send(client, tokens=TOKENS, **options):
    keys, values = options.pop("cache", None) or random_cache(tokens)
    return client.transfer(keys=keys, values=values, route="pair", **{**SPECS, **options})


def used(server) -> dict[str, float]:
    """What the server holds of regions."""
    return {k: v for k, v in server.metrics().items() if k.startswith("kvbridge_memory_") and "used" in k}


def until(condition, what: str):
    """Polls the server. Only what never comes takes the whole minute."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"never came: {what}")
        os.sched_yield()


# Name: shape of one layer's tensor by (pages, page), its K and V, their axes.
LAYOUTS = {
    "vllm-2-blocks-nhd": (lambda b, n: (2, b, n, HEADS, DIM), lambda c: (c[0], c[1]), TOKENS_FIRST),
    "vllm-2-blocks-hnd": (lambda b, n: (2, b, HEADS, n, DIM), lambda c: (c[0], c[1]), HEADS_FIRST),
    "vllm-blocks-2": (lambda b, n: (b, 2, n, HEADS, DIM), lambda c: (c[:, 0], c[:, 1]), TOKENS_FIRST),
    "vllm-packed": (
        lambda b, n: (b, HEADS, n, 2 * DIM),
        lambda c: (c[..., :DIM], c[..., DIM:]),
        HEADS_FIRST,
    ),
    "sglang": (
        lambda b, n: (2, b * n, HEADS, DIM),
        lambda c: tuple(c[i].reshape(-1, PAGE, HEADS, DIM) for i in range(2)),
        TOKENS_FIRST,
    ),
}
PAGE = 2  # as many tokens per page as heads: only the axes tell them apart


def make_pool(memory, arena, side, layout, kind, pages=64):
    shape, parts, axes = LAYOUTS[layout]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        layers = [arena.empty_tensor(shape(pages, PAGE), torch.float32) for _ in range(LAYERS[side])]
    else:
        layers = [arena.empty(shape(pages, PAGE), np.float32) for _ in range(LAYERS[side])]
    pairs = [parts(layer) for layer in layers]
    pool = memory.pool(SPECS[side], [k for k, _ in pairs], [v for _, v in pairs], axes=axes)
    return pool, layers


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gets_the_bytes_that_chunks_get(client, inline, layout, kind):
    memory = client.memory()
    arena = memory.arena(32 << 20)
    (source_pool, layers), (target_pool, _) = (
        make_pool(memory, arena, side, layout, kind) for side in SPECS
    )
    region = arena.region
    for layer in layers:
        address = layer.data_ptr() if kind == "torch" else layer.ctypes.data
        assert region.holds(address), "the engine's tensor is the pool"
    order = np.random.default_rng(7).permutation(64)[: TOKENS // PAGE]
    source, target = source_pool.select(order, TOKENS), target_pool.select(order[::-1], TOKENS)
    source.scatter(*random_cache(TOKENS))
    result = client.transfer(source_pages=source, target_pages=target, route="pair", **SPECS)
    assert (result.outcome, result.plane, result.keys) == ("applied", "region", None), result
    for got, expected in zip(target.gather(), inline):
        np.testing.assert_array_equal(np.stack(got)[:, :, : TOKENS - 1], expected)


def test_a_whole_row_is_one_page(client, inline):
    memory = client.memory()
    arena = memory.arena(8 << 20)
    pools = {}
    for side, spec in SPECS.items():
        layers = [arena.empty((HEADS, TOKENS, DIM), np.float32) for _ in range(2 * LAYERS[side])]
        pools[side] = memory.pool(spec, layers[::2], layers[1::2], axes=ONE_PAGE)
    source, target = (pools[side].select([0], TOKENS) for side in SPECS)
    source.scatter(*random_cache(TOKENS))
    result = client.transfer(source_pages=source, target_pages=target, route="pair", **SPECS)
    assert result.applied, result
    np.testing.assert_array_equal(np.stack(target.gather()[1])[:, :, : TOKENS - 1], inline[1])


def test_arrays_get_the_bytes_that_chunks_get_and_views_outlive_the_client(server, inline):
    with Client(server.address) as client:
        result = send(client)
    assert (result.outcome, result.plane) == ("applied", "region"), result
    for got, expected in zip((result.keys, result.values), inline):
        np.testing.assert_array_equal(got, expected)


def test_pages_and_arrays_may_be_mixed(client, inline):
    memory = client.memory()
    pool, _ = make_pool(memory, memory.arena(32 << 20), "target", "vllm-2-blocks-nhd", "numpy")
    target = pool.select(range(TOKENS // PAGE), TOKENS)
    result = send(client, target_pages=target)
    assert (result.outcome, result.plane) == ("applied", "region"), result
    np.testing.assert_array_equal(np.stack(target.gather()[0])[:, :, : TOKENS - 1], inline[0])


@pytest.mark.parametrize("plane", ["region", "inline"])
def test_the_answer_may_go_to_pages_of_another_client(server, inline, plane):
    with Client(server.address, plane=plane) as mover, Client(server.address) as engine:
        memory = engine.memory()
        pool, _ = make_pool(memory, memory.arena(32 << 20), "target", "vllm-blocks-2", "numpy")
        target = pool.select(np.random.default_rng(3).permutation(64)[: TOKENS // PAGE], TOKENS)
        result = send(mover, target_pages=memory.locate(target))
        assert (result.outcome, result.plane, result.keys) == ("applied", plane, None), result
        for got, expected in zip(target.gather(), inline):
            np.testing.assert_array_equal(np.stack(got)[:, :, : TOKENS - 1], expected)


def test_layers_come_in_order_while_prefill_goes_on(client, inline):
    memory = client.memory()
    arena = memory.arena(64 << 20)
    (source_pool, _), (target_pool, _) = (
        make_pool(memory, arena, side, "vllm-blocks-2", "numpy") for side in SPECS
    )
    source, target = (p.select(range(TOKENS // PAGE), TOKENS) for p in (source_pool, target_pool))
    keys, values = random_cache(TOKENS)
    progress, layers, released = SourceProgress(), [], threading.Event()

    def prefill():
        for begin in range(0, TOKENS, 20):
            source.scatter(keys[:, :, begin : begin + 20], values[:, :, begin : begin + 20], begin)
            progress.ready(begin + 20)

    engine = threading.Thread(target=prefill)
    engine.start()
    result = client.transfer(
        source_pages=source,
        target_pages=target,
        route="pair",
        ready=progress,
        on_layers=lambda begin, end: layers.extend(range(begin, end)),
        on_source_released=released.set,
        **SPECS,
    )
    engine.join()
    assert result.applied and layers == list(range(8)) and released.is_set()
    np.testing.assert_array_equal(np.stack(target.gather()[0])[:, :, : TOKENS - 1], inline[0])


@pytest.mark.parametrize("plane", ["region", "inline"])
def test_the_next_turn_maps_its_new_tokens_only(server, inline, plane):
    ids = np.arange(TOKENS)
    with Client(server.address, plane=plane) as client:
        first = send(client, cache=tuple(p[:, :, :60] for p in random_cache(TOKENS)), token_ids=ids[:60])
        prefix = MappedPrefix.of(first, ids)
        diverged = np.concatenate([ids[:50], ids[50:] + 1])
        turn = send(client, token_ids=diverged, prefix=prefix)
    assert (turn.first_token, turn.covered_tokens) == (50, TOKENS - 1), turn
    assert turn.salt == first.salt and turn.hops == first.hops == 1
    for got, expected in zip((turn.keys, turn.values), inline):
        np.testing.assert_array_equal(got, expected[:, :, 50:])


def test_what_another_artifact_mapped_is_mapped_again(client, inline):
    ids = np.arange(TOKENS)
    old = MappedPrefix(ids[:60], "0" * 64, "salt", 1)
    turn = send(client, token_ids=ids, prefix=old)
    assert (turn.first_token, turn.covered_tokens) == (0, TOKENS - 1), turn
    np.testing.assert_array_equal(turn.keys, inline[0])


def test_a_cache_that_was_mapped_before_is_refused_on_this_plane_too(client):
    result = send(client, hops=1)
    assert (result.outcome, result.reason, result.plane) == ("fallback_reprefill", "app_gate", "region")


def test_a_stale_generation_is_refused(client):
    memory = client.memory()
    pool, _ = make_pool(memory, memory.arena(32 << 20), "target", "vllm-2-blocks-nhd", "numpy")
    target = pool.select(range(TOKENS // PAGE), TOKENS)
    known = memory.locate(target)
    memory.lease().pools[pool] = known.pool_id, known.generation + 1
    result = send(client, target_pages=target)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "invalid_request"), result
    assert "generation" in result.detail


def test_another_tenants_id_answers_like_one_that_never_was(server):
    """Pools over Transfer, regions and pools over the Memory service. Times are shown (-s), not judged."""
    with Client(server.address, plane="inline") as ben, Client(server.address) as ana:
        pool, _ = make_pool(ana.memory("ana"), ana.memory("ana").arena(32 << 20), "target", "vllm-blocks-2", "numpy")
        hers = ana.memory("ana").locate(pool.select(range(5), 10))
        region = ana.memory("ana").lease().region_ids[pool.regions[0]]
        stale = types_pb2.PoolLocation(pool_id=hers.pool_id, generation=hers.generation + 1, pages=hers.pages)
        unknown = types_pb2.PoolLocation(pool_id="0" * 32, generation=hers.generation, pages=hers.pages)
        own = ben.memory("ben").lease()

        def transfer(place):
            result = send(ben, 10, tenant="ben", target_pages=place)
            return result.outcome, result.reason, result.detail

        def unregister(session, of):
            request = memory_pb2.UnregisterRequest(session_id=session, id=of)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Unregister(request, timeout=10)
            return refused.value.code(), refused.value.details()

        with grpc.insecure_channel(server.address) as channel:
            stub = memory_pb2_grpc.MemoryStub(channel)
            for what, theirs, none in [
                ("pool", lambda: transfer(hers), lambda: transfer(unknown)),
                ("stale pool", lambda: transfer(stale), lambda: transfer(unknown)),
                ("region", lambda: unregister(own.session_id, region), lambda: unregister(own.session_id, "0" * 32)),
            ]:
                answers, seconds = [set(), set()], [[], []]
                for _ in range(100):
                    for side, ask in enumerate((theirs, none)):
                        started = time.perf_counter()
                        answers[side].add(ask())
                        seconds[side].append(time.perf_counter() - started)
                assert answers[0] == answers[1] and len(answers[0]) == 1, answers
                known, never = (float(np.median(part)) for part in seconds)
                print(f"{what}: {known * 1e6:.0f} us, unknown {never * 1e6:.0f} us, ratio {known / never:.3f}")
        assert ana.memory("ana").locate(pool.select(range(5), 10)) == hers, "nothing of hers was touched"


def test_an_evicted_page_is_named(client):
    memory = client.memory()
    pool, _ = make_pool(memory, memory.arena(32 << 20), "source", "vllm-2-blocks-nhd", "numpy")
    source = pool.select([0, -1, 2], 6)
    result = client.transfer(source_pages=source, route="pair", **SPECS)
    assert result.reason == "shape_mismatch" and "evicted" in result.detail, result


def test_a_pool_that_may_be_written_is_writable(client):
    memory = client.memory()
    region = memory.share(32 << 20, writable=False)
    layers = [region.array((64, PAGE, HEADS, DIM), np.float32, n << 16) for n in range(16)]
    pool = memory.pool(SPECS["target"], layers[::2], layers[1::2])
    result = send(client, target_pages=pool.select(range(TOKENS // PAGE), TOKENS))
    assert (result.outcome, result.reason) == ("fallback_reprefill", "invalid_request"), result


# A client of its own process: fills a big source, says so, and starts transfers without end.
VICTIM = """
import sys
sys.path[:0] = {paths!r}
import test_region as t
client = t.Client({address!r}, plane="region")
cache = t.random_cache(3000)
assert t.send(client, cache=cache).applied
print("ready", flush=True)
while True:
    t.send(client, cache=cache)
"""


def victim(server) -> subprocess.Popen:
    paths = [str(Path(__file__).parent), str(ROOT / "client/python/src")]
    script = VICTIM.format(paths=paths, address=server.address)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_client_that_is_killed_leaves_nothing_and_the_next_one_is_served():
    with start() as server:
        before = used(server)
        process = victim(server)
        until(lambda: server.metrics()["kvbridge_inflight_transfers"] > 0, "a transfer")
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        until(lambda: server.metrics()["kvbridge_inflight_transfers"] == 0, "the end of its transfer")
        until(lambda: used(server) == before, "its memory")
        with Client(server.address, plane="region") as client:
            assert send(client).applied


def test_a_client_that_hangs_loses_its_lease_and_gets_another():
    with start(lease="1s") as server, Client(server.address) as client:
        before = used(server)
        process = victim(server)
        process.send_signal(signal.SIGSTOP)
        until(lambda: used(server) == before, "the end of the lease")
        assert send(client).plane == "region"
        process.send_signal(signal.SIGCONT)
        until(lambda: used(server) != before, "another session")
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_restarted_server_finds_the_engines_cache_as_it_was():
    with start() as server, Client(server.address) as client:
        memory = client.memory()
        arena = memory.arena(32 << 20)
        pools = [make_pool(memory, arena, side, "vllm-2-blocks-nhd", "numpy")[0] for side in SPECS]
        source, target = (pool.select(range(TOKENS // PAGE), TOKENS) for pool in pools)
        source.scatter(*random_cache(TOKENS))
        move = {"source_pages": source, "target_pages": target, "route": "pair", **SPECS}
        assert client.transfer(**move).plane == "region"
        expected = np.stack(target.gather()[0])
        server.stop()
        down = client.transfer(**move)
        assert (down.outcome, down.reason) == ("fallback_reprefill", "unreachable"), down
        target.scatter(*(np.zeros((8, HEADS, TOKENS, DIM), np.float32),) * 2)
        server.__enter__()
        until(lambda: client.transfer(**move).plane == "region", "shared memory again")
        np.testing.assert_array_equal(np.stack(target.gather()[0]), expected)


def test_a_small_quota_sends_chunks():
    with start(max_bytes=1 << 20) as server, Client(server.address) as client:
        result = send(client)
        assert (result.outcome, result.plane, result.plane_reason) == ("applied", "inline", "no_room")


@contextlib.contextmanager
def limit(pid: int, kind: int, size: int):
    """As long as it lasts a process may have so much and no more."""
    before = resource.prlimit(pid, kind, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def regions_of(pid: int) -> tuple[int, int]:
    """Maps and descriptors of regions that a server has."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # connections come and go
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    maps = Path(f"/proc/{pid}/maps").read_text()
    return maps.count("memfd:kvbridge"), sum("memfd:kvbridge" in name for name in names)


def address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("what", ["file size", "address space"])
def test_a_server_that_gets_no_more_memory_refuses_and_serves_on(what):
    with start() as server, Client(server.address) as client:
        memory = client.memory()
        memory.lease()
        before = used(server), regions_of(server.pid)
        kind, most = (
            (resource.RLIMIT_FSIZE, 4 << 20)
            if what == "file size"
            else (resource.RLIMIT_AS, address_space(server.pid) + (256 << 20))  # threads start all the time
        )
        with limit(server.pid, kind, most):
            with pytest.raises(MemoryUnavailable, match="no_room: RESOURCE_EXHAUSTED: bytes: the host"):
                memory.allocate(1 << 30)
            assert (used(server), regions_of(server.pid)) == before, "nothing stays of it"
            assert send(client).applied
            memory.release(memory.allocate(1 << 20))


def test_a_client_that_gets_no_more_memory_sends_chunks(server):
    with Client(server.address) as client, limit(os.getpid(), resource.RLIMIT_FSIZE, 64 << 10):
        with pytest.raises(MemoryUnavailable, match="no_room: memfd of 1048576 bytes"):
            client.memory().share(1 << 20)
        result = send(client)
        assert (result.outcome, result.plane, result.plane_reason) == ("applied", "inline", "no_room"), result


def test_regions_need_nothing_of_dev_shm(tmp_path):
    script = tmp_path / "kvbridged"
    script.write_text(
        "#!/bin/sh\nexec unshare --mount sh -c '"
        "mount -t tmpfs -o size=64k none /dev/shm && head -c 65536 /dev/zero > /dev/shm/full && "
        'exec "$0" "$@"\' "{}" "$@"\n'.format(binary("KVBRIDGED"))
    )
    script.chmod(0o755)
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /dev/shm of the server's own needs root and unshare")
    with LocalServer(script, [ROUTE]) as server, Client(server.address, plane="region") as client:
        full = os.statvfs(Path("/proc", str(server.pid), "root", "dev", "shm"))
        assert full.f_bavail == 0 and full.f_blocks * full.f_bsize == 64 << 10
        memory = client.memory()
        memory.release(memory.allocate(8 << 20))
        assert send(client).applied


def held() -> tuple[int, int, int]:
    """Descriptors, maps of shared memory, threads."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:kvbridge"), threading.active_count()


def test_nothing_is_left_after_many_sessions(server):
    def once():
        with Client(server.address) as client:
            memory = client.memory()
            memory.arena(1 << 16).empty((4,), np.uint8)
            memory.release(memory.allocate(1 << 16))

    before_server = used(server)
    for _ in range(3):
        once()
    before = held()
    for _ in range(200):
        once()
    until(lambda: held() == before, f"{before}, still {held()}")
    until(lambda: used(server) == before_server, "what the server held")


def test_the_readme_example_runs_as_it_stands(server, capsys):
    torch = pytest.importorskip("torch")
    text = (ROOT / "client/python/README.md").read_text()
    block = text.split("## Shared memory")[1].split("```python\n")[1].split("```")[0]

    def fill(caches, pages, tokens):
        for cache in caches:
            cache[:, pages] = torch.randn(2, len(pages), 16, 2, 64)

    with Client(server.address) as client:
        block = block.replace('"small-to-large"', '"pair"')
        exec(block, {"client": client, "torch": torch, "fill": fill, **SPECS})
    printed = capsys.readouterr().out
    assert "applied: 39 tokens" in printed and "(region)" in printed
    assert "layers 7" in printed or "to 7 are there" in printed
