"""From text to a switch of models, through the commands that a user types: capture, fit, transfer.

The pair is the family's; the text is the King James Bible, calibration and evaluation apart. One thread and few
tokens: what is shown is that the parts fit together, not how good a map can be.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import FAMILY, binary
from safetensors import safe_open
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge import CacheFile, evaluate, read_cache, write_cache  # noqa: E402
from kvbridge.arrays import bf16_to_float32  # noqa: E402
from kvbridge.capture import Capture, CaptureSettings  # noqa: E402
from kvbridge.capture_stream import Accumulator, stream  # noqa: E402
from kvbridge.capture_text import TextSource  # noqa: E402
from kvbridge.hf import cache_arrays, cut  # noqa: E402
from kvbridge.shards import read_shard  # noqa: E402
from kvbridge.v1 import types_pb2  # noqa: E402
from transformers import DynamicCache  # noqa: E402

KJV = FAMILY / "text/public_domain"
SETTINGS = CaptureSettings(
    source=FAMILY / "small",
    target=FAMILY / "large",
    texts=[TextSource("kjv", KJV / "calibration_kjv.txt")],
    sequences=60,
    length=256,
    stride=2,
)


def run(*arguments) -> dict:
    """Of the command line; its JSON."""
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    binary("KVBRIDGE_CLI")
    out = tmp_path_factory.mktemp("shards")
    Capture(SETTINGS).run(out)
    return out


@pytest.fixture(scope="module")
def moments(shards, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("moments") / "all.moments"
    run("fit", "accumulate", shards, "-o", out)
    return out


@pytest.fixture(scope="module")
def artifact(moments, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("artifact") / "small-to-large"
    run("fit", "solve", "--moments", moments, "-o", out, "--target-model", FAMILY / "large")
    return out


@pytest.fixture(scope="module")
def models():
    read = transformers.AutoModelForCausalLM.from_pretrained
    return {name: read(FAMILY / name).float().eval() for name in ("small", "large")}


def whole(path) -> dict[str, np.ndarray]:
    """The moments of all rows, held out or not."""
    found = load_file(path)
    with safe_open(path, "numpy") as stream:
        sequences = json.loads(stream.metadata()["sequences"])
    rows = {"fit": 0, "held_out": 0}
    for sequence in sequences:
        rows[sequence["split"]] += sequence["rows"]
    out = {}
    for group in ("key", "value"):
        x, y, gram, cross = (
            {s: found[f"{group}.{s}.{name}"] for s in rows} for name in ("mean_x", "mean_y", "gram", "cross")
        )
        share = rows["fit"] * rows["held_out"] / (rows["fit"] + rows["held_out"])
        dx, dy = x["fit"] - x["held_out"], y["fit"] - y["held_out"]
        out[f"{group}.gram"] = gram["fit"] + gram["held_out"] + share * np.outer(dx, dx)
        out[f"{group}.cross"] = cross["fit"] + cross["held_out"] + share * np.outer(dx, dy)
    return out


def test_moments_are_those_of_the_shards_rows(shards, moments):
    """Against NumPy's, in float64: keys as they are stored, since they are stripped."""
    rows = {"source": [], "target": []}
    for path in sorted(shards.glob("*.safetensors")):
        shard = read_shard(path)
        for role, into in rows.items():
            values = (getattr(shard, role).values.astype(np.uint32) << 16).view(np.float32)
            into.append(values.transpose(2, 0, 1, 3).reshape(values.shape[2], -1))
    x, y = (np.concatenate(part).astype(np.float64) for part in rows.values())
    x, y = x - x.mean(0), y - y.mean(0)
    found = whole(moments)
    for name, expected in (("value.gram", x.T @ x), ("value.cross", x.T @ y)):
        np.testing.assert_allclose(found[name], expected, atol=1e-5 * np.abs(expected).max())


def test_streamed_moments_are_those_of_kept_shards(moments, tmp_path):
    capture = Capture(SETTINGS)
    twenty = capture.part(0, 20).plan.bytes
    streamed = stream(capture, tmp_path / "out", Accumulator(binary("KVBRIDGE_CLI")), disk=twenty)
    assert sorted(p.name for p in streamed.parent.iterdir()) == ["capture.json", "moments.safetensors"]
    expected = whole(moments)
    for name, found in whole(streamed).items():
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found, expected[name], atol=1e-5 * scale, err_msg=name)


def through_the_command(cache: DynamicCache, tokens: int, shard, artifact: Path, folder: Path) -> DynamicCache:
    """`kvbridge transfer` of a cache's first tokens, file to file."""
    spec = types_pb2.ModelSpec()
    spec.CopyFrom(shard.source_spec)
    spec.geometry.element_type = types_pb2.ELEMENT_TYPE_F32
    keys, values = (np.stack(part) for part in cache_arrays(cut(cache, tokens)))
    write_cache(folder / "in", CacheFile(spec, keys, values, np.arange(tokens, dtype=np.int64)))
    sides = ["--in", folder / "in", "--out", folder / "out", "--prompt-tokens", tokens + 1]
    answer = run("transfer", "--artifact", artifact, "--allow-unproven", *sides)
    assert answer["outcome"] == "applied", answer
    mapped, out = read_cache(folder / "out"), DynamicCache()
    for layer, pair in enumerate(zip(mapped.keys, mapped.values)):
        out.update(*(torch.from_numpy(bf16_to_float32(part))[None] for part in pair), layer)
    return out


def test_a_fitted_map_is_worth_more_than_no_prefix(shards, artifact, models, tmp_path):
    """On text that neither the fit nor the models have seen."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(FAMILY / "small")
    shard = read_shard(shards / "seq_00000.safetensors")
    tokens = evaluate.PROMPT - 1
    scores = evaluate.evaluate(
        models["small"],
        models["large"],
        evaluate.windows(tokenizer, (KJV / "eval_kjv.txt").read_text(), 6),
        {
            "mapped": lambda cache, _: through_the_command(cache, tokens, shard, artifact, tmp_path),
            "pasted": lambda cache, _: evaluate.raw_paste(cache, 8),
            "no prefix": lambda cache, _: 1,
        },
    )
    gap = {name: scores.gap_recovered(name) for name in scores.variants}
    kl = {name: scores.variants[name].means()["kl"] for name in scores.variants}
    assert gap["mapped"] > gap["no prefix"] + 0.05 and gap["mapped"] > gap["pasted"] + 0.05
    assert kl["mapped"] < 0.8 * kl["no prefix"] < kl["pasted"]
