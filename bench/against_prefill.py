#!/usr/bin/env python3
"""Is a handoff faster than reading the prompt again, on this machine? Both, in one run.

    python bench/against_prefill.py [--bin build/release] [--tokens 1024 4096] [--json FILE]

Prefill: transformers, BF16, random weights of Qwen3-1.7B's configuration, all tokens at once. Handoff: a cache of
Qwen3-0.6B's geometry becomes one of Qwen3-1.7B's (28 to 28 layers, 8 KV heads of 128, k = 8, random weights) in
pages that client and server both have mapped, by a warm kvbridged; head-local and full-head. Prints a table of
best times, and of each over prefill. Let nothing else run; needs 9 GB of memory and 2 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python/src"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from kvbridge import Client  # noqa: E402
from kvbridge.testing import LocalServer  # noqa: E402

LAYERS, HEADS, DIM, TOP_K, PAGE = 28, 8, 128, 8, 16
FORMS = {"head-local": "head_local", "full-head": "full"}
PROGRESS = "[%5.0fs] %s\n"


def say(what: str) -> None:
    sys.stderr.write(PROGRESS % (time.monotonic() - STARTED, what))


def best(run: Callable[[], float], reps: int) -> float:
    return min(run() for _ in range(reps))


def qwen3_1_7b() -> torch.nn.Module:
    """As Qwen3-1.7B's config.json states it, with random weights: speed does not depend on them."""
    config = transformers.Qwen3Config(
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=HEADS,
        head_dim=DIM,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)  # its tables were on "meta" too
    some = torch.randn(1 << 20).mul_(0.02).bfloat16()
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        for begin in range(0, flat.numel(), some.numel()):
            flat[begin : begin + some.numel()] = some[: flat.numel() - begin]
    return model.eval()


def prefill_seconds(model: torch.nn.Module, tokens: int) -> float:
    ids = torch.randint(0, 151936, (1, tokens), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        started = time.monotonic()
        model(ids, use_cache=True, logits_to_keep=1)
        return time.monotonic() - started


def handoffs(client: Client, route: str, tokens: int, reps: int) -> dict[str, float]:
    """Seconds of a transfer whose caches lie in shared pages, and of its first group of layers."""
    info = next(r for r in client.capabilities().routes if r.route == route)
    memory = client.memory()
    shape = [-(-tokens // PAGE), PAGE, HEADS, DIM]
    size = 2 * LAYERS * int(np.prod(shape)) * 2
    arenas = [memory.arena(size) for _ in range(2)]
    sides = []
    for arena, spec in zip(arenas, (info.source, info.target)):
        planes = [arena.empty_tensor(shape, torch.bfloat16) for _ in range(2 * LAYERS)]
        for plane in planes:
            plane.fill_(0.5)
        sides.append(memory.pool(spec, planes[::2], planes[1::2]))
    pages = [pool.select(range(shape[0]), tokens) for pool in sides]
    firsts: list[float] = []

    def once() -> float:
        times: list[float] = []
        started = time.monotonic()
        result = client.transfer(
            source=info.source,
            target=info.target,
            route=route,
            source_pages=pages[0],
            target_pages=pages[1],
            prompt_tokens=tokens + 1,
            plane="region",
            on_layers=lambda begin, end: times.append(time.monotonic() - started),
        )
        seconds = time.monotonic() - started
        if not result.applied or result.covered_tokens != tokens:
            sys.exit(f"{route}: expected {tokens} tokens applied, got {result.reason}: {result.detail}")
        firsts.append(times[0])
        return seconds

    once()  # warm
    firsts.clear()
    seconds = best(once, reps)
    for arena in arenas:
        memory.release(arena.region)
    return {"seconds": seconds, "first_layers": min(firsts)}


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = [{"tokens": tokens} for tokens in args.tokens]
    say("prefill: making the model")
    model = qwen3_1_7b()
    for row in rows:
        say(f"prefill of {row['tokens']} tokens")
        row["prefill"] = best(lambda: prefill_seconds(model, int(row["tokens"])), args.prefill_reps)
    del model
    with TemporaryDirectory(prefix="kvbridge-") as folder:
        make = [args.bin / "bench/make_artifact", "--layers", str(LAYERS), "--top-k", str(TOP_K)]
        for name, support in FORMS.items():
            say(f"writing the {name} artifact")
            subprocess.run([*make, "--support", support, f"{folder}/{support}"], check=True, stdout=subprocess.DEVNULL)
        routes = [
            {"name": name, "artifact": f"{folder}/{support}", "allow_unproven": True, "policy": {"max_abs": 1e30}}
            for name, support in FORMS.items()
        ]
        say("starting kvbridged")
        settings = {
            "memory": {"socket": f"{folder}/memory.sock"},
            "limits": {"max_inflight_bytes": 4 << 30},
        }
        with LocalServer(args.bin / "server/kvbridged", routes, settings) as server:
            with Client(server.address) as client:
                for row in rows:
                    for name in FORMS:
                        say(f"{name}, {row['tokens']} tokens")
                        took = handoffs(client, name, int(row["tokens"]), args.reps)
                        row[name], row[f"{name} first"] = took["seconds"], took["first_layers"]
    return rows


def table(rows: list[dict[str, float]]) -> str:
    lines = ["| tokens | prefill again | " + " | ".join(f"{f} | faster | first layers" for f in FORMS) + " |"]
    lines.append("|---" * (2 + 3 * len(FORMS)) + "|")
    for row in rows:
        cells = [f"{row['tokens']:,}", f"{row['prefill']:.2f} s"]
        for form in FORMS:
            cells += [
                f"{1e3 * row[form]:,.0f} ms",
                f"{row['prefill'] / row[form]:.1f} x",
                f"{1e3 * row[f'{form} first']:,.0f} ms",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


STARTED = time.monotonic()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release", help="where the binaries are")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--reps", type=int, default=7, help="of each handoff")
    parser.add_argument("--prefill-reps", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the seconds here too")
    arguments = parser.parse_args()
    found = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    print(table(found))
