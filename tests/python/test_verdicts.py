"""Verdicts on maps that deserve them: a good one, and three that fit their rows and are worth nothing.

Capture, fit, measure and judge, by the commands that a user types and the default gate's bounds, on the family and
the King James Bible.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import FAMILY, ROOT, binary
from kvbridge import evaluate_cli
from kvbridge.cache_file import read_safetensors, write_safetensors
from kvbridge.capture import Capture, CaptureSettings
from kvbridge.capture_models import Naming, inspect_folder
from kvbridge.capture_text import TextSource
from kvbridge.extra import torch, transformers

KJV = FAMILY / "text/public_domain"


def kvbridge(*arguments, codes=(0,)):
    """Runs the command line; its JSON."""
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments), "--format", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in codes, done.stderr
    return json.loads(done.stdout)


def capture(out: Path, text: Path, source: Path = FAMILY / "small") -> Path:
    """Shards whose source is called what the true one is: a route would refuse others by name."""
    true = inspect_folder("source", FAMILY / "small", Naming()).spec.identity
    settings = CaptureSettings(
        source=source,
        target=FAMILY / "large",
        texts=[TextSource("text", text)],
        sequences=60,
        length=256,
        stride=2,
        source_naming=Naming(true.model_id, true.revision),
    )
    Capture(settings).run(out)
    return out


def verdict(folder: Path, shards: Path) -> dict:
    """Of the default fit of these shards, by the default gate with the Bible as its general text."""
    artifact, run, gate = folder / "artifact", folder / "run", folder / "gate.yaml"
    kvbridge("fit", "accumulate", shards, "-o", folder / "moments")
    kvbridge("fit", "solve", "--moments", folder / "moments", "-o", artifact, "--target-model", FAMILY / "large")
    gate.write_text((ROOT / "configs/gates/default.yaml").read_text().replace("  general:", "  kjv:"))
    arguments = [
        "--artifact", artifact, "--source", FAMILY / "small", "--target", FAMILY / "large", "--text",
        f"kjv={KJV}/eval_kjv.txt", "--out", run, "--prefix", 255, "--scored", 64, "--tails", 1, "--attention", 0,
        "--threads", 1, "-q",
    ]  # fmt: skip
    assert evaluate_cli.main([str(argument) for argument in arguments]) == 0
    return kvbridge("validate", run, "--artifact", artifact, "--gate", gate, codes=(0, 1))


def shuffled(shards: Path, out: Path) -> Path:
    """The same shards with the source's rows in another order."""
    shutil.copytree(shards, out)
    for path in out.glob("*.safetensors"):
        tensors, metadata = read_safetensors(path)
        order = np.random.default_rng(0).permutation(len(tensors["positions"]))
        names = {"<u2": "BF16", "<i8": "I64", "<f4": "F32"}
        for name in ("source.keys", "source.values"):
            tensors[name] = tensors[name][:, :, order]
        write_safetensors(path, {n: (names[t.dtype.str], t) for n, t in tensors.items()}, metadata)
    return out


def untrained(out: Path) -> Path:
    """A model of the source's shape that knows nothing."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(FAMILY / "small")
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FAMILY / "small" / name, out)
    return out


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    binary("KVBRIDGED")
    return capture(tmp_path_factory.mktemp("shards"), KJV / "calibration_kjv.txt")


def broken(answer: dict) -> set[str]:
    """The rules that were broken."""
    return {check["rule"] for check in answer["evidence"]["checks"] if check["outcome"] == "broken"}


def test_a_good_map_passes(shards, tmp_path):
    assert verdict(tmp_path, shards)["verdict"] == "PASS"


def test_shuffled_rows_do_not_pass(shards, tmp_path):
    answer = verdict(tmp_path, shuffled(shards, tmp_path / "shuffled"))
    assert answer["verdict"] == "FAIL"
    assert broken(answer) >= {"kl_mean_max", "gap_min", "nearer_than.none"}


def test_the_wrong_pair_does_not_pass(tmp_path):
    binary("KVBRIDGED")
    text = KJV / "calibration_kjv.txt"
    answer = verdict(tmp_path, capture(tmp_path / "shards", text, untrained(tmp_path / "small")))
    assert answer["verdict"] == "FAIL"
    assert broken(answer) >= {"kl_mean_max", "gap_min", "nearer_than.none"}


def test_code_alone_does_not_pass(tmp_path):
    binary("KVBRIDGED")
    code = tmp_path / "code.txt"
    code.write_text("".join(path.read_text() for path in sorted((ROOT / "core").rglob("*.cc"))))
    answer = verdict(tmp_path, capture(tmp_path / "shards", code))
    assert answer["verdict"] == "FAIL"
    assert broken(answer) >= {"kl_mean_max", "gap_min", "nearer_than.none"}
