"""Shared memory against a server that misbehaves on request (the real one: test_region.py)."""

from __future__ import annotations

import threading

import grpc
import numpy as np
import pytest
from conftest import family_spec, random_cache
from fake_memory import FakeMemory
from kvbridge import HEADS_FIRST, MappedPrefix, MemoryUnavailable, SourceProgress, longest_common_prefix
from kvbridge.staging import PAGE_TOKENS

SPECS = {"source": family_spec("small"), "target": family_spec("large")}


@pytest.fixture
def memory(tmp_path):
    fake = FakeMemory(tmp_path)
    yield fake
    fake.close()


def send(client, tokens=300, **options):
    keys, values = options.pop("cache", None) or random_cache(tokens)
    return client.transfer(keys=keys, values=values, route="pair", **{**SPECS, **options})


def test_arrays_go_through_shared_memory_when_it_is_offered(serve, memory, reference):
    client, server = serve(memory=memory)
    keys, values = random_cache(300)
    result = send(client, cache=(keys, values))
    assert (result.outcome, result.plane, result.plane_reason) == ("applied", "region", "")
    assert server.headers[-1].source_selection.HasField("pool")
    expected = reference(keys[:, :, :299], values[:, :, :299], np.arange(299))
    np.testing.assert_array_equal(result.keys, expected[0])
    np.testing.assert_array_equal(result.values, expected[1])
    assert client.metrics()["kvbridge_client_planes_total"] == {"region": 1}


def test_a_slab_is_used_again_when_the_last_view_is_gone_and_not_before(serve, memory):
    client, _ = serve(memory=memory)
    first = send(client, 100)
    kept = first.keys[2, 1, 5:7]
    expected = kept.copy()
    del first
    second = send(client, cache=random_cache(100, seed=1))
    np.testing.assert_array_equal(kept, expected)
    assert len(memory.regions) == 3, "one source, two answers"
    del kept, second
    for _ in range(5):
        send(client, 200)
    assert len(memory.regions) == 3


@pytest.mark.parametrize(
    "refusal,word",
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "no_room"),
        (grpc.StatusCode.UNIMPLEMENTED, "not_offered"),
        (grpc.StatusCode.PERMISSION_DENIED, "refused"),
    ],
)
def test_a_refused_region_sends_inline_and_says_why(serve, memory, refusal, word):
    memory.refuse_regions = refusal
    client, _ = serve(memory=memory)
    result = send(client)
    assert (result.outcome, result.plane, result.plane_reason) == ("applied", "inline", word)
    assert client.metrics()["kvbridge_client_plane_fallbacks_total"] == {word: 1}


def test_a_server_without_memory_is_not_offered(serve):
    client, _ = serve()
    result = send(client)
    assert (result.plane, result.plane_reason) == ("inline", "not_offered")


def test_region_that_was_asked_for_and_is_not_there_falls_back(serve):
    client, server = serve(plane="region")
    result = send(client)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "transport")
    assert "not_offered" in result.detail and not server.headers


def test_inline_that_was_asked_for_touches_no_memory(serve, memory):
    client, _ = serve(memory=memory)
    result = send(client, plane="inline")
    assert (result.plane, result.plane_reason) == ("inline", "asked")
    assert not memory.sessions


def test_an_engine_may_allocate_its_cache_before_there_is_a_server():
    from kvbridge import Client

    with Client("127.0.0.1:1") as client:
        array = client.memory().arena(1 << 16).empty((4, 4), np.float32)
    array[:] = 7  # still mapped
    assert array.sum() == 112


def test_after_a_refusal_no_memory_is_touched_for_a_while(serve, memory):
    memory.refuse_regions = grpc.StatusCode.RESOURCE_EXHAUSTED
    client, _ = serve(memory=memory)
    asked = []
    client.memory().share = lambda size, share=client.memory().share: asked.append(size) or share(size)
    assert [send(client).plane_reason for _ in range(3)] == ["no_room"] * 3
    assert len(asked) == 1, "what the first transfer began with"


def test_staging_is_bounded(serve, memory):
    client, _ = serve(memory=memory, staging_bytes=1 << 20)
    result = send(client)
    assert (result.outcome, result.plane_reason) == ("applied", "no_room")


def test_a_forgotten_session_sends_inline_once_and_then_opens_another(serve, memory):
    client, _ = serve(memory=memory)
    assert send(client).plane == "region"
    memory.forget()
    lost = send(client)
    assert (lost.outcome, lost.plane, lost.plane_reason) == ("applied", "inline", "session_lost")
    assert send(client).plane == "region"


def test_heartbeats_keep_a_short_lease(serve, tmp_path):
    memory = FakeMemory(tmp_path, lease=0.05)
    client, _ = serve(memory=memory)
    client.memory().lease()
    while memory.heartbeats < 5:
        pass
    assert client.memory().lease().alive
    client.close()
    assert not memory.sessions, "the end of the stream ends the session"
    memory.close()


def paged(client, tokens=300, page=16):
    """A source and a target pool, pages in disorder, the source filled."""
    memory = client.memory()
    arena = memory.arena(64 << 20)
    pages = tokens // page + 3
    caches = [
        [arena.empty((pages, n, page, 64), np.float32) for _ in range(2 * layers)]
        for n, layers in ((2, 4), (2, 8))
    ]
    pools = [
        memory.pool(spec, c[::2], c[1::2], axes=HEADS_FIRST) for c, spec in zip(caches, SPECS.values())
    ]
    order = np.random.default_rng(3).permutation(pages)[: -(-tokens // page)]
    source, target = (pool.select(order, tokens) for pool in pools)
    keys, values = random_cache(tokens)
    source.scatter(keys, values)
    return source, target, (keys, values)


@pytest.mark.parametrize("offered", [True, False])
def test_pages_hold_what_arrays_would_get(serve, memory, reference, offered):
    client, server = serve(memory=memory)
    source, target, (keys, values) = paged(client)
    layers = []
    result = client.transfer(
        source_pages=source,
        target_pages=target,
        plane=None if offered else "inline",
        on_layers=lambda begin, end: layers.append((begin, end)),
        **SPECS,
    )
    assert result.applied and result.keys is None
    assert server.headers[-1].source_selection.HasField("pool") == offered
    expected = reference(keys[:, :, :299], values[:, :, :299], np.arange(299))
    for part, want in zip(target.gather(), expected):
        np.testing.assert_array_equal(np.stack(part)[:, :, :299], want)
    if offered:
        assert layers == [(n, n + 1) for n in range(8)]


def test_prefill_tells_how_far_it_is(serve, memory):
    client, server = serve(memory=memory)
    source, target, _ = paged(client)
    progress = SourceProgress()
    done = threading.Thread(target=lambda: [progress.ready(n) for n in (100, 200, 300)])
    done.start()
    result = client.transfer(source_pages=source, target_pages=target, ready=progress, **SPECS)
    done.join()
    assert result.applied and server.headers[-1].streamed_source
    assert server.ready[-1] == 300 and server.ready == sorted(server.ready)


def test_prefill_that_is_still_going_on_works_inline_too(serve, reference):
    client, _ = serve()
    keys, values = random_cache(300)
    result = send(client, cache=(keys, values), ready=iter([10, 250, 300]))
    np.testing.assert_array_equal(
        result.keys, reference(keys[:, :, :299], values[:, :, :299], np.arange(299))[0]
    )


def test_memory_that_the_server_allocates_is_never_read_behind_its_back(serve, memory):
    client, _ = serve(memory=memory)
    shared = client.memory()
    region = shared.allocate(1 << 20)
    assert region.size == 1 << 20 and region.session_id
    spec = family_spec("large")
    layers = [region.array((4, 16, 2, 64), np.float32, 8192 * 4 * n) for n in range(16)]
    target = shared.pool(spec, layers[::2], layers[1::2]).select([0, 1, 2, 3], 64)
    assert send(client, 64, target_pages=target).plane == "region"
    memory.forget()
    result = send(client, 64, target_pages=target)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "transport")


def test_longest_common_prefix():
    assert longest_common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert longest_common_prefix([], [1]) == 0
    assert longest_common_prefix([1, 2], [1, 2, 3]) == 2


@pytest.mark.parametrize("with_memory", [True, False])
def test_the_next_turn_maps_its_new_tokens_only(serve, memory, reference, with_memory):
    client, server = serve(memory=memory if with_memory else None)
    keys, values = random_cache(300)
    ids = np.arange(300)
    first = send(client, cache=(keys[:, :, :200], values[:, :, :200]), token_ids=ids[:200])
    prefix = MappedPrefix.of(first, ids)
    assert prefix.covered == 199
    changed = ids.copy()
    changed[150:] += 1
    second = send(client, cache=(keys, values), token_ids=changed, prefix=prefix)
    assert (second.first_token, second.covered_tokens) == (150, 299)
    assert server.headers[-1].first_token == 150
    assert second.plane == ("region" if with_memory else "inline")
    expected, _ = reference(keys[:, :, :299], values[:, :, :299], np.arange(299))
    np.testing.assert_array_equal(second.keys, expected[:, :, 150:])


def test_another_artifact_maps_everything_again(serve, memory):
    client, server = serve(memory=memory)
    ids = np.arange(100)
    prefix = MappedPrefix.of(send(client, 100, token_ids=ids), ids)
    server.artifact = "1" * 64
    again = send(client, 120, token_ids=np.arange(120), prefix=prefix)
    assert (again.outcome, again.first_token, again.covered_tokens) == ("applied", 0, 119)
    assert again.artifact_digest == "1" * 64


def test_nothing_new_asks_nobody(serve):
    client, server = serve()
    ids = np.arange(100)
    prefix = MappedPrefix.of(send(client, 100, token_ids=ids), ids)
    again = send(client, 100, token_ids=ids, prefix=prefix)
    assert (again.outcome, again.covered_tokens, again.keys.shape[2]) == ("applied", 99, 0)
    assert len(server.headers) == 1


def test_a_prefix_that_has_been_through_other_maps_is_not_appended_to(serve):
    client, server = serve()
    ids = np.arange(100)
    prefix = MappedPrefix.of(send(client, 100, token_ids=ids), ids)
    assert send(client, 120, token_ids=np.arange(120), prefix=prefix, hops=1).first_token == 0
    assert server.headers[-1].first_token == 0


def test_arrays_outside_of_regions_are_no_pool(serve, memory):
    client, _ = serve(memory=memory)
    layers = [np.zeros((4, PAGE_TOKENS, 2, 64), np.float32) for _ in range(4)]
    with pytest.raises(ValueError, match=r"keys\[0\]: expected memory of a region"):
        client.memory().pool(family_spec("small"), layers, layers)


def test_the_token_goes_with_every_call(serve, memory):
    client, server = serve(memory=memory, token=lambda: "secret")
    assert send(client).plane == "region"
    client.health()
    assert {name for name, _ in server.tokens} == {"Health", "GetCapabilities", "Transfer"}
    assert {token for _, token in server.tokens} == {"Bearer secret"}
    assert memory.tokens == {"Bearer secret"}


def test_a_token_leaves_the_host_by_tls_only():
    from kvbridge import Client

    with pytest.raises(ValueError, match="token: expected credentials"):
        Client("example.org:50061", token="secret")


def test_memory_is_not_there_where_nobody_answers():
    from kvbridge import Client

    with Client("127.0.0.1:1") as client, pytest.raises(MemoryUnavailable, match="session_lost"):
        client.memory().allocate(4096)
