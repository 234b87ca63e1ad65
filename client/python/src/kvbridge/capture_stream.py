"""Captures without keeping shards: a few at a time are accumulated into moments, and deleted.

In the folder lie, while it runs, `shards.00003/` with the sequences of a group, and `moments.00003`: those of the
three groups before it. Each step ends with a rename, so that a capture that was stopped goes on with the group it was
in. In the end there is `moments.safetensors`, and `capture.json` without shards.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbridge.capture import Capture
from kvbridge.capture_errors import NO_ROOM, CaptureError
from kvbridge.capture_folder import CaptureFolder
from kvbridge.capture_run import Progress

MOMENTS = "moments.safetensors"


@dataclass(frozen=True)
class Accumulator:
    """The `kvbridge` command."""

    program: str = "kvbridge"
    options: Sequence[str] = ()  # of `kvbridge fit accumulate`

    def check(self) -> None:
        """CaptureError when it is not there."""
        if shutil.which(self.program) is None:
            raise CaptureError(f"kvbridge: expected the program {self.program}, it was not found", 2)

    def accumulate(self, shards: Path, out: Path) -> None:
        """Moments of a folder of shards, in place of what an interrupted run left."""
        self._run("fit", "accumulate", str(shards), "-o", str(out), "--overwrite", *self.options)

    def merge(self, parts: Sequence[Path], out: Path) -> None:
        """Their sum."""
        self._run("fit", "merge", *map(str, parts), "-o", str(out), "--overwrite")

    def _run(self, *arguments: str) -> None:
        command = [self.program, *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            code = done.returncode if done.returncode > 0 else 3
            raise CaptureError(f"{' '.join(command[:3])}: {said[0]}", code)


def stream(
    capture: Capture,
    out: Path,
    accumulator: Accumulator,
    *,
    disk: int,
    memory: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Returns the file of moments. disk: bytes that the shards of a group may take; the more, the fewer merges.

    Held-out sequences are chosen within each group, by the accumulator.
    """
    accumulator.check()
    groups = _groups(capture, disk)
    settings = {**capture.provenance, "group": len(groups[0]), "accumulate": list(accumulator.options)}
    final = out / MOMENTS
    with CaptureFolder(out, settings, capture.passages) as folder:
        if not final.exists():
            readers = capture.readers(memory)
            for index in range(_resume(out, len(groups)), len(groups)):
                group = groups[index]
                part = capture.part(group.start, group.stop)
                count = _counted(progress, group, len(capture.passages))
                part.fill(_shards(out, index), readers, disk=disk, progress=count)
                _add(accumulator, out, index)
            readers.close()
            _sum(out, len(groups)).replace(final)
        folder.finish()
    return final


def _add(accumulator: Accumulator, out: Path, index: int) -> None:
    """The group's moments to those before it."""
    group = out / "group.moments"
    if index == 0:
        accumulator.accumulate(_shards(out, 0), _sum(out, 1))
    else:
        accumulator.accumulate(_shards(out, index), group)
        accumulator.merge([_sum(out, index), group], _sum(out, index + 1))
    _drop(out, index)


def _resume(out: Path, groups: int) -> int:
    """How many groups are in the furthest sum, which is whole. What was left of earlier ones goes."""
    done = max((n for n in range(groups + 1) if _sum(out, n).exists()), default=0)
    for index in range(done):
        _drop(out, index)
    return done


def _drop(out: Path, index: int) -> None:
    """What a group was added from."""
    for old in (out / "group.moments", _sum(out, index)):
        old.unlink(missing_ok=True)
    shutil.rmtree(_shards(out, index), ignore_errors=True)


def _shards(out: Path, index: int) -> Path:
    return out / f"shards.{index:05d}"


def _sum(out: Path, groups: int) -> Path:
    return out / f"moments.{groups:05d}"


def _groups(capture: Capture, disk: int) -> list[range]:
    """Whole batches, as many as the disk holds, at least one."""
    batch, total = capture.settings.batch, len(capture.passages)
    size = 0
    while size < total and capture.part(0, size + batch).plan.bytes <= disk:
        size += batch
    if size == 0:
        need = capture.part(0, batch).plan.bytes
        raise CaptureError(f"disk: expected at least {need:,} bytes for a batch's shards, got {disk:,}", NO_ROOM)
    return [range(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _counted(
    progress: Callable[[Progress], None], group: range, total: int
) -> Callable[[Progress], None]:
    """Over all groups; of a group that is gone on with, only some are still to do."""
    return lambda p: progress(Progress(p.step, group.stop - p.total + p.done, total))
