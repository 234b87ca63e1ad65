"""Memory that this process and kvbridged both have mapped, and caches allocated in it.

What this process allocates (SharedMemory.share) is its own: it stays what it is whatever becomes of the server, as
long as an array or a tensor lies in it, and a later session registers the same memory again. So does a segment that
somebody made and named (SharedMemory.named). What the server allocates (SharedMemory.allocate) it wipes when the
session ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvbridge.arrays import Array

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 256  # of arrays in an arena, bytes: whole vectors and cache lines
# The server maps no memory that its owner could cut off under its feet.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Region:
    """A piece of shared memory, made by SharedMemory.share(), allocate() or named(). `size` in bytes."""

    def __init__(
        self, fd: int, size: int, writable: bool, session_id: str = "", shm_name: str = ""
    ) -> None:
        """Takes `fd` over, also when it fails."""
        self.size = size
        self.writable = writable  # by the server: targets may lie in it
        self.session_id = session_id  # that the memory ends with; empty = it is this process's own
        self.shm_name = shm_name  # that the server opens it by; empty = by its descriptor
        self._fd = fd
        try:
            self._bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        except BaseException:
            self.close()
            raise
        self.address = self._bytes.ctypes.data

    @property
    def fd(self) -> int:
        """Of the memory; -1 once closed."""
        return self._fd

    def array(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> Array:
        """A C-ordered array over the memory from `offset` bytes on; nothing is copied or cleared."""
        kind = np.dtype(dtype)
        end = offset + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if not 0 <= offset <= end <= self.size:
            raise ValueError(f"array: expected within {self.size} bytes, got [{offset}, {end})")
        array: Array = self._bytes[offset:end].view(kind).reshape(shape)
        return array

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """As array(), a torch tensor on the CPU."""
        import torch

        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return torch.from_numpy(self.array([size], np.uint8, offset)).view(dtype).view(*shape)

    def holds(self, address: int) -> bool:
        """Whether an address of this process lies in it."""
        return 0 <= address - self.address < self.size

    def close(self) -> None:
        """Closes the descriptor. The map goes with the last array or tensor that lies in it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._bytes = np.empty(0, np.uint8)


class RegionArena:
    """Allocates an engine's cache in a region, one array after the other, so that the cache is the pool.

    Nothing is given back: a cache lives as long as its engine.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """An array that is not cleared. ValueError when the region is full."""
        kind = np.dtype(dtype)
        return self.region.array(shape, kind, self._place(shape, kind.itemsize))

    def empty_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As empty(), a torch tensor."""
        return self.region.tensor(shape, dtype, self._place(shape, dtype.itemsize))

    def _place(self, shape: Sequence[int], itemsize: int) -> int:
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        end = begin + int(np.prod(shape, dtype=np.int64)) * itemsize
        if end > self.region.size:
            raise ValueError(
                f"arena: expected at most {self.region.size - begin} bytes more, got {end - begin}"
            )
        self._used = end
        return begin


def named_segment(name: str) -> tuple[int, int]:
    """A descriptor of a segment in /dev/shm, and the bytes of its whole pages. OSError when it can't be opened,
    ValueError when it has not a page."""
    fd = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    size = os.fstat(fd).st_size
    if size < mmap.PAGESIZE:
        os.close(fd)
        raise ValueError(f"expected at least {mmap.PAGESIZE} bytes, got {size}")
    return fd, size // mmap.PAGESIZE * mmap.PAGESIZE


def page_multiple(size: int) -> int:
    """`size` bytes as whole pages of memory."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def sealed_memory(size: int) -> int:
    """A descriptor of fresh memory that can neither shrink nor grow. OSError when the host has none left:
    it is allocated here and now, so that no later access can fail."""
    fd = os.memfd_create("kvbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
