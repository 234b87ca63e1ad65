"""The ways to give a target model its prefix, and what it says after each: logits by variant.

Variants are named as core/evidence/sequence_scores.h lists them: own, identity, source, mapped, raw, random, none,
with ".tailN" where the target reads the prompt's last N tokens itself and ".hopsN" after N maps.

A sequence is prefix + 1 + scored tokens. The target goes on from a prompt of prefix + 1, of which the last token
(or a longer native tail) is its own to compute, then reads all but the last of the rest: `scored` predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvbridge.client import Client
from kvbridge.evaluate import raw_paste
from kvbridge.extra import DynamicCache, torch, transformers
from kvbridge.hf import continue_from, cut, layer_tensors, prefill, transfer_cache
from kvbridge.v1 import types_pb2

_TAP = "kvbridge_query_tap"


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    model: Any
    spec: types_pb2.ModelSpec


@dataclass(frozen=True)
class Routes:
    """Names of the server's routes."""

    mapped: str
    random: str
    back: str = ""  # from the target to the source, for handoffs to and fro


@dataclass
class Attention:
    """Of one sequence: what attention outputs are computed from, all in float32 on the CPU."""

    queries: torch.Tensor  # [layers, query_heads, scored, head_dim], so that logits are q.k / sqrt(head_dim)
    keys: dict[str, torch.Tensor] = field(default_factory=dict)  # by variant [layers, kv_heads, tokens, head_dim]
    values: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class SequenceLogits:
    """What is scored of one sequence."""

    labels: torch.Tensor  # [scored]
    logits: dict[str, torch.Tensor]  # by variant [scored, vocabulary], float32 on the CPU
    attention: Attention | None = None


class TransferRefused(Exception):
    """A transfer that was not applied: there is nothing to measure."""


class Variants:
    """Computes all variants of one sequence. One thread; the models stay where they are."""

    def __init__(
        self, client: Client, routes: Routes, source: Side, target: Side, scored: int, tails: Sequence[int]
    ) -> None:
        self._client, self._routes = client, routes
        self._source, self._target = source, target
        self._scored, self._tails = scored, tails

    def why_not_raw(self) -> str:
        """Why the source's cache cannot be pasted as it is; empty when it can."""
        ours, theirs = self._source.spec.geometry, self._target.spec.geometry
        shapes = [(g.kv_heads, g.head_dim) for g in (ours, theirs)]
        if shapes[0] == shapes[1]:
            return ""
        return "source has {} heads of {}, target {} of {}".format(*shapes[0], *shapes[1])

    @torch.no_grad()
    def compute(self, ids: torch.Tensor, *, attention: bool, hops: int) -> SequenceLogits:
        """Everything. ids: [1, prefix + 1 + scored]. hops: maps of the handoff to and fro, odd; 1 = without."""
        read, labels = ids[:, :-1], ids[0, -self._scored :]
        prompt = ids[:, : ids.shape[1] - self._scored]
        own_cache = DynamicCache()
        with _queries(self._target.model, attention) as queries:
            own = continue_from(self._target.model, own_cache, read)
        source_cache = DynamicCache()
        source = continue_from(self._source.model, source_cache, read)
        out = SequenceLogits(labels, {"own": self._kept(own), "source": self._kept(source)})
        if attention:
            out.attention = self._attention(queries, own_cache)
        prefix = prompt.shape[1] - 1
        out.logits["identity"] = self._go_on(prefill(self._target.model, prompt[:, :prefix]), read)
        for tail in self._tails:
            self._with_tail(out, source_cache, read, prompt, own_cache, tail)
        if hops > 1:
            cache = self._to_and_fro(prompt, hops)
            out.logits[f"mapped.hops{hops}"] = self._go_on(cache, read)
        return out

    @torch.no_grad()
    def compute_shorter(self, ids: torch.Tensor) -> SequenceLogits:
        """Of another prefix length: what the curve over lengths shows."""
        read, labels = ids[:, :-1], ids[0, -self._scored :]
        prompt = ids[:, : ids.shape[1] - self._scored]
        own = continue_from(self._target.model, DynamicCache(), read)
        source_cache = DynamicCache()
        source = continue_from(self._source.model, source_cache, read)
        logits = {"own": self._kept(own), "source": self._kept(source)}
        mapped = self._map(source_cache, prompt, 1, self._routes.mapped)
        logits["mapped"] = self._go_on(mapped, read)
        logits["none"] = self._go_on(DynamicCache(), read[:, prompt.shape[1] - 1 :])
        return SequenceLogits(labels, logits)

    def _with_tail(
        self,
        out: SequenceLogits,
        source_cache: DynamicCache,
        read: torch.Tensor,
        prompt: torch.Tensor,
        own_cache: DynamicCache,
        tail: int,
    ) -> None:
        """The map and its controls with the same native tail."""
        covered = prompt.shape[1] - tail
        makers: dict[str, Callable[[], DynamicCache]] = {
            "mapped": lambda: self._map(source_cache, prompt, tail, self._routes.mapped),
            "random": lambda: self._map(source_cache, prompt, tail, self._routes.random),
        }
        if not self.why_not_raw():
            layers = self._target.spec.geometry.layers
            makers["raw"] = lambda: raw_paste(source_cache, layers, covered)
        suffix = f".tail{tail}" if tail > 1 else ""
        for name, make in makers.items():
            cache = make()
            if tail == 1 and out.attention is not None:
                self._add_attention(out.attention, name, cache, own_cache)
            out.logits[name + suffix] = self._go_on(cache, read)
        out.logits["none" + suffix] = self._go_on(DynamicCache(), read[:, covered:])

    def _map(self, cache: DynamicCache, prompt: torch.Tensor, tail: int, route: str) -> DynamicCache:
        return self._transfer(self._source, self._target, cache, prompt, tail, route)

    def _transfer(
        self, giver: Side, taker: Side, cache: DynamicCache, prompt: torch.Tensor, tail: int, route: str
    ) -> DynamicCache:
        moved = transfer_cache(
            self._client,
            cache,
            source=giver.spec,
            target=taker.spec,
            route=route,
            input_ids=prompt,
            native_tail=tail,
            allow_remap=True,
            device=taker.model.device,
            dtype=taker.model.dtype,
        )
        if moved.cache is None:
            raise TransferRefused(f"{route}: {moved.result.reason}: {moved.result.detail}")
        return moved.cache

    def _to_and_fro(self, prompt: torch.Tensor, hops: int) -> DynamicCache:
        """A conversation in `hops` turns: source, target, source, ... each reads its turn over the cache that the
        other handed it, and hands all of it on. The target gets the last one, `hops` maps after the first turn."""
        sides = (self._source, self._target)
        routes = (self._routes.mapped, self._routes.back)
        covered = prompt.shape[1] - 1
        cache = DynamicCache()
        for turn in range(hops):
            giver, taker = sides[turn % 2], sides[1 - turn % 2]
            end = covered * (turn + 1) // hops
            continue_from(giver.model, cache, prompt[:, :end])
            cache = self._transfer(giver, taker, cache, prompt[:, : end + 1], 1, routes[turn % 2])
        return cache

    def _go_on(self, cache: DynamicCache, ids: torch.Tensor) -> torch.Tensor:
        """A copy of the cache reads the rest of the ids."""
        held = cache.get_seq_length()
        own = cut(cache, held) if held else cache
        return self._kept(continue_from(self._target.model, own, ids))

    def _kept(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -self._scored :].float().cpu()

    def _attention(self, queries: dict[int, torch.Tensor], own_cache: DynamicCache) -> Attention:
        layers = [queries[layer][0, :, -self._scored :] for layer in sorted(queries)]
        attention = Attention(torch.stack(layers).float().cpu())
        self._add_attention(attention, "own", own_cache, own_cache)
        return attention

    @staticmethod
    def _add_attention(
        attention: Attention, name: str, prefix: DynamicCache, own: DynamicCache
    ) -> None:
        """The prefix of one cache with the rest of the target's own: what is compared is the prefix alone."""
        held = prefix.get_seq_length()
        for part, into in ((0, attention.keys), (1, attention.values)):
            layers = zip(layer_tensors(prefix)[part], layer_tensors(own)[part])
            whole = [torch.cat([ours[0].to(theirs), theirs[0, :, held:]], 1) for ours, theirs in layers]
            into[name] = torch.stack(whole).float().cpu()


@contextmanager
def _queries(model: Any, wanted: bool) -> Iterator[dict[int, torch.Tensor]]:
    """Queries by layer of what the model reads meanwhile, rotated, [1, query_heads, tokens, head_dim]."""
    seen: dict[int, torch.Tensor] = {}
    if not wanted:
        yield seen
        return

    def attend(module: Any, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        width = query.shape[-1]
        scale = options.get("scaling") or width**-0.5
        seen[int(module.layer_idx)] = query * (scale * width**0.5)
        plain = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
        return plain(module, query, *rest, **options)

    transformers.AttentionInterface.register(_TAP, attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = _TAP
    try:
        yield seen
    finally:
        model.config._attn_implementation = before
