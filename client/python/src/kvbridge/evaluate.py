"""What a mapped cache is worth, measured on held-out text against the target model's own prefill.

Protocol: windows of 512 consecutive tokens. The target goes on from a prompt of 384 tokens, of which the last
(or a longer native tail) is its own to compute, then reads 127 more; the 128 predictions of tokens 385 to 512
are scored. Compared are next-token distributions (KL(own || variant), nats), the most likely tokens, and the
negative log-likelihood of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbridge.extra import DynamicCache, torch
from kvbridge.hf import continue_from, cut, layer_tensors, prefill

WINDOW = 512
PROMPT = 384

# From a source model's cache of a window to a cache that the target continues from, or to the number of the
# prompt's last tokens that the target reads with nothing before them.
Mapping_ = Callable[[DynamicCache, torch.Tensor], "DynamicCache | int"]


@dataclass
class Scores:
    """One number per window: means over its 128 scored predictions."""

    kl: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)

    def means(self) -> dict[str, float]:
        """Over all windows."""
        return {name: float(np.mean(getattr(self, name))) for name in ("kl", "top1", "nll")}


@dataclass
class Evaluation:
    """Scores of each variant, and of the two models reading alone."""

    variants: dict[str, Scores]
    target: Scores  # the target's own cache: KL 0, top-1 1
    source: Scores  # only `nll`: the source model reading on by itself

    def gap_recovered(self, name: str) -> float:
        """Share of the source-to-target gap in NLL that a variant closes: 0 = no better than staying with
        the source, 1 = as good as the target's own prefill."""
        source, target = np.mean(self.source.nll), np.mean(self.target.nll)
        return float((source - np.mean(self.variants[name].nll)) / (source - target))

    def gap_interval(self, name: str, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of gap_recovered over windows."""
        rng = np.random.default_rng(seed)
        nll = np.array([self.source.nll, self.target.nll, self.variants[name].nll])
        sample = nll[:, rng.integers(0, nll.shape[1], (draws, nll.shape[1]))].mean(axis=2)
        gaps = (sample[0] - sample[2]) / (sample[0] - sample[1])
        low, high = np.percentile(gaps, [2.5, 97.5])
        return float(low), float(high)


def windows(tokenizer: Any, text: str, count: int, characters: int = 400_000) -> list[torch.Tensor]:
    """The first `count` windows of the text's beginning, tokenised as one stream, each [1, 512].

    ValueError when the text is shorter."""
    ids = tokenizer(text[:characters], return_tensors="pt", add_special_tokens=False).input_ids
    if ids.shape[1] < count * WINDOW:
        raise ValueError(f"text: expected {count} x {WINDOW} tokens, got {ids.shape[1]}")
    return [ids[:, i * WINDOW : (i + 1) * WINDOW] for i in range(count)]


@torch.no_grad()
def evaluate(
    source_model: Any,
    target_model: Any,
    passages: Sequence[torch.Tensor],
    variants: Mapping[str, Mapping_],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Scores every variant on every window. A variant gets the source's cache of the first 511 tokens and the
    window, and returns the cache to continue from, as long as the prompt less its native tail, or how many of
    the prompt's last tokens the target reads with nothing before them: the control for that native tail."""
    out = Evaluation({name: Scores() for name in variants}, Scores(), Scores())
    for index, ids in enumerate(passages):
        read, targets = ids[:, : WINDOW - 1], ids[0, PROMPT:]
        source_cache = DynamicCache()
        source_logits = continue_from(source_model, source_cache, read)[0, PROMPT - 1 :]
        own = target_model(input_ids=read).logits[0, PROMPT - 1 :]
        _score(own, source_logits, targets, out.source)
        _score(own, own, targets, out.target)
        for name, variant in variants.items():
            got = variant(source_cache, ids)
            if isinstance(got, int):
                logits = continue_from(target_model, DynamicCache(), read[:, PROMPT - got :])
            else:
                logits = continue_from(target_model, got, read)
            _score(own, logits[0, -len(targets) :], targets, out.variants[name])
        progress(index + 1, len(passages))
    return out


def _score(
    own: torch.Tensor, other: torch.Tensor, targets: torch.Tensor, into: Scores
) -> None:
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (own, other))
    into.kl.append(float((p.exp() * (p - q)).sum(-1).mean()))
    into.top1.append(float((p.argmax(-1) == q.argmax(-1)).double().mean()))
    into.nll.append(float(-q.gather(-1, targets[:, None]).mean()))


def raw_paste(source_cache: DynamicCache, target_layers: int, tokens: int = PROMPT - 1) -> DynamicCache:
    """The control that a map must beat: source layers as they are, spread over the target's."""
    keys, values = layer_tensors(cut(source_cache, tokens))
    out = DynamicCache()
    for layer in range(target_layers):
        pick = round(layer * (len(keys) - 1) / max(1, target_layers - 1))
        out.update(keys[pick], values[pick], layer)
    return out


def own_prefix(model: Any, ids: torch.Tensor, tokens: int = PROMPT - 1) -> DynamicCache:
    """The target's own cache of a window's beginning: what a perfect map would give."""
    return prefill(model, ids[:, :tokens])
