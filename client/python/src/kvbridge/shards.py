"""Calibration shards: what two models cached of the same tokens, one safetensors file per sequence.

Tensors: `source.keys`, `source.values`, `target.keys`, `target.values` [layers, kv_heads, rows, head_dim], BF16 or
F32; `positions` and `token_ids` [rows] int64; optionally `row_weight.key`, `row_weight.value` [target layers,
target kv_heads, rows] F32. Rows are the sequence's tokens that are kept, in order. Metadata: format
"kvbridge-shard", schema "1", `sequence_id`, `domain`, `keys` ("stripped": the rotation and its attention factor are
taken out; "roped": as the models cache them), `source` and `target` (ModelSpec as JSON with the proto's field
names), `provenance` (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from kvbridge.arrays import Array
from kvbridge.cache_file import read_safetensors, write_safetensors
from kvbridge.v1 import types_pb2

FORMAT = "kvbridge-shard"
SCHEMA = "1"

KeyForm = Literal["stripped", "roped"]

_ELEMENTS = {np.dtype(np.uint16): "BF16", np.dtype(np.float32): "F32"}


@dataclass(frozen=True)
class Half:
    """One model's side of a shard; bf16 as uint16 (arrays.py)."""

    keys: Array  # [layers, kv_heads, rows, head_dim]
    values: Array


@dataclass(frozen=True)
class Shard:
    """See the module's text."""

    sequence_id: str
    domain: str
    key_form: KeyForm
    source_spec: types_pb2.ModelSpec
    target_spec: types_pb2.ModelSpec
    source: Half
    target: Half
    positions: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64]
    key_weight: npt.NDArray[np.float32] | None = None  # [target layers, target kv_heads, rows]
    value_weight: npt.NDArray[np.float32] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def write_shard(path: str | PathLike[str], shard: Shard) -> None:
    """Writes a temporary file beside `path` and renames it: equal shards are equal bytes. ValueError when the
    parts don't fit together."""
    rows = len(shard.positions)
    _expect("token_ids", shard.token_ids, (rows,))
    tensors: dict[str, tuple[str, Array]] = {}
    for role in ("source", "target"):
        spec, half = getattr(shard, f"{role}_spec").geometry, getattr(shard, role)
        for part in ("keys", "values"):
            array = getattr(half, part)
            _expect(f"{role}.{part}", array, (spec.layers, spec.kv_heads, rows, spec.head_dim))
            if array.dtype not in _ELEMENTS:
                raise ValueError(f"{role}.{part}: expected uint16 (BF16) or float32, got {array.dtype}")
            tensors[f"{role}.{part}"] = (_ELEMENTS[array.dtype], array)
    tensors["positions"] = ("I64", np.asarray(shard.positions, np.int64))
    tensors["token_ids"] = ("I64", np.asarray(shard.token_ids, np.int64))
    target = shard.target_spec.geometry
    for part, weight in (("key", shard.key_weight), ("value", shard.value_weight)):
        if weight is not None:
            _expect(f"row_weight.{part}", weight, (target.layers, target.kv_heads, rows))
            tensors[f"row_weight.{part}"] = ("F32", np.asarray(weight, np.float32))
    metadata = {
        "format": FORMAT,
        "schema": SCHEMA,
        "sequence_id": shard.sequence_id,
        "domain": shard.domain,
        "keys": shard.key_form,
        "source": spec_json(shard.source_spec),
        "target": spec_json(shard.target_spec),
        "provenance": json.dumps(shard.provenance, sort_keys=True, ensure_ascii=False),
    }
    write_safetensors(Path(path), tensors, metadata)


def read_shard(path: str | PathLike[str]) -> Shard:
    """Arrays are mapped from the file. ValueError names what is not as it should be."""
    tensors, metadata = read_safetensors(path)
    for key, expected in (("format", FORMAT), ("schema", SCHEMA)):
        if metadata.get(key) != expected:
            raise ValueError(f"metadata {key}: expected {expected!r}, got {metadata.get(key)!r}")
    if metadata.get("keys") not in ("stripped", "roped"):
        raise ValueError(f"metadata keys: expected stripped or roped, got {metadata.get('keys')!r}")
    needed = [f"{role}.{part}" for role in ("source", "target") for part in ("keys", "values")]
    for name in (*needed, "positions", "token_ids"):
        if name not in tensors:
            raise ValueError(f"tensor {name}: missing")
    for name in ("sequence_id", "domain", "source", "target", "provenance"):
        if name not in metadata:
            raise ValueError(f"metadata {name}: missing")
    return Shard(
        sequence_id=metadata["sequence_id"],
        domain=metadata["domain"],
        key_form=cast(KeyForm, metadata["keys"]),
        source_spec=json_format.Parse(metadata["source"], types_pb2.ModelSpec()),
        target_spec=json_format.Parse(metadata["target"], types_pb2.ModelSpec()),
        source=Half(tensors["source.keys"], tensors["source.values"]),
        target=Half(tensors["target.keys"], tensors["target.values"]),
        positions=tensors["positions"],
        token_ids=tensors["token_ids"],
        key_weight=tensors.get("row_weight.key"),
        value_weight=tensors.get("row_weight.value"),
        provenance=json.loads(metadata["provenance"]),
    )


def write_queries(path: Path, queries: Array, positions: npt.NDArray[np.int64]) -> None:
    """What a sequence's queries were at some positions, to compare attention outputs with: `queries` [target
    layers, query_heads, positions, head_dim], rotated, and `positions`. Format "kvbridge-queries"."""
    tensors = {"queries": (_ELEMENTS[queries.dtype], queries), "positions": ("I64", positions)}
    write_safetensors(path, tensors, {"format": "kvbridge-queries", "schema": SCHEMA})


def write_half(path: Path, half: Half) -> None:
    """One side alone, in a file that is no shard yet."""
    parts = {"keys": half.keys, "values": half.values}
    write_safetensors(path, {n: (_ELEMENTS[a.dtype], a) for n, a in parts.items()}, {})


def read_half(path: Path) -> Half:
    """ValueError for a file that is damaged."""
    tensors, _ = read_safetensors(path)
    if set(tensors) != {"keys", "values"}:
        raise ValueError(f"expected keys and values, got {sorted(tensors)}")
    return Half(tensors["keys"], tensors["values"])


def spec_json(spec: types_pb2.ModelSpec) -> str:
    """The JSON that manifests and shards share; equal specs give equal text."""
    text: str = json_format.MessageToJson(
        spec, preserving_proto_field_name=True, indent=None, sort_keys=True
    )
    return text


def _expect(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name}: expected {list(shape)}, got {list(array.shape)}")
