#!/usr/bin/env python3
"""What the family's mapped caches are worth, measured through a running kvbridged, beside the figures that the
Python prototype gave for the same artifacts.

Protocol (kvbridge.evaluate): the first 400,000 characters of a text as one stream of tokens, its first windows of
512; the first 383 tokens are mapped, the next 128 are fed over the mapped cache, 128 predictions are scored. All
models and caches are float32. Start a server with all of a family's artifacts, measure, stop it:

    python bench/evidence.py --kvbridged build/release/server/kvbridged --family FAMILY

Native artifacts instead, networks too, into the tables of docs/method.md (fit_table.py) where they have a name there:

    python bench/evidence.py --kvbridged … --family FAMILY --tails 17 65 --artifacts "all planes=FITTED" OTHER
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python/src"))

import torch  # noqa: E402
import transformers  # noqa: E402
from fit_table import RESULTS, result_key, write_table  # noqa: E402
from kvbridge import Client  # noqa: E402
from kvbridge import evaluate as ev  # noqa: E402
from kvbridge.hf import spec_of, transfer_cache  # noqa: E402
from kvbridge.testing import LocalServer  # noqa: E402

TEXTS = ("indomain", "code", "lang", "numeric")


@dataclass(frozen=True)
class Route:
    """One artifact as the server serves it."""

    name: str
    source: str  # "small" or "large"
    target: str
    published: dict  # text -> the prototype's figures
    native: bool = False  # carries its own RoPE
    revisions: tuple[str, str] = ("1", "1")  # of the two models
    prefix: str = "kvbridge-family/"  # of their names
    label: str = ""  # in the tables of docs/method.md
    bytes: int = 0


def find_routes(family: Path) -> list[tuple[Route, Path]]:
    """The prototype's artifacts of a family folder, with their eval.json where there is one."""
    found = []
    for folder in sorted((family / "artifacts").glob("prototype-*-bf16")):
        stem = folder.name.removesuffix("-bf16")
        source, _, target = stem.removeprefix("prototype-").rsplit("-k", 1)[0].partition("-to-")
        figures = folder.with_name(f"{stem}.eval.json")
        published = json.loads(figures.read_text())["evaluation"] if figures.exists() else {}
        found.append((Route(stem.removeprefix("prototype-"), source, target, published), folder))
    return found


def native_route(argument: str) -> tuple[Route, Path]:
    """[LABEL=]DIR, a fitted artifact; its models are called as `kvbridge-capture` called the family's folders."""
    label, _, path = argument.rpartition("=")
    folder = Path(path)
    manifest = json.loads((folder / "manifest.json").read_text())
    source, target = (manifest[role]["identity"] for role in ("source", "target"))
    revisions = source["revision"], target["revision"]
    size = manifest["files"]["mapper.safetensors"]["bytes"]
    names = source["model_id"], target["model_id"]
    return Route(folder.name, *names, {}, True, revisions, "", label, size), folder


def route_config(route: Route, folder: Path, family: Path, precision: str) -> dict:
    """RouteConfig of an artifact without evidence; the prototype's carry no RoPE either."""
    config = {
        "name": route.name,
        "artifact": str(folder.resolve()),
        "allow_unproven": True,
        "precision": precision,
    }
    if not route.native:
        for role, member in (("source", route.source), ("target", route.target)):
            config[f"{role}_config"] = str((family / member / "config.json").resolve())
    return config


def renormalised(route: Route, folder: Path, family: Path, cli: str, out: Path) -> tuple[Route, Path]:
    """The same artifact, native, with the target's k_norm weights."""
    converted = out / route.name
    subprocess.run(
        [
            cli, "artifact", "convert", "--source-config", family / route.source / "config.json",
            "--target-config", family / route.target / "config.json",
            "--key-norm-from", family / route.target, folder, converted,
        ],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return Route(f"{route.name}-knorm", route.source, route.target, {}, native=True), converted


def read_texts(folder: Path) -> dict[str, str]:
    """The four texts where they are, else the public-domain one."""
    found = {name: folder / f"eval_{name}.txt" for name in TEXTS}
    paths = {name: path for name, path in found.items() if path.exists()}
    if not paths:
        paths = {"kjv": folder / "public_domain/eval_kjv.txt"}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


class Family:
    """The two models, float32, and their common tokenizer."""

    def __init__(self, folder: Path) -> None:
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "small")
        self.models = {m: load(folder / m).float().eval() for m in ("small", "large")}
        self.layers = {m: model.config.num_hidden_layers for m, model in self.models.items()}

    def specs(self, route: Route):
        """The two models as the artifact calls them."""
        members = zip((route.source, route.target), route.revisions, strict=True)
        return [
            spec_of(self.models[m], self.tokenizer, revision=r, model_id=route.prefix + m)
            for m, r in members
        ]

    def variant(self, client: Client, route: Route, native_tail: int = 1, prompt: int = ev.PROMPT):
        """Maps a prompt's tokens but the native tail through the service; a transfer that is not applied ends the
        measurement."""

        source, target = self.specs(route)

        def mapped(cache, ids):
            moved = transfer_cache(
                client,
                cache,
                source=source,
                target=target,
                route=route.name,
                input_ids=ids[:, :prompt],
                native_tail=native_tail,
            )
            if moved.cache is None:
                raise SystemExit(f"{route.name}: {moved.result}")
            return moved.cache

        return mapped


def measure(family: Family, client: Client, routes: list[Route], text: str, args) -> list[dict]:
    """One row per variant of every route, controls included."""
    passages = ev.windows(family.tokenizer, text, args.passages)
    rows = []
    for pair in sorted({(r.source, r.target) for r in routes}):
        layers = family.layers[pair[1]]
        variants = {"no prefix": lambda cache, ids: 1}
        variants["raw source cache"] = lambda cache, ids, n=layers: ev.raw_paste(cache, n)
        members = [r for r in routes if (r.source, r.target) == pair]
        for route in members:
            variants[route.name] = family.variant(client, route)
            for tail in args.tails:
                variants[f"{route.name}, tail {tail}"] = family.variant(client, route, tail)
        scores = ev.evaluate(
            family.models[pair[0]], family.models[pair[1]], passages, variants, _progress
        )
        common = {
            "direction": f"{pair[0]} to {pair[1]}",
            "nll_target": scores.target.means()["nll"],
            "nll_source": scores.source.means()["nll"],
            "nll_no_prefix": scores.variants["no prefix"].means()["nll"],
        }
        for name, variant in scores.variants.items():
            gap = {"gap": scores.gap_recovered(name), "gap_95": scores.gap_interval(name)}
            rows.append({"variant": name, **common, **variant.means(), **gap})
    return rows


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  passage {done}/{total} ", end="\n" if done == total else "", file=sys.stderr)


def record(routes: list[Route], report: dict, args) -> None:
    """Rows of labelled artifacts go into fit_experiments.json, text by text, and from there into docs/method.md."""
    results = json.loads(RESULTS.read_text())
    for route in routes:
        rows = results[f"{route.source}->{route.target}"].setdefault(route.label, {})
        for tail in (1, *args.tails):
            name = route.name if tail == 1 else f"{route.name}, tail {tail}"
            row = rows.setdefault(result_key(args.passages, tail, False), {"bytes": route.bytes})
            for text, measured in report.items():
                found = next(r for r in measured if r["variant"] == name)
                row[text] = {key: found[key] for key in ("kl", "top1", "nll", "gap")}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_table()


def compare(row: dict, published: dict) -> dict:
    """The prototype's figures and the relative differences from them."""
    pairs = {"kl": "kl", "nll": "nll_mapped", "top1": "top1"}
    figures = {ours: published[theirs] for ours, theirs in pairs.items()}
    return {
        "prototype": figures,
        "relative": {key: row[key] / value - 1 for key, value in figures.items()},
    }


def print_rows(text: str, rows: list[dict]) -> None:
    """One table per text."""
    print(f"\n{text}: nats per token; in brackets the prototype's figure and our relative difference")
    head = f"{'variant':34} {'KL':>26} {'NLL':>26} {'top-1':>16} {'target':>7} {'source':>7} "
    print(head + f"{'cold':>7} {'gap recovered':>22}")
    for row in rows:
        cells = [f"{row['variant']:34}"]
        for key, width in (("kl", 26), ("nll", 26), ("top1", 16)):
            cell = f"{row[key]:.4f}"
            if "prototype" in row:
                cell += f" ({row['prototype'][key]:.4f}"
                cell += ")" if key == "top1" else f", {row['relative'][key]:+.2%})"
            cells.append(f"{cell:>{width}}")
        cells += [f"{row[k]:7.4f}" for k in ("nll_target", "nll_source", "nll_no_prefix")]
        if row["nll_source"] > row["nll_target"]:  # else there is no gap to recover
            low, high = row["gap_95"]
            cells.append(f"{row['gap']:7.1%} [{low:6.1%}, {high:6.1%}]")
        print(" ".join(cells))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--kvbridged", help="binary to start with the family's artifacts")
    where.add_argument(
        "--server", help='a running one; its routes are named as the artifacts, "small-to-large-k4"'
    )
    parser.add_argument("--family", type=Path, default=ROOT / "tests/data/family")
    parser.add_argument("--texts", type=Path, help="folder of eval_*.txt; default: FAMILY/text")
    parser.add_argument("--routes", nargs="+", help="default: every artifact of the family")
    parser.add_argument("--artifacts", nargs="+", metavar="[LABEL=]DIR", help="native artifacts instead")
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--tails", type=int, nargs="*", default=[], help="native tails besides 1")
    parser.add_argument("--cli", help="kvbridge: measure each artifact with k_norm, too")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--tolerance", type=float, default=0.01, help="of KL and NLL, relative")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """0, or 1 when a figure is further from the prototype's than the tolerance."""
    args = parse(argv)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # models this small gain nothing from more, and lose much on a busy machine
    found = [native_route(a) for a in args.artifacts or ()] or find_routes(args.family)
    found = [(r, f) for r, f in found if not args.routes or r.name in args.routes]
    family = Family(args.family)
    report, off = {}, []
    with ExitStack() as stack:
        if args.cli:
            out = Path(stack.enter_context(TemporaryDirectory(prefix="kvbridge-")))
            found += [renormalised(r, f, args.family, args.cli, out) for r, f in found]
        routes = [route for route, _ in found]
        address = args.server
        if address is None:
            configs = [route_config(r, f, args.family, args.precision) for r, f in found]
            address = stack.enter_context(LocalServer(args.kvbridged, configs)).address
        client = stack.enter_context(Client(address))
        published = {route.name: route.published for route in routes}
        for text, content in read_texts(args.texts or args.family / "text").items():
            rows = measure(family, client, routes, content, args)
            for row in rows:
                figures = published.get(row["variant"], {}).get(text)
                if figures:
                    row.update(compare(row, figures))
                    if any(abs(row["relative"][k]) > args.tolerance for k in ("kl", "nll")):
                        off.append(f"{row['variant']} {text}")
            print_rows(text, rows)
            report[text] = rows
    labelled = [route for route in routes if route.label]
    if labelled:
        record(labelled, report, args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    checked = sum("prototype" in row for rows in report.values() for row in rows)
    if checked:
        print(f"\n{checked - len(off)} of {checked} rows within {args.tolerance:.0%} of the prototype's figures")
    else:
        print(f"\nno reference figures exist for {', '.join(report)}: nothing to compare with")
    for name in off:
        print(f"  off: {name}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
