"""Shared memory for caches that lie elsewhere: one copy in, none out, and the memory is used again.

A slab holds one model's cache of up to `capacity` tokens, [layers, kv_heads, capacity, head_dim] twice, as Hugging
Face keeps it. What comes back are views of a slab; it is free again when the last of them is gone. Slabs are this
process's own memory, because views must outlive the server.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.arrays import Array, storage_dtype
from kvbridge.memory import MemoryUnavailable, SharedMemory
from kvbridge.pools import PagedCache, Plane, Pool
from kvbridge.region import Region, page_multiple
from kvbridge.v1 import types_pb2

PAGE_TOKENS = 64  # so that at most 63 slots past the last token have to be cleared
_LEAST_CAPACITY = 256  # tokens
_RETRY_AFTER = 5.0  # seconds


class Slab:
    """Memory for one cache at a time."""

    def __init__(
        self,
        region: Region,
        spec: types_pb2.ModelSpec,
        capacity: int,
        scales: Sequence[types_pb2.LayerScales],
    ) -> None:
        geometry = spec.geometry
        kind = storage_dtype(geometry.element_type)
        shape = (2, geometry.layers, geometry.kv_heads, capacity, geometry.head_dim)
        memory = region.array(shape, kind)
        _, layer, head, token, _ = memory.strides
        planes = [
            Plane(region, part * geometry.layers * layer + index * layer, PAGE_TOKENS * token, token, head)
            for index in range(geometry.layers)
            for part in range(2)
        ]
        self.region = region
        self.pool = Pool(spec, planes, capacity // PAGE_TOKENS, PAGE_TOKENS, scales)
        self.keys: Array = memory[0]
        self.values: Array = memory[1]

    def serves(
        self, spec: types_pb2.ModelSpec, capacity: int, scales: Sequence[types_pb2.LayerScales]
    ) -> bool:
        """Whether it was made for this."""
        same = self.pool.spec == spec and self.pool.scales == list(scales)
        return same and self.keys.shape[2] == capacity

    def cache(self, tokens: int) -> PagedCache:
        """Its first tokens."""
        return self.pool.select(range(-(-tokens // PAGE_TOKENS)), tokens)


class _Loan:
    """What views of a slab keep alive: the slab comes back when the last of them is gone."""

    def __init__(self, slab: Slab) -> None:
        keys = slab.keys
        shape = (2, *keys.shape)
        self._slab = slab
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": shape,
            "typestr": keys.dtype.str,
            "data": (keys.ctypes.data, False),
        }


class Staging:
    """Slabs of one SharedMemory, at most `max_bytes` of them.

    Thread contract: every method from any thread; views may be dropped in any.
    """

    def __init__(self, memory: SharedMemory, max_bytes: int) -> None:
        self._memory = memory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes = 0
        self._free: list[Slab] = []
        self._refusal: MemoryUnavailable | None = None
        self._retry_at = 0.0
        self._returned: deque[Slab] = deque()  # by destructors, which must not wait for a lock

    def take(
        self,
        spec: types_pb2.ModelSpec,
        tokens: int,
        scales: Sequence[types_pb2.LayerScales] = (),
    ) -> Slab:
        """A slab for so many tokens of this model; MemoryUnavailable when there is no room for another one, or when
        the server had none a moment ago."""
        capacity = _LEAST_CAPACITY
        while capacity < tokens:
            capacity *= 2
        geometry = spec.geometry
        row = geometry.kv_heads * geometry.head_dim * storage_dtype(geometry.element_type).itemsize
        size = page_multiple(2 * geometry.layers * capacity * row)
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            for slab in self._free:
                if slab.serves(spec, capacity, scales):
                    self._free.remove(slab)
                    return slab
            if self._refusal is not None and time.monotonic() < self._retry_at:
                raise self._refusal
            while self._free and self._bytes + size > self._max_bytes:
                self._drop(self._free.pop(0))
            if self._bytes + size > self._max_bytes:
                detail = f"staging: expected at most {self._max_bytes} bytes, got {self._bytes + size}"
                raise MemoryUnavailable("no_room", detail)
            self._bytes += size
        try:
            return Slab(self._memory.share(size), spec, capacity, scales)
        except BaseException:
            with self._lock:
                self._bytes -= size
            raise

    def give_back(self, slab: Slab) -> None:
        """Nobody reads or writes it any more."""
        self._returned.append(slab)

    def discard(self, slab: Slab) -> None:
        """The server may still write to it: it is never used again."""
        with self._lock:
            self._drop(slab)

    def refuse(self, refusal: MemoryUnavailable) -> None:
        """The server could not map a slab: nobody need touch fresh memory in vain for some seconds."""
        with self._lock:
            self._refusal, self._retry_at = refusal, time.monotonic() + _RETRY_AFTER

    def lend(self, slab: Slab, tokens: int, first: int = 0) -> tuple[Array, Array]:
        """Keys and values of tokens [first, tokens), without a copy. The slab comes back by itself."""
        loan = _Loan(slab)
        weakref.finalize(loan, self._returned.append, slab).atexit = False
        views: npt.NDArray[Any] = np.asarray(loan)[..., first:tokens, :]
        return views[0], views[1]

    def _drop(self, slab: Slab) -> None:
        self._bytes -= slab.region.size
        self._memory.release(slab.region)
