"""Capturing calibration shards from the family's real models. Runs under transformers 5, and under 4 by
test_transformers4.py."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import FAMILY, GOLDEN, ROOT, TOKENIZER, family_model, limited
from kvbridge.arrays import bf16_to_float32, float32_to_bf16
from kvbridge.model_spec import model_spec
from kvbridge.shards import read_shard
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvbridge.capture import Capture, CaptureSettings  # noqa: E402
from kvbridge.capture_cli import main  # noqa: E402
from kvbridge.capture_errors import CaptureError  # noqa: E402
from kvbridge.capture_models import rope_of, strip  # noqa: E402
from kvbridge.capture_text import TextSource, Window, draw, leading_token, parse_text_source  # noqa: E402

KJV = FAMILY / "text/public_domain/calibration_kjv.txt"


def settings(**changes) -> CaptureSettings:
    given = {
        "source": FAMILY / "small",
        "target": FAMILY / "large",
        "texts": [TextSource("kjv", KJV)],
        "sequences": 3,
        "length": 48,
        "batch": 2,
        **changes,
    }
    return CaptureSettings(**given)


def command(out, *more, **changes) -> list[str]:
    given = {
        "source": FAMILY / "small",
        "target": FAMILY / "large",
        "text": f"kjv={KJV}",
        "sequences": 3,
        "length": 48,
        "batch": 2,
        "out": out,
        **changes,
    }
    flags = [str(part) for key, value in given.items() if value is not None for part in (f"--{key}", value)]
    return [*flags, *more]


def shards(folder):
    return [read_shard(path) for path in sorted(folder.glob("*.safetensors"))]


def contents(folder) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FAMILY / "small")


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Three shards of everything: both extras, every token, as cached, in float32."""
    out = tmp_path_factory.mktemp("capture")
    full = settings(keys="roped", element="f32", stride=1, row_weights=True, queries=True, query_positions=5)
    Capture(full).run(out)
    return out


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


@pytest.mark.parametrize("member,role", [("small", "source"), ("large", "target")])
def test_shards_hold_what_a_direct_forward_caches(captured, tmp_path, member, role):
    Capture(settings(keys="roped", element="f32", stride=5, offset=2)).run(tmp_path)
    model = family_model(member)
    assert len(shards(tmp_path)) == 3
    for whole, strided in zip(shards(captured), shards(tmp_path)):
        ids = torch.from_numpy(whole.token_ids.copy())[None]
        with torch.no_grad():
            cache = model(input_ids=ids, use_cache=True).past_key_values
        for shard, rows in ((whole, range(48)), (strided, range(2, 48, 5))):
            assert shard.positions.tolist() == list(rows)
            assert shard.token_ids.tolist() == ids[0, list(rows)].tolist()
            half = getattr(shard, role)
            for layer, (key, value) in enumerate(zip(half.keys, half.values)):
                held = cache.layers[layer]
                np.testing.assert_allclose(key, held.keys[0, :, list(rows)], atol=5e-5)
                np.testing.assert_allclose(value, held.values[0, :, list(rows)], atol=5e-5)


def test_stripped_bf16_is_the_cache_unrotated_and_rounded_once(captured, tmp_path):
    Capture(settings(stride=1)).run(tmp_path)
    for exact, shard in zip(shards(captured), shards(tmp_path)):
        assert (exact.key_form, shard.key_form) == ("roped", "stripped")
        for role in ("source", "target"):
            spec = getattr(exact, f"{role}_spec")
            cached, half = getattr(exact, role), getattr(shard, role)
            positions = torch.from_numpy(exact.positions.copy())
            expected = strip(torch.from_numpy(cached.keys.copy()), positions, rope_of(spec, 0)).numpy()
            close = {"rtol": 2**-8, "atol": 1e-4}
            np.testing.assert_allclose(bf16_to_float32(half.keys), expected, **close)
            np.testing.assert_allclose(bf16_to_float32(half.values), cached.values, **close)
            same = float32_to_bf16(expected) == half.keys
            assert same.mean() > 0.99  # the models computed it twice, the last bits may differ


def test_a_model_in_bf16_keeps_its_frequencies(tmp_path):
    """Rounded with the weights, they would turn keys far into a sequence by more than a degree."""
    found = {}
    for dtype in ("f32", "bf16"):
        one = settings(dtype=dtype, element="f32", stride=1, length=512, sequences=1)
        Capture(one).run(tmp_path / dtype)
        (found[dtype],) = shards(tmp_path / dtype)
    for role in ("source", "target"):
        exact, rounded = (getattr(found[dtype], role).keys[:, :, 256:] for dtype in ("f32", "bf16"))
        assert np.linalg.norm(rounded - exact) < 0.01 * np.linalg.norm(exact)


def test_row_weights_are_the_formula_written_out(captured):
    for path in sorted(captured.glob("*.safetensors")):
        shard = read_shard(path)
        seen = load_file(captured / "queries" / path.name)
        assert seen["positions"].tolist() == [8, 18, 27, 37, 47]
        layers, heads, rows, dim = shard.target.keys.shape
        for layer in (0, layers - 1):
            for head in range(heads):
                keys = shard.target.keys[layer, head].astype(np.float64)
                values = shard.target.values[layer, head].astype(np.float64)
                key_weight, value_weight = np.zeros(rows), np.zeros(rows)
                for query in seen["queries"][layer, 3 * head : 3 * head + 3].astype(np.float64):
                    for q, u in zip(query, seen["positions"]):
                        logits = keys[: u + 1] @ q / np.sqrt(dim)
                        a = np.exp(logits - logits.max())
                        a /= a.sum()
                        apart = ((values[: u + 1] - a @ values[: u + 1]) ** 2).sum(1)
                        value_weight[: u + 1] += a**2
                        key_weight[: u + 1] += a**2 * apart * (q @ q) / dim
                for found, expected in (
                    (shard.key_weight[layer, head], key_weight),
                    (shard.value_weight[layer, head], value_weight),
                ):
                    np.testing.assert_allclose(found, expected / expected.mean(), rtol=2e-3, atol=1e-5)


def test_watching_attention_changes_nothing(captured, tmp_path):
    Capture(settings(keys="roped", element="f32", stride=1)).run(tmp_path)
    for watched, plain in zip(shards(captured), shards(tmp_path)):
        assert plain.key_weight is None
        np.testing.assert_array_equal(watched.target.keys, plain.target.keys)
        np.testing.assert_array_equal(watched.target.values, plain.target.values)
    assert not (tmp_path / "queries").exists()


def test_shards_state_the_models_and_where_they_came_from(captured):
    shard = shards(captured)[0]
    for spec, layers, name in ((shard.source_spec, 4, "small"), (shard.target_spec, 8, "large")):
        assert spec.geometry.layers == layers and spec.identity.model_id == name
        assert spec.identity.tokenizer_sha256 == TOKENIZER
        assert spec.identity.revision == "sha256:" + shard.provenance[
            "source weights" if name == "small" else "target weights"
        ]
    assert shard.domain == "kjv" and shard.sequence_id.startswith("kjv-00000-")
    record = json.loads((captured / "capture.json").read_text())
    assert record["complete"] and record["settings"] == shard.provenance
    assert str(ROOT) not in json.dumps(record)


def test_one_model_at_a_time_gives_the_same_bytes(tmp_path):
    capture = Capture(settings(row_weights=True, queries=True))
    plan = capture.plan
    together, apart = tmp_path / "together", tmp_path / "apart"
    steps: dict[Path, list[str]] = {together: [], apart: []}
    for out, memory in ((together, plan.source_memory + plan.target_memory), (apart, plan.target_memory)):
        capture.run(out, memory=memory, progress=lambda p, out=out: steps[out].append(p.step))
    assert steps[together] == ["both models"] * 3
    assert steps[apart] == ["source"] * 3 + ["target"] * 3
    assert contents(together) == contents(apart)
    assert sum(p.stat().st_size for p in together.rglob("*.safetensors")) <= plan.bytes


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_killed_and_run_again_gives_the_same_bytes(tmp_path, apart):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    capture = Capture(settings(sequences=5))
    memory = [] if not apart else ["--memory", str(capture.plan.target_memory)]
    capture.run(straight)
    # Dies by SIGKILL in the writing of its third file, which leaves a part of it.
    code = (
        "import os, signal, sys\n"
        "from kvbridge import cache_file, capture_cli\n"
        "count, plain = [0], os.fsync\n"
        "def fsync(stream):\n"
        "    plain(stream)\n"
        "    count[0] += 1\n"
        "    if count[0] == 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.fsync = fsync\n"
        "sys.exit(capture_cli.main(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = command(killed, "-q", *memory, sequences=5)
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(killed.glob("*.part")) and contents(killed) != contents(straight)
    before = len(json.loads((killed / "capture.json").read_text())["shards"])
    assert before == (0 if apart else 2)
    assert main(arguments) == 0
    assert contents(killed) == contents(straight)


def test_only_what_is_missing_or_damaged_is_captured_again(tmp_path):
    capture = Capture(settings())
    capture.run(tmp_path)
    whole = contents(tmp_path)
    assert capture.run(tmp_path).captured == 0
    (tmp_path / "seq_00000.safetensors").unlink()
    damaged = bytearray(whole["seq_00002.safetensors"])
    damaged[-1] ^= 1
    (tmp_path / "seq_00002.safetensors").write_bytes(damaged)
    assert capture.run(tmp_path).captured == 2
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    "changes,named",
    [({"stride": 2}, "stride = 4, now 2"), ({"seed": 7}, "seed = 0, now 7"),
     ({"texts": [TextSource("other", KJV)]}, "text other = None")],
)  # fmt: skip
def test_other_settings_are_refused_by_name(tmp_path, changes, named):
    Capture(settings(sequences=1)).run(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CaptureError, match=named):
        Capture(settings(sequences=1, **changes)).run(tmp_path)
    assert contents(tmp_path) == before


def test_domains_take_turns_and_windows_do_not_overlap(tokenizer, tmp_path):
    other = tmp_path / "numbers.txt"
    other.write_text("".join(f"{i} {i * i}\n" for i in range(4000)))
    sources = [TextSource("kjv", KJV), TextSource("numbers", other)]
    drawn = draw(tokenizer, sources, Window(64), 30)
    assert [p.domain for p in drawn] == ["kjv", "numbers"] * 15
    assert all(len(p.token_ids) == 64 for p in drawn)
    text, lines = KJV.read_text(), other.read_text()
    spans = {"kjv": set(), "numbers": set()}
    for passage in drawn:
        piece = tokenizer.decode(passage.token_ids)
        inner = piece[4:-4]  # a window may begin inside a character
        begin = (text if passage.domain == "kjv" else lines).index(inner)
        new = set(range(begin, begin + len(inner)))
        assert not new & spans[passage.domain]
        spans[passage.domain] |= new
    again = draw(tokenizer, sources, Window(64), 30)
    assert [p.sequence_id for p in again] == [p.sequence_id for p in drawn]
    reseeded = draw(tokenizer, sources, Window(64, seed=1), 30)
    assert [p.sequence_id for p in reseeded] != [p.sequence_id for p in drawn]


def test_windows_begin_with_bos_where_the_tokenizer_begins_so(tokenizer, tmp_path):
    drawn = draw(tokenizer, [TextSource("kjv", KJV)], Window(64, bos=0), 5)
    assert all(p.token_ids[0] == 0 and len(p.token_ids) == 64 for p in drawn)
    assert leading_token(tokenizer) is None
    with pytest.raises(CaptureError, match="bos: expected a tokenizer with a BOS token"):
        Capture(settings(bos="always"))
    folder = model_folder(tmp_path / "bos")
    given = json.loads((folder / "tokenizer.json").read_text())
    end = "<|endoftext|>"
    given["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {end: {"id": end, "ids": [0], "tokens": [end]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(given))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": end}))
    assert leading_token(transformers.AutoTokenizer.from_pretrained(folder)) == 0
    both = Capture(settings(source=folder, target=folder))
    assert all(p.token_ids[0] == 0 for p in both.passages)
    never = Capture(settings(source=folder, target=folder, bos="never"))
    assert not any(p.token_ids[0] == 0 for p in never.passages)


def test_multi_byte_text_without_lines_is_cut_between_characters(tokenizer, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text("äöü" * 60_000)
    assert len(draw(tokenizer, [TextSource("long", long)], Window(512), 40)) == 40


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_token_files_are_taken_as_they_are(tmp_path, suffix):
    ids = np.arange(2, 122).reshape(3, 40)
    path = tmp_path / f"given{suffix}"
    if suffix == ".npy":
        np.save(path, ids)
    else:
        rows = [{"tokens": ids[0].tolist(), "domain": "code"}, ids[1].tolist(), ids[2, :20].tolist()]
        path.write_text("\n".join(map(json.dumps, rows)))
    Capture(settings(texts=(), tokens=path, stride=1, length=32)).run(tmp_path / "out")
    found = shards(tmp_path / "out")
    lengths = [32, 32, 32] if suffix == ".npy" else [32, 32, 20]
    for shard, row, length in zip(found, ids, lengths):
        assert shard.token_ids.tolist() == row[:length].tolist()
    assert [s.domain for s in found] == (["given"] * 3 if suffix == ".npy" else ["code", "given", "given"])


def model_folder(folder: Path, **changes) -> Path:
    """The small model with another config.json."""
    shutil.copytree(FAMILY / "small", folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"kv_lora_rank": 512}, "got mla (config.kv_lora_rank=512)"),
        ({"layer_types": None, "use_sliding_window": True, "sliding_window": 128},
         "got sliding (config.sliding_window=128)"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
         "got sliding (config.layer_types[3]='sliding_attention')"),
    ],
)  # fmt: skip
def test_models_without_a_plain_cache_are_refused_by_field(tmp_path, capsys, changes, named):
    odd = model_folder(tmp_path / "odd", **changes)
    assert main(command(tmp_path / "out", source=odd)) == 4
    said = capsys.readouterr().err
    assert "expected full attention in every layer, " + named in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_refused_by_what_differs(tmp_path, capsys):
    other = model_folder(tmp_path / "other")
    given = json.loads((other / "tokenizer.json").read_text())
    given["added_tokens"].append({
        "id": 4096, "content": "<|new|>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    })  # fmt: skip
    (other / "tokenizer.json").write_text(json.dumps(given))
    assert main(command(tmp_path / "out", target=other)) == 4
    assert "tokenizer: expected the same in both models, got tokens 4096 and 4097" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more,changes,code,named",
    [
        ([], {"source": "nowhere"}, 3, "source nowhere: expected a model's folder"),
        ([], {"text": "nowhere.txt"}, 3, "text nowhere.txt: No such file"),
        ([], {"sequences": 5000}, 3, "text kjv: expected 5000 windows of 48 tokens, got"),
        ([], {"length": 5000, "sequences": 1}, 3, "length: expected at most the source's 4096"),
        ([], {"stride": 0}, 2, "stride: expected at least 1, got 0"),
        ([], {"offset": 48}, 3, "offset: expected less than the shortest sequence"),
        ([], {"disk": "10kB"}, 6, "disk: expected at least"),
        ([], {"memory": "1MB"}, 6, "memory: expected about"),
        ([], {"device": "cuda:99"}, 2, "device: expected cpu or an accelerator that is there"),
        (["--bos", "sometimes"], {}, 2, "invalid choice"),
        ([], {"disk": "much"}, 2, "expected a size such as 20GB"),
        ([], {"text": None}, 2, "one of the arguments --text --tokens is required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, monkeypatch, more, changes, code, named):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(command(tmp_path / "out", "-q", *more, **changes))
    except SystemExit as usage:
        status = usage.code
    said = capsys.readouterr().err
    assert status == code and named in said and "Traceback" not in said
    assert not list(tmp_path.rglob("*.safetensors"))


def test_damaged_weights_text_and_token_files_are_named(tmp_path, capsys):
    broken = model_folder(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(command(tmp_path / "out", source=broken)) == 3
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9\n")
    assert main(command(tmp_path / "out", text=latin)) == 3
    ids = tmp_path / "ids.jsonl"
    ids.write_text("[1, 2, 5000]\n")
    assert main(command(tmp_path / "out", text=None, tokens=ids)) == 3
    said = capsys.readouterr().err
    assert "not UTF-8 at byte 3" in said and "sequence 0: expected two or more ids below 4096" in said
    assert "Traceback" not in said


def test_a_model_that_overflows_is_named_with_the_layer(tmp_path):
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file

    odd = model_folder(tmp_path / "odd")
    tensors = load(odd / "model.safetensors")
    tensors["model.layers.2.self_attn.v_proj.weight"][5, 7] = float("nan")
    save_file(tensors, odd / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CaptureError, match="source.values: expected finite numbers, got NaN .* layer 2"):
        Capture(settings(source=odd)).run(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_dry_run_says_what_it_would_take(tmp_path, capsys):
    assert main(command(tmp_path / "out", "--dry-run", "--format", "json")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == 36 and plan["sequences"] == 3
    assert 36 * 6160 < plan["bytes"] < 48 * 6160 + 3 * 20_000
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_or_in_use_is_refused(tmp_path, capsys):
    (tmp_path / "mine.safetensors").touch()
    assert main(command(tmp_path)) == 3
    assert "holds safetensors files and no capture.json" in capsys.readouterr().err

    def second(_):
        if not tried:
            tried.append(main(command(tmp_path / "out")))

    tried: list[int] = []
    Capture(settings()).run(tmp_path / "out", progress=second)
    assert tried == [3] and "another capture is writing there" in capsys.readouterr().err


def test_an_interrupt_leaves_whole_shards_and_goes_on(tmp_path, capsys, monkeypatch):
    def interrupt(self, progress):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kvbridge.capture_cli.Teller.progress", interrupt)
        assert main(command(tmp_path)) == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    record = json.loads((tmp_path / "capture.json").read_text())
    assert list(record["shards"]) == ["seq_00000.safetensors"] and not record["complete"]
    assert not list(tmp_path.glob("*.part"))
    assert main(command(tmp_path)) == 0
    assert len(shards(tmp_path)) == 3


def test_text_sources_have_names(tmp_path):
    assert parse_text_source("code=a/b.txt") == TextSource("code", Path("a/b.txt"))
    assert parse_text_source("a/b.txt") == TextSource("b", Path("a/b.txt"))
    assert parse_text_source("a=1/b.txt") == TextSource("a", Path("1/b.txt"))
    with pytest.raises(CaptureError, match="expected domain=path"):
        parse_text_source("=x")


def test_a_capture_that_failed_before_its_first_shard_binds_nobody(tmp_path, monkeypatch):
    def full(self, *_):
        raise CaptureError("source: out of memory", 6)

    with monkeypatch.context() as patch:
        patch.setattr("kvbridge.capture_models.Reader.read", full)
        with pytest.raises(CaptureError, match="out of memory"):
            Capture(settings(batch=3)).run(tmp_path)
    assert Capture(settings(batch=1)).run(tmp_path).captured == 3


def test_a_full_disk_leaves_whole_shards(tmp_path, monkeypatch, capsys):
    plain, count = os.fsync, [0]

    def fsync(stream):
        count[0] += 1
        if count[0] == 4:  # record, shard, record, and then the second shard
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(stream)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert main(command(tmp_path)) == 6
    assert "seq_00001.safetensors: No space left on device" in capsys.readouterr().err
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["capture.json", "seq_00000.safetensors"]
    assert main(command(tmp_path)) == 0


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path):
    capture = [sys.executable, "-m", "kvbridge.capture_cli", *command(tmp_path)]
    limit = {"preexec_fn": limited(20_000), "restore_signals": False}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(capture, **limit, capture_output=True, text=True, env=environment)
    assert done.returncode == 6, done.stderr
    assert "seq_00000.safetensors: File too large" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["capture.json"]
    assert main(command(tmp_path)) == 0
