#!/usr/bin/env python3
"""Artifacts with weights that `kvbridge fit solve` does not make, for the tables of docs/method.md.

    python bench/fit_reweighed.py --cli … spread A -o B --moments M    # values spread by 1/sqrt(R2) of each head
    python bench/fit_reweighed.py --cli … rows A -o B --shards S       # A's maps again, rows weighted by attention
    python bench/fit_reweighed.py --cli … rows A -o B --shards S --plain    # the same, all rows alike

S: what `kvbridge-capture --row-weights` left. A: full-head maps. bench/evidence.py --artifacts measures them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python/src"))

import torch  # noqa: E402
from kvbridge.shards import read_shard  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

RIDGE = 1e-5  # of the mean diagonal


def spread(weights: dict, manifest: dict, args: argparse.Namespace) -> None:
    """Multiplies values by a factor about their mean over the calibration rows."""
    mean = value_means(args.moments, manifest["target"]["geometry"])
    for layer, record in enumerate(manifest["calibration"]["layers"]):
        r2 = torch.tensor(record["value"]["heads"]["r2_held_out"])
        factor = torch.full_like(r2, args.factor) if args.factor else r2.rsqrt().clamp(max=2)
        name, bias = f"value_weight.{layer}", f"value_bias.{layer}"
        weights[name] = (weights[name].float() * factor[:, None, None]).to(weights[name].dtype)
        moved = mean[layer] + (weights[bias].float() - mean[layer]) * factor[:, None]
        weights[bias] = moved.to(weights[bias].dtype)


def value_means(moments: Path, geometry: dict) -> torch.Tensor:
    """[layers, heads, dim] over fitted rows of joint moments, whose columns are a layer's keys, then its values."""
    shape = geometry["layers"], 2, geometry["kv_heads"], geometry["head_dim"]
    return load_file(moments)["joint.fit.mean_y"].float().view(shape)[:, 1]


class Rows:
    """Of all shards, float32: columns [rows, layers, heads, dim] and weights [rows, layers, heads] by component."""

    def __init__(self, folder: Path):
        parts: dict[tuple[str, str], list[torch.Tensor]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            shard = read_shard(path)
            for component in ("key", "value"):
                for role in ("source", "target"):
                    bits = torch.from_numpy(getattr(getattr(shard, role), f"{component}s").copy())
                    rows = bits.view(torch.bfloat16).float().permute(2, 0, 1, 3)
                    parts.setdefault((role, component), []).append(rows)
                weight = torch.from_numpy(getattr(shard, f"{component}_weight").copy())
                parts.setdefault(("weight", component), []).append(weight.permute(2, 0, 1))
        self.of = {name: torch.cat(tensors) for name, tensors in parts.items()}

    def shrunk(self, component: str, layer: int, head: int, columns: int) -> torch.Tensor:
        """w = 1 + alpha (r - 1): as much of the weights r as leaves enough rows for this many columns."""
        r = self.of["weight", component][:, layer, head]
        rows = len(r)
        enough = min(rows, 2 * columns)
        alpha = min(1.0, ((rows / enough - 1) / float(r.var() / r.mean() ** 2)) ** 0.5)
        return 1 + alpha * (r / r.mean() - 1)


def rows(weights: dict, manifest: dict, args: argparse.Namespace) -> None:
    """Solves every head of every map again."""
    found = Rows(args.shards)
    for layer, entry in enumerate(manifest["layers"]):
        for component, lists in entry.items():
            x = torch.cat([found.of["source", component][:, j].flatten(1) for j in lists["sources"]], 1)
            y = found.of["target", component][:, layer]
            for head in range(y.shape[1]):
                w = torch.ones(len(x)) if args.plain else found.shrunk(component, layer, head, x.shape[1])
                weight, bias = solve(x, y[:, head], w)
                for name, value in (("weight", weight), ("bias", bias)):
                    into = weights[f"{component}_{name}.{layer}"]
                    into[head] = value.to(into.dtype)


def solve(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted ridge with a bias."""
    mean_x, mean_y = ((w @ t) / w.sum() for t in (x, y))
    centred, scaled = x - mean_x, (x - mean_x) * w[:, None]
    gram = (scaled.T @ centred).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, (scaled.T @ (y - mean_y)).double())
    return weight, mean_y - mean_x.double() @ weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", required=True, help="kvbridge")
    commands = parser.add_subparsers(dest="command", required=True)
    values, again = commands.add_parser("spread"), commands.add_parser("rows")
    for command, run in ((values, spread), (again, rows)):
        command.add_argument("artifact", type=Path)
        command.add_argument("-o", "--out", type=Path, required=True)
        command.set_defaults(run=run)
    values.add_argument("--moments", type=Path, required=True, help="joint ones, for the values' means")
    values.add_argument("--factor", type=float, help="in place of each head's")
    again.add_argument("--shards", type=Path, required=True)
    again.add_argument("--plain", action="store_true", help="all rows alike")
    args = parser.parse_args()
    torch.set_num_threads(1)
    manifest = json.loads((args.artifact / "manifest.json").read_text())
    weights = load_file(args.artifact / "mapper.safetensors")
    args.run(weights, manifest, args)
    record = {"made": args.command} | {k: str(v) for k in ("factor", "plain") if (v := getattr(args, k, None))}
    with tempfile.TemporaryDirectory(prefix="kvbridge-") as folder:
        changed, note = Path(folder, "weights.safetensors"), Path(folder, "record.json")
        save_file(weights, changed)
        note.write_text(json.dumps(record))
        subprocess.run([args.cli, "fit", "reweigh", args.artifact, "--weights", changed, "--record", note, "-o", args.out], check=True)


if __name__ == "__main__":
    main()
