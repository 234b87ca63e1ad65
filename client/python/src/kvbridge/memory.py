"""Shared memory with a kvbridged on this host: a session, the regions and pools that it knows.

The session is a lease, kept by a stream of heartbeats. When it is lost (the server was restarted, this process
was stopped too long), this process's own memory stays what it is: the next transfer opens a session and registers
it again. What the server had allocated is void.

Not for use across fork(): a child may read and write the memory, but must not call the client (gRPC can't follow
it); what it closes is its own copies only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from kvbridge.closing import Closing
from kvbridge.pools import TOKENS_FIRST, PagedCache, Pool, describe
from kvbridge.region import Region, RegionArena, named_segment, page_multiple, sealed_memory
from kvbridge.side_socket import SideSocket, SideSocketRefused
from kvbridge.v1 import memory_pb2, memory_pb2_grpc, transfer_pb2, transfer_pb2_grpc, types_pb2

_RETRY_AFTER = 5.0  # seconds before a server without regions is asked again


class MemoryUnavailable(Exception):
    """Shared memory can't be used now. `word` is from a closed list (docs/metrics.md), `detail` a sentence."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(f"{word}: {detail}")
        self.word = word
        self.detail = detail


class Lease:
    """One session: a stream that heartbeats keep open. Dead once the stream has ended, for whatever reason."""

    def __init__(self, stub: Any, tenant: str, socket_path: str, timeout: float) -> None:
        self.socket_path = socket_path
        self.session_id = ""
        self.region_ids: dict[Region, str] = {}
        self.pools: dict[Pool, tuple[str, int]] = {}  # id and generation
        self._tenant = tenant
        self._interval = 1.0
        self._opened = threading.Event()
        self._over = threading.Event()
        self._end = "the server ended the session"
        self._call = stub.OpenSession(self._heartbeats())
        self._reader = threading.Thread(target=self._read, name="kvbridge-lease", daemon=True)
        self._reader.start()
        self._opened.wait(timeout)
        if not self.session_id:
            self._call.cancel()
            self._reader.join()
            raise MemoryUnavailable("session_lost", self._end)

    @property
    def alive(self) -> bool:
        """As far as this side knows."""
        return not self._over.is_set()

    @property
    def end(self) -> str:
        """Why it is dead."""
        return self._end

    def close(self, timeout: float) -> None:
        """Ends the session and waits until the server has released what it owned."""
        self._over.set()
        self._reader.join(timeout)
        self._call.cancel()
        self._reader.join()

    def _heartbeats(self) -> Iterator[memory_pb2.OpenSessionRequest]:
        """Runs in gRPC's thread."""
        yield memory_pb2.OpenSessionRequest(tenant=self._tenant)
        self._opened.wait()
        while not self._over.wait(self._interval):
            yield memory_pb2.OpenSessionRequest()

    def _read(self) -> None:
        try:
            for terms in self._call:
                self.session_id = terms.session_id
                self._interval = max(0.01, terms.lease.ToTimedelta().total_seconds() / 3)
                self._opened.set()
        except grpc.RpcError as error:
            self._end = f"{error.code().name}: {error.details()}"
        finally:
            self._over.set()
            self._opened.set()


class SharedMemory(Closing):
    """What one tenant's client shares with a server. Client.memory() makes it; closed with the client.

    Thread contract: every method from any thread.
    """

    def __init__(self, channel: grpc.Channel, tenant: str = "", timeout: float = 10.0) -> None:
        """timeout: seconds, of every call."""
        self._memory = memory_pb2_grpc.MemoryStub(channel)  # type: ignore[no-untyped-call]
        self._bridge = transfer_pb2_grpc.KvBridgeStub(channel)  # type: ignore[no-untyped-call]
        self._tenant = tenant
        self._timeout = timeout
        self._lock = threading.RLock()
        self._lease: Lease | None = None
        self._regions: list[Region] = []
        self._refusal: MemoryUnavailable | None = None
        self._retry_at = 0.0
        self._pid = os.getpid()

    def close(self) -> None:
        """Ends the session; the server lets go of everything. Arrays that lie in regions stay valid."""
        with self._lock:
            if self._lease is not None and self._pid == os.getpid():
                self._lease.close(self._timeout)
            self._lease = None
            for region in self._regions:
                region.close()
            self._regions.clear()
            self._refusal = MemoryUnavailable("asked", "the memory was closed")
            self._retry_at = float("inf")

    def allocate(
        self,
        size: int,
        *,
        writable: bool = True,
        numa_node: int | None = None,
        deadline: float | None = None,
    ) -> Region:
        """Memory that the server allocates, touched already, on its account and in huge pages where the host has
        them. It is wiped when the session ends, so that it can hold no cache whose loss would hurt.

        size: bytes, rounded up to whole pages. writable: targets may lie in it. deadline: time.monotonic() at
        which to give up; default: each call has `timeout` seconds. MemoryUnavailable says why there is none."""
        size = page_multiple(size)
        request = memory_pb2.RegisterRegionRequest(bytes=size, writable=writable, numa_node=numa_node)
        with self._lock:
            lease = self.lease(deadline)
            request.session_id = lease.session_id
            granted = self._call(self._memory.RegisterRegion, request, deadline)
            try:
                with SideSocket(lease.socket_path, self._left(deadline)) as side:
                    fd = side.claim(lease.session_id, granted.ticket)
                region = Region(fd, size, writable, lease.session_id)
            except (OSError, SideSocketRefused) as error:
                self._unregister(lease, granted.region_id)
                raise _unavailable(error) from None
            lease.region_ids[region] = granted.region_id
            self._regions.append(region)
            return region

    def share(self, size: int, *, writable: bool = True) -> Region:
        """As allocate(), memory of this process's own, which the server only maps, when a pool in it is first
        used: an engine may start before its server. MemoryUnavailable when the host has none left."""
        size = page_multiple(size)
        try:
            region = Region(sealed_memory(size), size, writable)
        except OSError as error:
            detail = f"memfd of {size} bytes: {error.strerror}"
            raise MemoryUnavailable("no_room", detail) from None
        with self._lock:
            self._regions.append(region)
        return region

    def named(self, name: str, *, writable: bool = True) -> Region:
        """As share(), a segment that is in /dev/shm already (multiprocessing.shared_memory, shm_open), for engines
        that have one, and for servers that descriptors don't reach. The server opens it by its name, which its
        configuration has to allow (`memory.named_shm`); otherwise pools in it go inline.

        It stays its maker's, to unlink too. Nobody may cut it short while it is used: transfers would fall back
        with transport, and this process would get SIGBUS. ValueError when it can't be opened or has not a page."""
        name = name.removeprefix("/")
        try:
            fd, size = named_segment(name)
            region = Region(fd, size, writable, shm_name=name)
        except (OSError, ValueError) as error:
            raise ValueError(f"shared memory {name}: {error}") from None
        with self._lock:
            self._regions.append(region)
        return region

    def arena(self, size: int) -> RegionArena:
        """Own memory that an engine allocates its cache in."""
        return RegionArena(self.share(size))

    def pool(
        self,
        spec: types_pb2.ModelSpec,
        keys: Sequence[Any],
        values: Sequence[Any],
        *,
        axes: Sequence[str] = TOKENS_FIRST,
        scales: Sequence[types_pb2.LayerScales] = (),
    ) -> Pool:
        """A cache that lies in regions of this memory, from its arrays or tensors, one of each per layer
        (pools.py says how engines' layouts read). Registered when it is first used."""
        with self._lock:
            return describe(spec, keys, values, axes, self._regions, scales)

    def release(self, region: Region) -> None:
        """Gives a region back, and the pools that lie in it."""
        with self._lock:
            if region in self._regions:
                self._regions.remove(region)
                if self._lease is not None:
                    self._forget(self._lease, region)
            region.close()

    def lease(self, deadline: float | None = None) -> Lease:
        """The session, opened now if there is none; MemoryUnavailable says why there can't be one."""
        with self._lock:
            if self._lease is not None and self._lease.alive:
                return self._lease
            if self._lease is not None:
                self._lease.close(0.0)
                self._lease = None
            if self._refusal is not None and time.monotonic() < self._retry_at:
                raise self._refusal
            try:
                path = self._side_socket_path(deadline)
                self._lease = Lease(self._memory, self._tenant, path, self._left(deadline))
            except MemoryUnavailable as refusal:
                self._refusal, self._retry_at = refusal, time.monotonic() + _RETRY_AFTER
                raise
            return self._lease

    def locate(self, cache: PagedCache, deadline: float | None = None) -> types_pb2.PoolLocation:
        """Where pages of one of this memory's pools are in the session that is open; the pool is registered first
        where it isn't yet. An engine hands it to whoever moves a cache into these pages (`target_pages` of
        Client.transfer), in another process of the same tenant or on another host.

        It stays good until this memory is closed, the region released, or the session lost with the server: after
        that a transfer that names it falls back with invalid_request, and a new one has to be made. Writers are
        not kept apart: between handing it over and the end of the transfer the pages are the transfer's. deadline:
        as allocate()'s. MemoryUnavailable when the server can't map the pool."""
        pool = cache.pool
        with self._lock:
            lease = self.lease(deadline)
            if any(region.session_id not in ("", lease.session_id) for region in pool.regions):
                detail = "the pool's memory was the server's, and went with its session"
                raise MemoryUnavailable("session_lost", detail)
            if pool not in lease.pools:
                for region in pool.regions:
                    if region not in lease.region_ids:
                        self._register(lease, region, deadline)
                request = pool.request(lease.session_id, lease.region_ids)
                granted = self._call(self._memory.RegisterPool, request, deadline)
                lease.pools[pool] = (granted.pool_id, granted.generation)
            pool_id, generation = lease.pools[pool]
        return types_pb2.PoolLocation(pool_id=pool_id, generation=generation, pages=cache.pages)

    def still_there(self) -> bool:
        """Asks the server whether it knows the session."""
        with self._lock:
            lease = self._lease
        if lease is None or not lease.alive:
            return False
        try:
            self._memory.List(
                memory_pb2.ListRequest(session_id=lease.session_id), timeout=self._timeout
            )
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                lease.close(0.0)
            lost: bool = error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
            return not lost
        return True

    def _register(self, lease: Lease, region: Region, deadline: float | None = None) -> None:
        """Offers memory that this process holds."""
        request = memory_pb2.RegisterRegionRequest(
            session_id=lease.session_id, bytes=region.size, writable=region.writable
        )
        if region.shm_name:
            request.shm_name = region.shm_name
        else:
            try:
                with SideSocket(lease.socket_path, self._left(deadline)) as side:
                    request.ticket = side.deposit(lease.session_id, region.fd)
            except (OSError, SideSocketRefused) as error:
                raise _unavailable(error) from None
        granted = self._call(self._memory.RegisterRegion, request, deadline)
        lease.region_ids[region] = granted.region_id

    def _forget(self, lease: Lease, region: Region) -> None:
        region_id = lease.region_ids.pop(region, "")
        for pool in [pool for pool in lease.pools if region in pool.regions]:
            del lease.pools[pool]
        if region_id and lease.alive:
            self._unregister(lease, region_id)

    def _unregister(self, lease: Lease, region_id: str) -> None:
        request = memory_pb2.UnregisterRequest(session_id=lease.session_id, id=region_id)
        try:
            self._memory.Unregister(request, timeout=self._timeout)
        except grpc.RpcError:
            pass  # the end of the session releases it

    def _side_socket_path(self, deadline: float | None) -> str:
        request = transfer_pb2.GetCapabilitiesRequest()
        answer = self._call(self._bridge.GetCapabilities, request, deadline)
        if types_pb2.PLANE_REGION not in answer.planes or not answer.memory_socket:
            raise MemoryUnavailable("not_offered", "the server offers no regions")
        try:
            os.stat(answer.memory_socket)
        except OSError:
            detail = "the server's side socket is not on this host, or not visible here"
            raise MemoryUnavailable("other_host", detail) from None
        path: str = answer.memory_socket
        return path

    def _left(self, deadline: float | None) -> float:
        """Seconds for the next call."""
        if deadline is None:
            return self._timeout
        return max(0.001, min(self._timeout, deadline - time.monotonic()))

    def _call(self, method: Any, request: Any, deadline: float | None) -> Any:
        try:
            return method(request, timeout=self._left(deadline))
        except grpc.RpcError as error:
            raise _unavailable(error) from None


def _unavailable(error: Exception) -> MemoryUnavailable:
    """A refusal in the closed list's words."""
    if isinstance(error, SideSocketRefused):
        return MemoryUnavailable(_word(error.code), f"side socket: {error.detail}")
    if isinstance(error, grpc.RpcError):
        return MemoryUnavailable(_word(error.code()), f"{error.code().name}: {error.details()}")
    return MemoryUnavailable("other_host", f"side socket: {error}")


def _word(code: grpc.StatusCode) -> str:
    return {
        grpc.StatusCode.RESOURCE_EXHAUSTED: "no_room",
        grpc.StatusCode.UNIMPLEMENTED: "not_offered",
        grpc.StatusCode.NOT_FOUND: "session_lost",
        grpc.StatusCode.UNAVAILABLE: "session_lost",
        grpc.StatusCode.DEADLINE_EXCEEDED: "session_lost",
    }.get(code, "refused")
