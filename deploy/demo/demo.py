"""The demonstration that deploy/demo.sh runs: one switch in mid-prompt, its quality measured, three fallbacks."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from chart import write_chart
from kvbridge import Client, TransferResult
from kvbridge import evaluate as ev
from kvbridge.hf import generate_with_transfer, prefill, spec_of, transfer_cache
from kvbridge.testing import LocalServer

ROOT = Path(__file__).resolve().parents[2]
FAMILY = ROOT / "tests/data/family"
ARTIFACT = FAMILY / "artifacts/prototype-small-to-large-k4-bf16"
TEXT = FAMILY / "text/public_domain/eval_kjv.txt"
PLAIN, RENORMALISED, DAMAGED = "plain", "key-norm", "damaged"
STARTED = time.monotonic()
BOLD, DIM, END = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


@dataclass
class Models:
    """Both models in float32 with what kvbridged must know about them."""

    small: object
    large: object
    tokenizer: object
    source: object
    target: object


def progress(text: str) -> None:
    """Where we are, on stderr."""
    print(f"{DIM}[{time.monotonic() - STARTED:4.0f} s] {text}{END}", file=sys.stderr, flush=True)


def heading(text: str) -> None:
    """A section of the output."""
    print(f"\n{BOLD}{text}{END}")


def load() -> Models:
    """The family's two models."""
    read = transformers.AutoModelForCausalLM.from_pretrained
    tokenizer = transformers.AutoTokenizer.from_pretrained(FAMILY / "small")
    models = [read(FAMILY / member).float().eval() for member in ("small", "large")]
    specs = [
        spec_of(model, tokenizer, revision="1", model_id=f"kvbridge-family/{member}")
        for member, model in zip(("small", "large"), models)
    ]
    return Models(*models, tokenizer, *specs)


def make_artifacts(cli: Path, folder: Path) -> dict[str, Path]:
    """The prototype's artifact, the same with the target's k_norm weights, and a damaged copy."""
    renormalised, damaged = folder / RENORMALISED, folder / DAMAGED
    subprocess.run(
        [
            cli, "artifact", "convert", "--source-config", FAMILY / "small/config.json",
            "--target-config", FAMILY / "large/config.json", "--key-norm-from", FAMILY / "large",
            ARTIFACT, renormalised,
        ],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    shutil.copytree(ARTIFACT, damaged)
    weights = damaged / "mapper.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 0xFF
    weights.write_bytes(data)
    return {PLAIN: ARTIFACT, RENORMALISED: renormalised, DAMAGED: damaged}


def route(name: str, artifact: Path) -> dict:
    """Its configuration. The artifacts carry no evidence yet (this demo measures it), hence allow_unproven."""
    config = {"name": name, "artifact": str(artifact), "allow_unproven": True}
    if name != RENORMALISED:  # the prototype's format says nothing about RoPE
        config["source_config"] = str(FAMILY / "small/config.json")
        config["target_config"] = str(FAMILY / "large/config.json")
    return config


def show_switch(models: Models, client: Client, passage: torch.Tensor) -> None:
    """One prompt, one switch, both continuations."""
    heading("1. Switch models in mid-prompt  (greedy, no three tokens twice)")
    prompt = passage[:, : ev.PROMPT]
    options = {"max_new_tokens": 40, "do_sample": False, "no_repeat_ngram_size": 3}
    answer = generate_with_transfer(
        models.small, models.large, prompt, client,
        source=models.source, target=models.target, route=RENORMALISED, native_tail=17, **options,
    )  # fmt: skip
    own = models.large.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), **options
    )
    result = answer.transfer
    if not result.applied:
        raise SystemExit(f"expected an applied transfer, got {result}")
    show("the prompt ends", models.tokenizer.decode(prompt[0, -48:]))
    show("large goes on from small's cache", continuation(models, answer.sequences))
    show("large goes on from its own prefill", continuation(models, own))
    stages = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in result.stages.items())
    print(
        f"  transfer: {result.covered_tokens} of {ev.PROMPT} tokens mapped in {result.seconds * 1e3:.1f} ms "
        f"({stages} ms); large prefilled the other {ev.PROMPT - result.covered_tokens} itself"
    )
    print(f"  moved: {result.bytes_in / 1e6:.1f} MB in, {result.bytes_out / 1e6:.1f} MB out")


def continuation(models: Models, sequences: torch.Tensor) -> str:
    """What was generated."""
    return models.tokenizer.decode(sequences[0, ev.PROMPT :], skip_special_tokens=True)


def show(label: str, text: str) -> None:
    """A quotation on indented lines."""
    print(f"  {label}:")
    quoted = f'"{" ".join(text.split())}"'
    print(textwrap.fill(quoted, 100, initial_indent="      ", subsequent_indent="      "))


def variants(models: Models, client: Client) -> dict:
    """Label -> from small's cache of a window to the cache that large continues from."""

    def mapped(name: str, native_tail: int):
        def to_large(cache, ids):
            moved = transfer_cache(
                client, cache, source=models.source, target=models.target, route=name,
                input_ids=ids[:, : ev.PROMPT], native_tail=native_tail,
            )  # fmt: skip
            if moved.cache is None:
                raise SystemExit(f"route {name}: expected an applied transfer, got {moved.result}")
            return moved.cache

        return to_large

    layers = models.target.geometry.layers
    return {
        "mapped": mapped(PLAIN, 1),
        "mapped, native tail of 16 more tokens": mapped(PLAIN, 17),
        "mapped, native tail of 64 more tokens": mapped(PLAIN, 65),
        "mapped, keys renormalised": mapped(RENORMALISED, 1),
        "mapped, keys renormalised, tail of 16 more": mapped(RENORMALISED, 17),
        "mapped, keys renormalised, tail of 64 more": mapped(RENORMALISED, 65),
        "control: small's cache pasted as it is": lambda cache, ids: ev.raw_paste(cache, layers),
        "control: nothing before the last token": lambda cache, ids: None,
    }


def show_quality(models: Models, client: Client, passages: list[torch.Tensor]) -> list[dict]:
    """The table; its rows are returned."""
    heading(f"2. What is the mapped cache worth?  {len(passages)} passages of a text held out of training")
    print(
        "  Prompt of 384 tokens, then large predicts the next 128. KL: nats between its predictions and those\n"
        "  after its own prefill (0 = the same). Top-1: share of equal most likely tokens. NLL: nats per token of\n"
        "  the text. Gap: share of the way from small's NLL (0 %) to large's own (100 %), 95 % interval.\n"
    )
    scores = ev.evaluate(
        models.small, models.large, passages, variants(models, client),
        lambda done, total: done % 6 or progress(f"passage {done} of {total}"),
    )  # fmt: skip
    rows = [row("large's own prefill", scores.target.means(), 1.0)]
    for name, variant in scores.variants.items():
        rows.append(
            row(name, variant.means(), scores.gap_recovered(name), scores.gap_interval(name))
        )
    rows.append(row("small reads on alone, no switch", scores.source.means(), 0.0))
    print(f"  {'how large got its cache':44} {'KL':>6} {'top-1':>6} {'NLL':>6}   gap recovered")
    for item in rows:
        interval = item["gap_95"]
        spread = f"  [{interval[0]:4.0%}, {interval[1]:4.0%}]" if interval else ""
        print(
            f"  {item['name']:44} {item['kl']:6.3f} {item['top1']:6.1%} {item['nll']:6.3f} "
            f"{item['gap']:8.1%}{spread}"
        )
    return rows


def row(name: str, means: dict, gap: float, interval: tuple[float, float] | None = None) -> dict:
    """One line of the table."""
    return {"name": name, **means, "gap": gap, "gap_95": interval}


def show_fallbacks(
    models: Models, client: Client, server: LocalServer, passage: torch.Tensor
) -> list[dict]:
    """Three transfers that must not be applied, and the counters that saw them."""
    heading("3. Never a wrong cache called good: three reasons to prefill instead")
    cache, prompt = prefill(models.small, passage[:, :383]), passage[:, :384]
    before = server.metrics()

    def attempt(name: str, source=models.source, **options) -> TransferResult:
        return transfer_cache(
            client, cache, source=source, target=models.target, route=name, input_ids=prompt, **options
        ).result

    stranger = type(models.source).FromString(models.source.SerializeToString())
    stranger.identity.tokenizer_sha256 = "0" * 64
    cases = [
        ("a cache made with another tokenizer", attempt(PLAIN, source=stranger)),
        ("an artifact with one damaged byte", attempt(DAMAGED)),
        ("a latency budget of 0 ms", attempt(PLAIN, max_latency=0)),
    ]
    for label, result in cases:
        if result.applied:
            raise SystemExit(f"{label}: expected a fallback, got {result}")
        print(f"  {label}: {result.outcome}, reason {result.reason}")
        print(textwrap.fill(result.detail, 100, initial_indent="      ", subsequent_indent="      "))
    after = server.metrics()
    print("  counted by the server (GET /metrics):")
    for name in sorted(after):
        added = after[name] - before.get(name, 0)
        if added and name.startswith("kvbridge_fallbacks_total"):
            print(f"      {name} +{added:.0f}")
    return [{"case": label, "outcome": r.outcome, "reason": r.reason} for label, r in cases]


def show_summary(rows: list[dict], out: Path) -> None:
    """What to remember."""
    by_name = {item["name"]: item for item in rows}
    plain, best = by_name["mapped"], by_name["mapped, keys renormalised, tail of 64 more"]
    renormalised = by_name["mapped, keys renormalised"]
    cold = by_name["control: nothing before the last token"]
    heading("Summary")
    print(
        f"  Large went on from small's cache without reading the prompt: KL {plain['kl']:.3f} as fitted, "
        f"{renormalised['kl']:.3f} with keys renormalised,\n"
        f"  {best['kl']:.3f} when it also reads the last 65 tokens itself; {cold['kl']:.3f} without the prompt. "
        f"Gap recovered: {plain['gap']:.0%}, {renormalised['gap']:.0%}, {best['gap']:.0%}.\n"
        f"  The three bad transfers fell back with a reason, and were counted.\n"
        f"  Chart: {out / 'result.html'}   Figures: {out / 'result.json'}   {time.monotonic() - STARTED:.0f} s"
    )


def main() -> int:
    """0 when everything went as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvbridged", type=Path, required=True)
    parser.add_argument("--cli", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # models this small gain nothing from more

    sys.stdout.reconfigure(line_buffering=True)
    print(f"{BOLD}kvbridge: turns one language model's KV cache into a sibling model's{END}")
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    progress("loading two models of one family: small (4 layers, 2.6 M) and large (8 layers, 6.7 M)")
    models = load()
    passages = ev.windows(models.tokenizer, TEXT.read_text(encoding="utf-8"), args.passages)
    progress("adding large's k_norm weights to the fitted map (kvbridge artifact convert), damaging a copy")
    artifacts = make_artifacts(args.cli.resolve(), args.out.resolve())
    with LocalServer(args.kvbridged, [route(*item) for item in artifacts.items()]) as server:
        progress(f"kvbridged serves the routes {', '.join(artifacts)} on a unix socket")
        with Client(server.address) as client:
            show_switch(models, client, passages[0])
            rows = show_quality(models, client, passages)
            fallbacks = show_fallbacks(models, client, server, passages[0])
    result = {"passages": len(passages), "rows": rows, "fallbacks": fallbacks}
    (args.out / "result.json").write_text(json.dumps(result, indent=1))
    write_chart(args.out / "result.html", rows, len(passages))
    show_summary(rows, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
