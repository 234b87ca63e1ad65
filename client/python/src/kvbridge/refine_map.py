"""A native artifact's linear maps as something that torch can train.

Columns are the source's un-rotated keys and then its values, by layer, head and dim. A block is what reads one
list of columns and writes some heads of one component of one target layer: a whole layer where the support is full,
one head where it is head-local.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbridge.arrays import Array, bf16_to_float32
from kvbridge.capture_errors import INCOMPATIBLE, CaptureError
from kvbridge.extra import torch

COMPONENTS = ("key", "value")


@dataclass(frozen=True)
class Shape:
    """Of one model's cache."""

    layers: int
    heads: int
    dim: int

    @staticmethod
    def of(spec: Mapping[str, Any]) -> Shape:
        """From a manifest's source or target."""
        geometry = spec["geometry"]
        return Shape(int(geometry["layers"]), int(geometry["kv_heads"]), int(geometry["head_dim"]))

    @property
    def columns(self) -> int:
        return 2 * self.layers * self.heads * self.dim


@dataclass
class Block:
    """`weight` [columns, outputs] in float32; its columns ascend, so that blocks that read the same ones share them."""

    component: int
    layer: int
    heads: slice  # of the target
    columns: torch.Tensor
    order: torch.Tensor  # where each column stands among the artifact's features
    weight: torch.nn.Parameter

    @property
    def reads(self) -> bytes:
        """Equal for blocks of the same columns."""
        return self.columns.numpy().tobytes()

    @property
    def place(self) -> tuple[int, int, int]:
        """Blocks ascend by it as their outputs do."""
        return self.component, self.layer, self.heads.start


class TrainableMap(torch.nn.Module):
    """The maps of an artifact. CaptureError for one with networks, which `kvbridge fit mlp` trains."""

    gamma: torch.Tensor  # with key_norm "k_norm"
    scale: torch.Tensor  # with key_norm "scale"

    def __init__(self, manifest: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        super().__init__()
        self.source, self.target = Shape.of(manifest["source"]), Shape.of(manifest["target"])
        self._dtypes = {name: array.dtype for name, array in tensors.items()}
        values = {name: torch.from_numpy(_floats(array)) for name, array in tensors.items()}
        self.blocks = list(self._blocks(manifest["layers"], values))
        self.weights = torch.nn.ParameterList(block.weight for block in self.blocks)
        layers = range(self.target.layers)
        bias = torch.stack([torch.stack([values[f"{c}_bias.{i}"] for i in layers]) for c in COMPONENTS])
        self.bias = torch.nn.Parameter(bias)  # [component, layer, head, dim]
        self._norm = manifest["key_norm"]
        kind = self._norm["kind"]
        if kind == "k_norm":
            self.register_buffer("gamma", torch.stack([values[f"key_norm.{i}"] for i in layers])[:, None, None])
        elif kind == "scale":
            scales = [torch.stack([values[f"{c}_scale.{i}"] for i in layers]) for c in COMPONENTS]
            self.register_buffer("scale", torch.stack(scales)[:, :, None, :, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: columns [batch, tokens, columns]; the target's un-rotated keys and values
        [component, layer, batch, heads, tokens, dim]."""
        groups: dict[bytes, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(block.reads, []).append(block)
        parts: dict[tuple[int, int, int], torch.Tensor] = {}
        for group in groups.values():
            weight = torch.cat([block.weight for block in group], 1)
            outputs = x[..., group[0].columns] @ weight
            widths = [block.weight.shape[1] for block in group]
            parts |= {block.place: part for block, part in zip(group, torch.split(outputs, widths, -1))}
        y = torch.cat([parts[place] for place in sorted(parts)], -1)
        y = y.reshape(*y.shape[:-1], *self.bias.shape) + self.bias
        return self._renormalised(y.permute(2, 3, 0, 4, 1, 5))

    def tensors(self) -> dict[str, tuple[str, Array]]:
        """Weights and biases by their names in the artifact, as they are stored there."""
        found: dict[str, list[torch.Tensor]] = {}
        for block in self.blocks:
            stored = torch.empty_like(block.weight)
            stored[block.order] = block.weight.detach()
            heads = stored.reshape(len(stored), -1, self.target.dim).transpose(0, 1)
            found.setdefault(f"{COMPONENTS[block.component]}_weight.{block.layer}", []).append(heads)
        for index, component in enumerate(COMPONENTS):
            for layer in range(self.target.layers):
                found[f"{component}_bias.{layer}"] = [self.bias.detach()[index, layer]]
        return {name: self._stored(name, torch.cat(parts)) for name, parts in sorted(found.items())}

    def _blocks(
        self, layers: list[Mapping[str, Any]], values: Mapping[str, torch.Tensor]
    ) -> Iterator[Block]:
        at = torch.arange(self.source.columns).view(2, self.source.layers, self.source.heads, self.source.dim)
        for layer, entry in enumerate(layers):
            for component, name in enumerate(COMPONENTS):
                lists = entry[name]
                if "hidden" in lists:
                    raise CaptureError(
                        f"layers[{layer}].{name}: expected a linear map, got a network", INCOMPATIBLE
                    )
                planes = [at[component, i] for i in lists["sources"]]
                planes += [at[1 - component, i] for i in lists.get("cross_sources", [])]
                read = torch.stack(planes)  # [planes, heads, dim]
                weight = values[f"{name}_weight.{layer}"]  # [target heads, features, dim]
                if lists["support"] == "full":
                    flat = weight.transpose(0, 1).flatten(1)
                    yield _block(component, layer, slice(0, self.target.heads), read.flatten(), flat)
                    continue
                heads = lists["head_source"] or range(self.target.heads)
                for head, reads in enumerate(heads):
                    yield _block(component, layer, slice(head, head + 1), read[:, reads].flatten(), weight[head])

    def _renormalised(self, y: torch.Tensor) -> torch.Tensor:
        if self._norm["kind"] == "k_norm":
            keys, values = y
            mean = (keys / self.gamma[:, None]).square().mean(-1, keepdim=True)
            return torch.stack([keys * torch.rsqrt(mean + self._norm["eps"]), values])
        return y * self.scale if self._norm["kind"] == "scale" else y

    def _stored(self, name: str, value: torch.Tensor) -> tuple[str, Array]:
        value = value.contiguous().cpu()
        if self._dtypes[name] == np.uint16:
            return "BF16", value.bfloat16().view(torch.int16).numpy().view(np.uint16)
        return "F32", value.numpy()


def _block(component: int, layer: int, heads: slice, columns: torch.Tensor, weight: torch.Tensor) -> Block:
    ascending, order = columns.sort()
    return Block(component, layer, heads, ascending, order, torch.nn.Parameter(weight[order].clone()))


def _floats(array: Array) -> Array:
    return bf16_to_float32(array) if array.dtype == np.uint16 else np.array(array, np.float32)
