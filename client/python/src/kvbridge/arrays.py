"""Element types of caches, as NumPy sees them.

NumPy has no bfloat16 and no FP8: such caches travel as their bits, bf16 as ``uint16`` and fp8 as ``uint8``.
Arrays of the ``ml_dtypes`` package are taken by name and viewed as bits, without needing the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.v1 import types_pb2

Array = npt.NDArray[Any]

_STORAGE: dict[int, np.dtype[Any]] = {
    types_pb2.ELEMENT_TYPE_BF16: np.dtype(np.uint16),
    types_pb2.ELEMENT_TYPE_F16: np.dtype(np.float16),
    types_pb2.ELEMENT_TYPE_F32: np.dtype(np.float32),
    types_pb2.ELEMENT_TYPE_F8_E4M3: np.dtype(np.uint8),
}
_BY_NAME = {
    "bf16": types_pb2.ELEMENT_TYPE_BF16,
    "bfloat16": types_pb2.ELEMENT_TYPE_BF16,
    "f16": types_pb2.ELEMENT_TYPE_F16,
    "float16": types_pb2.ELEMENT_TYPE_F16,
    "f32": types_pb2.ELEMENT_TYPE_F32,
    "float32": types_pb2.ELEMENT_TYPE_F32,
    "f8_e4m3": types_pb2.ELEMENT_TYPE_F8_E4M3,
    "float8_e4m3fn": types_pb2.ELEMENT_TYPE_F8_E4M3,
}


def element_type(name: str) -> types_pb2.ElementType:
    """The wire's element type for "bf16", "float16", "torch.float32" and the like; ValueError if none."""
    key = name.removeprefix("torch.")
    if key not in _BY_NAME:
        raise ValueError(f"element type: expected one of {sorted(_BY_NAME)}, got {name!r}")
    return _BY_NAME[key]


def storage_dtype(kind: int) -> np.dtype[Any]:
    """The NumPy dtype that holds elements of wire type `kind`; ValueError for an unknown one."""
    if kind not in _STORAGE:
        raise ValueError(f"element_type: expected one of {sorted(_STORAGE)}, got {kind}")
    return _STORAGE[kind]


def as_storage(array: Array, kind: int) -> Array:
    """`array` as the bits of wire type `kind`, without a copy; ValueError when its dtype is another."""
    wanted = storage_dtype(kind)
    if array.dtype == wanted:
        return array
    if _BY_NAME.get(array.dtype.name) == kind:  # an ml_dtypes array
        return array.view(wanted)
    raise ValueError(f"cache dtype: expected {wanted} (as the model's spec states), got {array.dtype}")


def bf16_to_float32(bits: Array) -> npt.NDArray[np.float32]:
    """Exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """Rounds to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
