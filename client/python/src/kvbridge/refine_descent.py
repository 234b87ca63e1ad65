"""Steps of a map's weights: momentum in the coordinates in which the source's columns are uncorrelated.

With columns x of mean m and covariance L L^T, y = (x - m) W + c is y = u U + c for white u = L^-1 (x - m) and
U = L^T W. Steps are taken on U and c in units of the outputs' own size, so that a step means the same in every direction
of the source's cache; one running size of the gradient scales each block's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbridge.extra import torch
from kvbridge.refine_map import Block, TrainableMap

_MOMENTUM, _SIZE = 0.9, 0.98


@dataclass
class _White:
    """What blocks that read the same columns share."""

    mean: torch.Tensor
    factor: torch.Tensor  # L


class Covariance:
    """Of the source's columns, one batch of tokens after another. damping: of its mean diagonal, added to it, since
    columns are nearly dependent."""

    def __init__(self, columns: int, damping: float = 1e-3) -> None:
        self._damping = damping
        self._rows = 0
        self._sum = torch.zeros(columns, dtype=torch.float64)
        self._products = torch.zeros(columns, columns, dtype=torch.float64)

    def add(self, x: torch.Tensor) -> None:
        """x: [tokens, columns]."""
        x = x.float()
        self._rows += len(x)
        self._sum += x.sum(0).cpu()
        self._products += (x.T @ x).cpu()

    def white(self, columns: torch.Tensor) -> _White:
        mean = self._sum[columns] / self._rows
        part = self._products[columns][:, columns] / self._rows - torch.outer(mean, mean)
        part.diagonal().add_(self._damping * part.diagonal().mean())
        return _White(mean.float(), torch.linalg.cholesky(part).float())


class Descent:
    """Of one map; `step` uses the gradients that are there and clears them."""

    def __init__(self, trained: TrainableMap, covariance: Covariance, rate: float) -> None:
        self._map, self._rate = trained, rate
        found: dict[bytes, _White] = {}
        self._white = []
        for block in trained.blocks:
            if block.reads not in found:
                found[block.reads] = covariance.white(block.columns)
            self._white.append(found[block.reads])
        self._unit = [
            float((w.factor.T @ b.weight.detach()).square().sum(0).mean().sqrt())
            for b, w in zip(trained.blocks, self._white)
        ]
        self._taken = 0
        self._momentum = [torch.zeros(len(b.columns) + 1, b.weight.shape[1]) for b in trained.blocks]
        self._size = [0.0] * len(trained.blocks)

    @torch.no_grad()
    def step(self, share: float) -> None:
        """share: of the rate."""
        self._taken += 1
        for index, block in enumerate(self._map.blocks):
            self._step(index, block, share * self._rate)
        for parameter in self._map.parameters():
            parameter.grad = None

    def _step(self, index: int, block: Block, rate: float) -> None:
        white, unit = self._white[index], self._unit[index]
        bias = self._map.bias[block.component, block.layer, block.heads]
        assert self._map.bias.grad is not None and block.weight.grad is not None
        over_bias = self._map.bias.grad[block.component, block.layer, block.heads].flatten()
        centred = block.weight.grad - torch.outer(white.mean, over_bias)
        over_white = torch.linalg.solve_triangular(white.factor, centred, upper=False)
        gradient = unit * torch.cat([over_white, over_bias[None]])
        momentum = self._momentum[index].lerp_(gradient, 1 - _MOMENTUM)
        self._size[index] += (1 - _SIZE) * (float(gradient.square().mean()) - self._size[index])
        size = (self._size[index] / (1 - _SIZE**self._taken)) ** 0.5
        if not size:
            return
        step = momentum * (-rate * unit / (1 - _MOMENTUM**self._taken) / size)
        change = torch.linalg.solve_triangular(white.factor.T, step[:-1], upper=True)
        block.weight.add_(change)
        bias.add_((step[-1] - white.mean @ change).view_as(bias))

    def state(self) -> dict[str, Any]:
        return {"taken": self._taken, "momentum": self._momentum, "size": self._size}

    def restore(self, state: dict[str, Any]) -> None:
        self._taken, self._momentum, self._size = state["taken"], state["momentum"], state["size"]
