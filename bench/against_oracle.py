#!/usr/bin/env python3
"""The automatic choice against every map of the family's oracle table (oracle.json), at no more bytes than that map's.

For each size in the table `kvbridge fit solve --budget` makes an artifact from joint moments of calibration text,
kvbridged serves it, and the oracle's protocol measures it on the oracle's windows: 384 tokens are mapped, 128 are
fed over them, and all 128 predictions count. Moments of one direction (the other one with the models exchanged):

    kvbridge-capture --source FAMILY/small --target FAMILY/large --text FAMILY/text/calibration.txt \\
        --sequences 600 --stride 1 --no-store --accumulate "--layout joint" --out S

    python bench/against_oracle.py --kvbridged … --cli … --family FAMILY --out ARTIFACTS \\
        --moments "small->large=S/moments.safetensors" "large->small=L/moments.safetensors"

Artifacts that are there already are measured as they are. The table goes into docs/method.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
from pathlib import Path

import evidence
import torch
from fit_experiments import PROMPT, oracle_windows
from fit_table import DOCUMENT, ROOT, TEXTS, put_between
from kvbridge import Client
from kvbridge.hf import continue_from, prefill
from kvbridge.testing import LocalServer

RESULTS = ROOT / "bench/against_oracle.json"
BEGIN, END = "<!-- against_oracle: begin -->", "<!-- against_oracle: end -->"
HEADS = {"headlocal": 1, "full": 2, "full_kv": 4}  # of a source layer that a target head reads, values' among them


def map_bytes(row: str, family: evidence.Family, target: str) -> int:
    """Of a row's weights and biases in BF16: K and V of every target layer."""
    support, k = row.rsplit("_k", 1)
    config = family.models[target].config
    outputs = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * outputs * (HEADS[support] * int(k) * config.head_dim + 1)


def solve(cli: str, moments: str, budget: int, target: Path, out: Path) -> None:
    if not out.exists():
        subprocess.run(
            [cli, "fit", "solve", "--moments", moments, "--budget", str(budget), "--target-model", target, "-o", out],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip


@torch.no_grad()
def mean_kl(family: evidence.Family, client: Client, routes: list[evidence.Route], windows: torch.Tensor) -> dict[str, float]:
    """By route's name. All routes are of one direction."""
    source, target = (family.models[member] for member in (routes[0].source, routes[0].target))
    variants = {route.name: family.variant(client, route, prompt=PROMPT + 1) for route in routes}
    sums = dict.fromkeys(variants, 0.0)
    for ids in windows.split(1):
        cache = prefill(source, ids[:, :PROMPT])
        own = target(input_ids=ids).logits[0, PROMPT:].double().log_softmax(-1)
        for name, variant in variants.items():
            got = continue_from(target, variant(cache, ids), ids)[0].double().log_softmax(-1)
            sums[name] += float((own.exp() * (own - got)).sum(-1).mean())
    return {name: total / len(windows) for name, total in sums.items()}


def compare(family: evidence.Family, oracle: dict, direction: str, moments: str, args: argparse.Namespace) -> list[dict]:
    """One entry for each of the oracle's maps: its bytes and KL, and those of the automatic choice."""
    source, target = direction.split("->")
    figures = oracle["directions"][direction]["eval"]
    rows = {row: map_bytes(row, family, target) for row in figures[TEXTS[0]] if row.rsplit("_k", 1)[0] in HEADS}
    routes, configs = {}, []
    for budget in sorted(set(rows.values())):
        out = args.out / f"{source}-to-{target}-{budget}"
        solve(args.cli, moments, budget, args.family / target, out)
        routes[budget], folder = evidence.native_route(str(out))
        configs.append(evidence.route_config(routes[budget], folder, args.family, "bf16"))
    ours: dict[str, dict[str, float]] = {}
    with LocalServer(args.kvbridged, configs) as server, Client(server.address) as client:
        for text in TEXTS:
            ours[text] = mean_kl(family, client, list(routes.values()), oracle_windows(args.family, text))
            print(direction, text, ours[text], flush=True)
    return [
        {
            "row": row,
            "bytes": size,
            "oracle": {text: figures[text][row]["kl"] for text in TEXTS},
            "ours_bytes": json.loads((args.out / routes[size].name / "manifest.json").read_text())["calibration"]["choice"]["weight_bytes"],
            "ours": {text: ours[text][routes[size].name] for text in TEXTS},
        }
        for row, size in sorted(rows.items(), key=lambda item: (item[1], item[0]))
    ]


def table() -> str:
    """The Markdown between the markers of docs/method.md; figures that don't beat the oracle's are bold."""
    out = []
    for direction, entries in json.loads(RESULTS.read_text()).items():
        beaten = sum(e["ours"][t] < e["oracle"][t] for e in entries for t in TEXTS)
        out += [f"**{direction}: {beaten} of {len(entries) * len(TEXTS)} figures of the oracle beaten**", ""]
        out += ["| the oracle's map | MB | its KL: in-domain | code | language | numbers | ours, MB | in-domain | code | language | numbers |"]
        out += ["|---|" + "---|" * 10]
        for e in entries:
            cells = [e["row"], f"{e['bytes'] / 1e6:.2f}", *(f"{e['oracle'][t]:.3f}" for t in TEXTS), f"{e['ours_bytes'] / 1e6:.2f}"]
            for t in TEXTS:
                cells.append(f"{e['ours'][t]:.3f}" if e["ours"][t] < e["oracle"][t] else f"**{e['ours'][t]:.3f}**")
            out += ["| " + " | ".join(cells) + " |"]
        out += [""]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvbridged", required=True, help="binary to serve the artifacts with")
    parser.add_argument("--cli", required=True, help="kvbridge, to make them with")
    parser.add_argument("--family", type=Path, required=True, help="the folder with small/, large/, text/ and oracle.json")
    parser.add_argument("--moments", nargs="+", required=True, metavar="DIRECTION=FILE", help="joint ones")
    parser.add_argument("--out", type=Path, required=True, help="folder for the artifacts")
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    family, oracle = evidence.Family(args.family), json.loads((args.family / "oracle.json").read_text())
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for direction, moments in (stated.split("=", 1) for stated in args.moments):
        results[direction] = compare(family, oracle, direction, moments, args)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    put_between(DOCUMENT, BEGIN, END, table())


if __name__ == "__main__":
    main()
