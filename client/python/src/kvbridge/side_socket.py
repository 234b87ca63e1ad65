"""The side socket of kvbridged: file descriptors travel over it, gRPC carries everything else.

One packet each way (SOCK_SEQPACKET). Request: magic, a verb, the session's id, and for a claim the ticket.
Answer: one byte of status; then the ticket (deposit), the descriptor itself (claim), or a sentence (an error).
"""

from __future__ import annotations

import os
import socket

import grpc

from kvbridge.closing import Closing

_MAGIC = b"KVBFD\0\0\1"
_DEPOSIT, _CLAIM = b"D", b"C"
_MAX_ANSWER = 1 + 256
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class SideSocketRefused(Exception):
    """The server said no, in words."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(f"{code.name}: {detail}")
        self.code = code
        self.detail = detail


class SideSocket(Closing):
    """One connection, for a few exchanges. Use as a context manager; OSError when nobody answers there.

    path: as GetCapabilities.memory_socket says. timeout: seconds, of each exchange.

    Thread contract: one thread at a time.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def deposit(self, session_id: str, fd: int) -> str:
        """Hands a copy of a descriptor over; the ticket that RegisterRegion names it by."""
        answer, fds = self._exchange(_DEPOSIT + session_id.encode(), [fd])
        _close(fds)
        return answer.decode()

    def claim(self, session_id: str, ticket: str) -> int:
        """The descriptor behind RegisterRegion's ticket, which is used up. The caller closes it."""
        _, fds = self._exchange(_CLAIM + session_id.encode() + ticket.encode(), [])
        if len(fds) != 1:
            _close(fds)
            raise OSError(f"side socket: expected one descriptor, got {len(fds)}")
        return fds[0]

    def _exchange(self, request: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        socket.send_fds(self._socket, [_MAGIC + request], fds)
        answer, received, _, _ = socket.recv_fds(
            self._socket, _MAX_ANSWER, 1, socket.MSG_CMSG_CLOEXEC
        )
        if not answer:
            raise OSError("side socket: closed without an answer")
        if answer[0]:
            _close(received)
            code = _CODES.get(answer[0], grpc.StatusCode.UNKNOWN)
            raise SideSocketRefused(code, answer[1:].decode(errors="replace"))
        return answer[1:], list(received)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
