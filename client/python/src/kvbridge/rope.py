"""Rotations as explicit numbers: the published frequency formulas, in float64.

With f_i = theta^(-2i/d), d = rotary_dim: each scaling turns f into inverse frequencies and an attention factor,
as transformers' modeling_rope_utils.py evaluates it in float32, hence equal to engines' tables to about 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvbridge.v1 import types_pb2

Frequencies = npt.NDArray[np.float64]
LongRope = Literal["short", "long"]

# Every member that the published types use, and three that do not touch keys. Any other one may change the
# rotation and is refused by name.
_KNOWN_MEMBERS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor",
    "long_factor", "low_freq_factor", "high_freq_factor", "llama_4_scaling_beta", "finetuned",
    "max_position_embeddings",
}  # fmt: skip


@dataclass(frozen=True)
class RopeSettings:
    """transformers' rope_parameters of one layer type, with what the configuration around it says."""

    members: Mapping[str, Any]
    theta: float
    rotary_dim: int
    max_position: int  # max_position_embeddings
    original_max_position: int  # of pre-training
    longrope: LongRope | None  # which list the cache's keys were written with; only its writer knows

    @property
    def kind(self) -> str:
        """The rope_type; "su" is an older name of longrope."""
        name = str(self.members.get("rope_type") or self.members.get("type") or "default")
        return "longrope" if name == "su" else name

    def number(self, name: str, default: float | None = None) -> float:
        """ValueError when it is missing without a default, or no finite number."""
        value = self.members.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}: expected a number, got {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value!r}")
        return float(value)

    def extension(self) -> float:
        """`factor`, or the ratio of the two context lengths where the config leaves it out."""
        return self.number("factor", self.max_position / self.original_max_position)


def rope_params(settings: RopeSettings, pairing: types_pb2.Pairing) -> types_pb2.RopeParams:
    """ValueError names a type that has no fixed table (dynamic) or is unknown, and every missing number."""
    unknown = sorted(set(settings.members) - _KNOWN_MEMBERS)
    if unknown:
        raise ValueError(f"rope_parameters.{unknown[0]}: its effect on keys is not known")
    if settings.kind not in _SCALINGS:
        raise ValueError(f"rope_type: expected one of {sorted(_SCALINGS)}, got {settings.kind!r}")
    dim = settings.rotary_dim
    if dim <= 0 or dim % 2:
        raise ValueError(f"rotary_dim: expected an even number above 0, got {dim}")
    if settings.theta <= 1:
        raise ValueError(f"rope_theta: expected a number above 1, got {settings.theta}")
    base = settings.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    inv_freq, factor = _SCALINGS[settings.kind](base, settings)
    return types_pb2.RopeParams(
        inv_freq=inv_freq.tolist(), attention_factor=factor, rotary_dim=dim, pairing=pairing
    )


def position_bound(settings: RopeSettings) -> int:
    """Exclusive. Configs extended by YaRN or linear scaling often keep the old max_position_embeddings;
    engines serve factor times the original."""
    if settings.kind == "yarn":
        extended = math.ceil(settings.extension() * settings.original_max_position)
        return max(settings.max_position, extended)
    if settings.kind == "linear":
        return math.ceil(settings.max_position * settings.number("factor"))
    return settings.max_position


def _default(base: Frequencies, settings: RopeSettings) -> tuple[Frequencies, float]:
    return base, 1.0


def _linear(base: Frequencies, settings: RopeSettings) -> tuple[Frequencies, float]:
    return base / settings.number("factor"), 1.0


def _llama3(base: Frequencies, settings: RopeSettings) -> tuple[Frequencies, float]:
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    turns = settings.original_max_position * base / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * base / settings.number("factor") + keep * base, 1.0


def _yarn(base: Frequencies, settings: RopeSettings) -> tuple[Frequencies, float]:
    dim = settings.rotary_dim

    def bound(rotations: float) -> float:
        turns = settings.original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(settings.theta))

    low = bound(settings.number("beta_fast", 32))
    high = bound(settings.number("beta_slow", 1))
    if settings.members.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the published guard against a ramp of no width
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    inv_freq = ramp * base / settings.extension() + (1 - ramp) * base
    return inv_freq, _yarn_attention_factor(settings)


def _yarn_attention_factor(settings: RopeSettings) -> float:
    """mscale alone changes nothing and equal ones cancel: confusing the two costs 27 %."""
    if settings.members.get("attention_factor") is not None:
        return settings.number("attention_factor")
    log_factor = math.log(settings.extension())
    above, below = settings.number("mscale", 0), settings.number("mscale_all_dim", 0)
    if above and below:
        return (0.1 * above * log_factor + 1) / (0.1 * below * log_factor + 1)
    return 0.1 * log_factor + 1


def _longrope(base: Frequencies, settings: RopeSettings) -> tuple[Frequencies, float]:
    if settings.longrope is None:
        raise ValueError(
            "longrope: state whether the keys were rotated with short_factor or long_factor "
            '("short" or "long"); the config cannot say'
        )
    name = f"{settings.longrope}_factor"
    factors = np.asarray(settings.members.get(name) or (), np.float64)
    if factors.shape != base.shape:
        raise ValueError(f"{name}: expected {len(base)} numbers, got {factors.size}")
    if settings.members.get("attention_factor") is not None:
        return base / factors, settings.number("attention_factor")
    factor = settings.extension()
    if factor <= 1:
        return base / factors, 1.0
    gain = math.sqrt(1 + math.log(factor) / math.log(settings.original_max_position))
    return base / factors, gain


_SCALINGS: dict[str, Callable[[Frequencies, RopeSettings], tuple[Frequencies, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
