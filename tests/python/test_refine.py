"""kvbridge-refine: the map that it trains is the artifact's, and training it helps."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import ARTIFACT, FAMILY, binary

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvbridge import refine_cli  # noqa: E402
from kvbridge.cache_file import read_safetensors  # noqa: E402
from kvbridge.capture_errors import CaptureError  # noqa: E402
from kvbridge.capture_models import rotate, strip  # noqa: E402
from kvbridge.capture_text import TextSource  # noqa: E402
from kvbridge.refine_descent import Covariance, Descent  # noqa: E402
from kvbridge.refine_map import TrainableMap  # noqa: E402
from kvbridge.refine_run import Refine, RefineSettings  # noqa: E402
from kvbridge.v1 import types_pb2  # noqa: E402

TEXT = FAMILY / "text/public_domain/calibration_kjv.txt"
LAYERS, HEADS, DIM = 2, 2, 3


def kvbridge(*arguments) -> dict:
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments), "--format", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def synthetic(norm: dict, **tensors) -> tuple[dict, dict]:
    """A manifest and weights of a map with both supports, the other component and heads that cross over."""
    shape = {"geometry": {"layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM}}
    full = {"support": "full", "sources": [1, 0], "cross_sources": [1], "head_source": []}
    local = {"support": "head_local", "sources": [1, 0], "head_source": [1, 0]}
    manifest = {"source": shape, "target": shape, "key_norm": norm,
                "layers": [{"key": full, "value": local}, {"key": local, "value": full}]}  # fmt: skip
    draw = np.random.default_rng(0)
    features = {"full": 3 * HEADS * DIM, "head_local": 2 * DIM}
    for layer, entry in enumerate(manifest["layers"]):
        for component, lists in entry.items():
            weight = draw.standard_normal((HEADS, features[lists["support"]], DIM))
            tensors[f"{component}_weight.{layer}"] = weight.astype(np.float32)
            tensors[f"{component}_bias.{layer}"] = draw.standard_normal((HEADS, DIM)).astype(np.float32)
    return manifest, tensors


def expected(manifest: dict, tensors: dict, x: np.ndarray, component: int, layer: int, head: int) -> np.ndarray:
    """Of one target head, by the format's words. x: [component, layer, head, tokens, dim]."""
    name = ("key", "value")[component]
    lists = manifest["layers"][layer][name]
    planes = [x[component, i] for i in lists["sources"]] + [x[1 - component, i] for i in lists.get("cross_sources", [])]
    heads = range(HEADS) if lists["support"] == "full" else [lists["head_source"][head]]
    features = np.concatenate([plane[h] for plane in planes for h in heads], -1)
    return features @ tensors[f"{name}_weight.{layer}"][head] + tensors[f"{name}_bias.{layer}"][head]


@pytest.mark.parametrize("kind", ["none", "k_norm", "scale"])
def test_the_map_is_the_formats(kind):
    gamma = np.array([0.5, 1, 2], np.float32)
    scale = np.array([0.5, 3], np.float32)
    extra = {f"key_norm.{i}": gamma for i in range(LAYERS)} if kind == "k_norm" else {}
    if kind == "scale":
        extra = {f"{c}_scale.{i}": scale for c in ("key", "value") for i in range(LAYERS)}
    manifest, tensors = synthetic({"kind": kind, "eps": 1e-6}, **extra)
    trained = TrainableMap(manifest, tensors)
    x = np.random.default_rng(1).standard_normal((2, LAYERS, HEADS, 5, DIM)).astype(np.float32)
    columns = torch.from_numpy(x).permute(3, 0, 1, 2, 4).flatten(1)[None]
    found = trained(columns).detach().numpy()
    for component, layer, head in np.ndindex(2, LAYERS, HEADS):
        y = expected(manifest, tensors, x, component, layer, head)
        if kind == "k_norm" and component == 0:
            y = y / np.sqrt(((y / gamma) ** 2).mean(-1, keepdims=True) + 1e-6)
        if kind == "scale":
            y = y * scale[head]
        np.testing.assert_allclose(found[component, layer, 0, head], y, rtol=2e-5, atol=2e-5)


def test_weights_go_back_as_they_came():
    manifest, tensors = synthetic({"kind": "none"})
    stored = TrainableMap(manifest, tensors).tensors()
    assert stored.keys() == tensors.keys()
    for name, (dtype, array) in stored.items():
        assert dtype == "F32"
        np.testing.assert_array_equal(array, tensors[name])


def test_networks_are_refused():
    manifest, tensors = synthetic({"kind": "none"})
    manifest["layers"][1]["value"] = manifest["layers"][1]["value"] | {"hidden": [4]}
    with pytest.raises(CaptureError, match=r"layers\[1\].value: expected a linear map, got a network"):
        TrainableMap(manifest, tensors)


def test_rotation_undoes_stripping():
    rope = types_pb2.RopeParams(inv_freq=[1.0, 0.1], attention_factor=1.25, rotary_dim=4, pairing=types_pb2.PAIRING_HALF)
    keys, positions = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0)), torch.arange(3, 10)
    torch.testing.assert_close(strip(rotate(keys, positions, rope), positions, rope), keys)
    torch.testing.assert_close(rotate(keys, positions, rope)[..., 4:], keys[..., 4:])


def identity(weight: torch.Tensor, bias: torch.Tensor) -> TrainableMap:
    """Outputs = columns @ weight + bias, all of them from all of them."""
    shape = {"geometry": {"layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM}}
    lists = {"support": "full", "sources": [0, 1], "cross_sources": [0, 1], "head_source": []}
    manifest = {"source": shape, "target": shape, "key_norm": {"kind": "none"},
                "layers": [{"key": lists, "value": lists}] * LAYERS}  # fmt: skip
    width, tensors = HEADS * DIM, {}
    for component, layer in np.ndindex(2, LAYERS):
        name, outputs = ("key", "value")[component], slice((LAYERS * component + layer) * width, None)
        part = weight[:, outputs][:, :width]
        part = torch.cat([part.chunk(2)[component], part.chunk(2)[1 - component]])  # its own component comes first
        tensors[f"{name}_weight.{layer}"] = part.unflatten(1, (HEADS, DIM)).transpose(0, 1).numpy()
        tensors[f"{name}_bias.{layer}"] = bias[outputs][:width].view(HEADS, DIM).numpy()
    return TrainableMap(manifest, tensors)


def test_steps_do_not_depend_on_the_columns_coordinates():
    """The same steps on columns that were mixed and moved give the same map: that is what whitening is for."""
    draw = torch.Generator().manual_seed(0)
    width = 2 * LAYERS * HEADS * DIM
    mixing = torch.eye(width) + 0.1 * torch.randn(width, width, generator=draw)
    moved = torch.randn(width, generator=draw)
    x, wanted = torch.randn(2, 400, width, generator=draw)
    back = mixing.double().inverse().float()
    outputs = []
    for columns, weight, bias in (
        (x, torch.eye(width), torch.zeros(width)),
        (x @ mixing + moved, back, -moved @ back),
    ):
        trained = identity(weight, bias)
        covariance = Covariance(width, damping=0)
        covariance.add(columns)
        descent = Descent(trained, covariance, rate=0.01)
        read = lambda: trained(columns[None])[:, :, 0].permute(3, 0, 1, 2, 4).flatten(1)  # noqa: B023, E731
        torch.testing.assert_close(read().detach(), x, rtol=1e-3, atol=1e-3)
        for _ in range(3):
            (read() - wanted).square().mean().backward()
            descent.step(1)
        outputs.append(read().detach())
    assert float((outputs[0] - wanted).square().mean()) < 0.98 * float((x - wanted).square().mean())
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> Path:
    """The prototype's artifact with the target's k_norm."""
    out = tmp_path_factory.mktemp("refine") / "native"
    kvbridge(
        "artifact", "convert", "--source-config", FAMILY / "small/config.json", "--target-config",
        FAMILY / "large/config.json", "--key-norm-from", FAMILY / "large", ARTIFACT, out,
    )  # fmt: skip
    return out


def settings(native: Path, **changes) -> RefineSettings:
    """Few and short windows."""
    stated = dict(sequences=16, held_out=8, length=96, prefix=(40, 60), tails=[1], steps=6, batch=4, rate=1e-3, check=2)
    return RefineSettings(
        artifact=native, source=FAMILY / "small", target=FAMILY / "large", texts=[TextSource("kjv", TEXT)],
        cli=Path(binary("KVBRIDGE_CLI")), **(stated | changes),
    )  # fmt: skip


def test_kl_on_windows_that_were_not_trained_on_falls(native, tmp_path):
    seen = []
    out = Refine(settings(native)).run(tmp_path / "refined", seen.append)
    best = min(seen, key=lambda progress: progress.held_out)
    assert [progress.step for progress in seen] == [0, 2, 4, 6]
    assert best.held_out < 0.97 * seen[0].held_out
    manifest = json.loads((out / "manifest.json").read_text())
    record = manifest["calibration"]["refined"]
    assert record["base"] == kvbridge("inspect", native)["artifact_digest"]
    assert (record["taken"], record["kl_after"]) == (best.step, pytest.approx(best.held_out, abs=1e-6))
    assert manifest["evidence"] is None
    before, after = (read_safetensors(folder / "mapper.safetensors")[0] for folder in (native, out))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if not name.startswith("key_norm")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["refined"]


def test_several_native_tails_count_alike(native, tmp_path):
    class Seen(Exception):
        pass

    def first_look(tails):
        def stop(progress):
            raise Seen(progress.held_out)

        with pytest.raises(Seen) as seen:
            Refine(settings(native, sequences=4, tails=tails)).run(tmp_path / "out", stop)
        return seen.value.args[0]

    near, far, both = (first_look(tails) for tails in ([1], [25], [1, 25]))
    assert far != pytest.approx(near, rel=0.01)
    assert both == pytest.approx((near + far) / 2, rel=1e-5)


def test_a_refinement_that_was_stopped_goes_on(native, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    Refine(settings(native)).run(whole)

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Refine(settings(native)).run(parts, stop)
    assert not parts.exists()
    with pytest.raises(CaptureError, match="expected a refinement of the same settings"):
        Refine(settings(native, rate=2e-3)).run(parts)
    Refine(settings(native)).run(parts)
    assert kvbridge("inspect", whole)["artifact_digest"] == kvbridge("inspect", parts)["artifact_digest"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--prefix", "60", "40"], 2, "prefix: expected two numbers"),
        (["--tail", "1", "129"], 2, r"tail: expected numbers of 1 to 128, what a window has after the longest prefix, got [1, 129]"),
        (["--rate", "0"], 2, "rate: expected a number between 0 and 1"),
        (["--steps", "0"], 2, "steps: expected 1 or more, got 0"),
        (["--artifact", str(ARTIFACT)], 4, "expected a native one"),
        (["--target", str(FAMILY / "nowhere")], 3, "no config.json there"),
    ],
)
def test_bad_input_is_named(native, tmp_path, capsys, options, code, message):
    arguments = ["--artifact", native, "--source", FAMILY / "small", "--target", FAMILY / "large",
                 "--text", f"kjv={TEXT}", "-o", tmp_path / "out", "--cli", binary("KVBRIDGE_CLI")]  # fmt: skip
    assert refine_cli.main([str(a) for a in arguments] + options) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_keys_as_cached_are_refused(native, tmp_path):
    cached = shutil.copytree(native, tmp_path / "cached")
    manifest = json.loads((cached / "manifest.json").read_text())
    (cached / "manifest.json").write_text(json.dumps(manifest | {"strip_rope": False}))
    with pytest.raises(CaptureError, match="expected a map of un-rotated keys"):
        Refine(settings(cached))
