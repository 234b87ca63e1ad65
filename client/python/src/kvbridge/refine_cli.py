"""kvbridge-refine: tunes a fitted artifact through the frozen target model, on calibration text.

Exit codes: 0 done; 2 usage; 3 bad input; 4 the pair, or the artifact for it, does not fit; 130 interrupted, and
the same command goes on from there. The new artifact is UNPROVEN: kvbridge-evaluate and kvbridge validate judge it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.capture_errors import exit_code_of
from kvbridge.capture_text import parse_text_source
from kvbridge.programs import find_program

if TYPE_CHECKING:
    from kvbridge.refine_run import Progress


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    top = argparse.ArgumentParser(
        prog="kvbridge-refine",
        description="Lowers the KL of the target's next tokens over a mapped cache, by gradients through the target.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--artifact", required=True, type=Path, metavar="DIR", help="native mapper artifact, linear")
    add("--source", required=True, type=Path, metavar="DIR", help="model whose caches are mapped")
    add("--target", required=True, type=Path, metavar="DIR", help="model that goes on from them")
    add("--text", required=True, nargs="+", action="extend", metavar="[DOMAIN=]FILE",
        help="calibration text (UTF-8), never what the artifact is judged on")  # fmt: skip
    add("-o", "--out", required=True, type=Path, metavar="DIR", help="new artifact folder")
    add("--sequences", type=int, default=1000, help="windows to train on; default 1000")
    add("--held-out", type=int, default=64, help="more windows, which say when to stop; default 64")
    add("--length", type=int, default=512, help="tokens of each; default 512")
    add("--prefix", type=int, nargs=2, default=[256, 383], metavar=("LEAST", "MOST"),
        help="tokens of a window that are mapped, drawn for each step; default 256 383")  # fmt: skip
    add("--tail", type=int, nargs="+", default=[1, 65], metavar="TOKENS",
        help="native tails: what the target says before their last token does not count; of several, the mean; default 1 65")  # fmt: skip
    add("--steps", type=int, default=400, help="at most; default 400")
    add("--batch", type=int, default=8, help="windows of a step; default 8")
    add("--rate", type=float, default=3e-4, help="of a step, in units of the outputs' size; default 3e-4")
    add("--check", type=int, default=20, help="steps between looks at the held-out windows; default 20")
    add("--patience", type=int, default=4, help="such looks without gain that end it; default 4")
    add("--keep", type=int, default=4 << 30, metavar="BYTES",
        help="of what both models say of windows, kept for when they come again; default 4 GiB")  # fmt: skip
    add("--dtype", choices=("auto", "bf16", "f16", "f32"), default="auto",
        help="what the source computes in, as in kvbridge-capture; the target computes in bf16")  # fmt: skip
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    add("--threads", type=int, metavar="N", help="on the CPU; default: torch's")
    add("--seed", type=int, default=0, help="of windows, their order and their prefixes; default 0")
    add("--cli", help="kvbridge, the command line; default: KVBRIDGE_CLI, or the one on PATH")
    add("-q", "--quiet", action="store_true", help="no progress")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    return exit_code_of("kvbridge-refine", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    texts = [parse_text_source(text) for text in args.text]
    from kvbridge.capture_models import prepare
    from kvbridge.refine_run import Refine, RefineSettings

    prepare(args.device, args.threads)
    refine = Refine(
        RefineSettings(
            artifact=args.artifact,
            source=args.source,
            target=args.target,
            texts=texts,
            cli=find_program(args.cli, "KVBRIDGE_CLI", "kvbridge"),
            sequences=args.sequences,
            held_out=args.held_out,
            length=args.length,
            prefix=(args.prefix[0], args.prefix[1]),
            tails=args.tail,
            steps=args.steps,
            batch=args.batch,
            rate=args.rate,
            check=args.check,
            patience=args.patience,
            keep=args.keep,
            dtype=args.dtype,
            device=args.device,
            seed=args.seed,
        )
    )
    print(refine.run(args.out, _Teller(args.quiet)))
    return 0


class _Teller:
    """Says on stderr what each look found: few lines, far apart."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._began = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        fit = "" if math.isnan(progress.loss) else f", on what it trains on {progress.loss:.4f}"
        took = time.monotonic() - self._began
        print(
            f"step {progress.step} of {progress.steps}: held-out KL {progress.held_out:.4f} nats{fit}, {took:,.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
