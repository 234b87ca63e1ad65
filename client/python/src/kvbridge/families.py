"""What transformers' code says about a model type and its config.json may not.

The same facts as core/model/hf_families.cc: the pairing is a property of the modelling code, the rest are
defaults of the configuration class. A type whose defaults differ between transformers 4 and 5 has none here.
"""

from __future__ import annotations

from typing import NamedTuple

from kvbridge.v1 import types_pb2

ONLY_IF_USED = -1  # a stated window counts only with use_sliding_window

_HALF, _INTERLEAVED = types_pb2.PAIRING_HALF, types_pb2.PAIRING_INTERLEAVED


class Family(NamedTuple):
    """Defaults for absent fields; 0 = the config must state it (head_dim: hidden_size / heads)."""

    pairing: types_pb2.Pairing
    rope_theta: float = 0
    partial_rotary_factor: float = 1
    head_dim: int = 0
    sliding_window: int = 0


FAMILIES = {
    "arcee": Family(_HALF, 1e4),
    "codegen": Family(_INTERLEAVED, 1e4, 0),
    "cohere": Family(_INTERLEAVED),
    "ernie4_5": Family(_INTERLEAVED, 5e5, 1, 128),
    "ernie4_5_moe": Family(_INTERLEAVED, 5e5),
    "gemma": Family(_HALF, 1e4, 1, 256),
    "gemma2": Family(_HALF, 1e4, 1, 256, 4096),
    "gemma3_text": Family(_HALF, 0, 1, 256, 4096),
    "glm": Family(_INTERLEAVED, 1e4, 0.5, 128),
    "glm4": Family(_INTERLEAVED, 1e4, 0.5, 128),
    "glm4_moe": Family(_HALF, 1e4, 0.5),
    "gpt_neox": Family(_HALF, 1e4, 0.25),
    "gptj": Family(_INTERLEAVED, 1e4, 0),
    "granite": Family(_HALF, 1e4),
    "granitemoe": Family(_HALF, 1e4),
    "helium": Family(_INTERLEAVED, 1e5, 1, 128),
    "llama": Family(_HALF, 1e4),
    "ministral": Family(_HALF, 1e4, 1, 0, 4096),
    "ministral3": Family(_HALF, 0, 1, 128),
    "mistral": Family(_HALF, 1e4, 1, 0, 4096),
    "mixtral": Family(_HALF, 1e6),
    "nemotron": Family(_HALF, 1e4, 0.5),
    "olmo": Family(_HALF, 1e4),
    "olmo2": Family(_HALF, 1e4),
    "persimmon": Family(_HALF, 0, 0.5),
    "phi": Family(_HALF, 1e4, 0.5),
    "phi3": Family(_HALF, 1e4),
    "qwen2": Family(_HALF, 1e4, 1, 0, ONLY_IF_USED),
    "qwen2_moe": Family(_HALF, 1e4, 1, 0, ONLY_IF_USED),
    "qwen3": Family(_HALF, 1e4, 1, 128, ONLY_IF_USED),
    "qwen3_moe": Family(_HALF, 1e4, 1, 0, ONLY_IF_USED),
    "seed_oss": Family(_HALF, 1e4, 1, 128),
    "stablelm": Family(_HALF, 1e4, 0.25),
    "starcoder2": Family(_HALF, 1e4),
}
