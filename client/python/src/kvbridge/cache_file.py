"""Cache files: one model's KV cache as a safetensors file, for the command line and for tests.

Tensors: `keys` and `values` [layers, kv_heads, tokens, head_dim] in any supported element type, `positions`
[tokens] int64, optionally `token_ids` [tokens] int64. Metadata: format "kvbridge-cache", schema "1", and
`identity`, `geometry`, `rope` as the JSON form of the proto messages with their own field names.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from kvbridge.arrays import Array, as_storage, storage_dtype
from kvbridge.v1 import types_pb2

FORMAT = "kvbridge-cache"
SCHEMA = "1"

# safetensors' own names. The package's NumPy reader knows neither bf16 nor fp8, hence these few lines.
_DTYPE_NAMES = {
    types_pb2.ELEMENT_TYPE_BF16: "BF16",
    types_pb2.ELEMENT_TYPE_F16: "F16",
    types_pb2.ELEMENT_TYPE_F32: "F32",
    types_pb2.ELEMENT_TYPE_F8_E4M3: "F8_E4M3",
}
_STORAGE = {name: storage_dtype(kind) for kind, name in _DTYPE_NAMES.items()} | {
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
}
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class CacheFile:
    """A cache with all that a transfer needs to know about it."""

    spec: types_pb2.ModelSpec
    keys: Array  # [layers, kv_heads, tokens, head_dim] in the spec's element type (arrays.py)
    values: Array
    positions: npt.NDArray[np.int64]  # [tokens]
    token_ids: npt.NDArray[np.int64] | None = None  # [tokens]


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Tensors by name, read-only and mapped from the file (bf16 and fp8 as bits), and the metadata.

    ValueError for a file that is damaged.
    """
    data = np.memmap(path, np.uint8, mode="r")
    size = struct.unpack("<Q", data[:8].tobytes())[0] if len(data) >= 8 else _MAX_HEADER + 1
    if size > min(_MAX_HEADER, len(data) - 8):
        raise ValueError(f"{Path(path).name}: not a safetensors file")
    header: dict[str, Any] = json.loads(data[8 : 8 + size].tobytes())
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = _STORAGE.get(entry["dtype"]), entry["shape"]
        if dtype is None:
            raise ValueError(f"{name}: expected a dtype of {sorted(_STORAGE)}, got {entry['dtype']}")
        expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not 0 <= begin <= end <= len(data) - 8 - size or end - begin != expected:
            raise ValueError(f"{name}: expected {expected} bytes, got [{begin}, {end})")
        tensors[name] = data[8 + size + begin : 8 + size + end].view(dtype).reshape(shape)
    return tensors, metadata


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, Array]], metadata: dict[str, str]
) -> None:
    """Tensors as (safetensors' dtype name, array), in the order given, by way of a temporary file that is
    synced and renamed. The bytes are a function of the arguments alone."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for _, array in tensors.values():
                stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_cache(path: str | os.PathLike[str], cache: CacheFile) -> None:
    """Writes a temporary file beside `path` and renames it. ValueError when the parts don't fit together."""
    geometry = cache.spec.geometry
    keys = as_storage(cache.keys, geometry.element_type)
    values = as_storage(cache.values, geometry.element_type)
    tokens = len(cache.positions)
    shape = (geometry.layers, geometry.kv_heads, tokens, geometry.head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if array.shape != shape:
            raise ValueError(f"{name}: expected {shape}, got {array.shape}")
    dtype = _DTYPE_NAMES[geometry.element_type]
    tensors = {
        "keys": (dtype, keys),
        "values": (dtype, values),
        "positions": ("I64", np.asarray(cache.positions, np.int64)),
    }
    if cache.token_ids is not None:
        if len(cache.token_ids) != tokens:
            raise ValueError(f"token_ids: expected {tokens}, got {len(cache.token_ids)}")
        tensors["token_ids"] = ("I64", np.asarray(cache.token_ids, np.int64))
    metadata = {"format": FORMAT, "schema": SCHEMA}
    for part in ("identity", "geometry", "rope"):
        metadata[part] = json_format.MessageToJson(
            getattr(cache.spec, part), preserving_proto_field_name=True, indent=None
        )
    write_safetensors(Path(path), tensors, metadata)


def read_cache(path: str | os.PathLike[str]) -> CacheFile:
    """ValueError names what is not as it should be."""
    tensors, metadata = read_safetensors(path)
    for key, expected in (("format", FORMAT), ("schema", SCHEMA)):
        if metadata.get(key) != expected:
            raise ValueError(f"metadata {key}: expected {expected!r}, got {metadata.get(key)!r}")
    spec = types_pb2.ModelSpec()
    for part in ("identity", "geometry", "rope"):
        if part not in metadata:
            raise ValueError(f"metadata {part}: missing")
        try:
            json_format.Parse(metadata[part], getattr(spec, part))
        except json_format.ParseError as error:
            raise ValueError(f"metadata {part}: {error}") from None
    for name in ("keys", "values", "positions"):
        if name not in tensors:
            raise ValueError(f"tensor {name}: missing")
    return CacheFile(
        spec, tensors["keys"], tensors["values"], tensors["positions"], tensors.get("token_ids")
    )
