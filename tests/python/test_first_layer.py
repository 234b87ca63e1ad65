"""The first layer's cache from token ids alone. Runs under transformers 5, and under 4 by test_transformers4.py."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import SPECS, family_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge import hf  # noqa: E402
from kvbridge.first_layer import first_layer  # noqa: E402

TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 4096, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def ids():
    return torch.randint(2, 4096, (1, 90), generator=torch.Generator().manual_seed(3))


def own_first_layer(model, ids, mask=None):
    keys, values = hf.layer_tensors(hf.prefill(model, ids, mask))
    return keys[0], values[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_what_the_prefill_caches(ids, dtype):
    model = family_model("large", dtype)
    got = first_layer(model, ids, np.arange(90))
    for part, own in zip(got, own_first_layer(model, ids)):
        assert part.dtype == dtype
        torch.testing.assert_close(part, own, atol=0, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "phi3", "glm4", "gpt_neox", "granite"])
def test_other_families_too(ids, model_type):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(model_type, **TINY)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for part, own in zip(first_layer(model, ids, np.arange(90)), own_first_layer(model, ids)):
        torch.testing.assert_close(part, own, atol=1e-6, rtol=1e-5)


def test_tokens_from_the_middle_of_a_prompt_keep_their_positions(large, ids):
    for part, own in zip(first_layer(large, ids[:, 40:], np.arange(40, 90)), own_first_layer(large, ids)):
        torch.testing.assert_close(part, own[:, :, 40:], atol=1e-5, rtol=1e-5)


def test_padding_gets_zeros(large, ids):
    padded = torch.cat([torch.ones(1, 5, dtype=ids.dtype), ids], 1)
    positions = np.concatenate([np.full(5, -1), np.arange(90)])
    for part, own in zip(first_layer(large, padded, positions), own_first_layer(large, ids)):
        assert part.shape[2] == 95 and not part[:, :, :5].any()
        torch.testing.assert_close(part[:, :, 5:], own, atol=1e-5, rtol=1e-5)


def test_a_transfer_takes_it_in_place_of_the_maps(serve, small, large, ids):
    client, _ = serve()
    source = hf.prefill(small, ids)
    plain = hf.transfer_cache(client, source, input_ids=ids, **SPECS)
    exact = hf.transfer_cache(client, source, input_ids=ids, exact_first_layer=large, **SPECS)
    layers = zip(*(hf.layer_tensors(moved.cache) for moved in (plain, exact)))
    for (mapped, other), own in zip(layers, own_first_layer(large, ids)):
        torch.testing.assert_close(other[0], own[:, :, :89], atol=1e-5, rtol=1e-5)
        assert float((mapped[0] - other[0]).abs().max()) > 0.1
        assert all(torch.equal(a, b) for a, b in zip(mapped[1:], other[1:], strict=True))
    assert not np.array_equal(exact.result.keys[0], hf.to_numpy(hf.layer_tensors(exact.cache)[0][0][0]))


def test_behind_a_prefix_only_new_tokens_are_computed(serve, small, large, ids):
    client, _ = serve()
    source = hf.prefill(small, ids)
    first = hf.transfer_cache(client, hf.cut(source, 50), input_ids=ids[:, :50], **SPECS)
    turn = hf.transfer_cache(
        client, source, input_ids=ids, prefix=first.prefix, onto=first.cache, exact_first_layer=large, **SPECS
    )
    assert (turn.result.first_token, turn.result.covered_tokens) == (49, 89)
    caches = (hf.layer_tensors(moved.cache) for moved in (turn, first))
    for part, kept, own in zip(*caches, own_first_layer(large, ids)):
        assert torch.equal(part[0][:, :, :49], kept[0])
        torch.testing.assert_close(part[0][:, :, 49:], own[:, :, 49:89], atol=1e-5, rtol=1e-5)


def test_a_transfer_of_a_padded_prompt(serve, small, large, ids):
    client, _ = serve()
    padded = torch.cat([torch.ones(1, 4, dtype=ids.dtype), ids], 1)
    mask = (torch.arange(94)[None] >= 4).to(ids.dtype)
    moved = hf.transfer_cache(
        client, hf.prefill(small, padded, mask), input_ids=padded, attention_mask=mask, exact_first_layer=large,
        **SPECS,
    )  # fmt: skip
    for part, own in zip(hf.layer_tensors(moved.cache), own_first_layer(large, ids)):
        assert not part[0][:, :, :4].any()
        torch.testing.assert_close(part[0][:, :, 4:], own[:, :, :89], atol=1e-5, rtol=1e-5)


def test_generation_goes_on_from_it(serve, small, large, ids):
    client, _ = serve()
    options = {"exact_first_layer": large}
    answer = hf.generate_with_transfer(
        small, large, ids, client, max_new_tokens=1, transfer_options=options, **SPECS
    )
    moved = hf.transfer_cache(client, hf.prefill(small, ids), input_ids=ids, **options, **SPECS)
    assert answer.mapped
    assert int(answer.sequences[0, -1]) == int(hf.continue_from(large, moved.cache, ids)[0, -1].argmax())


def test_what_is_not_known_is_refused_before_anything_is_sent(serve, small, large, ids):
    client, server = serve()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 64}
    other = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    source = hf.prefill(small, ids)
    with pytest.raises(ValueError, match="exact_first_layer: .* got 'mamba', which is not known"):
        hf.transfer_cache(client, source, input_ids=ids, exact_first_layer=other, **SPECS)
    with pytest.raises(ValueError, match="exact_first_layer: expected input_ids"):
        hf.transfer_cache(client, source, exact_first_layer=large, **SPECS)
    assert not server.headers
