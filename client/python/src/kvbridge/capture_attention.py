"""What a model's attention says about its own cache: how much each row matters, and queries to judge a map with.

At some query positions u of a sequence, with a_ui the attention that u pays to row i (i <= u) and o_u its output,
an error of the same size in row i's value or key moves the outputs by (arXiv 2609.00891)

    value:  sum_u a_ui^2        key:  sum_u a_ui^2 |v_i - o_u|^2 |q_u|^2 s^2        s: the attention's scale, 1/sqrt(d)

summed over the query heads that share a KV head. Each is divided by its mean over a sequence's kept rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from kvbridge.capture_errors import INCOMPATIBLE, CaptureError
from kvbridge.extra import torch, transformers
from kvbridge.hf import to_numpy

# The name that the probe's attention is registered under. A process has one probe at a time.
IMPLEMENTATION = "kvbridge_probe"


@dataclass(frozen=True)
class Attention:
    """Of one sequence."""

    key_weight: npt.NDArray[Any]  # [layers, kv_heads, rows] float32, mean 1 over rows
    value_weight: npt.NDArray[Any]
    queries: npt.NDArray[Any]  # [layers, query_heads, positions, head_dim], rotated; bf16 as uint16
    positions: npt.NDArray[Any]  # [positions] int64


class AttentionProbe:
    """Registers itself as an attention implementation that computes what "sdpa" does and looks on. Load the
    model with `attn_implementation=IMPLEMENTATION` after that, and call `take` after each forward."""

    def __init__(self, positions: int) -> None:
        self._count = positions
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        transformers.AttentionInterface.register(IMPLEMENTATION, self._attend)

    def positions(self, tokens: int) -> torch.Tensor:
        """Evenly spread, the last token among them."""
        count = min(self._count, tokens)
        return torch.arange(1, count + 1) * tokens // count - 1

    def take(self, rows: torch.Tensor, tokens: int, element: torch.dtype) -> list[Attention]:
        """What was seen of each sequence of the last forward; forgets it. element: of the queries."""
        layers = [self._layers[index] for index in sorted(self._layers)]
        self._layers = {}
        key, value, queries = (torch.stack(part, dim=1) for part in zip(*layers))
        kept = [weight[..., rows] for weight in (key, value)]
        key, value = (weight / weight.mean(-1, keepdim=True) for weight in kept)
        at = self.positions(tokens).numpy()
        return [
            Attention(k.numpy(), v.numpy(), to_numpy(q.to(element)), at)
            for k, v, q in zip(key, value, queries)
        ]

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> Any:
        if options.get("softcap") or options.get("s_aux") is not None:
            raise CaptureError(
                "row weights: expected plain softmax attention, got softcap or sinks", INCOMPATIBLE
            )
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        at = self.positions(query.shape[2]).to(query.device)
        seen = [_sensitivity(q, k, v, at, scale) for q, k, v in zip(query, key, value)]
        key_weight, value_weight = (torch.stack(part).cpu() for part in zip(*seen))
        queries = query.index_select(2, at).float().cpu()
        self._layers[int(module.layer_idx)] = (key_weight, value_weight, queries)
        plain = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
        return plain(module, query, key, value, attention_mask, **options)


def _sensitivity(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, at: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value sensitivities [kv_heads, tokens] of one sequence. query: [query_heads, tokens, head_dim],
    key, value: [kv_heads, tokens, head_dim]."""
    heads, tokens, dim = key.shape
    q = query.index_select(1, at).float().reshape(heads, -1, dim)  # query heads of a group, then positions
    k, v = key.float(), value.float()
    later = torch.arange(tokens, device=at.device)[None, :] > at[:, None]
    group = query.shape[0] // heads
    logits = (q @ k.mT * scale).masked_fill(later.repeat(group, 1), float("-inf"))
    a = logits.softmax(-1)
    o = a @ v
    apart = (v.square().sum(-1)[:, None, :] - 2 * o @ v.mT + o.square().sum(-1, keepdim=True)).clamp(min=0)
    squared = a.square()
    pull = apart * q.square().sum(-1, keepdim=True) * scale**2
    return (squared * pull).sum(1), squared.sum(1)
