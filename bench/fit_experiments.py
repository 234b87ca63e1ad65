#!/usr/bin/env python3
"""What improves a fitted map, measured on the family: the table "Measured: what helps" of docs/method.md.

A map is one matrix W [source columns, target columns] and a bias. Columns are the un-rotated keys of every layer
(layer-major, then head, then dim), then the values. Which of its (layer, head, component) blocks are not zero is
what a recipe chooses, and what its bytes count. One Gram over the columns of both models, per segment of the
calibration text, gives every ridge map in both directions.

    python bench/fit_experiments.py capture --family FAMILY --cache FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

WINDOW, PROMPT, SCORED = 512, 384, 128
TEXTS = ("indomain", "code", "lang", "numeric")
# Whole windows of calibration.txt: [begin, end). The last segment is held out of every fit.
SEGMENTS = {"a": (0, 20), "b": (20, 48), "c": (48, 60), "d": (60, 200), "rest": (200, 1597), "held": (1597, 1661)}
FIT_ON = {20: "a", 48: "ab", 60: "abc", 200: "abcd", 1597: ["a", "b", "c", "d", "rest"]}


class Model:
    """A Qwen3 decoder in float32, as much of it as the experiments need."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        self.layers, self.heads = config["num_hidden_layers"], config["num_key_value_heads"]
        self.query_heads, self.dim = config["num_attention_heads"], config["head_dim"]
        self.eps = config["rms_norm_eps"]
        self.w = {k.removeprefix("model."): v.float() for k, v in load_file(folder / "model.safetensors").items()}
        angle = torch.outer(torch.arange(WINDOW).double(), config["rope_theta"] ** -(torch.arange(0, self.dim, 2).double() / self.dim))
        angle = torch.cat([angle, angle], 1)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()
        self.gamma = torch.stack([self.w[f"layers.{i}.self_attn.k_norm.weight"] for i in range(self.layers)])

    @property
    def width(self) -> int:
        """Columns of one layer's keys, or values."""
        return self.heads * self.dim

    @property
    def columns(self) -> int:
        return 2 * self.layers * self.width

    def rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """x [..., tokens, dim], its first token at position `start`."""
        c, s = (t[start : start + x.shape[-2]] for t in (self.cos, self.sin))
        a, b = x.chunk(2, -1)
        return x * c + torch.cat([-b, a], -1) * s

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight

    def run(self, ids: torch.Tensor, prefix=None, start: int = 0, last: int = 0, cache: bool = False):
        """Logits of the last `last` tokens of ids [batch, tokens]; with `cache`, also the columns
        [batch, tokens, columns]. `prefix`: (keys, values), each [layers][batch, heads, start, dim],
        un-rotated, at positions 0..start-1."""
        batch, tokens = ids.shape
        x, keys, values = self.w["embed_tokens.weight"][ids], [], []
        mask = None
        if prefix is not None:
            mask = torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start)
        for i in range(self.layers):
            w = lambda name: self.w[f"layers.{i}.{name}.weight"]  # noqa: E731, B023
            h = self.norm(x, w("input_layernorm"))
            heads = lambda t: t.view(batch, tokens, -1, self.dim).transpose(1, 2)  # noqa: E731
            q = self.norm(heads(h @ w("self_attn.q_proj").T), w("self_attn.q_norm"))
            k = self.norm(heads(h @ w("self_attn.k_proj").T), w("self_attn.k_norm"))
            v = heads(h @ w("self_attn.v_proj").T)
            if cache:
                keys.append(k), values.append(v)
            q, k = self.rotate(q, start), self.rotate(k, start)
            if prefix is not None:
                k = torch.cat([self.rotate(prefix[0][i], 0), k], 2)
                v = torch.cat([prefix[1][i], v], 2)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
            x = x + o.transpose(1, 2).flatten(2) @ w("self_attn.o_proj").T
            h = self.norm(x, w("post_attention_layernorm"))
            x = x + (F.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        logits = None
        if last:
            logits = self.norm(x[:, -last:], self.w["norm.weight"]) @ self.w["embed_tokens.weight"].T
        if not cache:
            return logits
        flat = [t.transpose(1, 2).flatten(2) for t in keys + values]
        return logits, torch.cat(flat, -1)


def tokenizer(family: Path):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(family / "large/tokenizer.json"))


def text_windows(family: Path, name: str, characters: int | None, count: int) -> torch.Tensor:
    ids = tokenizer(family).encode((family / "text" / name).read_text()[:characters], add_special_tokens=False).ids
    return torch.tensor(ids[: count * WINDOW]).view(-1, WINDOW)


@dataclass
class Moments:
    """Count, mean and centred Gram of rows of all columns of both models (source's first)."""

    rows: int
    mean: torch.Tensor
    gram: torch.Tensor

    def __add__(self, other: Moments) -> Moments:
        rows, step = self.rows + other.rows, other.mean - self.mean
        gram = self.gram + other.gram + torch.outer(step, step) * (self.rows * other.rows / rows)
        return Moments(rows, self.mean + step * (other.rows / rows), gram)


def moments(x: torch.Tensor) -> Moments:
    mean = x.mean(0)
    centred = x - mean
    return Moments(len(x), mean.double(), (centred.T @ centred).double())


@torch.no_grad()
def capture(family: Path, cache: Path, batch: int = 8) -> None:
    """Reads calibration.txt once with both models. Leaves moments.pt (by segment, every second token), and for
    distillation the columns (BF16) and the teacher's logits of the last 128 tokens (FP16)."""
    small, large = Model(family / "small"), Model(family / "large")
    ids = text_windows(family, "calibration.txt", None, SEGMENTS["held"][1])
    columns = small.columns + large.columns
    rows = _file(cache / "columns.bin", (len(ids), WINDOW, columns), torch.bfloat16)
    logits = {m: _file(cache / f"logits_{m}.bin", (len(ids), SCORED, 4096), torch.float16) for m in ("small", "large")}
    torch.save(ids, cache / "ids.pt")
    sums: dict[str, Moments] = {}
    for name, (begin, end) in SEGMENTS.items():
        for i in range(begin, end, batch):
            these = slice(i, min(i + batch, end))
            ls, xs = small.run(ids[these], last=SCORED + 1, cache=True)
            ll, xl = large.run(ids[these], last=SCORED + 1, cache=True)
            x = torch.cat([xs, xl], -1)
            rows[these] = x.bfloat16()
            logits["small"][these], logits["large"][these] = ls[:, :-1].half(), ll[:, :-1].half()
            part = moments(x[:, ::2].flatten(0, 1))
            sums[name] = sums[name] + part if name in sums else part
            print(f"\r{these.stop}/{len(ids)}", end="", flush=True)
    torch.save(sums, cache / "moments.pt")


def _file(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = math.prod(shape)
    return torch.from_file(str(path), shared=True, size=count, dtype=dtype).view(shape)


@dataclass
class Pair:
    """One direction: where source and target columns lie in the joint moments."""

    source: Model
    target: Model
    x: slice
    y: slice

    def block(self, side: str, component: str, layer: int) -> slice:
        """Columns of one layer within the source's ("x") or the target's ("y")."""
        m = self.source if side == "x" else self.target
        begin = ((component == "v") * m.layers + layer) * m.width
        return slice(begin, begin + m.width)


def pairs(family: Path) -> dict[str, Pair]:
    small, large = Model(family / "small"), Model(family / "large")
    s, t = slice(0, small.columns), slice(small.columns, small.columns + large.columns)
    return {"small->large": Pair(small, large, s, t), "large->small": Pair(large, small, t, s)}


@dataclass
class Map:
    """`weight` [source columns, target columns] in float32; what is outside the recipe's blocks is zero."""

    weight: torch.Tensor
    bias: torch.Tensor
    parameters: int
    renorm: bool = True
    scale: torch.Tensor | None = None  # [target columns / dim]: factor of each head, after renormalisation

    def bytes(self) -> int:
        return 2 * self.parameters


def mapped(pair: Pair, m: Map, x: torch.Tensor):
    """(keys, values), each [layers][batch, heads, tokens, dim], un-rotated."""
    t = pair.target
    y = (x @ m.weight + m.bias).unflatten(-1, (2 * t.layers, t.heads, t.dim))
    if m.renorm:
        k, v = y.split(t.layers, 2)
        g = t.gamma[:, None]
        k = k * torch.rsqrt((k / g).square().mean(-1, keepdim=True) + t.eps)
        y = torch.cat([k, v], 2)
    if m.scale is not None:
        y = y * m.scale.view(2 * t.layers, t.heads, 1)
    y = y.permute(2, 0, 3, 1, 4)
    return y[: t.layers], y[t.layers :]


@dataclass
class Passages:
    """Windows of one text, and what both models say of them."""

    ids: torch.Tensor
    x: torch.Tensor  # the source's columns of tokens 0..510
    own: torch.Tensor  # log-probabilities of the target after tokens 383..511
    own_nll: float
    source_nll: float


@torch.no_grad()
def passages(pair: Pair, ids: torch.Tensor) -> Passages:
    ls, x = pair.source.run(ids, last=SCORED + 1, cache=True)
    own = pair.target.run(ids, last=SCORED + 1).log_softmax(-1)
    nll = [float(F.nll_loss(l[:, :-1].log_softmax(-1).flatten(0, 1), ids[:, PROMPT:].flatten())) for l in (own, ls)]
    return Passages(ids, x, own, *nll)


@torch.no_grad()
def score(pair: Pair, m: Map | None, p: Passages, tail: int = 1, first: int = 0, oracle: bool = False) -> dict[str, float]:
    """The protocol of kvbridge.evaluate: PROMPT - tail tokens mapped. oracle: 384 mapped, 128 fed, NLL of 127."""
    if oracle:
        n, ids, own, labels = PROMPT, p.ids[:, PROMPT:], p.own[:, 1:], p.ids[:, PROMPT + 1 :]
    else:
        n, own, labels = PROMPT - tail, p.own[:, :-1], p.ids[:, PROMPT:]
        ids = p.ids[:, n : WINDOW - 1]
    if m is None:
        out = pair.target.run(ids, last=SCORED)
    else:
        k, v = mapped(pair, m, p.x[:, :n])
        out = pair.target.run(ids, (k, v), n, last=SCORED)
    q = out.log_softmax(-1)
    kl = float((own.exp() * (own - q)).sum(-1).mean())
    top1 = float((own.argmax(-1) == q.argmax(-1)).float().mean())
    nll = float(F.nll_loss(q[:, : labels.shape[1]].flatten(0, 1), labels.flatten()))
    return {"kl": kl, "top1": top1, "nll": nll, "gap": (p.source_nll - nll) / (p.source_nll - p.own_nll)}


def solve(pair: Pair, m: Moments, block: tuple[str, int], sources: list[tuple[str, int]], lam: float):
    """Source columns, target columns and weights of one target block. lam: relative to the mean diagonal."""
    rows = torch.cat([torch.arange(pair.source.columns)[pair.block("x", *s)] for s in sources])
    cols = torch.arange(pair.target.columns)[pair.block("y", *block)]
    x, y = pair.x.start + rows, pair.y.start + cols
    a = m.gram[x][:, x]
    a.diagonal().add_(lam * a.diagonal().mean())
    return rows, cols, torch.cholesky_solve(m.gram[x][:, y], torch.linalg.cholesky(a))


def ridge(pair: Pair, m: Moments, recipe: dict[tuple[str, int], list[tuple[str, int]]], lam: float) -> Map:
    """recipe: (component, target layer) -> list of (component, source layer)."""
    weight = torch.zeros(pair.source.columns, pair.target.columns, dtype=torch.float64)
    parameters = 0
    for block, sources in recipe.items():
        rows, cols, w = solve(pair, m, block, sources, lam)
        weight[rows[:, None], cols] = w
        parameters += (len(rows) + 1) * pair.target.width
    bias = m.mean[pair.y] - m.mean[pair.x] @ weight
    return Map(weight.float(), bias.float(), parameters)


def block_r2(pair: Pair, fit: Moments, held: Moments, block, sources, lam: float) -> float:
    """Held-out R² of one target block (the held-out rows' own mean as the baseline)."""
    rows, cols, w = solve(pair, fit, block, sources, lam)
    x, y = pair.x.start + rows, pair.y.start + cols
    step = (held.mean[x] - fit.mean[x]) @ w - (held.mean[y] - fit.mean[y])
    ss = held.gram[y, y].sum()
    rss = ss - 2 * (w * held.gram[x][:, y]).sum() + (w * (held.gram[x][:, x] @ w)).sum() + held.rows * step.square().sum()
    return float(1 - rss / ss)


def r2(pair: Pair, m: Map, held: Moments) -> torch.Tensor:
    """Of each target block [2, layers], on other rows (their own mean as the baseline)."""
    w = m.weight.double()
    step = held.mean[pair.x] @ w + m.bias.double() - held.mean[pair.y]
    g, c = held.gram[pair.x, pair.x], held.gram[pair.x, pair.y]
    ss = held.gram[pair.y, pair.y].diagonal()
    rss = ss - 2 * (w * c).sum(0) + (w * (g @ w)).sum(0) + held.rows * step**2
    shape = (2, pair.target.layers, pair.target.width)
    return 1 - rss.view(shape).sum(-1) / ss.view(shape).sum(-1)


def select(pair: Pair, fit: Moments, held: Moments, k: int, features: str, lam: float) -> dict:
    """The k best source layers of each target block by held-out R² of one layer alone. features: "own" (keys from
    keys, values from values), "joint" (both from both)."""
    def sources(c: str, picks: list[int]) -> list[tuple[str, int]]:
        return [(f, j) for f in (c if features == "own" else "kv") for j in picks]

    recipe = {}
    for block in [(c, i) for c in "kv" for i in range(pair.target.layers)]:
        one = [block_r2(pair, fit, held, block, sources(block[0], [j]), lam) for j in range(pair.source.layers)]
        recipe[block] = sources(block[0], sorted(torch.tensor(one).topk(k).indices.tolist()))
    return recipe


def greedy(pair: Pair, fit: Moments, held: Moments, budget: int, lam: float, per_target: bool = False, own: bool = False) -> dict:
    """`budget` source blocks in all, each time to the target block whose held-out R² gains most; per_target: the
    same number each. own: keys from keys and values from values only."""
    t, s = pair.target, pair.source
    targets = [(c, i) for c in "kv" for i in range(t.layers)]
    chosen: dict = {b: [] for b in targets}
    at = dict.fromkeys(targets, 0.0)
    best: dict = {}

    def next_best(b):
        options = [(f, j) for f in (b[0] if own else "kv") for j in range(s.layers) if (f, j) not in chosen[b]]
        gains = [(block_r2(pair, fit, held, b, chosen[b] + [o], lam), o) for o in options]
        return max(gains, default=(-1.0, None))

    for b in targets:
        best[b] = next_best(b)
    for _ in range(budget):
        open_ = [b for b in targets if not per_target or len(chosen[b]) < budget // len(targets)]
        b = max(open_, key=lambda b: best[b][0] - at[b])
        at[b], option = best[b]
        chosen[b].append(option)
        best[b] = next_best(b)
    return {b: sorted(v, key=lambda o: ("kv".index(o[0]), o[1])) for b, v in chosen.items()}


def distil(pair: Pair, m: Map, cache: Path, windows: torch.Tensor, held: torch.Tensor, steps: int, rate: float,
           batch: int = 8, log=print) -> Map:
    """Tunes the blocks of `m` that are not zero, its bias and a key temperature per layer, by the KL between the
    target's own next-token distributions and those over the mapped prefix, back through the frozen target (BF16
    products). windows, held: indices into the captured calibration. Keeps the step that is best on `held`."""
    t = pair.target
    ids = torch.load(cache / "ids.pt")
    count = len(ids)
    columns = _file(cache / "columns.bin", (count, WINDOW, pair.source.columns + t.columns), torch.bfloat16)
    name = "large" if t.layers == 8 else "small"
    teacher = _file(cache / f"logits_{name}.bin", (count, SCORED, 4096), torch.float16)
    mask = (m.weight != 0).float()
    w, b = m.weight.clone().requires_grad_(), m.bias.clone().requires_grad_()
    s = torch.zeros(2 * t.layers, 1).requires_grad_()
    keys = torch.cat([torch.ones(t.layers, 1), torch.zeros(t.layers, 1)])
    optimiser = torch.optim.Adam([{"params": [w, b], "lr": rate}, {"params": [s], "lr": 5 * rate}], betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, (i + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * i / steps)) + 0.01)

    def current() -> Map:
        return Map(w, b, m.parameters, m.renorm, (s * keys).exp().expand(-1, t.heads))

    def loss(rows: torch.Tensor) -> torch.Tensor:
        n = PROMPT - 1
        with torch.autocast("cpu", torch.bfloat16):
            k, v = mapped(pair, current(), columns[rows, :n, pair.x])
            q = t.run(ids[rows, n : WINDOW - 1], (k, v), n, last=SCORED).float().log_softmax(-1)
        p = teacher[rows].float().log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1).mean()

    def held_loss() -> float:
        with torch.no_grad():
            return sum(float(loss(rows)) * len(rows) for rows in held.split(batch)) / len(held)

    best = (held_loss(), None)
    log(f"step 0 held {best[0]:.4f}")
    order = torch.cat([windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(e))] for e in range(steps * batch // len(windows) + 1)])
    for i in range(steps):
        value = loss(order[i * batch : (i + 1) * batch])
        optimiser.zero_grad()
        value.backward()
        w.grad.mul_(mask)
        optimiser.step(), schedule.step()
        if (i + 1) % 50 == 0 or i + 1 == steps:
            now = held_loss()
            log(f"step {i + 1} fit {float(value):.4f} held {now:.4f} scales {[round(float(v), 2) for v in s.exp()[: t.layers]]}")
            if now < best[0]:
                c = current()
                best = (now, Map(w.detach().clone(), b.detach().clone(), m.parameters, m.renorm, c.scale.detach().clone()))
    return best[1] or m
