"""How the bytes of one transfer travel: inside the call, or in shared memory that both sides have mapped. The source
and the answer each have a way of their own."""

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


class SourceWay(Protocol):
    """One way of the source for one transfer, attempts included.

    Thread contract: messages() runs in gRPC's thread, all else in the caller's.
    """

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        """Says in the header where the source is."""

    def messages(self) -> Iterator[bytes]:
        """What follows the header once it was accepted."""

    def close(self, orderly: bool) -> None:
        """The last attempt is over. orderly: the server reads no more."""


class AnswerWay(Protocol):
    """One way of the answer for one transfer, attempts included. For the caller's thread."""

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        """Says in the header where the answer goes."""

    def begin(self, covered: int) -> None:
        """The server will cover so many tokens."""

    def take(self, chunk: transfer_pb2.TransferChunk) -> None:
        """A piece of the answer; DamagedAnswer when it is none."""

    def finish(self) -> Arrays | None:
        """The whole answer, tokens [first_token, covered); None when it lies in pages. DamagedAnswer when it isn't
        whole."""

    def close(self, orderly: bool) -> None:
        """The last attempt is over. orderly: the server writes no more."""


@dataclass(frozen=True)
class Cargo:
    """Both ways of one transfer."""

    plane: str  # the source's: "region" or "inline"
    source: SourceWay
    answer: AnswerWay

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        """Says in the header where the bytes are."""
        self.source.locate(header)
        self.answer.locate(header)

    def close(self, orderly: bool) -> None:
        """The last attempt is over. orderly: the server reads and writes no more."""
        self.source.close(orderly)
        self.answer.close(orderly)


class InlineSource:
    """Chunks in the call. Works everywhere."""

    def __init__(self, source: Source, tile_tokens: int, max_chunk_bytes: int) -> None:
        self._source = source
        self._cut = (tile_tokens, max_chunk_bytes, source.first_token)

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        header.streamed_source = False
        header.source_selection.inline.SetInParent()
        _state_scales(header.source_selection, self._source.paged)

    def messages(self) -> Iterator[bytes]:
        ready = self._source.ready
        if self._source.paged is not None and not ready.wait(self._source.tokens):
            return
        yield from chunks.encode_chunks(*self._source.arrays(), *self._cut, until=ready.wait)

    def close(self, orderly: bool) -> None:
        pass


class InlineAnswer:
    """Chunks in the call, put together, and copied to the caller's pages where it has any."""

    def __init__(
        self, target: types_pb2.KvGeometry, first_token: int, into: PagedCache | None
    ) -> None:
        self._target = target
        self._first_token = first_token
        self._into = into
        self._answer: chunks.CacheAssembler | None = None

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        header.target_selection.inline.SetInParent()
        _state_scales(header.target_selection, self._into)

    def begin(self, covered: int) -> None:
        self._answer = chunks.CacheAssembler(self._target, covered, self._first_token)

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
        self._into.scatter(*answer, self._first_token)
        return None

    def close(self, orderly: bool) -> None:
        self._answer = None


class RegionSource:
    """Page tables in the call; the bytes stay where they lie, or are copied into shared memory once."""

    def __init__(
        self,
        memory: SharedMemory,
        staging: Staging,
        header: transfer_pb2.TransferHeader,
        source: Source,
        deadline: float,
    ) -> None:
        """header: states the model, and FP8 scales of what does not lie in a pool. deadline: time.monotonic().
        MemoryUnavailable when there is no session, or no room for what does not lie in a pool."""
        memory.lease(deadline)  # before anything is allocated or copied
        self._staging = staging
        self._source = source
        self._slab: Slab | None = None
        self._slabs = threading.Lock()  # gRPC's thread may still copy when the transfer has ended
        self._copied = source.first_token
        if source.paged is None:
            self._slab = staging.take(
                header.source, source.tokens, header.source_selection.scales
            )
            self._location = _locate_slab(memory, staging, self._slab, source.tokens, deadline)
        else:
            self._location = memory.locate(source.paged, deadline)
        self._copy()

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        header.streamed_source = self._source.ready.streamed
        _state_pool(header.source_selection, self._location)

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
            if self._slab is None:
                return
            new = slice(self._copied, self._source.ready.reached)
            for layer, (key, value) in enumerate(zip(self._source.keys, self._source.values)):
                self._slab.keys[layer][:, new] = key[:, new]
                self._slab.values[layer][:, new] = value[:, new]
            self._copied = max(self._copied, new.stop)

    def close(self, orderly: bool) -> None:
        with self._slabs:
            slab, self._slab = self._slab, None
        _let_go(self._staging, slab, orderly)


class PagesAnswer:
    """Written to pages of a pool that the server knows; no byte of it passes here."""

    def __init__(self, location: types_pb2.PoolLocation) -> None:
        self._location = location

    def locate(self, header: transfer_pb2.TransferHeader) -> None:
        _state_pool(header.target_selection, self._location)

    def begin(self, covered: int) -> None:
        pass

    def take(self, chunk: transfer_pb2.TransferChunk) -> None:
        raise chunks.DamagedAnswer("answer chunk: expected the answer in the target's pages")

    def finish(self) -> Arrays | None:
        return None

    def close(self, orderly: bool) -> None:
        pass


class StagedAnswer(PagesAnswer):
    """Written to shared memory of this client, and lent to the caller."""

    def __init__(
        self,
        memory: SharedMemory,
        staging: Staging,
        header: transfer_pb2.TransferHeader,
        first_token: int,
        deadline: float,
    ) -> None:
        """As RegionSource's."""
        memory.lease(deadline)
        tokens = header.source_selection.tokens
        slab = staging.take(header.target, tokens, header.target_selection.scales)
        super().__init__(_locate_slab(memory, staging, slab, tokens, deadline))
        self._staging = staging
        self._slab: Slab | None = slab
        self._first_token = first_token
        self._covered = 0

    def begin(self, covered: int) -> None:
        self._covered = covered

    def finish(self) -> Arrays | None:
        slab, self._slab = self._slab, None
        assert slab is not None
        return self._staging.lend(slab, self._covered, self._first_token)

    def close(self, orderly: bool) -> None:
        slab, self._slab = self._slab, None
        _let_go(self._staging, slab, orderly)


def _state_scales(selection: types_pb2.KvSelection, paged: PagedCache | None) -> None:
    """FP8 scales of what leaves its pool."""
    if paged is not None and not selection.scales:
        selection.scales.extend(paged.pool.scales)


def _state_pool(selection: types_pb2.KvSelection, location: types_pb2.PoolLocation) -> None:
    selection.pool.CopyFrom(location)
    del selection.scales[:]  # pools have their own


def _locate_slab(
    memory: SharedMemory, staging: Staging, slab: Slab, tokens: int, deadline: float
) -> types_pb2.PoolLocation:
    """Of a slab that was just taken, and is given up when the server can't map it."""
    try:
        return memory.locate(slab.cache(tokens), deadline)
    except MemoryUnavailable as refusal:
        staging.refuse(refusal)
        staging.discard(slab)
        raise


def _let_go(staging: Staging, slab: Slab | None, orderly: bool) -> None:
    if slab is not None:
        (staging.give_back if orderly else staging.discard)(slab)
