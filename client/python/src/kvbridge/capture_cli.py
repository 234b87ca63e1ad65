"""kvbridge-capture: calibration shards from two model folders and text.

Exit codes: 0 done; 2 usage; 3 bad input; 4 models that no map can join; 6 too little disk or memory; 130
interrupted, and the same command goes on from there. stdout is data, stderr is everything else.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.capture_errors import CaptureError, exit_code_of
from kvbridge.capture_text import parse_text_source

if TYPE_CHECKING:
    from kvbridge.capture import Capture, CapturePlan
    from kvbridge.capture_run import Progress

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size(text: str) -> int:
    """Bytes: "20GB", "20G", "16GiB", "4096"."""
    number = text.lower().removesuffix("b")
    binary = number.endswith("i")
    number = number.removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        count = float(number.removesuffix(unit))
    except ValueError:
        count = -1
    if not 0 < count < 2**40:
        raise argparse.ArgumentTypeError(f"expected a size such as 20GB or 16GiB, got {text!r}")
    return int(count * (1024 ** " kmgt".index(unit or " ") if binary else _UNITS[unit]))


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    top = argparse.ArgumentParser(
        prog="kvbridge-capture",
        description="Reads text with two models and writes what they cache: the shards that a map is fitted on.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--source", required=True, type=Path, metavar="DIR", help="model whose caches will be mapped")
    add("--target", required=True, type=Path, metavar="DIR", help="model that will go on from them")
    what = top.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--text", nargs="+", action="extend", metavar="[DOMAIN=]FILE",
        help="UTF-8 text; domains get the same number of sequences each",
    )  # fmt: skip
    what.add_argument(
        "--tokens", type=Path, metavar="FILE", help="token ids instead: .npy, or .jsonl with a list per line"
    )
    add("--out", required=True, type=Path, metavar="DIR", help="folder of the shards")
    add("--sequences", type=int, default=200, help="default 200; the paper took 500")
    add("--length", type=int, default=512, help="tokens of each; default 512; the paper took 1024")
    add("--stride", type=int, default=4, help="keep every n-th token; default 4, as the paper")
    add("--offset", type=int, default=0, help="the first token to keep; default 0")
    add("--seed", type=int, default=0, help="which windows of the text; default 0")
    add("--bos", choices=("auto", "always", "never"), default="auto",
        help="begin each window with BOS; auto: where the tokenizer does")  # fmt: skip
    add("--batch", type=int, default=4, help="sequences that a model reads at once; default 4")
    add("--keys", choices=("stripped", "roped"), default="stripped",
        help="without their rotation (default), or as cached")  # fmt: skip
    add("--row-weights", action="store_true", help="how much each row matters to the target's attention")
    add("--queries", action="store_true", help="the target's, to compare attention outputs with")
    add("--query-positions", type=int, default=64, help="of each sequence, for either; default 64")
    add("--store", choices=("bf16", "f32"), default="bf16", help="elements of the shards; default bf16")
    add("--dtype", choices=("auto", "bf16", "f16", "f32"), default="auto",
        help="what the models compute in; auto: f32 on the CPU, else the weights' own")  # fmt: skip
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    for role in ("source", "target"):
        add(f"--{role}-id", default="", metavar="NAME", help=f"the {role}'s name; default: its folder's")
        add(f"--{role}-revision", default="", metavar="REV", help="default: the digest of its weights")
    add("--longrope", choices=("short", "long"), help="which factors apply, for models with longrope")
    add("--disk", type=size, metavar="SIZE", help="most that the shards may take; default: what is free")
    add("--memory", type=size, metavar="SIZE",
        help="for models; they are loaded one after the other if both don't fit; default: what is free")  # fmt: skip
    add("--no-store", action="store_true",
        help="accumulate a few shards at a time (--disk, default 1GB) and keep only DIR/moments.safetensors")  # fmt: skip
    add("--kvbridge", default="kvbridge", metavar="PROGRAM", help="that --no-store calls")
    add("--accumulate", default="", metavar="OPTIONS", help="of kvbridge fit accumulate, for --no-store")
    add("--dry-run", action="store_true", help="say what it would take, and stop")
    add("--format", choices=("table", "json"), default="table", help="of stdout")
    add("-q", "--quiet", action="store_true", help="no progress")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    top = parser()
    args = top.parse_args(argv)
    try:
        return exit_code_of("kvbridge-capture", lambda: _run(args))
    except argparse.ArgumentTypeError as error:
        top.error(str(error))


def _run(args: argparse.Namespace) -> int:
    texts = [parse_text_source(text) for text in args.text or ()]
    from kvbridge.capture import Capture, CaptureSettings
    from kvbridge.capture_models import Naming, prepare

    prepare(args.device)
    capture = Capture(
        CaptureSettings(
            source=args.source,
            target=args.target,
            texts=texts,
            tokens=args.tokens,
            sequences=args.sequences,
            length=args.length,
            stride=args.stride,
            offset=args.offset,
            seed=args.seed,
            bos=args.bos,
            batch=args.batch,
            keys=args.keys,
            element=args.store,
            dtype=args.dtype,
            device=args.device,
            row_weights=args.row_weights,
            queries=args.queries,
            query_positions=args.query_positions,
            source_naming=Naming(args.source_id, args.source_revision, args.longrope),
            target_naming=Naming(args.target_id, args.target_revision, args.longrope),
        )
    )
    say = Teller(args.quiet)
    say.plan(capture.plan)
    if args.dry_run:
        _print(args.format, vars(capture.plan))
        return 0
    if args.no_store:
        return _stream(args, capture, say)
    summary = capture.run(args.out, disk=args.disk, memory=args.memory, progress=say.progress)
    _print(args.format, {**vars(summary), "folder": str(summary.folder)})
    return 0


def _stream(args: argparse.Namespace, capture: Capture, say: Teller) -> int:
    from kvbridge.capture_stream import Accumulator, stream

    if args.queries:
        raise CaptureError("queries: expected none with --no-store, which keeps no files of sequences", 2)
    moments = stream(
        capture,
        args.out,
        Accumulator(args.kvbridge, shlex.split(args.accumulate)),
        disk=args.disk or 10**9,
        memory=args.memory,
        progress=say.progress,
    )
    plan = capture.plan
    _print(args.format, {"moments": str(moments), "sequences": plan.sequences, "rows": plan.rows})
    return 0


def _print(form: str, facts: dict[str, object]) -> None:
    if form == "json":
        print(json.dumps({"schema": 1, **facts}))
    else:
        print("\n".join(f"{name.replace('_', ' '):14} {_shown(value)}" for name, value in facts.items()))


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class Teller:
    """Says on stderr how far it is: one line that changes on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._step = ""
        self._began = self._said = 0.0

    def plan(self, plan: CapturePlan) -> None:
        """What it will take, before it does."""
        if not self._quiet:
            print(
                f"kvbridge-capture: {plan.sequences:,} sequences, {plan.rows:,} rows, at most "
                f"{plan.bytes / 1e6:,.1f} MB of shards",
                file=sys.stderr,
            )

    def progress(self, progress: Progress) -> None:
        """The time left is the mean of this step's sequences so far times those to come."""
        now = time.monotonic()
        if progress.step != self._step:
            self._step, self._began, self._said = progress.step, now, now
        last = progress.done == progress.total
        if self._quiet or not (self._terminal or last or now - self._said > 10):
            return
        self._said = now
        left = (now - self._began) / progress.done * (progress.total - progress.done)
        line = f"{progress.step}: {progress.done:,} of {progress.total:,}, {left:,.0f} s left"
        begin, end = ("\r", "\n" if last else "") if self._terminal else ("", "\n")
        print(f"{begin}{line:60}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
