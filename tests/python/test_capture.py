"""Capturing calibration shards from the family's real models. Runs under transformers 5, and under 4 by
test_transformers4.py."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import FAMILY, GOLDEN
from kvbridge.model_spec import model_spec
from kvbridge.shards import read_shard
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge.capture import Capture, CaptureSettings  # noqa: E402
from kvbridge.capture_models import rope_of, strip  # noqa: E402
from kvbridge.capture_text import TextSource  # noqa: E402

KJV = TextSource("kjv", FAMILY / "text/public_domain/calibration_kjv.txt")


def settings(**changes) -> CaptureSettings:
    given = {
        "source": FAMILY / "small",
        "target": FAMILY / "large",
        "texts": [KJV],
        "sequences": 3,
        "length": 48,
        "batch": 2,
        **changes,
    }
    return CaptureSettings(**given)


def shards(folder):
    return [read_shard(path) for path in sorted(folder.glob("*.safetensors"))]


@pytest.mark.parametrize("role", ["source", "target"])
@pytest.mark.parametrize("case", ["llama3", "partial", "partial_interleaved", "yarn", "yarn_both"])
def test_strip_gives_back_what_was_rotated(case, role):
    folder = GOLDEN / "rope" / case
    tables = load_file(folder / "tables.safetensors")
    spec = model_spec(folder / f"{role}_config.json", element_type="f32")
    rotated = torch.from_numpy(tables[f"{role}.strip.rotated_f32"])
    positions = torch.from_numpy(tables["gappy_positions"])
    found = strip(rotated, positions, rope_of(spec, 0)).numpy()
    np.testing.assert_allclose(found, tables[f"{role}.strip.content_f64"], atol=2e-5)


def test_shards_hold_what_a_direct_forward_caches(tmp_path):
    Capture(settings(keys="roped", element="f32", stride=5, offset=2)).run(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(FAMILY / "large").float().eval()
    for shard in shards(tmp_path):
        assert shard.positions.tolist() == list(range(2, 48, 5))
    for passage, shard in zip(Capture(settings()).passages, shards(tmp_path)):
        assert shard.sequence_id == passage.sequence_id
        assert shard.token_ids.tolist() == passage.token_ids[2::5].tolist()
        ids = torch.from_numpy(passage.token_ids)[None]
        with torch.no_grad():
            cache = model(input_ids=ids, use_cache=True).past_key_values
        for layer in range(8):
            key, value = cache.layers[layer].keys, cache.layers[layer].values
            np.testing.assert_allclose(shard.target.keys[layer], key[0, :, 2::5], atol=2e-5)
            np.testing.assert_allclose(shard.target.values[layer], value[0, :, 2::5], atol=2e-5)
