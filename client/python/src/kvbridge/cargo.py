"""How the bytes of one transfer travel: inside the call, or in shared memory that both sides have mapped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kvbridge import chunks
from kvbridge.arrays import Array
from kvbridge.memory import MemoryUnavailable, SharedMemory
from kvbridge.pools import PagedCache
from kvbridge.progress import Readiness
from kvbridge.staging import Slab, Staging
from kvbridge.v1 import transfer_pb2, types_pb2

Arrays = tuple[Array, Array]


@dataclass(frozen=True)
class Source:
    """The cache that is to be mapped: arrays, one [kv_heads, tokens, head_dim] per layer, or pages of a pool."""

    keys: list[Array]
    values: list[Array]
    paged: PagedCache | None
    tokens: int
    first_token: int  # where what is new begins
    ready: Readiness

    def arrays(self) -> tuple[list[Array], list[Array]]:
        """A copy where it lies in a pool; then all of it must be there."""
        return self.paged.gather() if self.paged is not None else (self.keys, self.values)


class Cargo(Protocol):
    """One way for one transfer, attempts included.

    Thread contract: messages() runs in gRPC's thread, all else in the caller's.
    """

    plane: str

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        """Says in the header where the bytes are. MemoryUnavailable when they can't be reached this way."""

    def messages(self) -> Iterator[bytes]:
        """What follows the header once it was accepted."""

    def begin(self, covered: int) -> None:
        """The server will cover so many tokens."""

    def take(self, chunk: transfer_pb2.TransferChunk) -> None:
        """A piece of the answer; DamagedAnswer when it is none."""

    def finish(self) -> Arrays | None:
        """The whole answer, tokens [first_token, covered); None when it lies in the caller's pages.
        DamagedAnswer when it isn't whole."""

    def close(self, orderly: bool) -> None:
        """The last attempt is over. orderly: the server reads and writes no more."""


class InlineCargo:
    """Chunks in the call, in both directions. Works everywhere."""

    plane = "inline"

    def __init__(
        self,
        source: Source,
        target: types_pb2.KvGeometry,
        into: PagedCache | None,
        tile_tokens: int,
        max_chunk_bytes: int,
    ) -> None:
        self._source = source
        self._target = target
        self._into = into
        self._cut = (tile_tokens, max_chunk_bytes, source.first_token)
        self._answer: chunks.CacheAssembler | None = None

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        header.streamed_source = False
        header.source_selection.inline.SetInParent()
        header.target_selection.inline.SetInParent()
        for selection, paged in (
            (header.source_selection, self._source.paged),
            (header.target_selection, self._into),
        ):
            if paged is not None and not selection.scales:
                selection.scales.extend(paged.pool.scales)

    def messages(self) -> Iterator[bytes]:
        ready = self._source.ready
        if self._source.paged is not None and not ready.wait(self._source.tokens):
            return
        yield from chunks.encode_chunks(*self._source.arrays(), *self._cut, until=ready.wait)

    def begin(self, covered: int) -> None:
        self._answer = chunks.CacheAssembler(self._target, covered, self._source.first_token)

    def take(self, chunk: transfer_pb2.TransferChunk) -> None:
        if self._answer is None:
            raise chunks.DamagedAnswer("answer chunk before Accepted")
        self._answer.add(chunk)

    def finish(self) -> Arrays | None:
        if self._answer is None:
            raise chunks.DamagedAnswer("applied, but never accepted")
        answer = self._answer.finish()
        if self._into is None:
            return answer
        self._into.scatter(*answer, self._source.first_token)
        return None

    def close(self, orderly: bool) -> None:
        self._answer = None


class RegionCargo:
    """Page tables in the call; the bytes stay where they lie, or are copied into shared memory once."""

    plane = "region"

    def __init__(
        self,
        memory: SharedMemory,
        staging: Staging,
        header: transfer_pb2.TransferHeader,
        source: Source,
        into: PagedCache | None,
        deadline: float,
    ) -> None:
        """header: states the models, and FP8 scales of what does not lie in pools. deadline: time.monotonic().
        MemoryUnavailable when there is no session, or no room for what does not lie in pools."""
        memory.lease(deadline)  # before anything is allocated or copied
        self._staging = staging
        self._source = source
        self._in_slab: Slab | None = None
        self._out_slab: Slab | None = None
        self._slabs = threading.Lock()  # gRPC's thread may still copy when the transfer has ended
        self._covered = 0
        self._copied = source.first_token
        tokens = source.tokens
        try:
            read = source.paged
            if read is None:
                scales = header.source_selection.scales
                self._in_slab = staging.take(header.source, tokens, scales)
                read = self._in_slab.cache(tokens)
            if into is None:
                scales = header.target_selection.scales
                self._out_slab = staging.take(header.target, tokens, scales)
                into = self._out_slab.cache(tokens)
            self._locations = [self._locate(memory, cache, deadline) for cache in (read, into)]
        except BaseException:
            self.close(orderly=False)
            raise
        self._copy()

    def _locate(
        self, memory: SharedMemory, cache: PagedCache, deadline: float
    ) -> types_pb2.PoolLocation:
        try:
            pool_id, generation = memory.locate(cache.pool, deadline)
        except MemoryUnavailable as refusal:
            if any(slab is not None and slab.pool is cache.pool for slab in (self._in_slab, self._out_slab)):
                self._staging.refuse(refusal)
            raise
        return types_pb2.PoolLocation(pool_id=pool_id, generation=generation, pages=cache.pages)

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        header.streamed_source = self._source.ready.streamed
        header.source_selection.pool.CopyFrom(self._locations[0])
        header.target_selection.pool.CopyFrom(self._locations[1])
        del header.source_selection.scales[:]  # pools have their own
        del header.target_selection.scales[:]

    def messages(self) -> Iterator[bytes]:
        ready = self._source.ready
        while ready.streamed:
            self._copy()
            if ready.reached:
                yield transfer_pb2.TransferRequest(
                    ready_up_to=transfer_pb2.ReadyUpTo(token_end=ready.reached)
                ).SerializeToString()
            if not ready.advance():
                return

    def _copy(self) -> None:
        """What may be read and was not copied yet, into the slab."""
        with self._slabs:
            if self._in_slab is None:
                return
            new = slice(self._copied, self._source.ready.reached)
            for layer, (key, value) in enumerate(zip(self._source.keys, self._source.values)):
                self._in_slab.keys[layer][:, new] = key[:, new]
                self._in_slab.values[layer][:, new] = value[:, new]
            self._copied = max(self._copied, new.stop)

    def begin(self, covered: int) -> None:
        self._covered = covered

    def take(self, chunk: transfer_pb2.TransferChunk) -> None:
        raise chunks.DamagedAnswer("answer chunk: expected the answer in the target's pages")

    def finish(self) -> Arrays | None:
        if self._out_slab is None:
            return None
        slab, self._out_slab = self._out_slab, None
        return self._staging.lend(slab, self._covered, self._source.first_token)

    def close(self, orderly: bool) -> None:
        with self._slabs:
            slabs = [slab for slab in (self._in_slab, self._out_slab) if slab is not None]
            self._in_slab = self._out_slab = None
        for slab in slabs:
            (self._staging.give_back if orderly else self._staging.discard)(slab)
