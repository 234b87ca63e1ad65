#!/usr/bin/env python3
"""More of what might improve a fitted map, as rows of the tables of docs/method.md, beside fit_experiments.py's:
a prior where calibration is scarce, calibration text of more than one kind, and parts of the cache left to the target.

    python bench/fit_experiments.py capture --family FAMILY --cache FOLDER
    python bench/fit_trials.py capture --family FAMILY --cache FOLDER       # the shifted texts, once
    python bench/fit_trials.py run --family FAMILY --cache FOLDER --bf16    # what bench/fit_experiments.json lacks

The shifted texts have no calibration part of their own: the last 200 windows of each calibrate here, and none of the
first 20, which are scored, is among them. They are other chunks of the same documents.
"""

from __future__ import annotations

import argparse
import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from fit_experiments import (
    EXPERIMENTS, TAILED, Bench, Map, Model, Moments, Pair, Work, block_r2, evaluate, parser_of, r2, ridge,
    segment_moments, text_windows,
)  # fmt: skip
from fit_table import TEXTS, write_table

SHIFTED = TEXTS[1:]
SHIFTED_SEGMENTS = {16: (0, 16), 66: (16, 66), 100: (66, 100), 200: (100, 200)}  # up to so many sequences
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # relative to the mean diagonal


def capture(family: Path, cache: Path) -> None:
    """Leaves shifted.pt: moments by text and segment of its last 200 windows."""
    models = [Model(family / "small"), Model(family / "large")]
    sums: dict = {}
    for text in SHIFTED:
        ids = text_windows(family, f"eval_{text}.txt")[-200:]
        sums[text] = {n: segment_moments(models, ids, *s) for n, s in SHIFTED_SEGMENTS.items()}
    torch.save(sums, cache / "shifted.pt")


@functools.cache
def shifted(cache: Path) -> dict:
    return torch.load(cache / "shifted.pt", weights_only=False)


def mixed(cache: Path, texts: Iterable[str], sequences: int, general: Moments | None = None) -> Moments:
    """Moments of the first so many sequences of each of these texts, on top of others."""
    parts = [m for t in texts for n, m in shifted(cache)[t].items() if n <= sequences]
    return functools.reduce(operator.add, parts if general is None else [general, *parts])


def domain_trials(cache: Path) -> list[Work]:
    def fit(b: Bench, texts: Iterable[str], sequences: int, general: Moments | None) -> Map:
        return b.fit(b.top(4), rows=mixed(cache, texts, sequences, general))

    def others(text: str) -> list[str]:
        return [t for t in SHIFTED if t != text]

    return [
        Work("k4", EXPERIMENTS["k4"]),
        Work("k4, 200 sequences", EXPERIMENTS["k4, 200 sequences"]),
        Work("k4, 16 sequences of each shifted text more", lambda b: fit(b, SHIFTED, 16, b.all)),
        Work("k4, 584 sequences and 66 of each shifted text", lambda b: fit(b, SHIFTED, 66, b.first(584))),
        Work("k4, 584 sequences and 100 of each shifted text but the one that is scored",
             lambda b: {t: fit(b, others(t), 100, b.first(584)) for t in TEXTS}),
        Work("k4, 584 sequences and 200 of the text that is scored (in-domain: none)",
             lambda b: {t: fit(b, [t], 200, b.first(584)) if t in SHIFTED else b.fit(b.top(4), rows=b.first(584)) for t in TEXTS}),
        Work("k4, 200 sequences of the text that is scored and no other (in-domain: calibration text)",
             lambda b: {t: fit(b, [t], 200, None) if t in SHIFTED else b.fit(b.top(4), rows=b.first(200)) for t in TEXTS}),
    ]  # fmt: skip


def procrustes(pair: Pair, m: Moments, block: tuple[str, int], source: tuple[str, int]) -> torch.Tensor:
    """[source layer's columns, block's columns]: each head turned onto the target's of the same number, and scaled."""
    weight = torch.zeros(pair.source.width, pair.target.width, dtype=torch.float64)
    for head in range(pair.target.heads):
        x = shift(pair.block("x", *source, head), pair.x.start)
        y = shift(pair.block("y", *block, head), pair.y.start)
        u, s, v = torch.linalg.svd(m.gram[x, y])
        here = slice(head * pair.target.dim, (head + 1) * pair.target.dim)
        weight[here, here] = u @ v * (s.sum() / m.gram[x, x].trace())
    return weight


def shift(columns: slice, by: int) -> slice:
    return slice(columns.start + by, columns.stop + by)


def prior_of(b: Bench, rows: Moments) -> torch.Tensor:
    """[source columns, target columns]: Procrustes from the single layer that predicts each block best."""
    pair = b.pair
    prior = torch.zeros(pair.source.columns, pair.target.columns, dtype=torch.float64)
    for block, sources in b.top(4).items():
        best = max(sources, key=lambda s: block_r2(pair, rows, b.held, block, [s], 1e-2))
        prior[pair.block("x", *best), pair.block("y", *block)] = procrustes(pair, rows, block, best)
    return prior


def prior_alone(b: Bench) -> Map:
    pair, prior = b.pair, prior_of(b, b.all)
    bias = b.all.mean[pair.y] - b.all.mean[pair.x] @ prior
    return Map(prior.float(), bias.float(), pair.target.columns * (pair.source.dim + 1))


def towards_prior(b: Bench, rows: Moments) -> Map:
    """Ridge that shrinks to the prior instead of to zero: of what the prior leaves."""
    prior = prior_of(b, rows)
    left, held = residual(b.pair, rows, prior), residual(b.pair, b.held, prior)
    fitted = best_penalty(b.pair, left, held, b.top(4))
    return replace(fitted, weight=fitted.weight + prior.float())


def residual(pair: Pair, m: Moments, prior: torch.Tensor) -> Moments:
    """Moments of the target's columns less what the prior says of them, beside the source's."""
    turn = torch.eye(len(m.mean), dtype=torch.float64)
    turn[pair.x, pair.y] = -prior
    return Moments(m.rows, m.mean @ turn, turn.T @ m.gram @ turn)


def best_penalty(pair: Pair, rows: Moments, held: Moments, recipe: dict) -> Map:
    """Each block's lambda is the best of PENALTIES on held-out error."""
    total = None
    for block, sources in recipe.items():
        lam = max(PENALTIES, key=lambda value: block_r2(pair, rows, held, block, sources, value))
        m = ridge(pair, rows, {block: sources}, lam)
        here = pair.block("y", *block)
        if total is None:
            total = replace(m, bias=torch.zeros_like(m.bias), parameters=0)
        total.weight[:, here], total.bias[here] = m.weight[:, here], m.bias[here]
        total.parameters += m.parameters
    return total


def prior_trials() -> list[Work]:
    work = [Work("head-local k1, Procrustes alone: each head turned and scaled", prior_alone)]
    for n in (5, 20, 60, 400):
        work += [
            Work(f"{n} sequences: k4", lambda b, n=n: b.fit(b.top(4), rows=b.first(n))),
            Work(f"{n} sequences: k4, lambda of each block by held-out error",
                 lambda b, n=n: best_penalty(b.pair, b.first(n), b.held, b.top(4))),
            Work(f"{n} sequences: k4, shrunk to Procrustes, lambda of each block by held-out error",
                 lambda b, n=n: towards_prior(b, b.first(n))),
        ]  # fmt: skip
    return work


def exact_trials() -> list[Work]:
    """Tokens and layers that the target computes itself, beside native tails that cost as much."""
    make: Callable[[Bench], Map] = functools.cache(EXPERIMENTS[TAILED])
    work = [Work(TAILED, make, tail) for tail in (1, 2, 5, 17, 65)]
    for tokens in (1, 4, 16, 64):
        label = f"{TAILED}, first {tokens} tokens exact"
        work.append(Work(label, lambda b, n=tokens: replace(make(b), exact_tokens=n)))
    for tail in (17, 65):
        work.append(Work(f"{TAILED}, first 4 tokens exact", lambda b: replace(make(b), exact_tokens=4), tail))
    for tail in (1, 17, 65):
        work.append(Work(f"{TAILED}, layer 0 exact", lambda b: replace(make(b), exact_layers=1), tail))
    return work


def spread_by_r(b: Bench, m: Map) -> Map:
    """Values of each head times 1/R about their mean, R² held out: gives them the variance that a fit takes away."""
    pair, half = b.pair, b.pair.target.columns // 2
    factor = r2(pair, m, b.held, pair.target.dim).clamp(0.25).rsqrt().repeat_interleave(pair.target.dim)
    factor[:half] = 1
    mean = b.all.mean[pair.y]
    return replace(m, weight=(m.weight * factor).float(), bias=(mean + (m.bias.double() - mean) * factor).float())


def spread_trials() -> list[Work]:
    name = TAILED.removesuffix(", values x1.1")
    make: Callable[[Bench], Map] = functools.cache(EXPERIMENTS[name])
    return [Work(name, make), Work(f"{name}, values x1/R of each head", lambda b: spread_by_r(b, make(b)))]


def main() -> None:
    args: argparse.Namespace = parser_of(__doc__, ("capture", "run", "table")).parse_args()
    torch.set_num_threads(args.threads)
    if args.command == "capture":
        capture(args.family, args.cache)
    elif args.command == "run":
        evaluate(args, exact_trials() + domain_trials(args.cache) + prior_trials() + spread_trials())
    else:
        write_table()


if __name__ == "__main__":
    main()
