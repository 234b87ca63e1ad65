"""Runs of measurements on the family's models, and what kvbridge validate makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import ARTIFACT, FAMILY, binary
from kvbridge import evaluate_cli
from kvbridge.cache_file import read_safetensors, write_safetensors

TEXT = FAMILY / "text/public_domain/eval_kjv.txt"
GATE = """
schema: kvbridge-gate/1
name: test
native_tail: 1
min_sequences: 2
identity_kl_max: 0.01
domains: {kjv: {kl_mean_max: 1.0, nearer_than: {random: 0.5}}}
"""


def kvbridge(*arguments, code=0):
    """Runs the command line; its JSON."""
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments), "--format", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout or done.stderr)


def convert(target_folder: Path, *options) -> Path:
    """The prototype's artifact as a native one."""
    kvbridge(
        "artifact", "convert", "--source-config", FAMILY / "small/config.json", "--target-config",
        FAMILY / "large/config.json", *options, ARTIFACT, target_folder,
    )  # fmt: skip
    return target_folder


def evaluate(artifact: Path, out: Path, *options) -> int:
    """kvbridge-evaluate with few and short sequences."""
    binary("KVBRIDGED")
    arguments = [
        "--artifact", artifact, "--source", FAMILY / "small", "--target", FAMILY / "large", "--text",
        f"kjv={TEXT}", "--out", out, "--sequences", 2, "--prefix", 95, "--scored", 32, "--tails", 1, 9,
        "--attention", 1, "--threads", 1, "-q", *options,
    ]  # fmt: skip
    return evaluate_cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """An artifact with the target's k_norm and a run of it, with one shorter prefix and the logits kept."""
    folder = tmp_path_factory.mktemp("evaluate")
    artifact = convert(folder / "artifact", "--key-norm-from", FAMILY / "large")
    assert evaluate(artifact, folder / "run", "--lengths", 32, "--keep") == 0
    return artifact, folder / "run"


def scores(run: Path, name: str = "kjv-00000-95") -> dict:
    """Of one sequence."""
    return json.loads((run / f"scores/{name}.json").read_text())


def test_every_variant_is_scored(measured):
    _, run = measured
    variants = scores(run)["variants"]
    tailed = {name + tail for name in ("mapped", "none", "raw", "random") for tail in ("", ".tail9")}
    assert set(variants) == {"own", "identity", "source"} | tailed
    assert variants["own"]["kl"] == 0
    assert abs(variants["identity"]["kl"]) < 1e-6
    assert variants["mapped"]["kl"] < variants["none"]["kl"] < variants["random"]["kl"]
    assert variants["mapped.tail9"]["kl"] < variants["mapped"]["kl"]
    assert set(scores(run, "kjv-00001-32")["variants"]) == {"own", "source", "mapped", "none"}


def test_scores_are_of_the_logits(measured):
    _, run = measured
    tensors, metadata = read_safetensors(run / "logits/kjv-00000-95.safetensors")
    own, mapped = (tensors[f"logits.{name}"].astype(np.float64) for name in ("own", "mapped"))
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (own, mapped))
    got = scores(run)["variants"]["mapped"]
    assert got["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-6)
    assert got["nll"] == pytest.approx(-q[np.arange(32), tensors["labels"]].mean(), rel=1e-6)
    assert got["top1"] == (p.argmax(-1) == q.argmax(-1)).mean()
    assert metadata["prefix_tokens"] == "95"


def test_attention_outputs_are_those_of_the_model(measured):
    """The captured queries and caches give what the target's own attention computed: cosine 1 with itself, and
    a mapped cache is near, a random one far."""
    _, run = measured
    cosine = scores(run)["layer_cosine"]
    assert len(cosine["mapped"]) == 8
    assert min(cosine["mapped"]) > 0.7 > min(cosine["random"])
    assert not scores(run, "kjv-00001-95")["layer_cosine"]
    tensors, _ = read_safetensors(run / "logits/kjv-00000-95.safetensors")
    assert tensors["attention.queries"].shape == (8, 6, 32, 64)
    assert tensors["attention.keys.mapped"].shape == (8, 2, 127, 64)
    own, mapped = (tensors[f"attention.keys.{name}"] for name in ("own", "mapped"))
    assert np.array_equal(own[:, :, 95:], mapped[:, :, 95:])  # the prefix alone differs


def test_a_verdict_goes_into_the_manifest_and_is_obeyed(measured, tmp_path):
    artifact, run = measured
    judged = shutil.copytree(artifact, tmp_path / "judged")
    gate = tmp_path / "gate.yaml"
    gate.write_text(GATE)
    before = kvbridge("inspect", judged)
    answer = kvbridge("validate", run, "--artifact", judged, "--gate", gate)
    assert answer["verdict"] == "PASS"
    after = kvbridge("inspect", judged)
    assert (before["verdict"], after["verdict"]) == ("UNPROVEN", "PASS")
    assert after["artifact_digest"] == answer["artifact_digest"] != before["artifact_digest"]
    evidence = json.loads((judged / "manifest.json").read_text())["evidence"]
    assert evidence["kl_nats"] == pytest.approx(answer["kl_nats"])
    assert [tail["native_tail"] for tail in evidence["tails"]] == [1, 9]
    assert evidence["details"]["measured_artifact"] == before["artifact_digest"]
    assert set(evidence["details"]["domains"]["kjv"]["layers"]) == {"mapped", "raw", "random"}
    lengths = evidence["details"]["lengths"]["kjv"]
    assert [point["prefix_tokens"] for point in lengths] == [32, 95]
    # The same verdict again changes nothing.
    assert kvbridge("validate", run, "--artifact", judged, "--gate", gate)["artifact_digest"] == answer["artifact_digest"]


def test_a_gate_that_is_not_passed_ends_with_1(measured, tmp_path):
    artifact, run = measured
    judged = shutil.copytree(artifact, tmp_path / "judged")
    gate = tmp_path / "gate.yaml"
    gate.write_text(GATE.replace("1.0", "0.001"))
    assert kvbridge("validate", run, "--artifact", judged, "--gate", gate, code=1)["verdict"] == "FAIL"
    assert kvbridge("inspect", judged)["verdict"] == "FAIL"
    gate.write_text(GATE.replace("min_sequences: 2", "min_sequences: 3"))
    answer = kvbridge("validate", run, "--artifact", judged, "--gate", gate, "--dry-run", code=1)
    assert answer["verdict"] == "UNPROVEN"
    assert kvbridge("inspect", judged)["verdict"] == "FAIL"  # a dry run changes nothing


def test_a_run_of_another_artifact_is_refused(measured, tmp_path):
    _, run = measured
    other = convert(tmp_path / "other")
    gate = tmp_path / "gate.yaml"
    gate.write_text(GATE)
    error = kvbridge("validate", run, "--artifact", other, "--gate", gate, code=4)
    assert "expected measurements of artifact" in error["message"]


def test_an_interrupted_run_goes_on(measured, tmp_path):
    """What is scored stays as it is, what is missing is measured: the figures are those of one go."""
    artifact, run = measured
    again = shutil.copytree(run, tmp_path / "run")
    kept = again / "scores/kjv-00000-95.json"
    marked = scores(again) | {"tokens": 31}
    kept.write_text(json.dumps(marked))
    (again / "scores/kjv-00001-95.json").unlink()
    assert evaluate(artifact, again, "--lengths", 32) == 0
    assert json.loads(kept.read_text()) == marked
    assert scores(again, "kjv-00001-95") == scores(run, "kjv-00001-95")


def test_other_settings_go_into_another_folder(measured, capsys):
    artifact, run = measured
    missing = run / "scores/kjv-00001-95.json"
    saved = missing.read_bytes()
    missing.unlink()
    assert evaluate(artifact, run, "--seed", 5) == 3
    assert "protocol differ" in capsys.readouterr().err
    missing.write_bytes(saved)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--tails", "9"], 2, "tails: expected 1"),
        (["--lengths", "95"], 2, "lengths: expected 1 to 94"),
        (["--prefix", "0"], 2, "prefix: expected 1 or more"),
        (["--text", "KJV=x"], 2, "expected a domain of a-z"),
        (["--text", "kjv=nowhere.txt"], 3, "nowhere.txt"),
        (["--sequences", "100000"], 3, "expected 100000 windows"),
        (["--source", "nowhere"], 3, "source nowhere"),
        (["--cli", "nowhere"], 2, "cli: expected a program"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(measured, tmp_path, capsys, options, code, says):
    artifact, _ = measured
    assert evaluate(artifact, tmp_path / "run", *options) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_prototypes_artifact_is_to_be_converted_first(tmp_path, capsys):
    assert evaluate(ARTIFACT, tmp_path / "run") == 4
    assert "kvbridge artifact convert" in capsys.readouterr().err


def test_models_that_are_not_the_artifacts_are_refused(measured, tmp_path, capsys):
    artifact, _ = measured
    swapped = ["--source", FAMILY / "large", "--target", FAMILY / "small"]
    assert evaluate(artifact, tmp_path / "run", *swapped) == 4
    assert "shape_mismatch" in capsys.readouterr().err


def test_a_logits_file_that_is_damaged_is_refused(tmp_path):
    file = tmp_path / "x.safetensors"
    logits = np.zeros((2, 4), np.float32)
    metadata = {"format": "kvbridge-logits", "schema": "1", "domain": "d", "sequence": "0", "prefix_tokens": "1"}
    labels = ("I64", np.array([1, 9]))
    write_safetensors(file, {"labels": labels, "logits.own": ("F32", logits)}, metadata)
    error = kvbridge("validate", "score", file, code=3)
    assert error["message"] == f"{file}: labels: expected 0 to 3 (logits.own), got 9"
    assert kvbridge("validate", "score", tmp_path / "nowhere", code=3)["code"] == "not_found"


def test_usage(capsys):
    assert kvbridge("validate", code=2)["code"] == "usage"
    assert "--gate" in kvbridge("validate", "run", "--artifact", "a", code=2)["message"]
