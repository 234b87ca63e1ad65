"""From a Hugging Face configuration to the explicit numbers that travel.

`kvbridge inspect --config config.json` derives the same in C++; the two are tested against each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from kvbridge.arrays import element_type as element_type_of
from kvbridge.families import FAMILIES, ONLY_IF_USED, Family
from kvbridge.rope import LongRope, RopeSettings, position_bound, rope_params
from kvbridge.v1 import types_pb2

_KINDS = {
    "full_attention": types_pb2.ATTENTION_KIND_FULL,
    "sliding_attention": types_pb2.ATTENTION_KIND_SLIDING,
    "chunked_attention": types_pb2.ATTENTION_KIND_SLIDING,
    "linear_attention": types_pb2.ATTENTION_KIND_SSM,
    "mamba": types_pb2.ATTENTION_KIND_SSM,
}
# Fields that announce a cache of another kind when stated and neither zero nor empty.
_MARKERS = {
    "kv_lora_rank": types_pb2.ATTENTION_KIND_MLA,
    "layers_block_type": types_pb2.ATTENTION_KIND_SSM,
    "hybrid_override_pattern": types_pb2.ATTENTION_KIND_SSM,
    "mamba_d_state": types_pb2.ATTENTION_KIND_SSM,
    "state_size": types_pb2.ATTENTION_KIND_SSM,
    "linear_num_value_heads": types_pb2.ATTENTION_KIND_SSM,
    "num_kv_shared_layers": types_pb2.ATTENTION_KIND_SHARED_KV,
    "attention_chunk_size": types_pb2.ATTENTION_KIND_SLIDING,
}


def model_spec(
    config: Any,
    *,
    model_id: str | None = None,
    revision: str = "",
    tokenizer_sha256: str = "",
    chat_template_sha256: str = "",
    element_type: str | None = None,
    pairing: types_pb2.Pairing | None = None,
    longrope: LongRope | None = None,
) -> types_pb2.ModelSpec:
    """Everything that must be known about a model before its cache may be touched.

    config: a transformers config object, its dict, a config.json, or the folder of one. model_id: default the
    config's own. revision: of the weights, a commit or a digest. element_type: of the cache ("bf16", "f32", ...),
    default the weights' own. pairing: default by model type. longrope: which list of factors the cache's keys
    were written with.

    ValueError names the field that is missing, contradictory or unknown. Layers without a plain cache (sliding,
    MLA, SSM, shared) are stated as such: the server answers them unsupported by name.
    """
    values = _as_dict(config)
    name = str(values.get("_name_or_path") or "") if model_id is None else model_id
    inner = values.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else values
    model_type = str(_need(text, "model_type"))
    family = FAMILIES.get(model_type)
    if family is None and pairing is None:
        raise ValueError(f"config.model_type: {model_type!r} is not known; state its pairing")
    family = family or Family(types_pb2.PAIRING_UNSPECIFIED)
    layers = int(_need(text, "num_hidden_layers", "n_layer"))
    heads = int(_need(text, "num_attention_heads", "n_head"))
    head_dim = int(text.get("head_dim") or 0)
    if not head_dim:
        default = 0 if "head_dim" in text else family.head_dim
        head_dim = default or int(_need(text, "hidden_size", "n_embd")) // heads
    dtype = element_type or text.get("dtype") or text.get("torch_dtype")
    if dtype is None:
        raise ValueError("element_type: the config has no dtype; state the cache's")
    return types_pb2.ModelSpec(
        identity=types_pb2.ModelIdentity(
            family=model_type,
            model_id=name,
            revision=revision,
            tokenizer_sha256=tokenizer_sha256,
            chat_template_sha256=chat_template_sha256,
        ),
        geometry=types_pb2.KvGeometry(
            layers=layers,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            element_type=element_type_of(str(dtype)),
            attention=_attention(text, family, layers),
        ),
        rope=_rope_spec(text, family, pairing or family.pairing, head_dim, longrope),
    )


def full_attention_only(config: Mapping[str, Any]) -> str:
    """Empty when every layer keeps a plain cache; otherwise the field that says it does not."""
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    model_type = str(_need(text, "model_type"))
    family = FAMILIES.get(model_type, Family(types_pb2.PAIRING_UNSPECIFIED))
    kinds = _attention(text, family, int(_need(text, "num_hidden_layers", "n_layer")))
    other = [(i, k) for i, k in enumerate(kinds) if k != types_pb2.ATTENTION_KIND_FULL]
    if not other:
        return ""
    layer, kind = other[0]
    field = next((name for name in _MARKERS if text.get(name)), None)
    field = field or ("layer_types" if text.get("layer_types") else "sliding_window")
    stated = text.get(field, family.sliding_window)
    shown = f"{field}[{layer}]={stated[layer]!r}" if field == "layer_types" else f"{field}={stated!r}"
    name = types_pb2.AttentionKind.Name(kind).removeprefix("ATTENTION_KIND_").lower()
    return f"expected full attention in every layer, got {name} (config.{shown})"


def _as_dict(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(config, (str, PathLike)):
        path = Path(config)
        file = path / "config.json" if path.is_dir() else path
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return loaded
    as_dict: dict[str, Any] = config.to_dict()
    as_dict["_name_or_path"] = getattr(config, "_name_or_path", "")
    return as_dict


def _need(values: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if values.get(name) is not None:
            return values[name]
    raise ValueError(f"config.{names[0]}: missing")


def _attention(
    text: Mapping[str, Any], family: Family, layers: int
) -> list[types_pb2.AttentionKind]:
    """One kind per layer; empty when all are full."""
    for marker, kind in _MARKERS.items():
        if text.get(marker):
            return [kind] * layers
    names = text.get("layer_types")
    if names:
        if len(names) != layers:
            raise ValueError(f"config.layer_types: expected {layers} entries, got {len(names)}")
        kinds = [_KINDS.get(name, types_pb2.ATTENTION_KIND_UNSPECIFIED) for name in names]
        return [] if set(kinds) == {types_pb2.ATTENTION_KIND_FULL} else kinds
    if family.sliding_window == ONLY_IF_USED and not text.get("use_sliding_window"):
        return []
    # Stated as null a window is off; not stated at all, the model type's default holds.
    window = int(text.get("sliding_window", max(0, family.sliding_window)) or 0)
    hides_nothing = window >= int(text.get("max_position_embeddings") or 0)
    return [types_pb2.ATTENTION_KIND_SLIDING] * layers if window and not hides_nothing else []


def _rope_spec(
    text: Mapping[str, Any],
    family: Family,
    pairing: types_pb2.Pairing,
    head_dim: int,
    longrope: LongRope | None,
) -> types_pb2.RopeSpec:
    maximum = int(_need(text, "max_position_embeddings", "n_positions"))

    def settings(members: Mapping[str, Any]) -> RopeSettings:
        original = _agreed(
            text, members, "original_max_position_embeddings", default=float(maximum)
        )
        return RopeSettings(
            members=members,
            theta=_agreed(text, members, "rope_theta", "rotary_emb_base", default=family.rope_theta),
            rotary_dim=_rotary_dim(text, members, family, head_dim),
            max_position=maximum,
            original_max_position=int(original),
            longrope=longrope,
        )

    by_type = _rope_by_layer_type(text)
    names = [""] if "" in by_type else list(_need(text, "layer_types"))
    common = settings(by_type[names[0]])
    spec = types_pb2.RopeSpec(
        params=rope_params(common, pairing), max_position=position_bound(common)
    )
    for layer, name in enumerate(names):
        if name != names[0]:
            spec.layer_overrides[layer].CopyFrom(rope_params(settings(by_type[name]), pairing))
    return spec


def _rope_by_layer_type(text: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Both spellings: transformers 5's rope_parameters (flat, or one per layer type) and the older
    rope_scaling. The key of a flat one is ""."""
    new, old = text.get("rope_parameters"), text.get("rope_scaling")
    if new is not None and old is not None and new != old:
        raise ValueError("config.rope_scaling: expected the same as rope_parameters")
    rope: Mapping[str, Any] = new or old or {}
    nested = {name: value for name, value in rope.items() if isinstance(value, Mapping)}
    return nested or {"": rope}


def _agreed(
    text: Mapping[str, Any], members: Mapping[str, Any], *names: str, default: float
) -> float:
    """A number stated in any of several places; two that differ are refused rather than ranked."""
    stated = {
        f"{where}.{name}": float(values[name])
        for where, values in (("config", text), ("rope_parameters", members))
        for name in names
        if values.get(name) is not None
    }
    if len(set(stated.values())) > 1:
        raise ValueError(f"{names[0]}: the config contradicts itself: {stated}")
    value = next(iter(stated.values()), default)
    if not value:
        raise ValueError(f"config.{names[0]}: missing, and this model_type has no default")
    return value


def _rotary_dim(
    text: Mapping[str, Any], members: Mapping[str, Any], family: Family, head_dim: int
) -> int:
    """Dropped or applied twice, a partial rotation still gives valid shapes: all places must agree."""
    stated = {
        f"{where}.{name}": int(head_dim * float(values[name]))
        for where, values in (("config", text), ("rope_parameters", members))
        for name in ("partial_rotary_factor", "rotary_pct")
        if values.get(name) is not None
    }
    if text.get("rotary_dim") is not None:
        stated["config.rotary_dim"] = int(text["rotary_dim"])
    if len(set(stated.values())) > 1:
        raise ValueError(f"rotary_dim: the config contradicts itself: {stated}")
    return next(iter(stated.values()), int(head_dim * family.partial_rotary_factor))
