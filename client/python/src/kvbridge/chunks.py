"""Caches as chunks: cutting one up to send it, and putting an answer together.

A chunk is a rectangle of one component, row-major [layers, tokens, kv_heads, head_dim]. In memory a cache is
a sequence of layers, each [kv_heads, tokens, head_dim] of any strides (a 4-D array is one, too).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import crc32c
import numpy as np
import numpy.typing as npt

from kvbridge.arrays import Array, storage_dtype
from kvbridge.v1 import transfer_pb2, types_pb2

TILE_TOKENS = 256
MAX_CHUNK_BYTES = (4 << 20) - (64 << 10)  # fits every gRPC library's default limit of 4 MiB

_COMPONENTS = (types_pb2.COMPONENT_KEY, types_pb2.COMPONENT_VALUE)
_NAMES = {types_pb2.COMPONENT_KEY: "keys", types_pb2.COMPONENT_VALUE: "values"}
_REQUEST_CHUNK_TAG = b"\x12"  # TransferRequest.chunk = 2, length-delimited
_DATA_TAG = b"\x7a"  # TransferChunk.data = 15, length-delimited


class DamagedAnswer(Exception):
    """An answer's chunk is damaged, out of place or missing."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_request(head: transfer_pb2.TransferChunk, data: Array) -> bytes:
    """A serialized TransferRequest; the payload is copied once instead of three times."""
    fields = head.SerializeToString()
    length = _varint(data.nbytes)
    size = _varint(len(fields) + len(_DATA_TAG) + len(length) + data.nbytes)
    payload = data.reshape(-1).view(np.uint8).data
    return b"".join((_REQUEST_CHUNK_TAG, size, fields, _DATA_TAG, length, payload))


def encode_chunks(
    keys: Sequence[Array],
    values: Sequence[Array],
    tile_tokens: int = TILE_TOKENS,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
    first_token: int = 0,
    until: Callable[[int], bool] = lambda token_end: True,
) -> Iterator[bytes]:
    """Serialized TransferRequests, tile by tile: all layers of one tile of tokens, then the next, so that
    the server needs the least memory and maps soonest. Arrays are in their storage dtype. Tokens before
    first_token are left out. until: waits for the tokens of a tile to be there; False = they never will."""
    layers = len(keys)
    heads, tokens, dim = keys[0].shape
    token_bytes = heads * dim * keys[0].dtype.itemsize
    tile = max(1, min(tile_tokens, max_chunk_bytes // token_bytes))
    step = max(1, max_chunk_bytes // (tile * token_bytes))  # layers per chunk
    for begin in range(first_token, tokens, tile):
        end = min(begin + tile, tokens)
        if not until(end):
            return
        for first in range(0, layers, step):
            last = min(first + step, layers)
            for component, source in zip(_COMPONENTS, (keys, values)):
                data = np.empty((last - first, end - begin, heads, dim), source[0].dtype)
                for layer in range(first, last):
                    data[layer - first] = source[layer][:, begin:end].transpose(1, 0, 2)
                head = transfer_pb2.TransferChunk(
                    layer_begin=first,
                    layer_end=last,
                    component=component,
                    token_begin=begin,
                    token_end=end,
                    crc32c=crc32c.crc32c(data.data),
                )
                yield _encode_request(head, data)


class CacheAssembler:
    """Puts tokens [first_token, tokens) of an answer together as [layers, kv_heads, tokens - first_token,
    head_dim]; every element exactly once."""

    def __init__(
        self, geometry: types_pb2.KvGeometry, tokens: int, first_token: int = 0
    ) -> None:
        self._first = first_token
        tokens -= first_token
        self._heads, self._dim = geometry.kv_heads, geometry.head_dim
        self._dtype = storage_dtype(geometry.element_type)
        shape = (geometry.layers, geometry.kv_heads, tokens, geometry.head_dim)
        self._caches = {c: np.empty(shape, self._dtype) for c in _COMPONENTS}
        self._seen: dict[int, npt.NDArray[np.bool_]] = {
            c: np.zeros((geometry.layers, tokens), bool) for c in _COMPONENTS
        }

    def add(self, chunk: transfer_pb2.TransferChunk) -> None:
        """DamagedAnswer names the chunk and what is wrong with it."""
        where = (
            f"answer chunk {_NAMES.get(chunk.component, chunk.component)} layers "
            f"[{chunk.layer_begin}, {chunk.layer_end}) tokens [{chunk.token_begin}, {chunk.token_end})"
        )
        seen = self._seen.get(chunk.component)
        if seen is None:
            raise DamagedAnswer(f"{where}: neither keys nor values")
        layers, tokens = seen.shape
        begin, end = chunk.token_begin - self._first, chunk.token_end - self._first
        if not (0 <= chunk.layer_begin < chunk.layer_end <= layers and 0 <= begin < end <= tokens):
            raise DamagedAnswer(
                f"{where}: outside of {layers} layers, tokens [{self._first}, {self._first + tokens})"
            )
        got = crc32c.crc32c(chunk.data)
        if got != chunk.crc32c:
            raise DamagedAnswer(f"{where}: crc32c: expected {chunk.crc32c:08x}, got {got:08x}")
        rectangle = (
            slice(chunk.layer_begin, chunk.layer_end),
            slice(begin, end),
        )
        shape = (*seen[rectangle].shape, self._heads, self._dim)
        expected = int(np.prod(shape)) * self._dtype.itemsize
        if len(chunk.data) != expected:
            raise DamagedAnswer(f"{where}: expected {expected} bytes, got {len(chunk.data)}")
        if seen[rectangle].any():
            raise DamagedAnswer(f"{where}: overlaps an earlier chunk")
        data = np.frombuffer(chunk.data, self._dtype).reshape(shape)
        layer, token = rectangle
        self._caches[chunk.component][layer, :, token] = data.transpose(0, 2, 1, 3)
        seen[rectangle] = True

    def finish(self) -> tuple[Array, Array]:
        """Keys and values; DamagedAnswer names the first gap."""
        for component in _COMPONENTS:
            gaps = np.argwhere(~self._seen[component])
            if len(gaps):
                layer, token = gaps[0]
                raise DamagedAnswer(
                    f"incomplete answer: {_NAMES[component]} of layer {layer}, token {token + self._first} "
                    f"never came ({len(gaps)} rows missing)"
                )
        return self._caches[_COMPONENTS[0]], self._caches[_COMPONENTS[1]]
