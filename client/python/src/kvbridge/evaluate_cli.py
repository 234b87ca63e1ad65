"""kvbridge-evaluate: runs both models over held-out text, with a mapped cache and with its controls.

Exit codes: 0 done; 2 usage; 3 bad input; 4 the pair, or the artifact for it, does not fit; 130 interrupted, and
the same command goes on from there. `kvbridge validate RUN --artifact DIR --gate FILE` judges what it leaves.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.capture_errors import exit_code_of
from kvbridge.capture_text import parse_text_source
from kvbridge.programs import find_program

if TYPE_CHECKING:
    from kvbridge.evaluate_run import Progress


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    top = argparse.ArgumentParser(
        prog="kvbridge-evaluate",
        description="Measures what a mapped cache is worth: KL, top-1 and NLL on held-out text, beside controls.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--artifact", required=True, type=Path, metavar="DIR", help="native mapper artifact")
    add("--source", required=True, type=Path, metavar="DIR", help="model whose caches are mapped")
    add("--target", required=True, type=Path, metavar="DIR", help="model that goes on from them")
    add("--text", required=True, nargs="+", action="extend", metavar="[DOMAIN=]FILE",
        help="held-out UTF-8 text by domain, e.g. general=a.txt code=b.txt")  # fmt: skip
    add("--out", required=True, type=Path, metavar="RUN", help="folder of the run")
    add("--sequences", type=int, default=20, help="of each domain; default 20")
    add("--prefix", type=int, default=383, help="tokens that are mapped; default 383")
    add("--scored", type=int, default=128, help="predictions after them; default 128")
    add("--tails", type=int, nargs="+", default=[1, 17, 65],
        help="tokens of the prompt that the target reads itself; default 1 17 65")  # fmt: skip
    add("--lengths", type=int, nargs="*", default=[], help="other prefix lengths, e.g. 64 128 256")
    add("--attention", type=int, default=4,
        help="sequences of each domain to compare attention outputs of; default 4")  # fmt: skip
    add("--reverse", type=Path, metavar="DIR", help="artifact of the way back: adds handoffs to and fro")
    add("--hops", type=int, default=3, help="maps of such a handoff; default 3")
    add("--precision", choices=("bf16", "f32"), default="bf16", help="of the map's arithmetic; default bf16")
    add("--dtype", choices=("auto", "bf16", "f16", "f32"), default="auto",
        help="what the models compute in; auto: f32 on the CPU, else the weights' own")  # fmt: skip
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    add("--threads", type=int, metavar="N", help="of the models on the CPU; default: torch's")
    add("--seed", type=int, default=0, help="of the random map; default 0")
    add("--keep", action="store_true", help="keep the logits, in RUN/logits")
    add("--kvbridged", help="the server's program; default: KVBRIDGED, or the one on PATH")
    add("--cli", help="the command line's program; default: KVBRIDGE_CLI, or the one on PATH")
    add("-q", "--quiet", action="store_true", help="no progress")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    return exit_code_of("kvbridge-evaluate", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    texts = [parse_text_source(text) for text in args.text]
    from kvbridge.capture_models import prepare
    from kvbridge.evaluate_run import Evaluate, EvaluateSettings

    prepare(args.device, args.threads)
    evaluate = Evaluate(
        EvaluateSettings(
            artifact=args.artifact,
            source=args.source,
            target=args.target,
            texts=texts,
            kvbridged=find_program(args.kvbridged, "KVBRIDGED", "kvbridged"),
            cli=find_program(args.cli, "KVBRIDGE_CLI", "kvbridge"),
            sequences=args.sequences,
            prefix=args.prefix,
            scored=args.scored,
            tails=sorted(set(args.tails)),
            lengths=sorted(set(args.lengths)),
            attention=args.attention,
            reverse=args.reverse,
            hops=args.hops,
            precision=args.precision,
            dtype=args.dtype,
            device=args.device,
            seed=args.seed,
            keep=args.keep,
        )
    )
    print(evaluate.run(args.out, _Teller(args.quiet)))
    return 0


class _Teller:
    """Says on stderr how far it is: one line that changes on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._began = self._said = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        last = progress.done == progress.total
        if self._quiet or not (self._terminal or last or now - self._said > 10):
            return
        self._said = now
        left = (now - self._began) / progress.done * (progress.total - progress.done)
        line = f"{progress.name}: {progress.done:,} of {progress.total:,}, {left:,.0f} s left"
        begin, end = ("\r", "\n" if last else "") if self._terminal else ("", "\n")
        print(f"{begin}{line:60}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
