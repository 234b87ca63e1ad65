"""Paged caches that lie in regions, described by byte strides: every layout that an engine has, none by name.

The tensors say where things are; the caller says what their axes mean, because shapes can't: 16 heads of 16
tokens look the same either way round.

    vLLM  [2, pages, tokens, heads, dim]      keys=[c[0] for c in caches], values=[c[1] for c in caches]
          [pages, 2, tokens, heads, dim]      keys=[c[:, 0] ...], values=[c[:, 1] ...]
          either, stored heads first (HND)    the same views, permuted to the order of `axes`
          [pages, heads, tokens, 2 * dim]     keys=[c[..., :dim] ...], axes=HEADS_FIRST
    Hugging Face [heads, tokens, dim]         one page: axes=ONE_PAGE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.arrays import Array, element_type, storage_dtype
from kvbridge.region import Region
from kvbridge.v1 import memory_pb2, types_pb2

TOKENS_FIRST = ("page", "token", "head", "dim")
HEADS_FIRST = ("page", "head", "token", "dim")
ONE_PAGE = ("head", "token", "dim")


@dataclass(frozen=True)
class Plane:
    """K or V of one layer, all in bytes."""

    region: Region
    offset: int  # of page 0, slot 0, head 0
    page_stride: int
    token_stride: int
    head_stride: int


class Pool:
    """A cache that kvbridged reads and writes where it lies. Made by SharedMemory.pool()."""

    def __init__(
        self,
        spec: types_pb2.ModelSpec,
        planes: Sequence[Plane],
        pages: int,
        tokens_per_page: int,
        scales: Sequence[types_pb2.LayerScales] = (),
    ) -> None:
        """planes: K of layer l at 2 l, V at 2 l + 1."""
        self.spec = types_pb2.ModelSpec()
        self.spec.CopyFrom(spec)
        self.planes = list(planes)
        self.pages = pages
        self.tokens_per_page = tokens_per_page
        self.scales = list(scales)

    @property
    def regions(self) -> list[Region]:
        """That it lies in, each once."""
        return list(dict.fromkeys(plane.region for plane in self.planes))

    @property
    def own(self) -> bool:
        """Whether all of it is this process's own memory, which nobody else can wipe."""
        return not any(region.session_id for region in self.regions)

    def select(self, pages: Sequence[int], tokens: int) -> PagedCache:
        """The cache of `tokens` tokens that lie in these pages, in token order."""
        return PagedCache(self, tuple(int(page) for page in pages), tokens)

    def plane_view(self, plane: Plane) -> Array:
        """[pages, tokens_per_page, kv_heads, head_dim] over the memory, in the storage dtype."""
        geometry = self.spec.geometry
        kind = storage_dtype(geometry.element_type)
        shape = (self.pages, self.tokens_per_page, geometry.kv_heads, geometry.head_dim)
        strides = (plane.page_stride, plane.token_stride, plane.head_stride, kind.itemsize)
        end = plane.offset + sum((n - 1) * s for n, s in zip(shape, strides)) + kind.itemsize
        flat = plane.region.array([end - plane.offset], np.uint8, plane.offset)
        view: Array = np.ndarray(shape, kind, flat, strides=strides)
        return view

    def request(
        self, session_id: str, region_ids: dict[Region, str]
    ) -> memory_pb2.RegisterPoolRequest:
        """What makes it known to a session. region_ids: of its regions."""
        planes = [
            memory_pb2.PoolPlane(
                region_id=region_ids[plane.region],
                base_offset=plane.offset,
                page_stride=plane.page_stride,
                token_stride=plane.token_stride,
                head_stride=plane.head_stride,
            )
            for plane in self.planes
        ]
        for layer, scales in enumerate(self.scales):
            planes[2 * layer].scales.extend(scales.key)
            planes[2 * layer + 1].scales.extend(scales.value)
        return memory_pb2.RegisterPoolRequest(
            session_id=session_id,
            model=self.spec,
            tokens_per_page=self.tokens_per_page,
            pages=self.pages,
            keys=planes[::2],
            values=planes[1::2],
        )


@dataclass(frozen=True)
class PagedCache:
    """One sequence in a pool: a page table."""

    pool: Pool
    pages: tuple[int, ...]  # physical, in token order
    tokens: int

    def __post_init__(self) -> None:
        need = -(-self.tokens // self.pool.tokens_per_page)
        if self.tokens < 1 or len(self.pages) != need:
            raise ValueError(
                f"pages: expected {need} for {self.tokens} tokens of {self.pool.tokens_per_page} per page, "
                f"got {len(self.pages)}"
            )
        for index, page in enumerate(self.pages):
            if page >= self.pool.pages:  # -1 is the server's to answer: evicted
                raise ValueError(f"pages[{index}]: expected below {self.pool.pages}, got {page}")

    def gather(self) -> tuple[list[Array], list[Array]]:
        """A copy: keys and values by layer, [kv_heads, tokens, head_dim]. For a server that can't map the pool."""
        geometry = self.pool.spec.geometry
        parts = []
        for plane in self.pool.planes:
            rows = self.pool.plane_view(plane)[list(self.pages)]
            rows = rows.reshape(-1, geometry.kv_heads, geometry.head_dim)[: self.tokens]
            parts.append(rows.transpose(1, 0, 2))
        return parts[::2], parts[1::2]

    def scatter(self, keys: Array, values: Array, first_token: int = 0) -> None:
        """Writes tokens [first_token, ...) given as [layers, kv_heads, tokens, head_dim]; the slots after the
        last one of its page become zero, as a server leaves them."""
        size = self.pool.tokens_per_page
        end = first_token + keys.shape[2]
        for index, plane in enumerate(self.pool.planes):
            view = self.pool.plane_view(plane)
            rows = (keys, values)[index % 2][index // 2].transpose(1, 0, 2)
            for begin in range(first_token // size * size, end, size):
                page = view[self.pages[begin // size]]
                low, high = max(begin, first_token), min(begin + size, end)
                page[low - begin : high - begin] = rows[low - first_token : high - first_token]
                page[high - begin :] = 0


def describe(
    spec: types_pb2.ModelSpec,
    keys: Sequence[Any],
    values: Sequence[Any],
    axes: Sequence[str],
    regions: Sequence[Region],
    scales: Sequence[types_pb2.LayerScales] = (),
) -> Pool:
    """A pool from NumPy arrays or torch tensors, one of each per layer; ValueError names what doesn't fit.

    axes: what each tensor's axes mean: TOKENS_FIRST, HEADS_FIRST, ONE_PAGE or another order of these words.
    """
    geometry = spec.geometry
    for name, part in (("keys", keys), ("values", values)):
        if len(part) != geometry.layers:
            raise ValueError(f"{name}: expected {geometry.layers} layers, got {len(part)}")
    if sorted(axes) not in (sorted(TOKENS_FIRST), sorted(ONE_PAGE)):
        raise ValueError(f"axes: expected an order of {TOKENS_FIRST}, got {tuple(axes)}")
    planes, extents = [], None
    for layer, pair in enumerate(zip(keys, values)):
        for name, tensor in zip(("keys", "values"), pair):
            where = f"{name}[{layer}]"
            plane, extent = _plane(where, tensor, axes, geometry, regions)
            if extents is not None and extent != extents:
                raise ValueError(f"{where}: expected (pages, tokens) {extents} as keys[0], got {extent}")
            extents = extent
            planes.append(plane)
    assert extents is not None
    return Pool(spec, planes, *extents, scales)


def _plane(
    where: str,
    tensor: Any,
    axes: Sequence[str],
    geometry: types_pb2.KvGeometry,
    regions: Sequence[Region],
) -> tuple[Plane, tuple[int, int]]:
    """One plane, and its pages and tokens per page."""
    address, shape, strides = _memory_of(where, tensor, geometry.element_type)
    if len(shape) != len(axes):
        raise ValueError(f"{where}: expected the axes {tuple(axes)}, got the shape {shape}")
    size, step = dict(zip(axes, shape)), dict(zip(axes, strides))
    itemsize = storage_dtype(geometry.element_type).itemsize
    for axis, expected in (("head", geometry.kv_heads), ("dim", geometry.head_dim)):
        if size[axis] != expected:
            raise ValueError(f"{where}: {axis}: expected {expected}, got {size[axis]}")
    if step["dim"] != itemsize and size["dim"] > 1:
        raise ValueError(f"{where}: dim: expected contiguous elements, got a stride of {step['dim']}")
    region = next((region for region in regions if region.holds(address)), None)
    if region is None:
        raise ValueError(f"{where}: expected memory of a region (RegionArena), got other memory")
    extent = sum((n - 1) * s for n, s in zip(shape, strides)) + itemsize
    if min(strides) < 0 or address - region.address + extent > region.size:
        raise ValueError(f"{where}: expected memory of one region, got {extent} bytes beyond its end")
    plane = Plane(
        region=region,
        offset=address - region.address,
        page_stride=step.get("page", size["token"] * step["token"]),
        token_stride=step["token"],
        head_stride=step["head"],
    )
    return plane, (size.get("page", 1), size["token"])


def _memory_of(
    where: str, tensor: Any, kind: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Address, shape and byte strides of an array or tensor of wire type `kind`."""
    if hasattr(tensor, "data_ptr"):
        if element_type(str(tensor.dtype)) != kind:
            raise ValueError(f"{where}: expected the spec's element type, got {tensor.dtype}")
        width = tensor.element_size()
        return tensor.data_ptr(), tuple(tensor.shape), tuple(s * width for s in tensor.stride())
    array: npt.NDArray[Any] = np.asarray(tensor)
    if array.dtype != storage_dtype(kind):
        raise ValueError(f"{where}: expected {storage_dtype(kind)}, got {array.dtype}")
    return array.ctypes.data, array.shape, array.strides
