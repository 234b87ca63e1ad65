"""kvbridge-capture --no-store: what is handed to the accumulator, and what is left when it stops halfway."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvbridge.capture import Capture  # noqa: E402
from kvbridge.capture_cli import main  # noqa: E402
from kvbridge.capture_errors import CaptureError  # noqa: E402
from kvbridge.capture_stream import Accumulator, stream  # noqa: E402
from test_capture import command, settings  # noqa: E402

# Stands in for `kvbridge fit`: its "moments" are the list of sequences that went in. Like the real one it
# refuses a sequence twice, and dies before or after its work when the environment says at which call.
PROGRAM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from kvbridge.shards import read_shard
verb, inputs, out = sys.argv[2], [], None
arguments = iter(sys.argv[3:])
for argument in arguments:
    if argument == "-o": out = Path(next(arguments))
    elif not argument.startswith("-"): inputs.append(Path(argument))
log = Path(__file__).with_name("log")
calls = len(log.read_text().splitlines()) if log.exists() else 0
with log.open("a") as stream: print(*sys.argv[1:3], *sys.argv[5:], file=stream)
die = os.environ.get("DIE_AT", "")
if die == f"{{calls}} before": sys.exit("kvbridge: out of luck")
if verb == "accumulate":
    found = [read_shard(p).sequence_id for p in sorted(inputs[0].glob("*.safetensors"))]
else:
    found = [i for path in inputs for i in json.loads(path.read_text())]
if len(set(found)) < len(found): sys.exit(f"kvbridge: a sequence twice: {{found}}")
out.write_text(json.dumps(found))
if die == f"{{calls}} after": os.kill(os.getppid(), 9)
"""


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "kvbridge"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


def wanted(capture) -> list[str]:
    return [p.sequence_id for p in capture.passages]


def left(out) -> list[str]:
    return sorted(p.name for p in out.iterdir())


def test_every_sequence_goes_in_once_and_no_shard_stays(tmp_path, program):
    capture = Capture(settings(sequences=7))
    two_batches = capture.part(0, 4).plan.bytes
    out, steps, most = tmp_path / "out", [], [0]

    def watch(progress):
        steps.append((progress.done, progress.total))
        most[0] = max(most[0], sum(p.stat().st_size for p in out.rglob("*.safetensors")))

    accumulator = Accumulator(str(program), ["--layout", "full"])
    moments = stream(capture, out, accumulator, disk=two_batches, progress=watch)
    assert json.loads(moments.read_text()) == wanted(capture)
    assert left(out) == ["capture.json", "moments.safetensors"]
    assert steps == [(n, 7) for n in range(1, 8)] and 0 < most[0] <= two_batches
    calls = (program.with_name("log")).read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["accumulate", "accumulate", "merge"]
    assert calls[0] == "fit accumulate " + str(out / "moments.00001") + " --overwrite --layout full"
    record = json.loads((out / "capture.json").read_text())
    assert record["complete"] and record["settings"]["accumulate"] == ["--layout", "full"]
    assert stream(capture, out, accumulator, disk=two_batches) == moments  # nothing is left to do
    assert len(program.with_name("log").read_text().splitlines()) == 3


# Forks of a process that has run torch hang on its threads: these come from one that has only imported it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kvbridge.capture_cli"])


def capture_dying_at(call: str, arguments: list[str]) -> None:
    os.environ["DIE_AT"] = call
    sys.exit(main(arguments))


@pytest.mark.parametrize(
    "call,when", [(0, "after"), (1, "before"), (2, "after"), (4, "before"), (4, "after")]
)
def test_stopped_at_any_call_it_goes_on(tmp_path, program, call, when):
    capture = Capture(settings(sequences=5))
    batch, out = str(capture.part(0, 2).plan.bytes), tmp_path / "out"
    arguments = command(out, "-q", "--no-store", "--kvbridge", str(program), sequences=5, disk=batch)
    child = PROCESSES.Process(target=capture_dying_at, args=(f"{call} {when}", arguments))
    child.start()
    child.join()
    assert child.exitcode == (1 if when == "before" else -9)
    assert not (out / "moments.safetensors").exists()
    assert main(arguments) == 0
    assert json.loads((out / "moments.safetensors").read_text()) == wanted(capture)
    assert left(out) == ["capture.json", "moments.safetensors"]


def test_what_cannot_be_streamed_is_said_beforehand(tmp_path, program, capsys):
    out = tmp_path / "out"
    assert main(command(out, "--no-store", kvbridge=tmp_path / "nowhere")) == 2
    assert "nowhere, it was not found" in capsys.readouterr().err
    assert main(command(out, "--no-store", disk="1kB", kvbridge=program)) == 6
    assert "for a batch's shards" in capsys.readouterr().err
    assert main(command(out, "--no-store", "--queries", kvbridge=program)) == 2
    assert not out.exists()


def test_other_options_of_the_accumulator_are_refused_by_name(tmp_path, program):
    capture = Capture(settings())
    stream(capture, tmp_path / "out", Accumulator(str(program)), disk=10**9)
    with pytest.raises(CaptureError, match="was captured with accumulate = "):
        stream(capture, tmp_path / "out", Accumulator(str(program), ["--layout", "full"]), disk=10**9)
