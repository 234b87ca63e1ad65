#!/usr/bin/env python3
"""Native artifacts of the family, networks among them, as rows of the table of fit_experiments.py.

    python bench/fit_networks.py --family FAMILY --windows 10 "head-local k4"=A "head-local k4, bottleneck of 51"=B

Each is mapped as mapper.h says, in float32 from the weights as stored, and measured by fit_experiments.score.
Maps small to large.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from fit_experiments import Pair, pairs, passages, score, text_windows
from fit_table import RESULTS, TEXTS, result_key, write_table
from safetensors.torch import load_file


class Artifact:
    """A native artifact that maps columns of the source to the target's keys and values, un-rotated."""

    def __init__(self, pair: Pair, folder: Path):
        self.pair = pair
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.tensors = {name: tensor.float() for name, tensor in load_file(folder / "mapper.safetensors").items()}
        self.bytes = sum(t.numel() for name, t in self.tensors.items() if not name.startswith("key_norm")) * 2

    def _layer(self, x: torch.Tensor, layer: int, component: str) -> torch.Tensor:
        """[batch, tokens, heads, dim] of one target layer; `x` [batch, tokens, 2, layers, heads, dim]."""
        m = self.manifest["layers"][layer][component]
        own = component == "value"
        planes = [x[:, :, own + 0, j] for j in m["sources"]] + [x[:, :, 1 - own, j] for j in m.get("cross_sources", [])]
        z = torch.stack(planes, 2)
        t = self.tensors
        y = t[f"{component}_bias.{layer}"]
        if m["support"] == "full":
            y = y + torch.einsum("btf,hfd->bthd", z.flatten(2), t[f"{component}_weight.{layer}"])
        elif m["support"] == "head_local":
            heads = m["head_source"] or range(y.shape[0])
            local = torch.stack([z[:, :, :, h].flatten(2) for h in heads], 2)
            y = y + torch.einsum("bthf,hfd->bthd", local, t[f"{component}_weight.{layer}"])
        if "hidden" in m:
            h = z.flatten(2)
            for i in range(len(m["hidden"])):
                h = torch.relu(h @ t[f"{component}_hidden.{layer}.{i}"] + t[f"{component}_hidden_bias.{layer}.{i}"])
            y = y + torch.einsum("btw,hwd->bthd", h, t[f"{component}_out.{layer}"])
        return y

    def __call__(self, x: torch.Tensor):
        source, target = self.pair.source, self.pair.target
        x = x.unflatten(-1, (2, source.layers, source.heads, source.dim))
        keys, values = [], []
        for layer in range(target.layers):
            key = self._layer(x, layer, "key")
            if self.manifest["key_norm"]["kind"] == "k_norm":
                g, eps = self.tensors[f"key_norm.{layer}"], self.manifest["key_norm"]["eps"]
                key = key * torch.rsqrt((key / g).square().mean(-1, keepdim=True) + eps)
            keys.append(key.transpose(1, 2))
            values.append(self._layer(x, layer, "value").transpose(1, 2))
        return torch.stack(keys), torch.stack(values)



def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("artifacts", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--family", type=Path, required=True, help="the folder with small/, large/ and text/")
    parser.add_argument("--windows", type=int, default=10, help="per text")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pair = pairs(args.family)["small->large"]
    artifacts = {name: Artifact(pair, Path(folder)) for name, folder in (a.rsplit("=", 1) for a in args.artifacts)}
    measured: dict[str, dict] = {name: {} for name in artifacts}
    for text in TEXTS:
        p = passages(pair, text_windows(args.family, f"eval_{text}.txt", 400_000, 20)[: args.windows])
        for name, artifact in artifacts.items():
            measured[name][text] = score(pair, artifact, p)
            print(name, text, f"{measured[name][text]['kl']:.4f}", flush=True)
    results = json.loads(RESULTS.read_text())
    for name, artifact in artifacts.items():
        row = measured[name] | {"bytes": artifact.bytes}
        results["small->large"].setdefault(name, {})[result_key(args.windows, 1, False)] = row
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_table()


if __name__ == "__main__":
    main()
