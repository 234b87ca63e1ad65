#!/usr/bin/env python3
"""A map tuned end to end, through the frozen target model, as a row of the tables of docs/method.md. Slow.

    python bench/fit_experiments.py capture --family FAMILY --cache FOLDER --rows    # 9 GB
    python bench/fit_distil.py run --family FAMILY --cache FOLDER
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from fit_experiments import (
    PROMPT, SCORED, SEGMENTS, WINDOW, Bench, Map, Moments, Pair, Work, captured_file, evaluate, mapped, pairs, parser_of, solve,
)  # fmt: skip

DISTILLED = "k4, budget over blocks of both components, distilled end to end"


def whiteners(pair: Pair, m: Moments, recipe: dict, eps: float) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(source columns, target columns, A) of each target block: columns times A are uncorrelated and of unit size
    (nearly: eps times the mean diagonal is added), so that Adam's steps mean the same in every direction."""
    out = []
    for block, sources in recipe.items():
        rows, cols, _ = solve(pair, m, block, sources, eps)
        x = pair.x.start + rows
        a = m.gram[x][:, x] / m.rows
        a.diagonal().add_(eps * a.diagonal().mean())
        eye = torch.eye(len(rows), dtype=a.dtype)
        out.append((rows[:, None], cols, torch.linalg.solve_triangular(torch.linalg.cholesky(a).T, eye, upper=True).float()))
    return out


class Distillation:
    """Tunes a map, the blocks of its recipe and a key temperature per layer, by the KL between the target's own
    next-token distributions and those over the mapped prefix, back through the frozen target (BF16 products)."""

    def __init__(self, pair: Pair, m: Map, white: list, cache: Path):
        t = self.target = pair.target
        self.pair, self.start, self.white = pair, m, white
        self.ids = torch.load(cache / "ids.pt")
        count, name = len(self.ids), "large" if t.layers == 8 else "small"
        self.columns = captured_file(cache / "columns.bin", (count, WINDOW, pair.source.columns + t.columns), torch.bfloat16)
        self.teacher = captured_file(cache / f"logits_{name}.bin", (count, SCORED, t.w["embed_tokens.weight"].shape[0]), torch.float16)
        self.w, self.b = m.weight.clone().requires_grad_(), m.bias.clone().requires_grad_()
        self.u = [torch.linalg.solve(a, m.weight[rows, cols]).requires_grad_() for rows, cols, a in white]
        self.s = torch.zeros(t.layers, 1).requires_grad_()

    def map(self) -> Map:
        scale = torch.cat([self.s.exp(), torch.ones_like(self.s)]).expand(-1, self.target.heads)
        return Map(self.w, self.b, self.start.parameters, self.start.renorm, scale)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        n = PROMPT - 1
        with torch.autocast("cpu", torch.bfloat16):
            k, v = mapped(self.pair, self.map(), self.columns[rows, :n, self.pair.x])
            q = self.target.run(self.ids[rows, n : WINDOW - 1], (k, v), n, last=SCORED).float().log_softmax(-1)
        p = self.teacher[rows].float().log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1).mean()

    @torch.no_grad()
    def held_loss(self, held: torch.Tensor) -> float:
        return sum(float(self.loss(rows)) * len(rows) for rows in held.split(8)) / len(held)

    def run(self, windows: torch.Tensor, held: torch.Tensor, steps: int, rate: float, batch: int, every: int, log, keep: Path) -> Map:
        """windows, held: indices into the captured calibration. Returns, and leaves in `keep`, the step that is
        best on `held`."""
        groups = [{"params": [*self.u, self.b], "lr": rate}, {"params": [self.s], "lr": 10 * rate}]
        adam = torch.optim.Adam(groups, betas=(0.9, 0.98))
        shape = lambda i: min(1, (i + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * i / steps))  # noqa: E731
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, shape)
        draw = torch.Generator().manual_seed(0)
        epochs = range(steps * batch // len(windows) + 1)
        order = torch.cat([windows[torch.randperm(len(windows), generator=draw)] for _ in epochs])
        best, result = self.held_loss(held), self.start
        log(f"step 0 held {best:.4f}")
        for i in range(steps):
            value = self.loss(order[i * batch : (i + 1) * batch])
            value.backward()
            for u, (rows, cols, a) in zip(self.u, self.white, strict=True):
                u.grad = a.T @ self.w.grad[rows, cols]
            adam.step(), schedule.step(), adam.zero_grad()
            self.w.grad = None
            with torch.no_grad():
                for u, (rows, cols, a) in zip(self.u, self.white, strict=True):
                    self.w[rows, cols] = a @ u
            if (i + 1) % every == 0 or i + 1 == steps:
                now = self.held_loss(held)
                log(f"step {i + 1} fit {float(value.detach()):.4f} held {now:.4f} key scales {self.s.exp().flatten().tolist()}")
                if now < best:
                    c = self.map()
                    result = Map(*(t.detach().clone() for t in (c.weight, c.bias)), c.parameters, c.renorm, c.scale.detach().clone())
                    best = now
                    torch.save(result, keep)
        return result


def keep_of(cache: Path, pair: Pair) -> Path:
    return cache / f"distilled_{pair.source.layers}_{pair.target.layers}.pt"


def distil(args: argparse.Namespace) -> None:
    """Tunes the budget's map of each direction."""
    sums = torch.load(args.cache / "moments.pt", weights_only=False)
    begin, end = SEGMENTS["held"]
    windows, held = torch.arange(SEGMENTS["rest"][1]), torch.arange(begin, end, 4)
    for direction, pair in pairs(args.family).items():
        bench = Bench(pair, sums)
        recipe = bench.give(4)
        start = bench.scaled(bench.fit(recipe), values=1.1)
        run = Distillation(pair, start, whiteners(pair, bench.all, recipe, 1e-3), args.cache)

        def log(line: str, direction: str = direction) -> None:
            print(direction, line, flush=True)

        run.run(windows, held, args.steps, 1e-4, 8, 20, log, keep_of(args.cache, pair))


def main() -> None:
    parser = parser_of(__doc__, ("run",))
    parser.add_argument("--steps", type=int, default=1000, help="8 windows each")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    distil(args)

    def distilled(b: Bench) -> Map:
        return torch.load(keep_of(args.cache, b.pair), weights_only=False)

    evaluate(args, [Work(DISTILLED, distilled), Work(DISTILLED, distilled, 0, True)])


if __name__ == "__main__":
    main()
