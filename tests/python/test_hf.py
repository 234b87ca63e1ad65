"""The Hugging Face adapter on the family's real models. Runs under transformers 5, and under 4 by
test_transformers4.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FAMILY, ROOT, SPECS, TOKENIZER, family_spec
from fake_server import Faults

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge import evaluate, hf  # noqa: E402
from kvbridge.extra import cache_argument  # noqa: E402
from transformers import DynamicCache  # noqa: E402

SOURCES = {**os.environ, "PYTHONPATH": str(ROOT / "client/python/src")}


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FAMILY / "small")


@pytest.fixture(scope="module")
def text():
    return (FAMILY / "text/public_domain/eval_kjv.txt").read_text()


@pytest.fixture(scope="module")
def ids(tokenizer, text):
    return tokenizer(text[:3000], return_tensors="pt").input_ids[:, :200]


def test_spec_of_a_loaded_model_is_the_artifacts(small, tokenizer):
    spec = hf.spec_of(small, tokenizer, revision="1", model_id="kvbridge-family/small")
    assert spec == SPECS["source"]
    assert spec.identity.tokenizer_sha256 == TOKENIZER


def test_adapters_are_stated(small, tokenizer):
    class Adapted:
        config, dtype, peft_config = small.config, small.dtype, {"default": "lora r=8"}

    assert len(hf.spec_of(Adapted(), tokenizer, revision="1").identity.adapter_digest) == 64


@pytest.mark.parametrize("split", [1, 150, 199])
def test_own_cache_cut_and_continued_is_the_unsplit_forward(large, ids, split):
    with torch.no_grad():
        whole = large(input_ids=ids).logits
    cache = hf.cut(hf.prefill(large, ids), split)
    logits = hf.continue_from(large, cache, ids)
    torch.testing.assert_close(logits, whole[:, split:], atol=2e-4, rtol=1e-4)


def test_own_cache_through_arrays_and_back_is_untouched(large, ids):
    cache = hf.prefill(large, ids)
    keys, values = hf.cache_arrays(cache)
    tensors = hf.layer_tensors(cache)
    for layer, (key, value) in enumerate(zip(*tensors)):
        assert torch.equal(torch.from_numpy(keys[layer]), key[0])
        assert torch.equal(torch.from_numpy(values[layer]), value[0])


def test_generating_over_the_targets_own_cache_is_plain_generation(large, ids):
    cache = hf.cut(hf.prefill(large, ids), 190)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = large.generate(input_ids=ids, **options)
    argument = cache_argument(large)
    continued = large.generate(input_ids=ids, **options, **{argument: cache})
    assert torch.equal(plain, continued)


def test_transfer_of_real_caches_is_worth_what_the_prototype_says(serve, small, large, tokenizer, text):
    client, server = serve()
    passages = evaluate.windows(tokenizer, text, 3)

    def mapped(cache, window):
        moved = hf.transfer_cache(client, cache, input_ids=window[:, :384], **SPECS)
        assert moved.result.covered_tokens == 383
        return moved.cache

    scores = evaluate.evaluate(
        small,
        large,
        passages,
        {
            "own": lambda cache, window: evaluate.own_prefix(large, window),
            "mapped": mapped,
            "raw": lambda cache, window: evaluate.raw_paste(cache, 8),
            "last 17": lambda cache, window: 17,
            "none": lambda cache, window: 1,
        },
    )
    kl = {name: scores.variants[name].means()["kl"] for name in scores.variants}
    assert kl["own"] < 1e-6
    assert 0.05 < kl["mapped"] < 0.35
    assert kl["mapped"] < kl["none"] < kl["raw"]
    assert kl["last 17"] < kl["none"]
    assert scores.gap_recovered("own") == pytest.approx(1, abs=1e-4)
    assert scores.gap_recovered("mapped") > scores.gap_recovered("none")
    assert len(server.headers) == 3


def test_switch_in_mid_prompt_generates_and_reports(serve, small, large, ids):
    client, server = serve()
    answer = hf.generate_with_transfer(
        small, large, ids, client, native_tail=17, max_new_tokens=8, **SPECS
    )
    assert answer.mapped and answer.transfer.covered_tokens == 183
    assert answer.sequences.shape[1] <= 208
    assert torch.equal(answer.sequences[:, :200], ids)
    assert server.headers[-1].source_selection.tokens == 183
    assert server.headers[-1].prompt_tokens == 200


def test_switch_continues_as_the_forward_over_the_mapped_cache_says(serve, small, large, ids):
    client, _ = serve()
    answer = hf.generate_with_transfer(small, large, ids, client, max_new_tokens=1, **SPECS)
    moved = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **SPECS)
    logits = hf.continue_from(large, moved.cache, ids)
    assert int(answer.sequences[0, -1]) == int(logits[0, -1].argmax())


def test_fallback_prefills_and_says_why(serve, small, large, ids):
    client, _ = serve()
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = large.generate(input_ids=ids, **options)
    answer = hf.generate_with_transfer(
        small, large, ids, client, max_new_tokens=8, transfer_options={"max_latency": 0}, **SPECS
    )
    assert not answer.mapped and answer.transfer.reason == "latency_budget"
    assert torch.equal(answer.sequences, plain)


def test_prompt_of_one_token_is_prefilled(serve, small, large, ids):
    client, _ = serve()
    answer = hf.generate_with_transfer(small, large, ids[:, :1], client, max_new_tokens=2, **SPECS)
    assert answer.transfer.reason == "not_worth_it"
    assert answer.sequences.shape[1] >= 2


def test_nan_in_a_key_is_non_finite(serve, small, ids):
    client, _ = serve()
    cache = hf.prefill(small, ids)
    hf.layer_tensors(cache)[0][2][0, 1, 5, 3] = float("nan")
    moved = hf.transfer_cache(client, cache, input_ids=ids, **SPECS)
    assert moved.cache is None and moved.result.reason == "non_finite"


def test_bf16_cache_gives_a_bf16_cache(serve, small, ids):
    client, _ = serve()
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(*hf.layer_tensors(hf.prefill(small, ids)))):
        cache.update(key.bfloat16(), value.bfloat16(), layer)
    moved = hf.transfer_cache(
        client,
        cache,
        source=family_spec("small", "bf16"),
        target=family_spec("large", "bf16"),
        input_ids=ids,
    )
    exact = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **SPECS)
    key, other = (hf.layer_tensors(c.cache)[0][7] for c in (moved, exact))
    assert key.dtype == torch.bfloat16
    assert float((key.float() - other).norm() / other.norm()) < 0.05  # bf16 input, then a map with a gain


def test_left_padding_keeps_its_place(serve, small, large, ids):
    client, _ = serve()
    padded = torch.cat([torch.ones(1, 7, dtype=ids.dtype), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 7, dtype=ids.dtype), torch.ones_like(ids)], dim=1)
    moved = hf.transfer_cache(
        client, hf.prefill(small, padded, mask), input_ids=padded, attention_mask=mask, **SPECS
    )
    plain = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **SPECS)
    for part in (0, 1):
        key = hf.layer_tensors(moved.cache)[part][3]
        assert not key[:, :, :7].any()
        expected = hf.layer_tensors(plain.cache)[part][3]
        torch.testing.assert_close(key[:, :, 7:], expected, atol=1e-3, rtol=1e-3)
    logits = hf.continue_from(large, moved.cache, padded, mask)
    expected = hf.continue_from(large, plain.cache, ids)
    torch.testing.assert_close(logits[:, -1], expected[:, -1], atol=5e-3, rtol=1e-3)


def test_other_padding_and_batches_are_errors(serve, small, ids):
    client, server = serve()
    cache = hf.prefill(small, ids)
    hole = torch.ones_like(ids)
    hole[0, 50] = 0
    with pytest.raises(ValueError, match="left padding"):
        hf.transfer_cache(client, cache, input_ids=ids, attention_mask=hole, **SPECS)
    two = ids.repeat(2, 1)
    with pytest.raises(ValueError, match="a batch of 2"):
        hf.transfer_cache(client, hf.prefill(small, two), input_ids=ids, **SPECS)
    with pytest.raises(ValueError, match=r"input_ids: expected \[1, tokens\], got \[2, 200\]"):
        hf.transfer_cache(client, cache, input_ids=two, **SPECS)
    assert not server.headers


def test_sliding_layers_are_refused_by_name(serve, ids):
    client, server = serve()
    config = transformers.MistralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=4096, sliding_window=16,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    moved = hf.transfer_cache(client, cache, input_ids=ids, **SPECS)
    assert (moved.result.outcome, moved.result.reason) == ("unsupported", "incompatible_model")
    assert "cache.layers[0]: sliding window attention" in moved.result.detail
    assert not server.headers
    assert client.metrics()["kvbridge_client_requests_total"] == {"unsupported": 1}


def test_caches_of_another_class_are_refused_by_name(serve, ids):
    client, _ = serve()
    moved = hf.transfer_cache(client, object(), input_ids=ids, **SPECS)
    assert moved.result.outcome == "unsupported"
    assert "expected a DynamicCache, got object" in moved.result.detail


def test_a_mapped_cache_is_not_mapped_again_unless_allowed(serve, small, ids):
    client, server = serve()
    first = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **SPECS)
    again = hf.transfer_cache(client, first.cache, input_ids=ids, **SPECS)
    assert again.cache is None and again.result.reason == "app_gate"
    assert len(server.headers) == 1
    short = hf.cut(first.cache, 20)
    assert hf.transfer_cache(client, short, input_ids=ids, **SPECS).result.reason == "app_gate"
    try:
        hf.transfer_cache(client, first.cache, input_ids=ids, allow_remap=True, timeout=5, **SPECS)
    finally:
        assert server.headers[-1].hops == 1


def test_the_source_cache_is_left_as_it_is(serve, small, ids):
    client, _ = serve(Faults(flip_answer_byte=True))
    cache = hf.prefill(small, ids)
    before = [t.clone() for part in hf.layer_tensors(cache) for t in part]
    moved = hf.transfer_cache(client, cache, input_ids=ids, **SPECS)
    assert moved.result.reason == "transport"
    assert all(
        torch.equal(a, b) for a, b in zip(before, (t for p in hf.layer_tensors(cache) for t in p))
    )


def test_cache_file_from_a_model(tmp_path):
    from kvbridge import read_cache
    from kvbridge.__main__ import main

    out = tmp_path / "cache.safetensors"
    status = main([
        "cache", "from-hf", "--model", str(FAMILY / "small"), "--text",
        str(FAMILY / "text/public_domain/eval_kjv.txt"), "-o", str(out), "--max-tokens", "40",
        "--model-id", "kvbridge-family/small", "--revision", "1",
    ])  # fmt: skip
    cache = read_cache(out)
    assert status == 0 and cache.keys.shape == (4, 2, 40, 64)
    assert cache.spec == family_spec("small", "bf16")
    assert len(cache.token_ids) == 40
    missing = ["cache", "from-hf", "--model", str(FAMILY / "small"), "--text", "none", "-o", "x"]
    assert main(missing) == 2
    assert not Path("x").exists()


@pytest.mark.parametrize("module", ["kvbridge.hf", "kvbridge.evaluate"])
@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_without_the_extra_the_import_says_what_to_install(module, absent):
    code = f"import sys; sys.modules['{absent}'] = None; import kvbridge; import {module}"
    run = subprocess.run([sys.executable, "-c", code], env=SOURCES, text=True, capture_output=True)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ") and last.endswith("pip install 'kvbridge[hf]'")


def test_without_the_extra_the_command_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None; from kvbridge.__main__ import main; "
        "sys.exit(main(['cache', 'from-hf', '--model', 'm', '--text', 't', '-o', 'x']))"
    )
    run = subprocess.run([sys.executable, "-c", code], env=SOURCES, text=True, capture_output=True)
    assert run.returncode == 2
    assert run.stderr.startswith("kvbridge: ") and "pip install 'kvbridge[hf]'" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_the_next_turn_maps_its_new_tokens_only(serve, small, large, ids):
    client, server = serve()
    first = hf.transfer_cache(client, hf.prefill(small, ids[:, :120]), input_ids=ids[:, :120], **SPECS)
    assert first.prefix.covered == 119
    hf.continue_from(large, first.cache, ids[:, :130])
    held = first.prefix.followed_by(ids[0, :130].numpy())
    whole = hf.prefill(small, ids)
    turn = hf.transfer_cache(client, whole, input_ids=ids, prefix=held, onto=first.cache, **SPECS)
    assert (turn.result.first_token, turn.result.covered_tokens) == (130, 199)
    assert server.headers[-1].first_token == 130
    assert turn.cache.get_seq_length() == 199
    alone = hf.transfer_cache(client, whole, input_ids=ids, **SPECS)
    for (key, _), (want, _), (kept, _) in zip(
        *(zip(*hf.layer_tensors(c)) for c in (turn.cache, alone.cache, first.cache))
    ):
        torch.testing.assert_close(key[:, :, 130:], want[:, :, 130:])
        torch.testing.assert_close(key[:, :, :130], kept[:, :, :130])


def test_a_prefix_without_its_cache_is_refused(serve, small, ids):
    client, _ = serve()
    first = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **SPECS)
    with pytest.raises(ValueError, match="onto: expected"):
        hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, prefix=first.prefix, **SPECS)
