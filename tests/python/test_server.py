"""The client and the adapter against the real kvbridged."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import ARTIFACT, FAMILY, binary, family_spec
from fake_server import ReferenceMap, as_float32
from kvbridge import CacheFile, Client, RpcFailed, read_cache, write_cache
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge import evaluate, hf  # noqa: E402

CONFIGS = {
    "source_config": str(FAMILY / "small/config.json"),
    "target_config": str(FAMILY / "large/config.json"),
}
SPECS = {"source": family_spec("small"), "target": family_spec("large")}


def route(name, artifact=ARTIFACT, **more):
    return {"name": name, "artifact": str(artifact), "allow_unproven": True, **CONFIGS, **more}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    damaged = tmp_path_factory.mktemp("artifacts") / "damaged"
    shutil.copytree(ARTIFACT, damaged)
    weights = damaged / "mapper.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    routes = [
        route("pair"),
        route("exact", precision="f32"),
        route("damaged", damaged),
        route("off", stage="off"),
    ]
    with LocalServer(binary("KVBRIDGED"), routes) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def models():
    load = transformers.AutoModelForCausalLM.from_pretrained
    return {m: load(FAMILY / m).float().eval() for m in ("small", "large")}


@pytest.fixture(scope="module")
def passages():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FAMILY / "small")
    text = (FAMILY / "text/public_domain/eval_kjv.txt").read_text()
    return evaluate.windows(tokenizer, text, 4)


@pytest.fixture(scope="module")
def cache(models, passages):
    """Keys and values of a real prompt of 384 tokens, float32."""
    keys, values = hf.cache_arrays(hf.prefill(models["small"], passages[0][:, :384]))
    return np.stack(keys), np.stack(values)


def send(client, cache, name="pair", **options):
    options = {**SPECS, **options}
    return client.transfer(keys=cache[0], values=cache[1], route=name, **options)


def relative_error(result, expected):
    """Largest distance of a row from the expected one, in units of that row's norm."""
    worst = 0.0
    for got, want in zip((result.keys, result.values), expected):
        distance = np.linalg.norm(as_float32(got) - want, axis=-1)
        worst = max(worst, float((distance / np.linalg.norm(want, axis=-1)).max()))
    return worst


def test_map_is_the_float32_reference(client, cache, reference: ReferenceMap):
    prefix, positions = [part[:, :, :383] for part in cache], np.arange(383)
    exact, fast = send(client, cache, "exact"), send(client, cache)
    assert exact.applied and exact.covered_tokens == 383
    assert relative_error(exact, reference(*prefix, positions)) < 1e-5
    # The family's maps cancel: rounding what they read moves single rows by a fifth. The oracle rounds, too.
    rounded = dataclasses.replace(reference, bf16_features=True)
    assert relative_error(fast, rounded(*prefix, positions)) < 2**-8
    assert fast.approximate and fast.hops == 1 and len(fast.artifact_digest) == 64 and fast.salt


def test_positions_may_have_gaps_and_padding(client, cache, reference: ReferenceMap):
    keys, values = (part[:, :, :40] for part in cache)
    positions = np.concatenate([[-1, -1], np.arange(20) * 3, np.arange(18) + 1000])
    result = send(client, (keys, values), "exact", positions=positions)
    assert result.applied, result
    expected = reference(keys[:, :, 2:39], values[:, :, 2:39], positions[2:39])
    assert not result.keys[:, :, :2].any()
    np.testing.assert_allclose(result.keys[:, :, 2:], expected[0], rtol=1e-3, atol=1e-4)


def test_chunking_strides_and_company_do_not_change_a_byte(server, client, cache):
    plain = send(client, cache)
    assert plain.applied, plain
    with Client(server.address, tile_tokens=17, max_chunk_bytes=5000) as other:
        results = [send(other, cache)]
    with ThreadPoolExecutor(16) as pool:
        results += pool.map(lambda _: send(client, cache), range(48))
    for result in results:
        assert result.applied, result
        assert result.keys.tobytes() == plain.keys.tobytes()
        assert result.values.tobytes() == plain.values.tobytes()


def test_every_one_of_many_transfers_is_applied(client, cache):
    outcomes = {str(r.reason or r.outcome) for r in (send(client, cache) for _ in range(300))}
    assert outcomes == {"applied"}


def test_bf16_in_and_out(client, cache, reference: ReferenceMap):
    from kvbridge.arrays import float32_to_bf16

    bits = tuple(float32_to_bf16(part) for part in cache)
    specs = {"source": family_spec("small", "bf16"), "target": family_spec("large", "bf16")}
    result = send(client, bits, **specs)
    rounded = dataclasses.replace(reference, bf16_features=True)
    expected = rounded(*(as_float32(part)[:, :, :383] for part in bits), np.arange(383))
    assert result.keys.dtype == np.uint16
    assert relative_error(result, expected) < 2**-7


@pytest.mark.parametrize(
    "options,outcome,reason",
    [
        ({"max_latency": 0}, "fallback_reprefill", "latency_budget"),
        ({"hops": 1}, "fallback_reprefill", "app_gate"),
        ({"native_tail": 384}, "fallback_reprefill", "not_worth_it"),
        ({"name": "damaged"}, "fallback_reprefill", "artifact_integrity"),
        ({"name": "off"}, "fallback_reprefill", "route_disabled"),
        ({"positions": np.arange(384)[::-1]}, "fallback_reprefill", "invalid_request"),
        ({"positions": np.arange(384) + 4000}, "fallback_reprefill", "invalid_request"),
        ({"timeout": 0}, "fallback_reprefill", "deadline_exceeded"),
    ],
)
def test_reasons(client, cache, options, outcome, reason):
    result = send(client, cache, **options)
    assert (result.outcome, result.reason) == (outcome, reason), result
    assert result.keys is None


@pytest.mark.parametrize("field", ["tokenizer_sha256", "revision", "model_id"])
def test_another_identity_is_incompatible(client, cache, field):
    source = family_spec("small")
    setattr(source.identity, field, "0" * 64)
    result = send(client, cache, source=source)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "incompatible_model"), result
    assert field in result.detail


def test_another_rotation_is_incompatible(client, cache):
    target = family_spec("large")
    target.rope.params.inv_freq[3] *= 1.001
    assert send(client, cache, target=target).reason == "incompatible_model"


def test_one_token_leaves_nothing_to_cover(client, cache):
    result = send(client, tuple(part[:, :, :1] for part in cache))
    assert (result.outcome, result.reason) == ("fallback_reprefill", "not_worth_it")


def test_nan_in_a_key_is_non_finite(client, cache):
    keys = cache[0].copy()
    keys[2, 1, 300, 7] = np.nan
    result = send(client, (keys, cache[1]))
    assert (result.outcome, result.reason) == ("fallback_reprefill", "non_finite"), result


def test_heads_that_differ_are_a_shape_mismatch(client, cache):
    source = family_spec("small")
    source.geometry.kv_heads = 1
    result = send(client, tuple(part[:, :1] for part in cache), source=source)
    assert (result.outcome, result.reason) == ("fallback_reprefill", "shape_mismatch"), result


def test_cancelled_transfers_leave_nothing_behind(server, client, cache):
    from kvbridge import CancelToken, TransferCancelled

    def run(_):
        token = CancelToken()
        timer = threading.Timer(0.003, token.cancel)
        timer.start()
        try:
            return send(client, cache, cancel=token).outcome
        except TransferCancelled:
            return "cancelled"
        finally:
            timer.cancel()

    with ThreadPoolExecutor(8) as pool:
        outcomes = set(pool.map(run, range(64)))
    assert outcomes <= {"applied", "cancelled"}
    assert send(client, cache).applied
    assert server.metrics()["kvbridge_inflight_transfers"] == 0


def test_metrics_count_fallbacks_by_reason(server, client, cache):
    name = 'kvbridge_fallbacks_total{class="capacity",pair="pair",reason="latency_budget"}'
    before = server.metrics()[name]
    send(client, cache, max_latency=0)
    assert server.metrics()[name] == before + 1


def test_plan_health_capabilities_and_artifacts(client):
    plan = client.plan("pair", 1000, native_tail=16)
    assert plan.covered_tokens == 984 and plan.bytes_out > plan.bytes_in > 0
    health = {r.route: r for r in client.health().routes}
    assert health["pair"].serving and not health["damaged"].serving
    assert client.health().state == transfer_pb2.SERVER_STATE_DEGRADED
    routes = {r.route: r for r in client.capabilities().routes}
    served = routes["pair"].source
    assert served.identity == SPECS["source"].identity
    np.testing.assert_allclose(
        served.rope.params.inv_freq, SPECS["source"].rope.params.inv_freq, rtol=1e-14
    )
    assert {a.route for a in client.list_artifacts()} == {"pair", "exact", "damaged", "off"}


def test_a_bad_artifact_changes_nothing(server, client, cache, tmp_path):
    with pytest.raises(RpcFailed) as caught:
        client.load_artifact("pair", str(tmp_path))
    assert caught.value.code in ("INVALID_ARGUMENT", "NOT_FOUND", "DATA_LOSS")
    assert send(client, cache).applied
    assert client.load_artifact("pair", str(ARTIFACT)).resident_bytes > 0


def test_quality_through_the_service_is_the_references(client, models, passages, reference):
    def mapped(cache, ids):
        moved = hf.transfer_cache(client, cache, route="pair", input_ids=ids[:, :384], **SPECS)
        assert moved.cache is not None, moved.result
        return moved.cache

    def by_reference(cache, ids):
        short = hf.cut(cache, 383)
        keys, values = reference(*map(np.stack, hf.cache_arrays(short)), np.arange(383))
        out = transformers.DynamicCache()
        for layer, (key, value) in enumerate(zip(keys, values)):
            pair = (torch.from_numpy(np.float32(part))[None] for part in (key, value))
            out.update(*pair, layer)
        return out

    variants = {"service": mapped, "reference": by_reference}
    scores = evaluate.evaluate(models["small"], models["large"], passages, variants)
    service, wanted = (scores.variants[name].means() for name in variants)
    assert service["kl"] == pytest.approx(wanted["kl"], rel=0.01)
    assert service["nll"] == pytest.approx(wanted["nll"], rel=0.01)


def test_switch_in_mid_prompt(client, models, passages):
    prompt = passages[1][:, :384]
    answer = hf.generate_with_transfer(
        models["small"], models["large"], prompt, client, route="pair", native_tail=17,
        max_new_tokens=4, **SPECS,
    )  # fmt: skip
    assert answer.mapped, answer.transfer
    assert answer.transfer.covered_tokens == 367
    assert answer.sequences.shape[1] > 384


def test_command_line_maps_a_python_cache_file(cache, tmp_path, client):
    cli = binary("KVBRIDGE_CLI")
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    write_cache(source, CacheFile(SPECS["source"], *cache, np.arange(384)))
    subprocess.run(
        [
            cli, "transfer", "--artifact", ARTIFACT, "--source-config", CONFIGS["source_config"],
            "--target-config", CONFIGS["target_config"], "--allow-unproven",
            "--in", source, "--out", out,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    back = read_cache(out)
    served = send(client, cache)
    assert back.keys.shape[2] == served.covered_tokens == 383
    got = as_float32(back.keys)
    norm = np.linalg.norm(served.keys, axis=-1)
    assert float((np.linalg.norm(got - served.keys, axis=-1) / norm).max()) < 2**-6


def test_command_line_reports_the_digest_that_is_served(client):
    cli = binary("KVBRIDGE_CLI")
    done = subprocess.run(
        [
            cli, "inspect", ARTIFACT, "--source-config", CONFIGS["source_config"],
            "--target-config", CONFIGS["target_config"], "--format", "json",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    digest = {a.route: a.digest for a in client.list_artifacts()}["pair"]
    assert json.loads(done.stdout)["artifact_digest"] == digest
