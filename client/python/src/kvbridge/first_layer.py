"""What a model caches in its first layer. Keys and values there depend on a token's id and position and on no other
token, so they cost a lookup and two products, and no map need guess them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.extra import DynamicCache, cache_argument, torch
from kvbridge.families import FAMILIES


class _Written(Exception):
    """The first layer has written to the cache: no more of the model is wanted."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values


class _FirstLayerOnly(DynamicCache):
    """Ends the forward pass at its first write, before any attention."""

    def update(self, key_states: Any, value_states: Any, *rest: Any, **options: Any) -> Any:
        raise _Written(key_states, value_states)


def refuse_unknown(model: Any) -> None:
    """ValueError for a model type of which it is not known that its layers before the first cache mix no tokens."""
    model_type = model.config.get_text_config().model_type
    if model_type not in FAMILIES:
        raise ValueError(
            f"exact_first_layer: expected a model type whose first layer depends on token ids alone, "
            f"got {model_type!r}, which is not known"
        )


@torch.no_grad()
def first_layer(
    model: Any, input_ids: torch.Tensor, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [1, kv_heads, tokens, head_dim] as the model's own prefill would cache them, on its device.

    input_ids: [1, tokens]. positions: [tokens]; padding is at -1 and gets zeros. ValueError for an unknown type.
    """
    refuse_unknown(model)
    at = torch.from_numpy(positions)
    real = at >= 0
    argument = {cache_argument(model): _FirstLayerOnly()}
    ids = input_ids.cpu()[:, real].to(model.device)
    try:
        model(input_ids=ids, position_ids=at[real][None].to(model.device), use_cache=True, **argument)
    except _Written as written:
        return _spread(written.keys, real), _spread(written.values, real)
    raise ValueError(f"exact_first_layer: {type(model).__name__} wrote to no cache")


def _spread(part: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The rows where they belong, zeros between."""
    if bool(real.all()):
        return part
    out = part.new_zeros(*part.shape[:2], len(real), part.shape[3])
    out[:, :, real.to(part.device)] = part
    return out
