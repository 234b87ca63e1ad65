"""Hands transformers' caches to kvbridged and back (extra "hf"; transformers 4.53 and later, and 5).

Caches hold one sequence. Left padding is taken (attention_mask); batches, sliding windows and caches of fixed
size are not: they are refused by name, as an outcome "unsupported" or as a ValueError where a caller erred.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.arrays import Array
from kvbridge.client import Client
from kvbridge.digests import chat_template_digest, tokenizer_digest
from kvbridge.extra import DynamicCache, cache_argument, torch
from kvbridge.first_layer import first_layer, refuse_unknown
from kvbridge.model_spec import model_spec
from kvbridge.prefix import MappedPrefix
from kvbridge.result import UNSUPPORTED, TransferResult, fallback
from kvbridge.v1 import types_pb2

# Elements that NumPy lacks, as the integers of the same width, and back.
_BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}
_TORCH = {
    types_pb2.ELEMENT_TYPE_BF16: torch.bfloat16,
    types_pb2.ELEMENT_TYPE_F16: torch.float16,
    types_pb2.ELEMENT_TYPE_F32: torch.float32,
    types_pb2.ELEMENT_TYPE_F8_E4M3: torch.float8_e4m3fn,
}
_HOPS = "kvbridge_hops"  # how many maps a DynamicCache has been through; absent = its model made it
_SALT = "kvbridge_salt"


@dataclass(frozen=True)
class CacheTransfer:
    """`cache` is there if and only if the transfer was applied; `prefix`, for the next turn, if input_ids were
    given, too."""

    result: TransferResult
    cache: DynamicCache | None
    prefix: MappedPrefix | None = None


@dataclass(frozen=True)
class Generation:
    """What the target wrote after the switch."""

    sequences: torch.Tensor  # [1, prompt + new tokens]
    transfer: TransferResult  # says why when the target prefilled the prompt itself

    @property
    def mapped(self) -> bool:
        """Whether the target went on from the source's cache."""
        return self.transfer.applied


def spec_of(
    model: Any,
    tokenizer: Any,
    *,
    revision: str,
    model_id: str | None = None,
    element_type: str | None = None,
) -> types_pb2.ModelSpec:
    """What kvbridged must know about a loaded model. A PEFT adapter is stated, and refused by the server."""
    spec = model_spec(
        model.config,
        model_id=model_id,
        revision=revision,
        tokenizer_sha256=tokenizer_digest(tokenizer),
        chat_template_sha256=chat_template_digest(tokenizer),
        element_type=element_type or str(model.dtype),
    )
    adapters = getattr(model, "peft_config", None)
    if adapters:
        spec.identity.adapter_digest = hashlib.sha256(repr(adapters).encode()).hexdigest()
    return spec


@torch.no_grad()
def prefill(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> DynamicCache:
    """The model's own cache of a prompt [1, tokens]."""
    cache = DynamicCache()
    continue_from(model, cache, input_ids, attention_mask)
    return cache


@torch.no_grad()
def continue_from(
    model: Any,
    cache: DynamicCache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits [1, n, vocabulary] of a prompt's tokens that `cache` does not hold yet; they are added to it.

    input_ids, attention_mask: of the whole prompt [1, tokens].
    """
    done = cache.get_seq_length()
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    device = model.device
    output = model(
        input_ids=input_ids[:, done:].to(device),
        attention_mask=mask.to(device),
        position_ids=positions[:, done:].to(device),
        use_cache=True,
        **{cache_argument(model): cache},
    )
    logits: torch.Tensor = output.logits
    return logits


def transfer_cache(
    client: Client,
    cache: DynamicCache,
    *,
    source: types_pb2.ModelSpec,
    target: types_pb2.ModelSpec,
    route: str = "",
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    native_tail: int = 1,
    allow_remap: bool = False,
    prefix: MappedPrefix | None = None,
    onto: DynamicCache | None = None,
    exact_first_layer: Any = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> CacheTransfer:
    """Turns the source model's cache into one that the target model continues from.

    input_ids: the prompt [1, tokens] that the target goes on from, at least as long as the cache; only the
    part that the target does not prefill itself is sent. attention_mask: of the prompt; zeros may only come
    first. allow_remap: send a cache that a map has made (each map adds its error; routes refuse it too,
    unless their max_hops says otherwise). prefix, onto: the target's cache from an earlier turn and what it holds
    (CacheTransfer.prefix, followed_by() what the target has written since); only tokens after what it shares with
    input_ids are mapped, and the result begins with a copy of the rest. exact_first_layer: the target model, which
    then computes the first layer's keys and values itself, from token ids alone, in place of the map's. device, dtype:
    of the returned cache, default CPU and the target spec's element type. options: of Client.transfer. `cache` is left
    as it is.

    ValueError for a batch, for padding that is not left, for tensors that contradict the spec, and for an
    exact_first_layer without input_ids or of a model type that is not known.
    """
    if exact_first_layer is not None:
        refuse_unknown(exact_first_layer)
        if input_ids is None:
            raise ValueError("exact_first_layer: expected input_ids beside it, got none")
    if prefix is not None and (onto is None or onto.get_seq_length() < prefix.covered):
        raise ValueError(f"onto: expected the target's cache of the prefix's {prefix.covered} tokens")
    hops = int(getattr(cache, _HOPS, 0))
    if hops and not allow_remap:
        detail = f"the cache is itself the result of {hops} map(s); allow_remap sends it all the same"
        return CacheTransfer(client.conclude(fallback("app_gate", detail)), None)
    refused = refusal(cache)
    if refused:
        return CacheTransfer(
            client.conclude(fallback("incompatible_model", refused, UNSUPPORTED)), None
        )
    keys, values = layer_tensors(cache)
    held = keys[0].shape[2]
    prompt = _prompt_tokens(held, input_ids, attention_mask)
    send = max(1, min(held, prompt - max(1, native_tail)))  # the server refuses what leaves no token
    result = client.transfer(
        source=source,
        target=target,
        route=route,
        keys=[to_numpy(layer[0, :, :send]) for layer in keys],
        values=[to_numpy(layer[0, :, :send]) for layer in values],
        positions=_positions(attention_mask, send),
        token_ids=None if input_ids is None else input_ids[0, :send].cpu().numpy(),
        prompt_tokens=prompt,
        native_tail=native_tail,
        hops=hops,
        prefix=prefix,
        **options,
    )
    if not result.applied:
        return CacheTransfer(result, None)
    kind = _TORCH[target.geometry.element_type]
    layers = _layers(result, kind)
    if exact_first_layer is not None and input_ids is not None:
        behind = slice(result.first_token, result.covered_tokens)
        at = _positions(attention_mask, send)
        at = np.arange(send) if at is None else at
        layers[0] = first_layer(exact_first_layer, input_ids[:, behind], at[behind])
    mapped = _to_cache(result, layers, device, dtype or kind, onto)
    if input_ids is None:
        return CacheTransfer(result, mapped)
    return CacheTransfer(result, mapped, MappedPrefix.of(result, input_ids[0].cpu().numpy()))


def generate_with_transfer(
    source_model: Any,
    target_model: Any,
    input_ids: torch.Tensor,
    client: Client,
    *,
    source: types_pb2.ModelSpec,
    target: types_pb2.ModelSpec,
    route: str = "",
    attention_mask: torch.Tensor | None = None,
    source_cache: DynamicCache | None = None,
    native_tail: int = 1,
    transfer_options: dict[str, Any] | None = None,
    **generate_options: Any,
) -> Generation:
    """Switches models in mid-prompt: the source prefills, its cache is mapped, the target prefills the last
    `native_tail` tokens over it and goes on. Without a mapped cache the target prefills the whole prompt;
    `Generation.transfer` says why.

    input_ids: the prompt [1, tokens]. source_cache: the source's cache of it, where there is one already.
    transfer_options: of transfer_cache. generate_options: of the target's generate(); greedy by default.
    """
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if source_cache is None:
        keep = max(1, input_ids.shape[1] - max(1, native_tail))
        source_cache = prefill(source_model, input_ids[:, :keep], mask[:, :keep])
    moved = transfer_cache(
        client,
        source_cache,
        source=source,
        target=target,
        route=route,
        input_ids=input_ids,
        attention_mask=mask,
        native_tail=native_tail,
        device=target_model.device,
        dtype=target_model.dtype,
        **(transfer_options or {}),
    )
    generate_options.setdefault("do_sample", False)
    if moved.cache is not None:
        generate_options[cache_argument(target_model)] = moved.cache
    sequences = target_model.generate(
        input_ids=input_ids.to(target_model.device),
        attention_mask=mask.to(target_model.device),
        **generate_options,
    )
    return Generation(sequences, moved.result)


def cut(cache: DynamicCache, tokens: int) -> DynamicCache:
    """The first tokens of a cache, as a new one."""
    keys, values = layer_tensors(cache)
    out = DynamicCache()
    for layer, (key, value) in enumerate(zip(keys, values)):
        out.update(key[:, :, :tokens].clone(), value[:, :, :tokens].clone(), layer)
    if hasattr(cache, _HOPS):
        setattr(out, _HOPS, getattr(cache, _HOPS))
    return out


def cache_arrays(cache: DynamicCache) -> tuple[list[Array], list[Array]]:
    """Keys and values, one [kv_heads, tokens, head_dim] per layer, as Client.transfer takes them.

    ValueError for a cache that cannot be mapped, and for a batch."""
    refused = refusal(cache)
    if refused:
        raise ValueError(refused)
    keys, values = layer_tensors(cache)
    return [to_numpy(layer[0]) for layer in keys], [to_numpy(layer[0]) for layer in values]


def refusal(cache: Any) -> str:
    """Why this cache cannot be mapped; empty when it can."""
    if type(cache).__name__ != "DynamicCache":
        return f"cache: expected a DynamicCache, got {type(cache).__name__}"
    for index, layer in enumerate(getattr(cache, "layers", ())):
        name = type(layer).__name__
        if getattr(layer, "is_sliding", False):
            return f"cache.layers[{index}]: sliding window attention ({name}) keeps no full cache"
        if name != "DynamicLayer":
            return f"cache.layers[{index}]: expected a DynamicLayer, got {name}"
    return ""


def layer_tensors(cache: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Keys and values by layer, [1, kv_heads, tokens, head_dim]. ValueError for an empty cache or a batch."""
    keys, values = batch_tensors(cache)
    if keys[0].shape[0] != 1:
        raise ValueError(f"cache: expected one sequence, got a batch of {keys[0].shape[0]}")
    return keys, values


def batch_tensors(cache: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Keys and values by layer, [batch, kv_heads, tokens, head_dim]. ValueError for an empty cache."""
    if hasattr(cache, "layers"):
        keys = [layer.keys for layer in cache.layers]
        values = [layer.values for layer in cache.layers]
    else:  # transformers 4.53
        keys, values = list(cache.key_cache), list(cache.value_cache)
    if not keys or keys[0] is None:
        raise ValueError("cache: expected at least one layer with tokens, got an empty cache")
    return keys, values


def _prompt_tokens(
    held: int, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
) -> int:
    lengths = {"cache": held}
    for name, tensor in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        if tensor is not None:
            if tensor.ndim != 2 or tensor.shape[0] != 1:
                raise ValueError(f"{name}: expected [1, tokens], got {list(tensor.shape)}")
            lengths[name] = tensor.shape[1]
    if input_ids is not None and attention_mask is not None:
        if lengths["input_ids"] != lengths["attention_mask"]:
            raise ValueError(f"input_ids and attention_mask: expected one length, got {lengths}")
    return lengths.get("input_ids", lengths.get("attention_mask", held))


def _positions(mask: torch.Tensor | None, tokens: int) -> npt.NDArray[np.int64] | None:
    """Positions of the first tokens; None for 0, 1, 2, ... Left padding is at -1."""
    if mask is None:
        return None
    seen = mask[0].cpu().to(torch.int64)
    if bool(seen.all()):
        return None
    if bool((seen.diff() < 0).any()):
        raise ValueError("attention_mask: zeros may only come first (left padding)")
    positions: npt.NDArray[np.int64] = (seen.cumsum(0) - 1)[:tokens].numpy()
    return positions


def to_numpy(tensor: torch.Tensor) -> Array:
    """A view where the tensor is on the CPU; bf16 and fp8 as unsigned integers."""
    host = tensor.detach().cpu()
    bits = _BITS.get(host.dtype)
    array: Array = (host if bits is None else host.view(bits)).numpy()
    return array.view(np.uint16) if bits is torch.int16 else array


def _layers(result: TransferResult, kind: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mapped keys and values by layer, [1, kv_heads, tokens, head_dim]: views of the result's."""
    assert result.keys is not None and result.values is not None

    def view(array: Array) -> torch.Tensor:
        bits = array.view(np.int16) if array.dtype == np.uint16 else array
        return torch.from_numpy(bits).view(kind)[None]

    return [(view(key), view(value)) for key, value in zip(result.keys, result.values)]


def _to_cache(
    result: TransferResult,
    layers: list[tuple[torch.Tensor, torch.Tensor]],
    device: torch.device | str,
    dtype: torch.dtype,
    onto: DynamicCache | None,
) -> DynamicCache:
    """The layers, behind the tokens that were in place."""
    cache = DynamicCache() if onto is None else cut(onto, result.first_token)
    for layer, (key, value) in enumerate(layers):
        cache.update(key.to(device, dtype), value.to(device, dtype), layer)
    setattr(cache, _HOPS, result.hops)
    setattr(cache, _SALT, result.salt)
    return cache
