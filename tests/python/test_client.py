"""The client against a server that behaves, and one that does not."""

from __future__ import annotations

import re
import subprocess
import threading

import grpc
import numpy as np
import pytest
from conftest import family_spec, random_cache
from fake_server import Faults, as_float32
from kvbridge import Client, RpcFailed, TransferCancelled, TransferFallback, prometheus_text, token_ids_digest
from kvbridge.exposition import METRICS
from kvbridge.v1 import types_pb2
from operations import tool


def send(client, tokens=300, element_type="f32", **options):
    keys, values = options.pop("cache", None) or random_cache(tokens, element_type)
    options.setdefault("source", family_spec("small", element_type))
    options.setdefault("target", family_spec("large", element_type))
    return client.transfer(keys=keys, values=values, route="pair", **options)


def test_answer_is_the_reference_map_of_all_but_the_last_token(serve, reference):
    client, _ = serve()
    keys, values = random_cache(300)
    result = send(client, cache=(keys, values))
    assert result.applied and result.covered_tokens == 299
    expected = reference(keys[:, :, :299], values[:, :, :299], np.arange(299))
    np.testing.assert_array_equal(result.keys, expected[0])
    np.testing.assert_array_equal(result.values, expected[1])
    assert result.approximate and result.hops == 1 and result.salt == "salt"


def test_bf16_travels_as_bits(serve, reference):
    client, _ = serve()
    source, target = family_spec("small", "bf16"), family_spec("large", "bf16")
    cache = random_cache(40, "bf16")
    result = send(client, cache=cache, source=source, target=target)
    assert result.keys.dtype == np.uint16
    expected, _ = reference(*(part[:, :, :39] for part in cache), np.arange(39))
    np.testing.assert_allclose(as_float32(result.keys), expected, rtol=2**-8, atol=1e-6)


def test_any_strides_and_layer_lists_give_the_same_answer(serve):
    client, _ = serve()
    keys, values = random_cache(70)
    token_major = [np.ascontiguousarray(p.transpose(0, 2, 1, 3)) for p in (keys, values)]
    strided = [list(p.transpose(0, 2, 1, 3)) for p in token_major]
    plain, other = send(client, cache=(keys, values)), send(client, cache=strided)
    np.testing.assert_array_equal(plain.keys, other.keys)
    np.testing.assert_array_equal(plain.values, other.values)


@pytest.mark.parametrize("tile,limit", [(1, 4 << 20), (17, 4096), (256, 9000), (4096, 1 << 17)])
def test_chunking_does_not_change_the_answer(serve, tile, limit):
    whole, _ = serve()
    client, _ = serve(tile_tokens=tile, max_chunk_bytes=limit)
    np.testing.assert_array_equal(send(client, 130).values, send(whole, 130).values)


def test_header_states_what_was_asked(serve):
    client, server = serve()
    ids = list(range(50))
    send(client, 50, token_ids=ids, native_tail=17, max_latency=0.5, hops=2, request_id="r1", tenant="t")
    header = server.headers[-1]
    assert (header.request_id, header.tenant, header.hops) == ("r1", "t", 2)
    assert header.source_selection.token_ids_sha256 == token_ids_digest(ids)
    assert header.source_selection.key_state == types_pb2.KEY_STATE_ROPED
    assert header.limits.max_latency.ToMilliseconds() == 500
    assert header.limits.native_tail == 17


def test_native_tail_and_prompt_length_bound_what_is_covered(serve):
    client, _ = serve()
    assert send(client, 50, native_tail=17).covered_tokens == 33
    assert send(client, 50, prompt_tokens=60, native_tail=8).covered_tokens == 50
    assert send(client, 50, max_covered_tokens=5).covered_tokens == 5


def test_left_padding_is_zeroed_in_the_answer(serve, reference):
    client, _ = serve()
    keys, values = random_cache(12)
    positions = [-1, -1, -1, *range(9)]
    result = send(client, cache=(keys, values), positions=positions)
    assert not result.keys[:, :, :3].any() and not result.values[:, :, :3].any()
    expected, _ = reference(keys[:, :, 3:11], values[:, :, 3:11], np.arange(8))
    np.testing.assert_allclose(result.keys[:, :, 3:], expected, rtol=1e-4, atol=1e-3)


def test_one_token_leaves_nothing_to_cover(serve):
    client, _ = serve()
    result = send(client, 1)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "not_worth_it")
    assert result.keys is None and result.covered_tokens == 0


def test_nan_keys_are_a_reason_to_prefill(serve):
    client, _ = serve()
    keys, values = random_cache(20)
    keys[1, 0, 3, 5] = np.nan
    result = send(client, cache=(keys, values))
    assert (result.outcome, result.reason, result.reason_class) == (
        "fallback_reprefill",
        "non_finite",
        "quality",
    )


def test_wrong_identity_falls_back_before_anything_moves(serve):
    client, server = serve()
    source = family_spec("small")
    source.identity.tokenizer_sha256 = "0" * 64
    result = send(client, source=source)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "incompatible_model")
    assert len(server.headers) == 1


def test_zero_latency_budget_falls_back(serve):
    client, _ = serve()
    assert send(client, max_latency=0).reason == "latency_budget"


def test_reason_that_only_a_newer_server_knows_stays_a_word(serve):
    decision = (types_pb2.OUTCOME_FALLBACK_REPREFILL, 99, 77, "new")
    client, _ = serve(Faults(decide=decision))
    result = send(client)
    assert (result.outcome, result.reason, result.reason_class) == (
        "fallback_reprefill",
        "internal",
        "internal",
    )


@pytest.mark.parametrize(
    "faults,detail",
    [
        (Faults(flip_answer_byte=True), "answer chunk keys layers [0, 1) tokens [0, 299): crc32c"),
        (Faults(omit_last_chunk=True), "incomplete answer: values of layer 7, token 0 never came"),
        (Faults(repeat_chunk=True), "overlaps an earlier chunk"),
        (Faults(no_decision=True), "the stream ended without a decision"),
    ],
)
def test_damaged_answer_is_never_called_applied(serve, faults, detail):
    client, _ = serve(faults)
    result = send(client)
    assert (result.outcome, result.reason, result.reason_class) == (
        "fallback_reprefill",
        "transport",
        "infra",
    )
    assert detail in result.detail
    assert result.keys is None and result.values is None


@pytest.mark.parametrize(
    "code,reason",
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "overload"),
        (grpc.StatusCode.UNAUTHENTICATED, "unreachable"),
        (grpc.StatusCode.DATA_LOSS, "transport"),
        (grpc.StatusCode.INTERNAL, "internal"),
    ],
)
def test_status_codes_become_reasons(serve, code, reason):
    client, _ = serve(Faults(abort=code))
    result = send(client)
    assert (result.outcome, result.reason) == ("fallback_reprefill", reason)
    assert result.detail == f"{code.name}: asked for"
    assert (result.call_status, result.attempts) == (code.name, 1)
    assert result.refused == (code is grpc.StatusCode.UNAUTHENTICATED)


def test_unavailable_is_tried_again_once_and_then_unreachable(serve):
    client, server = serve(Faults(abort=grpc.StatusCode.UNAVAILABLE))
    result = send(client)
    assert (result.reason, result.attempts, len(server.headers)) == ("unreachable", 2, 2)
    assert client.metrics()["kvbridge_client_retries_total"] == 1


def test_other_failures_are_not_tried_again(serve):
    client, server = serve(Faults(abort=grpc.StatusCode.INTERNAL))
    assert send(client).attempts == 1
    assert len(server.headers) == 1


def test_nobody_listening_is_a_fallback_not_an_error(tmp_path):
    with Client(f"unix:{tmp_path}/nobody.sock") as client:
        result = send(client)
    assert (result.outcome, result.reason, result.reason_class) == (
        "fallback_reprefill",
        "unreachable",
        "infra",
    )


def test_on_fallback_fail_raises_with_the_result(tmp_path):
    with Client(f"unix:{tmp_path}/nobody.sock", on_fallback="fail") as client:
        with pytest.raises(TransferFallback) as caught:
            send(client)
    assert caught.value.result.reason == "unreachable"


def test_circuit_opens_after_failures_in_a_row(tmp_path):
    with Client(f"unix:{tmp_path}/nobody.sock", circuit_threshold=2, circuit_cooldown=3600) as client:
        results = [send(client) for _ in range(3)]
        metrics = client.metrics()
    assert [result.reason for result in results] == ["unreachable", "unreachable", "circuit_open"]
    assert "in a row; the last: unreachable: UNAVAILABLE: " in results[2].detail
    assert metrics["kvbridge_client_fallbacks_total"] == {"unreachable": 2, "circuit_open": 1}
    assert metrics["kvbridge_client_circuit_state"] == 2


def test_counters_are_what_prometheus_reads(tmp_path):
    with Client(f"unix:{tmp_path}/nobody.sock", circuit_threshold=2, circuit_cooldown=3600, retries=1) as client:
        for _ in range(3):
            send(client)
        text = prometheus_text(client.metrics())
    lines = text.splitlines()
    assert 'kvbridge_client_requests_total{outcome="fallback_reprefill"} 3' in lines
    assert 'kvbridge_client_fallbacks_total{reason="circuit_open"} 1' in lines
    assert 'kvbridge_client_fallbacks_total{reason="unreachable"} 2' in lines
    assert "kvbridge_client_retries_total 2" in lines and "kvbridge_client_circuit_state 2" in lines
    assert 'kvbridge_client_request_duration_seconds_bucket{le="+Inf"} 3' in lines
    named = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} <= set(METRICS)
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=text, text=True, capture_output=True)
    assert (checked.returncode, checked.stdout) == (0, ""), checked


def test_deadline_is_a_fallback(serve):
    hang = threading.Event()
    client, _ = serve(Faults(hang=hang))
    result = send(client, timeout=0.2)
    hang.set()
    assert (result.reason, result.reason_class) == ("deadline_exceeded", "capacity")


def test_deadline_of_zero_is_a_fallback(serve):
    client, _ = serve()
    assert send(client, timeout=0).reason == "deadline_exceeded"


def test_cancel_from_another_thread_ends_the_transfer(serve):
    from kvbridge import CancelToken

    hang, token = threading.Event(), CancelToken()
    client, server = serve(Faults(hang=hang))
    ended = []

    def run():
        with pytest.raises(TransferCancelled):
            send(client, cancel=token)
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    token.cancel()
    thread.join(timeout=30)
    hang.set()
    assert ended == [True]
    assert client.metrics()["kvbridge_client_requests_total"] == {"cancelled": 1}


def test_metrics_count_outcomes_and_durations(serve):
    client, _ = serve()
    send(client)
    send(client, max_latency=0)
    metrics = client.metrics()
    assert metrics["kvbridge_client_requests_total"] == {"applied": 1, "fallback_reprefill": 1}
    assert metrics["kvbridge_client_fallbacks_total"] == {"latency_budget": 1}
    assert metrics["kvbridge_client_request_duration_seconds"]["count"] == 2


def test_arrays_that_are_no_cache_are_refused_before_anything_is_sent(serve):
    client, server = serve()
    keys, values = random_cache(10)
    with pytest.raises(ValueError, match="as many layers of both, got 4 and 3"):
        send(client, cache=(keys, values[:3]))
    with pytest.raises(ValueError, match=r"values\[0\]: expected .* got \(2, 9, 64\)"):
        send(client, cache=(keys, values[:, :, :9]))
    with pytest.raises(ValueError, match="expected float32 .* got float64"):
        send(client, cache=(keys.astype(np.float64), values))
    assert not server.headers


def test_plan_health_and_capabilities(serve):
    client, _ = serve()
    assert client.plan("pair", 100, native_tail=16).covered_tokens == 84
    assert client.health().routes[0].serving
    assert client.capabilities().routes[0].source.identity.model_id == "kvbridge-family/small"


def test_plain_calls_raise_when_nobody_answers(tmp_path):
    with Client(f"unix:{tmp_path}/nobody.sock") as client:
        with pytest.raises(RpcFailed) as caught:
            client.health()
    assert caught.value.code == "UNAVAILABLE"
