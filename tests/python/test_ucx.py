"""A cache that goes from one host to another: an edge kvbridged beside its source, a peer beside its target, in two
network namespaces."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROUTE, binary, family_spec, random_cache
from kvbridge import (
    CacheFile,
    Client,
    MappedPrefix,
    PagedCache,
    SourceProgress,
    TransferResult,
    read_cache,
    write_cache,
)
from kvbridge.chunks import CacheAssembler, encode_chunks
from kvbridge.v1 import transfer_pb2, types_pb2
from two_hosts import GIVE_UP, PAGE, TOKENS, Call, Kvbridged, holds, netns, pages_of, same


@pytest.fixture(scope="module", autouse=True)
def _two_hosts_can_be_played() -> None:
    reason = netns.why_not()
    if reason is not None:
        pytest.skip(reason)


def header(peer: str = "") -> transfer_pb2.TransferRequest:
    request = transfer_pb2.TransferRequest()
    request.header.request_id = "between-hosts"
    request.header.route = "pair"
    request.header.source.CopyFrom(family_spec("small"))
    request.header.target.CopyFrom(family_spec("large"))
    request.header.source_selection.tokens = TOKENS
    request.header.source_selection.key_state = types_pb2.KEY_STATE_ROPED
    request.header.source_selection.inline.SetInParent()
    request.header.target_selection.inline.SetInParent()
    request.header.peer = peer
    return request


def transfer(server: Kvbridged, peer: str = ""):
    """(Accepted, keys and values or None, decision) of one transfer."""
    call = Call(server, header(peer))
    for message in encode_chunks(*random_cache(TOKENS)):
        call.send(message)
    call.finish()
    accepted = call.next().accepted
    chunks, decision = call.rest()
    if decision.outcome != types_pb2.OUTCOME_APPLIED:
        return accepted, None, decision
    assembler = CacheAssembler(family_spec("large").geometry, decision.covered_tokens)
    for chunk in chunks:
        assembler.add(chunk)
    return accepted, assembler.finish(), decision


def peer_of(hosts: netns.TwoHosts, folder: Path, *, ucx: bool = True, give_up: float = GIVE_UP) -> Kvbridged:
    listen = {"listen": f"{hosts.right_address}:0"} if ucx else {}
    memory = {"socket": f"{folder}/right.memory"}
    settings = {"timeout": f"{give_up}s", **listen}
    return Kvbridged(hosts, hosts.right, folder, routes=[ROUTE], ucx=settings, memory=memory)


def edge_of(hosts: netns.TwoHosts, folder: Path, *, memory: bool = True, give_up: float = GIVE_UP) -> Kvbridged:
    peers = [{"name": "b", "address": f"{hosts.right_address}:{Kvbridged.port}"}]
    socket = {"socket": f"{folder}/left.memory"} if memory else {}
    settings = {"timeout": f"{give_up}s"}
    return Kvbridged(hosts, hosts.left, folder, peers=peers, ucx=settings, memory=socket)


@pytest.mark.parametrize("ucx", [True, False], ids=["ucx", "in_the_call"])
def test_what_travels_is_mapped_like_what_is_there(folder: Path, ucx: bool) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder, ucx=ucx) as peer, edge_of(hosts, folder) as edge:
        _, direct, decision = transfer(peer)
        assert decision.outcome == types_pb2.OUTCOME_APPLIED, decision.detail
        assert decision.map_side == types_pb2.MAP_SIDE_UNSPECIFIED

        accepted, relayed, decision = transfer(edge, peer="b")
        assert accepted.plane == (types_pb2.PLANE_UCX if ucx else types_pb2.PLANE_INLINE)
        assert not accepted.HasField("remote")
        assert decision.outcome == types_pb2.OUTCOME_APPLIED, decision.detail
        assert decision.map_side == types_pb2.MAP_SIDE_TARGET
        assert same(relayed, direct)


def test_an_unknown_peer_is_named(folder: Path) -> None:
    with netns.TwoHosts() as hosts, edge_of(hosts, folder) as edge:
        _, decision = Call(edge, header("nobody")).rest()
        assert decision.reason == types_pb2.REASON_INVALID_REQUEST
        assert "[b]" in decision.detail


def test_a_peer_that_does_not_answer_is_a_fallback(folder: Path) -> None:
    with netns.TwoHosts() as hosts, edge_of(hosts, folder) as edge:
        _, decision = Call(edge, header("b")).rest()
        assert decision.reason == types_pb2.REASON_TRANSPORT
        assert decision.detail.startswith("peer b: UNAVAILABLE")


def half_sent(edge: Kvbridged, peer: Kvbridged) -> Call:
    """A transfer of which the peer has answered the first tile, and the rest is missing."""
    call = Call(edge, header("b"))
    messages = list(encode_chunks(*random_cache(TOKENS)))
    for message in messages[: len(messages) // 2]:
        call.send(message)
    while not call.next().HasField("chunk"):
        pass
    return call


def test_a_peer_that_is_killed_ends_the_transfer(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        call = half_sent(edge, peer)
        peer.process.kill()
        started = time.monotonic()
        _, decision = call.rest()
        assert decision.reason == types_pb2.REASON_TRANSPORT
        assert time.monotonic() - started < 10
        with peer_of(hosts, folder):
            _, _, decision = transfer(edge, peer="b")
            assert decision.outcome == types_pb2.OUTCOME_APPLIED, decision.detail


def test_an_edge_that_is_killed_leaves_nothing_at_the_peer(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        call = half_sent(edge, peer)
        assert call is not None and peer.metric("kvbridge_inflight_transfers") == 1
        edge.process.kill()
        deadline = time.monotonic() + 10
        while peer.metric("kvbridge_inflight_transfers"):
            assert time.monotonic() < deadline, "the peer still holds what the edge had reserved"


def test_a_chunk_that_is_damaged_before_the_edge_is_told_to_the_peer(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        call = half_sent(edge, peer)
        message = transfer_pb2.TransferRequest.FromString(list(encode_chunks(*random_cache(TOKENS)))[-1])
        message.chunk.crc32c ^= 1
        call.send(message.SerializeToString())
        _, decision = call.rest()
        assert decision.reason == types_pb2.REASON_TRANSPORT
        assert "crc32c" in decision.detail
        assert peer.metric("kvbridge_inflight_transfers") == 0


@pytest.mark.parametrize(("delay", "loss"), [(0.01, 0.0), (0.005, 0.01)], ids=["latency", "loss"])
def test_latency_and_loss_change_nothing_but_time(folder: Path, delay: float, loss: float) -> None:
    reason = netns.why_no_relay()
    if reason is not None:
        pytest.skip(reason)
    with netns.TwoHosts(delay=delay, loss=loss) as hosts:
        # A segment lost three times waits for more than a second; that is not to end the transfer.
        with peer_of(hosts, folder, give_up=30) as peer, edge_of(hosts, folder, give_up=30) as edge:
            _, direct, _ = transfer(peer)
            accepted, relayed, decision = transfer(edge, peer="b")
            assert accepted.plane == types_pb2.PLANE_UCX
            assert decision.outcome == types_pb2.OUTCOME_APPLIED, decision.detail
            assert same(relayed, direct)


def test_a_link_that_goes_down_ends_the_transfer_on_both_sides(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        call = half_sent(edge, peer)
        hosts.cut()
        started = time.monotonic()
        sender = threading.Thread(
            target=lambda: [call.send(message) for message in encode_chunks(*random_cache(TOKENS))], daemon=True
        )
        sender.start()
        _, decision = call.rest()
        assert decision.reason == types_pb2.REASON_TRANSPORT
        assert time.monotonic() - started < 30


# Through the Python client. A source beside the edge, an engine beside the peer whose pages get the answer.
SPECS = {"source": family_spec("small"), "target": family_spec("large")}


def send(client: Client, **options: object) -> TransferResult:
    if "source_pages" not in options:
        options["keys"], options["values"] = options.pop("cache", None) or random_cache(TOKENS)
    return client.transfer(route="pair", **{**SPECS, **options})  # type: ignore[arg-type]


def mapped_directly(peer: Kvbridged) -> tuple[np.ndarray, np.ndarray]:
    with Client(peer.socket, plane="inline") as client:
        result = send(client)
    assert result.applied and not result.map_side and not result.peer_plane, result
    return result.keys, result.values


@pytest.mark.parametrize("ucx", [True, False], ids=["ucx", "chunks"])
@pytest.mark.parametrize("into_pages", [True, False], ids=["into_pages", "into_the_call"])
def test_pages_at_the_edge_are_mapped_while_prefill_fills_them(folder: Path, ucx: bool, into_pages: bool) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder, ucx=ucx) as peer, edge_of(hosts, folder) as edge:
        direct = mapped_directly(peer)
        with Client(edge.socket) as mover, Client(peer.socket) as engine:
            source, target = pages_of(mover, SPECS["source"], 1), pages_of(engine, SPECS["target"], 2)
            keys, values = random_cache(TOKENS)
            progress, layers = SourceProgress(), []

            def prefill() -> None:
                for begin in range(0, TOKENS, 50):
                    end = min(begin + 50, TOKENS)
                    source.scatter(keys[:, :, begin:end], values[:, :, begin:end], begin)
                    progress.ready(end)

            engine_of_source = threading.Thread(target=prefill)
            engine_of_source.start()
            result = send(
                mover,
                peer="b",
                source_pages=source,
                target_pages=engine.memory().locate(target) if into_pages else None,
                ready=progress,
                on_layers=lambda begin, end: layers.extend(range(begin, end)),
            )
            engine_of_source.join()
            assert (result.outcome, result.plane, result.map_side) == ("applied", "region", "target"), result
            assert result.peer_plane == ("ucx" if ucx else "inline")
            assert layers == list(range(8))
            assert (result.keys is None) == into_pages
            assert holds(target, direct) if into_pages else same((result.keys, result.values), direct)


@pytest.mark.parametrize(("memory", "plane", "why"), [(True, "region", ""), (False, "inline", "not_offered")])
def test_arrays_reach_the_peer_through_regions_or_chunks(folder: Path, memory: bool, plane: str, why: str) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder, memory=memory) as edge:
        direct = mapped_directly(peer)
        with Client(edge.socket) as mover, Client(peer.socket) as engine:
            target = pages_of(engine, SPECS["target"], 2)
            for into in (None, engine.memory().locate(target), pages_of(mover, SPECS["target"], 3)):
                result = send(mover, peer="b", target_pages=into)
                assert (result.outcome, result.plane, result.plane_reason) == ("applied", plane, why), result
                if into is None:
                    assert same((result.keys, result.values), direct)
                else:
                    assert holds(into if isinstance(into, PagedCache) else target, direct)
            if not memory:
                refused = send(mover, peer="b", plane="region")
                assert (refused.outcome, refused.reason) == ("fallback_reprefill", "transport"), refused


@pytest.mark.parametrize("memory", [True, False], ids=["region", "chunks"])
def test_the_command_line_maps_a_file_at_the_peer(folder: Path, memory: bool) -> None:
    artifact = [binary("KVBRIDGE_CLI"), "inspect", "--format", "json", ROUTE["artifact"]]
    configs = ["--source-config", ROUTE["source_config"], "--target-config", ROUTE["target_config"]]
    about = json.loads(subprocess.run([*artifact, *configs], check=True, capture_output=True).stdout)
    (folder / "target.json").write_text(json.dumps(about["target"]))
    write_cache(folder / "in", CacheFile(SPECS["source"], *random_cache(TOKENS), np.arange(TOKENS)))
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder, memory=memory) as edge:
        command = [binary("KVBRIDGE_CLI"), "transfer", "--server", edge.socket, "--route", "pair", "--peer", "b"]
        files = ["--in", folder / "in", "--out", folder / "out", "--format", "json"]
        unstated = subprocess.run([*command, *files], capture_output=True, text=True)
        assert unstated.returncode != 0 and "--target-spec" in unstated.stderr, unstated
        done = subprocess.run([*command, *files, "--target-spec", folder / "target.json"], capture_output=True)
        report = json.loads(done.stdout)
        assert (done.returncode, report["outcome"]) == (0, "applied"), report
        assert report["plane"] == ("region" if memory else "inline"), report
        assert (report["peer_plane"], report["map_side"]) == ("ucx", "target"), report
        answer = read_cache(folder / "out")
        with Client(peer.socket) as client:
            direct = send(client, target=answer.spec)
        assert same((answer.keys, answer.values), (direct.keys, direct.values))


def test_the_next_turn_is_appended_at_the_peer(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        direct = mapped_directly(peer)
        with Client(edge.socket) as mover, Client(peer.socket) as engine:
            target = pages_of(engine, SPECS["target"], 2)
            ids, half = np.arange(TOKENS), 5 * PAGE
            first = send(
                mover,
                peer="b",
                cache=tuple(part[:, :, :half] for part in random_cache(TOKENS)),
                target_pages=engine.memory().locate(target.pool.select(target.pages[:5], half)),
                token_ids=ids[:half],
            )
            prefix = MappedPrefix.of(first, ids)
            turn = send(
                mover, peer="b", target_pages=engine.memory().locate(target), token_ids=ids, prefix=prefix
            )
            assert (turn.first_token, turn.covered_tokens) == (half - 1, TOKENS - 1), turn
            assert holds(target, direct)


def test_a_place_that_the_peer_does_not_know_is_named(folder: Path) -> None:
    with netns.TwoHosts() as hosts, peer_of(hosts, folder) as peer, edge_of(hosts, folder) as edge:
        with Client(edge.socket) as mover, Client(peer.socket) as engine:
            place = engine.memory().locate(pages_of(engine, SPECS["target"], 2))
            stale = types_pb2.PoolLocation(generation=place.generation + 1)
            unknown = types_pb2.PoolLocation(pool_id="0" * 32)
            short = types_pb2.PoolLocation(pages=place.pages[:1])
            for change, reason, detail in [
                (stale, "invalid_request", "target_selection.pool: generation: expected the pool's own"),
                (unknown, "invalid_request", "target_selection.pool: pool_id: not found"),
                (short, "shape_mismatch", "target_selection.pool: pages"),
            ]:
                there = types_pb2.PoolLocation()
                there.CopyFrom(place)
                if change.pages:
                    there.ClearField("pages")
                there.MergeFrom(change)
                result = send(mover, peer="b", target_pages=there)
                assert (result.outcome, result.reason) == ("fallback_reprefill", reason), result
                assert result.detail.startswith(detail), result
            own = mover.memory().locate(pages_of(mover, SPECS["target"], 3))
            result = send(mover, peer="b", target_pages=own)
            assert (result.reason, result.map_side) == ("invalid_request", "target"), "the edge's pools are no peer's"
            assert peer.metric("kvbridge_inflight_transfers") == 0


def test_a_peer_that_is_killed_takes_no_page_of_the_edge_along(folder: Path) -> None:
    with netns.TwoHosts() as hosts, edge_of(hosts, folder) as edge, Client(edge.socket) as mover:
        source = pages_of(mover, SPECS["source"], 1)
        source.scatter(*random_cache(TOKENS))
        with peer_of(hosts, folder) as peer, Client(peer.socket) as engine:
            place = engine.memory().locate(pages_of(engine, SPECS["target"], 2))
            progress, ended = SourceProgress(), []
            progress.ready(TOKENS // 2)
            ask = {"peer": "b", "source_pages": source, "target_pages": place, "ready": progress}
            mapping = threading.Thread(target=lambda: ended.append(send(mover, **ask)))
            mapping.start()
            while peer.metric("kvbridge_inflight_transfers") == 0:
                assert mapping.is_alive(), ended
            peer.process.kill()
            mapping.join()
            assert (ended[0].outcome, ended[0].reason) == ("fallback_reprefill", "transport"), ended
        with peer_of(hosts, folder) as peer, Client(peer.socket) as engine:
            gone = send(mover, peer="b", source_pages=source, target_pages=place)
            assert (gone.reason, gone.detail) == ("invalid_request", "target_selection.pool: pool_id: not found")
            target = pages_of(engine, SPECS["target"], 2)
            again = send(mover, peer="b", source_pages=source, target_pages=engine.memory().locate(target))
            assert (again.outcome, again.plane) == ("applied", "region"), again
            assert holds(target, mapped_directly(peer))
        mover.memory().release(source.pool.regions[0])
        deadline = time.monotonic() + 10
        while edge.metric("kvbridge_memory_pool_used_bytes"):
            assert time.monotonic() < deadline, "a transfer still holds the source's pages"
