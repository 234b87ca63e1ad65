"""The Memory service and the side socket in Python, for what a real kvbridged does not do on request: refuse, forget
a session, offer nothing. `FakeMemory.view` is how FakeServer reads and writes what clients share."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import threading

import grpc
import numpy as np
from kvbridge.arrays import storage_dtype
from kvbridge.v1 import memory_pb2, memory_pb2_grpc

MAGIC = b"KVBFD\0\0\1"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class FakeMemory(memory_pb2_grpc.MemoryServicer):
    """One per FakeServer. `refuse_regions`: a status code for RegisterRegion. lease: seconds."""

    def __init__(self, folder, lease: float = 30.0) -> None:
        self.path = f"{folder}/memory.sock"
        self.lease = lease
        self.refuse_regions: grpc.StatusCode | None = None
        self.sessions: set[str] = set()
        self.heartbeats = 0
        self.tokens: set[str] = set()
        self.regions: dict[str, mmap.mmap] = {}
        self.pools: dict[str, tuple[int, memory_pb2.RegisterPoolRequest]] = {}
        self._tickets: dict[str, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        os.unlink(self.path)
        self.forget()

    def forget(self) -> None:
        """As a server that was restarted."""
        self.sessions.clear()
        self.regions.clear()
        self.pools.clear()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while self._exchange(connection):
                    pass

    def _exchange(self, connection) -> bool:
        packet, fds, _, _ = socket.recv_fds(connection, 128, 1)
        if not packet:
            return False
        verb, session, ticket = packet[8:9], packet[9:41].decode(), packet[41:].decode()
        if packet[:8] != MAGIC or session not in self.sessions:
            connection.send(bytes([5]) + b"session: not known")
        elif verb == b"D":
            connection.send(b"\0" + self._keep(fds[0]).encode())
            return True
        else:
            fd = self._tickets.pop(ticket)
            socket.send_fds(connection, [b"\0"], [fd])
            os.close(fd)
            return True
        return False

    def _keep(self, fd: int) -> str:
        ticket = secrets.token_hex(16)
        self._tickets[ticket] = fd
        return ticket

    def OpenSession(self, requests, context):  # noqa: N802
        self.tokens.add(dict(context.invocation_metadata()).get("authorization", ""))
        next(requests)
        session = secrets.token_hex(16)
        self.sessions.add(session)
        terms = memory_pb2.OpenSessionResponse(session_id=session)
        terms.lease.FromMilliseconds(int(self.lease * 1000))
        yield terms
        for _ in requests:
            self.heartbeats += 1
            yield terms
        self.forget()

    def RegisterRegion(self, request, context):  # noqa: N802
        self.tokens.add(dict(context.invocation_metadata()).get("authorization", ""))
        if self.refuse_regions is not None:
            context.abort(self.refuse_regions, "asked for")
        ticket = ""
        if request.ticket:
            fd = self._tickets.pop(request.ticket)
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
        else:
            fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING)
            os.posix_fallocate(fd, 0, request.bytes)
            ticket = self._keep(os.dup(fd))
        region_id = secrets.token_hex(16)
        self.regions[region_id] = mmap.mmap(fd, request.bytes)
        os.close(fd)
        return memory_pb2.RegisterRegionResponse(region_id=region_id, generation=1, ticket=ticket)

    def RegisterPool(self, request, context):  # noqa: N802
        pool_id = secrets.token_hex(16)
        self.pools[pool_id] = (len(self.pools) + 7, request)
        return memory_pb2.RegisterPoolResponse(pool_id=pool_id, generation=self.pools[pool_id][0])

    def Unregister(self, request, context):  # noqa: N802
        self.regions.pop(request.id, None)
        return memory_pb2.UnregisterResponse()

    def List(self, request, context):  # noqa: N802
        if request.session_id not in self.sessions:
            context.abort(grpc.StatusCode.NOT_FOUND, "session_id: not known")
        return memory_pb2.ListResponse(region_ids=self.regions, pool_ids=self.pools)

    def knows(self, location) -> bool:
        return self.pools.get(location.pool_id, (None,))[0] == location.generation

    def views(self, location):
        """[layers][2] views [pages, tokens, heads, dim] of a located pool."""
        _, pool = self.pools[location.pool_id]
        geometry = pool.model.geometry
        shape = (pool.pages, pool.tokens_per_page, geometry.kv_heads, geometry.head_dim)
        kind = storage_dtype(geometry.element_type)
        return [
            [
                np.ndarray(
                    shape,
                    kind,
                    self.regions[plane.region_id],
                    plane.base_offset,
                    (plane.page_stride, plane.token_stride, plane.head_stride, kind.itemsize),
                )
                for plane in pair
            ]
            for pair in zip(pool.keys, pool.values)
        ]
