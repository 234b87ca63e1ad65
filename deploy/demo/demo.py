"""The demonstration that deploy/demo.sh runs: one switch in mid-prompt, its quality measured, three fallbacks."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from chart import chart
from kvbridge import Client, TransferResult
from kvbridge import evaluate as ev
from kvbridge.hf import generate_with_transfer, prefill, spec_of, transfer_cache
from kvbridge.testing import LocalServer

ROOT = Path(__file__).resolve().parents[2]
FAMILY = ROOT / "tests/data/family"
ARTIFACT = FAMILY / "artifacts/prototype-small-to-large-k4-bf16"
TEXT = FAMILY / "text/public_domain/eval_kjv.txt"
PLAIN, RENORMALISED, DAMAGED = "plain", "key-norm", "damaged"
MAPPED, KEY_NORM = "mapped", "mapped, keys renormalised"
TAILS = (1, 17, 65)  # of the prompt, read by large itself
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


def show_time(models: Models, client: Client, passage: torch.Tensor) -> dict:
    """One line: a transfer against what it saves, large's own prefill of the same tokens."""
    prompt = passage[:, : ev.PROMPT]
    cache = prefill(models.small, prompt[:, :-1])

    def transfer() -> None:
        transfer_cache(
            client, cache, source=models.source, target=models.target, route=RENORMALISED, input_ids=prompt
        )

    def own() -> None:
        prefill(models.large, prompt[:, :-1])

    seconds: dict = {transfer: [], own: []}
    for _ in range(9):  # in turn, so that a busy machine slows both
        for work, taken in seconds.items():
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    moved, read = (statistics.median(taken) * 1e3 for taken in seconds.values())
    print(
        f"  time: transfer {moved:.1f} ms, Python client included; large's own prefill of the same "
        f"{ev.PROMPT - 1} tokens {read:.1f} ms\n"
        "      (medians of 9, float32, one CPU thread each; with models this tiny it says little about large ones)"
    )
    return {"tokens": ev.PROMPT - 1, "transfer_ms": moved, "own_prefill_ms": read}


@dataclass(frozen=True)
class Variant:
    """One way to get a cache that large continues from, with the prompt's last `tail` tokens its own to read."""

    tail: int
    name: str
    to_large: Callable

    @property
    def key(self) -> str:
        """Unique among all variants."""
        return f"{self.tail}: {self.name}"


def variants(models: Models, client: Client) -> list[Variant]:
    """Maps and controls, those with the same native tail together."""

    def mapped(route: str, tail: int) -> Callable:
        def to_large(cache, ids):
            moved = transfer_cache(
                client, cache, source=models.source, target=models.target, route=route,
                input_ids=ids[:, : ev.PROMPT], native_tail=tail,
            )  # fmt: skip
            if moved.cache is None:
                raise SystemExit(f"route {route}: expected an applied transfer, got {moved.result}")
            return moved.cache

        return to_large

    layers = models.target.geometry.layers
    pasted = Variant(1, "control: small's cache pasted as it is", lambda cache, ids: ev.raw_paste(cache, layers))
    found = []
    for tail in TAILS:
        found += [Variant(tail, MAPPED, mapped(PLAIN, tail)), Variant(tail, KEY_NORM, mapped(RENORMALISED, tail))]
        found += [pasted] if tail == pasted.tail else []
        found.append(Variant(tail, nothing_before(tail), lambda cache, ids, tail=tail: tail))
    return found


def nothing_before(tail: int) -> str:
    """Name of the control that shows what a native tail is worth by itself."""
    return "control: nothing before the last token" if tail == 1 else f"control: nothing but the last {tail} tokens"


def show_quality(models: Models, client: Client, passages: list[torch.Tensor]) -> list[dict]:
    """The table; its rows are returned."""
    heading(f"2. What is the mapped cache worth?  {len(passages)} passages of a text held out of training")
    print(
        "  Prompt of 384 tokens, then large predicts the next 128. KL: nats between its predictions and those\n"
        "  after its own prefill (0 = the same). Top-1: share of equal most likely tokens. NLL: nats per token of\n"
        "  the text. Gap: share of the way from small's NLL (0 %) to large's own (100 %), 95 % interval.\n"
    )
    ways = variants(models, client)
    scores = ev.evaluate(
        models.small, models.large, passages, {way.key: way.to_large for way in ways},
        lambda done, total: done % 6 or progress(f"passage {done} of {total}"),
    )  # fmt: skip
    rows = [row("large's own prefill", ev.PROMPT, scores.target.means(), 1.0)]
    for way in ways:
        gap, interval = scores.gap_recovered(way.key), scores.gap_interval(way.key)
        rows.append(row(way.name, way.tail, scores.variants[way.key].means(), gap, interval))
    rows.append(row("small reads on alone, no switch", 0, scores.source.means(), 0.0))
    print(f"  {'how large got its cache':44} {'KL':>6} {'top-1':>6} {'NLL':>6}   gap recovered")
    for group, members in groups(rows):
        print(*([f"  {group}"] if group else []), *map(table_line, members), sep="\n")
    return rows


def row(
    name: str, tail: int, means: dict, gap: float, interval: tuple[float, float] | None = None
) -> dict:
    """One line of the table. native_tail: how many of the prompt's tokens large reads itself."""
    return {"name": name, "native_tail": tail, **means, "gap": gap, "gap_95": interval}


def groups(rows: list[dict]) -> list[tuple[str, list[dict]]]:
    """The rows with a heading for each native tail; large and small alone have none."""
    headings = {1: "large reads the last token only"}
    headings |= {tail: f"native tail of {tail} tokens" for tail in TAILS if tail > 1}
    return [
        (headings.get(tail, ""), list(members))
        for tail, members in itertools.groupby(rows, lambda item: item["native_tail"])
    ]


def table_line(item: dict) -> str:
    """A row as text."""
    interval = item["gap_95"]
    spread = f"  [{interval[0]:4.0%}, {interval[1]:4.0%}]" if interval else ""
    name = ("  " if item["native_tail"] in TAILS else "") + item["name"]
    return f"  {name:44} {item['kl']:6.3f} {item['top1']:6.1%} {item['nll']:6.3f} {item['gap']:8.1%}{spread}"


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
    """What to remember: each mapped prefix beside the same native tail without one."""
    found = {(item["native_tail"], item["name"]): item for item in rows}
    heading("Summary")
    for tail in TAILS:
        mapped, bare = found[tail, KEY_NORM], found[tail, nothing_before(tail)]
        read, them = ("token", "it") if tail == 1 else (f"{tail} tokens", "them")
        print(
            f"  With the same last {read} read natively: KL {mapped['kl']:.3f} with the mapped prefix, "
            f"{bare['kl']:.3f} with nothing before {them}\n"
            f"    (gap recovered: {mapped['gap']:.0%} and {bare['gap']:.0%})."
        )
    print(
        f"  This text needs little long context: its last {TAILS[-1]} tokens are worth most of the prompt.\n"
        f"  The three bad transfers fell back with a reason, and were counted.\n"
        f"  Chart: {out / 'result.html'}   Figures: {out / 'result.json'}   {time.monotonic() - STARTED:.0f} s"
    )


def write_result(out: Path, result: dict) -> None:
    """Both files, each under its name only when it is whole."""
    out.mkdir(parents=True, exist_ok=True)
    pages = {"result.json": json.dumps(result, indent=1) + "\n"}
    pages["result.html"] = chart(groups(result["rows"]), result["passages"])
    for name, text in pages.items():
        (out / f"{name}.new").write_text(text, encoding="utf-8")
    for name in pages:
        (out / f"{name}.new").replace(out / name)


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
    progress("loading two models of one family: small (4 layers, 2.6 M) and large (8 layers, 6.7 M)")
    models = load()
    passages = ev.windows(models.tokenizer, TEXT.read_text(encoding="utf-8"), args.passages)
    progress("adding large's k_norm weights to the fitted map (kvbridge artifact convert), damaging a copy")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvbridge-")))
        artifacts = make_artifacts(args.cli.resolve(), folder)
        routes = [route(*item) for item in artifacts.items()]
        one_thread = {"engine": {"threads": 1}}  # as torch has
        server = stack.enter_context(LocalServer(args.kvbridged, routes, one_thread))
        progress(f"kvbridged serves the routes {', '.join(artifacts)} on a unix socket")
        client = stack.enter_context(Client(server.address))
        show_switch(models, client, passages[0])
        result = {"passages": len(passages), "time": show_time(models, client, passages[0])}
        result["rows"] = show_quality(models, client, passages)
        result["fallbacks"] = show_fallbacks(models, client, server, passages[0])
    write_result(args.out, result)
    show_summary(result["rows"], args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
