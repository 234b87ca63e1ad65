"""Explicit numbers from Hugging Face configurations: against transformers, the golden tables, and C++."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
from conftest import FAMILY, GOLDEN, binary
from google.protobuf import json_format
from kvbridge import model_spec
from kvbridge.v1 import types_pb2
from safetensors.numpy import load_file

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "head_dim": 16, "max_position_embeddings": 131072, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 4096,
    "short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
}  # fmt: skip
SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 2.0},
    "older-spelling": {"type": "linear", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-explicit": {**YARN, "attention_factor": 1.25},
    "yarn-mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn-mscale-alone": {**YARN, "mscale": 0.7},
    "yarn-untruncated": {**YARN, "truncate": False},
    "longrope": LONGROPE,
}


def llama(scaling=None, **changes):
    return {**LLAMA, "rope_scaling": scaling, **changes}


def from_transformers(scaling):
    """inv_freq and attention factor of transformers' own rotary module, float32."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(transformers.LlamaConfig(**llama(dict(scaling) if scaling else None)))
    return rotary.inv_freq, rotary.attention_scaling


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_transformers_own(name):
    inv_freq, factor = from_transformers(SCALINGS[name])
    params = model_spec(llama(SCALINGS[name]), longrope="short").rope.params
    np.testing.assert_allclose(params.inv_freq, inv_freq.double().numpy(), rtol=2e-6)
    assert params.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("role", ["source", "target"])
@pytest.mark.parametrize("case", ["llama3", "partial", "partial_interleaved", "yarn", "yarn_both"])
def test_frequencies_of_the_golden_tables(case, role):
    folder = GOLDEN / "rope" / case
    golden = load_file(folder / "tables.safetensors")[f"{role}.inv_freq"]
    spec = model_spec(folder / f"{role}_config.json", element_type="f32")
    np.testing.assert_allclose(spec.rope.params.inv_freq, golden, rtol=2e-6)
    assert spec.rope.params.rotary_dim == 2 * len(golden)


def test_both_spellings_mean_the_same():
    new = {k: v for k, v in llama().items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**YARN, "rope_theta": 10000.0}
    assert model_spec(new) == model_spec(llama(YARN))


def test_longrope_needs_the_list_that_the_cache_was_written_with():
    with pytest.raises(ValueError, match="short_factor or long_factor"):
        model_spec(llama(LONGROPE))
    short, long = (model_spec(llama(LONGROPE), longrope=which) for which in ("short", "long"))
    assert long.rope.params.inv_freq[0] == short.rope.params.inv_freq[0] / 2


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: .* got 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor: expected a number"),
        ({"rope_scaling": {"rope_type": "default", "novel": 1}}, "rope_parameters.novel"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}}, "rope_theta"),
        ({"partial_rotary_factor": 0.5, "rotary_dim": 4}, "rotary_dim: .*contradicts itself"),
        ({"model_type": "novel"}, "model_type: 'novel' is not known"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing"),
        ({"torch_dtype": None}, "element_type"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 2 entries"),
    ],
)
def test_what_is_missing_or_contradictory_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        model_spec({**LLAMA, **changes})


def test_layers_without_a_plain_cache_are_stated():
    full, sliding = types_pb2.ATTENTION_KIND_FULL, types_pb2.ATTENTION_KIND_SLIDING
    kinds = ["full_attention", "sliding_attention"]
    assert model_spec({**LLAMA, "layer_types": kinds}).geometry.attention == [full, sliding]
    assert model_spec({**LLAMA, "sliding_window": 4096}).geometry.attention == [sliding, sliding]
    assert model_spec({**LLAMA, "kv_lora_rank": 512}).geometry.attention[0] == (
        types_pb2.ATTENTION_KIND_MLA
    )
    assert not model_spec(LLAMA).geometry.attention


def test_a_loaded_config_and_its_file_mean_the_same():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(FAMILY / "large")
    assert model_spec(config, model_id="x") == model_spec(FAMILY / "large", model_id="x")


@pytest.mark.parametrize(
    "name", [*(f"scaling/{s}" for s in SCALINGS), "family/small", "family/large", "golden/partial",
             "golden/partial_interleaved", "golden/llama3", "golden/yarn_both"],
)  # fmt: skip
def test_cpp_derives_the_same_numbers(name, tmp_path):
    cli = binary("KVBRIDGE_CLI")
    kind, _, which = name.partition("/")
    if kind == "scaling":
        path = tmp_path / "config.json"
        path.write_text(json.dumps(llama(SCALINGS[which])))
    else:
        path = FAMILY / which / "config.json"
        if kind == "golden":
            path = GOLDEN / "rope" / which / "source_config.json"
    command = [cli, "inspect", "--config", os.fspath(path), "--format", "json"]
    if which == "longrope":
        command += ["--longrope", "short"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    spec = types_pb2.ModelSpec()
    json_format.ParseDict(printed["model"], spec)
    python = model_spec(path, element_type="bf16", longrope="short", model_id="")
    np.testing.assert_allclose(
        spec.rope.params.inv_freq, python.rope.params.inv_freq, rtol=1e-14
    )
    assert spec.rope.params.attention_factor == pytest.approx(
        python.rope.params.attention_factor, rel=1e-14
    )
    for field in ("rotary_dim", "pairing"):
        assert getattr(spec.rope.params, field) == getattr(python.rope.params, field)
    assert spec.rope.max_position == python.rope.max_position
    for field in ("layers", "kv_heads", "head_dim"):
        assert getattr(spec.geometry, field) == getattr(python.geometry, field)
    assert spec.identity.family == python.identity.family
