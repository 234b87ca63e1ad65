"""A cache that goes from one host to another where the target's is the smaller one: it is mapped beside the source,
and the target's bytes travel."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ARTIFACT, ROUTE, binary, family_spec
from kvbridge import CacheFile, Client, SourceProgress, TransferResult, read_cache, write_cache
from kvbridge.arrays import float32_to_bf16
from two_hosts import TOKENS, Kvbridged, holds, netns, pages_of, same

SPECS = {"source": family_spec("large"), "target": family_spec("small")}
TOKEN_BYTES = {"source": 2 * 8 * 2 * 64 * 4, "target": 2 * 4 * 2 * 64 * 4}


@pytest.fixture(scope="module", autouse=True)
def _two_hosts_can_be_played() -> None:
    reason = netns.why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def route(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """From large to small, with random weights: the family's artifact turned round."""
    folder = tmp_path_factory.mktemp("reversed")
    rng = np.random.default_rng(5)
    tensors = {}
    for layer in range(4):
        for part in ("key", "value"):
            tensors[f"{part}_weight.{layer}"] = 0.05 * rng.standard_normal((2, 512, 64), dtype=np.float32)
            tensors[f"{part}_bias.{layer}"] = rng.standard_normal((2, 64), dtype=np.float32)
    index, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        bits = float32_to_bf16(tensor).tobytes()
        index[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    head = json.dumps(index).encode()
    head += b" " * (-len(head) % 8)
    weights = struct.pack("<Q", len(head)) + head + data
    (folder / "mapper.safetensors").write_bytes(weights)
    given = json.loads((ARTIFACT / "manifest.json").read_text())
    kept = ("format", "schema_version", "paper", "created_at", "storage_dtype", "fit_config")
    manifest = {key: given[key] for key in kept}
    for side, other in (("source", "target"), ("target", "source")):
        for what in ("signature", "fingerprint"):
            manifest[f"{side}_{what}"] = given[f"{other}_{what}"]
    manifest["selected_layers"] = [[0, 1, 2, 3], [2, 1, 3, 4], [4, 3, 5, 6], [7, 6, 5, 4]]
    manifest["tensor_bytes"] = len(data)
    manifest["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    configs = {"source_config": ROUTE["target_config"], "target_config": ROUTE["source_config"]}
    return {"name": "pair", "artifact": str(folder), "allow_unproven": True, **configs}


def peer_of(hosts: netns.TwoHosts, folder: Path, *, ucx: bool = True) -> Kvbridged:
    """It has neither the route nor the artifact: who only writes needs none."""
    listen = {"listen": f"{hosts.right_address}:0"} if ucx else {}
    return Kvbridged(hosts, hosts.right, folder, ucx=listen, memory={"socket": f"{folder}/right.memory"})


def edge_of(hosts: netns.TwoHosts, folder: Path, route: dict[str, object], *, memory: bool = True) -> Kvbridged:
    peers = [{"name": "b", "address": f"{hosts.right_address}:{Kvbridged.port}"}]
    socket = {"socket": f"{folder}/left.memory"} if memory else {}
    return Kvbridged(hosts, hosts.left, folder, routes=[route], peers=peers, memory=socket)


def random_large(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    parts = np.random.default_rng(seed).standard_normal((2, 8, 2, TOKENS, 64), dtype=np.float32)
    return parts[0], parts[1]


def send(client: Client, **options: object) -> TransferResult:
    if "source_pages" not in options:
        options["keys"], options["values"] = random_large()
    return client.transfer(route="pair", **{**SPECS, **options})  # type: ignore[arg-type]


def mapped_locally(edge: Kvbridged) -> tuple[np.ndarray, np.ndarray]:
    with Client(edge.socket, plane="inline") as client:
        result = send(client)
    assert result.applied and not result.map_side, result
    return result.keys, result.values


def payload(server: Kvbridged, direction: str, transport: str) -> float:
    return server.metric(rf'kvbridge_payload_bytes_total\{{direction="{direction}",transport="{transport}')


@pytest.mark.parametrize("ucx", [True, False], ids=["ucx", "chunks"])
@pytest.mark.parametrize("memory", [True, False], ids=["pages", "arrays"])
def test_the_smaller_cache_travels(folder: Path, route: dict[str, object], ucx: bool, memory: bool) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder, ucx=ucx) as peer:
        with edge_of(hosts, folder, route, memory=memory) as edge:
            direct = mapped_locally(edge)
            inline_before = payload(edge, "out", "inline")
            with Client(edge.socket) as mover, Client(peer.socket) as engine:
                target = pages_of(engine, SPECS["target"], 2)
                layers: list[int] = []
                result = send(
                    mover,
                    peer="b",
                    target_pages=engine.memory().locate(target),
                    on_layers=lambda begin, end: layers.extend(range(begin, end)),
                )
                assert (result.outcome, result.map_side) == ("applied", "source"), result
                assert result.peer_plane == ("ucx" if ucx else "inline")
                assert result.covered_tokens == TOKENS - 1 and result.hops == 1 and result.salt
                assert layers == list(range(4))
                assert holds(target, direct)
            travelled = (TOKENS - 1) * TOKEN_BYTES["target"]
            way = "ucx" if ucx else "inline"
            assert payload(edge, "out", way) - (0 if ucx else inline_before) == travelled
            assert payload(peer, "in", way) == travelled
            assert payload(peer, "out", "shm") == travelled
            assert peer.metric("kvbridge_inflight_transfers") == 0


def test_prefill_that_goes_on_is_mapped_and_sent_as_it_goes(folder: Path, route: dict[str, object]) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder, route) as edge:
        direct = mapped_locally(edge)
        with Client(edge.socket) as mover, Client(peer.socket) as engine:
            source, target = pages_of(mover, SPECS["source"], 1), pages_of(engine, SPECS["target"], 2)
            keys, values = random_large()
            progress = SourceProgress()

            def prefill() -> None:
                for begin in range(0, TOKENS, 50):
                    end = min(begin + 50, TOKENS)
                    source.scatter(keys[:, :, begin:end], values[:, :, begin:end], begin)
                    progress.ready(end)

            engine_of_source = threading.Thread(target=prefill)
            engine_of_source.start()
            place = engine.memory().locate(target)
            result = send(mover, peer="b", source_pages=source, target_pages=place, ready=progress)
            engine_of_source.join()
            assert (result.outcome, result.plane, result.map_side) == ("applied", "region", "source"), result
            assert holds(target, direct)


def test_an_answer_to_the_caller_needs_no_peer(folder: Path, route: dict[str, object]) -> None:
    with netns.TwoHosts() as hosts, edge_of(hosts, folder, route) as edge:
        direct = mapped_locally(edge)
        with Client(edge.socket) as mover:
            result = send(mover, peer="b")
            assert (result.outcome, result.map_side, result.peer_plane) == ("applied", "source", ""), result
            assert same((result.keys, result.values), direct)
            target = pages_of(mover, SPECS["target"], 3)
            result = send(mover, peer="b", target_pages=target)
            assert (result.outcome, result.map_side) == ("applied", "source"), result
            assert holds(target, direct)
            assert send(mover, peer="nobody").reason == "invalid_request"


def test_the_command_line_says_where_it_was_mapped(folder: Path, route: dict[str, object]) -> None:
    about = [binary("KVBRIDGE_CLI"), "inspect", "--format", "json", str(route["artifact"])]
    about += ["--source-config", str(route["source_config"]), "--target-config", str(route["target_config"])]
    target = json.loads(subprocess.run(about, check=True, capture_output=True).stdout)["target"]
    (folder / "target.json").write_text(json.dumps(target))
    write_cache(folder / "in", CacheFile(SPECS["source"], *random_large(), np.arange(TOKENS)))
    with netns.TwoHosts() as hosts, edge_of(hosts, folder, route) as edge:
        command = [binary("KVBRIDGE_CLI"), "transfer", "--server", edge.socket, "--route", "pair", "--peer", "b"]
        command += ["--in", str(folder / "in"), "--out", str(folder / "out"), "--format", "json"]
        done = subprocess.run([*command, "--target-spec", str(folder / "target.json")], capture_output=True)
        report = json.loads(done.stdout)
        assert (report["outcome"], report["map_side"], report["peer_plane"]) == ("applied", "source", ""), report
        answer = read_cache(folder / "out")
        with Client(edge.socket) as client:
            direct = send(client, target=answer.spec)
        assert same((answer.keys, answer.values), (direct.keys, direct.values))


def test_a_peer_that_is_killed_ends_it_and_takes_no_page_along(folder: Path, route: dict[str, object]) -> None:
    with netns.TwoHosts() as hosts, edge_of(hosts, folder, route) as edge, Client(edge.socket) as mover:
        source = pages_of(mover, SPECS["source"], 1)
        source.scatter(*random_large())
        with peer_of(hosts, folder) as peer, Client(peer.socket) as engine:
            place = engine.memory().locate(pages_of(engine, SPECS["target"], 2))
            progress, ended = SourceProgress(), []
            progress.ready(TOKENS // 2)
            ask = {"peer": "b", "source_pages": source, "target_pages": place, "ready": progress}
            mapping = threading.Thread(target=lambda: ended.append(send(mover, **ask)))
            mapping.start()
            while payload(peer, "in", "ucx") + peer.metric("kvbridge_inflight_transfers") == 0:
                assert mapping.is_alive(), ended
            peer.process.kill()
            mapping.join()
            assert (ended[0].outcome, ended[0].reason) == ("fallback_reprefill", "transport"), ended
            assert ended[0].map_side == "source"
        with peer_of(hosts, folder) as peer, Client(peer.socket) as engine:
            gone = send(mover, peer="b", source_pages=source, target_pages=place)
            assert (gone.reason, gone.detail) == ("invalid_request", "target_selection.pool: pool_id: not found")
            target = pages_of(engine, SPECS["target"], 2)
            again = send(mover, peer="b", source_pages=source, target_pages=engine.memory().locate(target))
            assert (again.outcome, again.map_side) == ("applied", "source"), again
            assert holds(target, mapped_locally(edge))
        assert edge.metric("kvbridge_inflight_transfers") == 0
        mover.memory().release(source.pool.regions[0])
        deadline = time.monotonic() + 10
        while edge.metric("kvbridge_memory_pool_used_bytes"):
            assert time.monotonic() < deadline, "a transfer still holds the source's pages"


def test_an_edge_that_is_killed_leaves_nothing_at_the_peer(folder: Path, route: dict[str, object]) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, Client(peer.socket) as engine:
        target = pages_of(engine, SPECS["target"], 2)
        with edge_of(hosts, folder, route) as edge, Client(edge.socket) as mover:
            progress, ended = SourceProgress(), []
            progress.ready(TOKENS // 2)
            source = pages_of(mover, SPECS["source"], 1)
            source.scatter(*random_large())
            ask = {"source_pages": source, "target_pages": engine.memory().locate(target), "ready": progress}
            mapping = threading.Thread(target=lambda: ended.append(send(mover, peer="b", **ask)))
            mapping.start()
            while peer.metric("kvbridge_inflight_transfers") == 0:
                assert mapping.is_alive(), ended
            edge.process.kill()
            mapping.join()
            assert ended[0].outcome == "fallback_reprefill", ended
        deadline = time.monotonic() + 10
        while peer.metric("kvbridge_inflight_transfers"):
            assert time.monotonic() < deadline, "the peer still holds what the edge had reserved"
        engine.memory().release(target.pool.regions[0])
        while peer.metric("kvbridge_memory_pool_used_bytes"):
            assert time.monotonic() < deadline, "the dead edge's transfer still holds the target's pages"
