"""Fitting from the command line when its input is not what it should be, or somebody stops it: the exit code, the
message, and that nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import binary, family_spec, limited
from kvbridge.shards import Half, Shard, write_shard
from kvbridge.v1 import types_pb2

SOURCE, TARGET = family_spec("small"), family_spec("large")
ROWS = 32


def changed(spec: types_pb2.ModelSpec, **identity: str) -> types_pb2.ModelSpec:
    other = types_pb2.ModelSpec()
    other.CopyFrom(spec)
    for name, value in identity.items():
        setattr(other.identity, name, value)
    return other


def shard(number: int, source=SOURCE, target=TARGET, keys_of=lambda keys: keys) -> Shard:
    """A sequence of made-up numbers; the same number gives the same sequence."""
    random = np.random.default_rng(number)

    def half(spec) -> Half:
        geometry = spec.geometry
        shape = (geometry.layers, geometry.kv_heads, ROWS, geometry.head_dim)
        return Half(random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32))

    ours, theirs = half(source), half(target)
    ours = dataclasses.replace(ours, keys=keys_of(ours.keys))
    positions = np.arange(ROWS)
    return Shard(f"sequence-{number}", "made-up", "stripped", source, target, ours, theirs, positions, positions + 1000 * number)


def run(folder: Path, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [binary("KVBRIDGE_CLI"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, **options)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The error, of --format json."""
    return json.loads(done.stderr.splitlines()[-1])["message"]


def names(folder: Path) -> set[str]:
    """Of all that lies there, hidden files too."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Shards, moments of both halves, a fitted artifact: what the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "shards").mkdir()
    for number in range(6):
        write_shard(folder / "shards" / f"{number}.safetensors", shard(number))
    for command in (
        ["fit", "accumulate", "shards", "--shard", "1/2", "-o", "first"],
        ["fit", "accumulate", "shards", "--shard", "2/2", "-o", "second"],
        ["fit", "merge", "first", "second", "-o", "moments"],
        ["fit", "solve", "--moments", "moments", "--k", "2", "-o", "artifact"],
    ):
        done = run(folder, *command, "-q")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def here(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "here"))


def nan_in_a_row(keys: np.ndarray) -> np.ndarray:
    keys = keys.copy()
    keys[1, 0, 7, 3] = np.nan
    return keys


@pytest.mark.parametrize("command", [["fit", "accumulate"], ["fit"]], ids=["accumulate", "fit"])
@pytest.mark.parametrize(
    ("spoilt", "code", "named"),
    [
        (shard(9, source=changed(SOURCE, revision="2")), 4, "another model than in 0.safetensors: source.identity.revision: expected 1, got 2"),
        (shard(9, target=changed(TARGET, tokenizer_sha256="b" * 64)), 4, "tokenizer"),
        (shard(9, keys_of=nan_in_a_row), 3, "source.keys: expected finite numbers, got NaN or infinity in layer 1, head 0, row 7, dim 3"),
        (shard(0), 3, "sequence-0"),
    ],
    ids=["another model", "another tokenizer", "NaN", "a sequence twice"],
)
def test_a_shard_that_does_not_belong_is_named(here, command, spoilt, code, named):
    write_shard(here / "shards/9.safetensors", spoilt)
    before = names(here)
    done = run(here, *command, "shards", "-q", "-o", "out", "--format", "json")
    assert done.returncode == code, done
    assert named in said(done) and "9.safetensors" in said(done)
    assert names(here) == before


@pytest.mark.parametrize("command", [["fit", "accumulate"], ["fit"]], ids=["accumulate", "fit"])
@pytest.mark.parametrize("cut", [0, 7, 300, -1], ids=["to nothing", "in its length", "in its header", "by a byte"])
def test_a_shard_that_was_cut_short_is_named(here, command, cut):
    path = here / "shards/3.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    before = names(here)
    done = run(here, *command, "shards", "-q", "-o", "out", "--format", "json")
    assert done.returncode == 3 and "3.safetensors" in said(done), done
    assert names(here) == before


@pytest.mark.parametrize(
    ("inputs", "code", "named"),
    [
        (["first", "first"], 3, "sequence-"),
        (["moments", "second"], 3, "sequence-"),
        (["first", "other"], 4, "other: another model than in first: source.identity.revision: expected 1, got 2"),
    ],
    ids=["a file twice", "a part twice", "another model"],
)
def test_moments_that_do_not_add_up_are_refused(here, inputs, code, named):
    (here / "others").mkdir()
    write_shard(here / "others/9.safetensors", shard(9, source=changed(SOURCE, revision="2")))
    assert run(here, "fit", "accumulate", "others", "--held-out", "0", "-q", "-o", "other").returncode == 0
    before = names(here)
    done = run(here, "fit", "merge", *inputs, "-o", "out", "--format", "json")
    assert done.returncode == code and named in said(done), done
    assert names(here) == before


def test_a_merge_that_has_no_room_leaves_nothing(here):
    """Of the other commands test_hardship.py says so."""
    before = names(here)
    merge = ["fit", "merge", "first", "second", "-o", "out", "--format", "json"]
    done = run(here, *merge, preexec_fn=limited(30_000), restore_signals=False)
    assert done.returncode == 6 and "No space left on device" in said(done), done
    assert names(here) == before


@pytest.mark.parametrize("room", ["1B", "1KB"])
def test_a_budget_that_holds_no_map_says_what_would(here, room):
    before = names(here)
    done = run(here, "fit", "solve", "--moments", "moments", "--budget", room, "-o", "out", "--format", "json")
    assert done.returncode == 6 and "budget: expected room for at least" in said(done), done
    assert names(here) == before


def interrupted_at_once() -> None:
    """SIGINT waits for the program before its first instruction."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["accumulate", "shards"], {"out.checkpoint", "out.partial"}),
        (["merge", "first", "second"], set()),
        (["solve", "--moments", "moments"], set()),
        (["shards"], {"out.moments.checkpoint", "out.moments.partial"}),
        (["mlp", "shards", "--base", "artifact", "--epochs", "1", "--threads", "1"], {"out.networks"}),
    ],
    ids=["accumulate", "merge", "solve", "fit", "mlp"],
)
def test_an_interrupt_leaves_what_resume_goes_on_from_and_no_more(here, command, kept):
    before = names(here)
    command = ["fit", *command, "-q", "-o", "out"]
    done = run(here, *command, preexec_fn=interrupted_at_once, restore_signals=False)
    if done.returncode == 4 and "LibTorch" in done.stderr:
        pytest.skip("built without LibTorch")
    assert done.returncode == 130, done
    assert names(here) - before == kept
    assert run(here, *command, *(["--resume"] if kept else [])).returncode == 0
    assert names(here) - before >= {"out"} and not names(here) & kept


def test_an_interrupt_between_epochs_is_obeyed(here):
    before = names(here)
    command = [
        binary("KVBRIDGE_CLI"), "fit", "mlp", "shards", "--base", "artifact", "--threads", "1",
        "--epochs", "1000000", "--patience", "1000000", "-o", "out",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=here) as training:
        for line in training.stderr:
            if "LibTorch" in line:
                pytest.skip("built without LibTorch")
            if "epoch" in line:
                training.send_signal(signal.SIGINT)
    assert training.returncode == 130
    assert {name.split("/")[0] for name in names(here) - before} == {"out.networks"}
