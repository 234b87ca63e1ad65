"""A small kvbridged in Python: the Transfer contract over a float32 map of a Python KVBridge artifact.

It is the tests' oracle for the map and their stand-in for a server that misbehaves on purpose (see `Faults`).
Slow, single-tile, and no judge of quality: no policy but the reasons that tests ask for.
"""

from __future__ import annotations

import json
import threading
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import crc32c
import grpc
import numpy as np
from kvbridge.arrays import bf16_to_float32, float32_to_bf16, storage_dtype
from fake_memory import FakeMemory
from kvbridge.cache_file import read_safetensors
from kvbridge.v1 import memory_pb2_grpc, plan_pb2, transfer_pb2, transfer_pb2_grpc, types_pb2

KEY, VALUE = types_pb2.COMPONENT_KEY, types_pb2.COMPONENT_VALUE


def as_float32(array: np.ndarray) -> np.ndarray:
    """A stored tensor or cache as float32; bf16 comes as uint16 bits."""
    return bf16_to_float32(array) if array.dtype == np.uint16 else np.asarray(array, np.float32)


def rotate(keys: np.ndarray, positions: np.ndarray, rope, sign: float) -> np.ndarray:
    """a R(position) or, with sign -1, its inverse, on the first rotary_dim dimensions of [heads, tokens, dim]."""
    angle = np.outer(positions, np.asarray(rope.inv_freq)) * sign
    scale = (rope.attention_factor or 1.0) ** sign
    cos, sin = (scale * f(angle).astype(np.float32) for f in (np.cos, np.sin))
    half, dim = len(rope.inv_freq), rope.rotary_dim
    first, second = (
        (slice(0, half), slice(half, dim))
        if rope.pairing == types_pb2.PAIRING_HALF
        else (slice(0, dim, 2), slice(1, dim, 2))
    )
    out = keys.copy()
    out[..., first] = keys[..., first] * cos - keys[..., second] * sin
    out[..., second] = keys[..., second] * cos + keys[..., first] * sin
    return out


@dataclass
class ReferenceMap:
    """A Python KVBridge artifact (schema 1) in float32, with the two ropes that it does not carry."""

    source: types_pb2.ModelSpec
    target: types_pb2.ModelSpec
    selected: list[list[int]]
    tensors: dict[str, np.ndarray]
    gamma: list[np.ndarray] | None = None  # key renormalisation: the target's k_norm weights by layer
    eps: float = 1e-6
    bf16_features: bool = False  # round what the products read, as a server with precision bf16 does

    @classmethod
    def load(cls, folder: Path, source, target, gamma=None) -> ReferenceMap:
        manifest = json.loads((folder / "manifest.json").read_text())
        raw, _ = read_safetensors(folder / "mapper.safetensors")
        tensors = {name: as_float32(np.array(tensor)) for name, tensor in raw.items()}
        return cls(source, target, manifest["selected_layers"], tensors, gamma)

    def __call__(self, keys, values, positions) -> tuple[np.ndarray, np.ndarray]:
        """[layers, heads, tokens, dim] float32, keys rotated, to the target's."""
        stripped = np.stack([
            rotate(k, positions, self.source.rope.params, -1.0) for k in as_float32(np.asarray(keys))
        ])
        values = as_float32(np.asarray(values))
        out_keys, out_values = [], []
        for layer, sources in enumerate(self.selected):
            key = self._project(stripped, sources, layer, "key")
            if self.gamma is not None:
                unscaled = key / self.gamma[layer]
                key = key / np.sqrt(np.mean(unscaled**2, -1, keepdims=True) + self.eps)
            out_keys.append(rotate(key, positions, self.target.rope.params, 1.0))
            out_values.append(self._project(values, sources, layer, "value"))
        return np.stack(out_keys), np.stack(out_values)

    def _project(self, cache, sources, layer, part) -> np.ndarray:
        features = np.concatenate(
            [cache[s].transpose(1, 0, 2).reshape(cache.shape[2], -1) for s in sources], axis=1
        )
        if self.bf16_features:
            features = bf16_to_float32(float32_to_bf16(features))
        weight, bias = self.tensors[f"{part}_weight.{layer}"], self.tensors[f"{part}_bias.{layer}"]
        return np.einsum("nf,hfd->hnd", features, weight, optimize=True) + bias[:, None]


@dataclass
class Faults:
    """What the server does wrong, or refuses."""

    decide: tuple[int, int, int, str] | None = None  # outcome, reason, class, detail: without mapping
    abort: grpc.StatusCode | None = None
    flip_answer_byte: bool = False  # after the checksum was taken
    omit_last_chunk: bool = False
    repeat_chunk: bool = False
    no_decision: bool = False
    hang: threading.Event | None = None  # wait for it after Accepted


@dataclass
class FakeServer(transfer_pb2_grpc.KvBridgeServicer):
    """Serves one route. Use as a context manager; `address` is then dialled. Without `memory` it offers none."""

    mapper: ReferenceMap
    route: str = "pair"
    faults: Faults = field(default_factory=Faults)
    headers: list[transfer_pb2.TransferHeader] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)  # ReadyUpTo messages
    tokens: list[tuple[str, str]] = field(default_factory=list)  # by call
    address: str = ""
    memory: FakeMemory | None = None
    artifact: str = "0" * 64

    def __enter__(self) -> FakeServer:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        transfer_pb2_grpc.add_KvBridgeServicer_to_server(self, self._server)
        if self.memory is not None:
            memory_pb2_grpc.add_MemoryServicer_to_server(self.memory, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.stop(0).wait()

    def _note(self, call, context):
        self.tokens.append((call, dict(context.invocation_metadata()).get("authorization", "")))

    def Health(self, request, context):  # noqa: N802
        self._note("Health", context)
        health = transfer_pb2.RouteHealth(route=self.route, serving=True)
        return transfer_pb2.HealthResponse(state=transfer_pb2.SERVER_STATE_READY, routes=[health])

    def GetCapabilities(self, request, context):  # noqa: N802
        self._note("GetCapabilities", context)
        info = transfer_pb2.RouteInfo(
            route=self.route, source=self.mapper.source, target=self.mapper.target
        )
        answer = transfer_pb2.GetCapabilitiesResponse(version="fake", routes=[info])
        if self.memory is not None:
            answer.planes.append(types_pb2.PLANE_REGION)
            answer.memory_socket = self.memory.path
        return answer

    def Plan(self, request, context):  # noqa: N802
        covered = request.prompt_tokens - max(1, request.native_tail)
        return plan_pb2.PlanResponse(worth_it=covered > 0, covered_tokens=covered)

    def Transfer(self, requests, context):  # noqa: N802
        self._note("Transfer", context)
        header = next(requests).header
        self.headers.append(header)
        if self.faults.abort is not None:
            context.abort(self.faults.abort, "asked for")
        selection, limits = header.source_selection, header.limits
        prompt = header.prompt_tokens or selection.tokens
        covered = min(selection.tokens, prompt - max(1, limits.native_tail))
        if limits.max_covered_tokens:
            covered = min(covered, limits.max_covered_tokens)
        refusal = self.faults.decide or _refusal(header, self.mapper, covered) or self._lost(header)
        if refusal is not None:
            yield _completed(*refusal)
            return
        yield transfer_pb2.TransferEvent(
            accepted=transfer_pb2.TransferAccepted(covered_tokens=covered, tile_tokens=256)
        )
        if self.faults.hang is not None:
            self.faults.hang.wait()
            return
        source = self._source(header, requests)
        positions = np.asarray(selection.positions.list or range(selection.tokens))[:covered]
        keys, values = self.mapper(*(part[:, :, :covered] for part in source), positions)
        pads = int(np.sum(positions < 0))
        keys[:, :, :pads], values[:, :, :pads] = 0, 0
        if not (np.isfinite(keys).all() and np.isfinite(values).all()):
            yield _completed(
                types_pb2.OUTCOME_FALLBACK_REPREFILL,
                types_pb2.REASON_NON_FINITE,
                types_pb2.REASON_CLASS_QUALITY,
                "mapped cache: not finite",
            )
            return
        if header.target_selection.HasField("pool"):
            yield from self._write(header, keys, values)
        else:
            yield from self._answer(header, keys, values)
        if not self.faults.no_decision:
            decision = transfer_pb2.Decision(
                outcome=types_pb2.OUTCOME_APPLIED,
                covered_tokens=covered,
                hops=header.hops + 1,
                approximate=True,
                salt="salt",
                artifact_digest=self.artifact,
                route=self.route,
                token_ids_sha256=selection.token_ids_sha256,
            )
            yield transfer_pb2.TransferEvent(
                completed=transfer_pb2.TransferCompleted(decision=decision)
            )

    def _lost(self, header):
        for selection in (header.source_selection, header.target_selection):
            if selection.HasField("pool") and not self.memory.knows(selection.pool):
                detail = "pool: not known"
                return (2, types_pb2.REASON_INVALID_REQUEST, types_pb2.REASON_CLASS_CLIENT, detail)
        if header.artifact_digest not in ("", self.artifact):
            detail = "artifact_digest: another is in use"
            return (2, types_pb2.REASON_ARTIFACT_UNAVAILABLE, types_pb2.REASON_CLASS_INFRA, detail)
        return None

    def _source(self, header, requests):
        selection = header.source_selection
        if not selection.HasField("pool"):
            return _collect(requests, header.source.geometry, selection.tokens)
        reached = 0 if header.streamed_source else selection.tokens
        while reached < selection.tokens:
            reached = next(requests).ready_up_to.token_end
            self.ready.append(reached)
        parts = [[], []]
        for pair in self.memory.views(selection.pool):
            for part, view in zip(parts, pair):
                rows = view[list(selection.pool.pages)].reshape(-1, *view.shape[2:])
                part.append(rows[: selection.tokens].transpose(1, 0, 2))
        return np.stack(parts[0]), np.stack(parts[1])

    def _write(self, header, keys, values):
        yield transfer_pb2.TransferEvent(source_released=transfer_pb2.SourceReleased())
        bf16 = header.target.geometry.element_type == types_pb2.ELEMENT_TYPE_BF16
        location, covered = header.target_selection.pool, keys.shape[2]
        for layer, pair in enumerate(self.memory.views(location)):
            for view, part in zip(pair, (keys, values)):
                rows = part[layer].transpose(1, 0, 2)
                rows = float32_to_bf16(rows) if bf16 else rows
                size = view.shape[1]
                for token in range(header.first_token, covered):
                    view[location.pages[token // size], token % size] = rows[token]
            ready = transfer_pb2.LayersReady(
                layer_begin=layer,
                layer_end=layer + 1,
                token_begin=header.first_token,
                token_end=covered,
            )
            yield transfer_pb2.TransferEvent(layers_ready=ready)

    def _answer(self, header, keys, values):
        first = header.first_token
        keys, values = keys[:, :, first:], values[:, :, first:]
        kind = header.target.geometry.element_type
        chunks = []
        for component, part in ((KEY, keys), (VALUE, values)):
            dense = part.transpose(0, 2, 1, 3)
            bits = float32_to_bf16(dense) if kind == types_pb2.ELEMENT_TYPE_BF16 else dense
            for layer in range(len(bits)):
                data = np.ascontiguousarray(bits[layer], storage_dtype(kind)).tobytes()
                chunk = transfer_pb2.TransferChunk(
                    layer_begin=layer,
                    layer_end=layer + 1,
                    component=component,
                    token_begin=first,
                    token_end=first + bits.shape[1],
                    crc32c=crc32c.crc32c(data),
                    data=data,
                )
                chunks.append(chunk)
        if self.faults.flip_answer_byte:
            chunks[0].data = bytes([chunks[0].data[0] ^ 1]) + chunks[0].data[1:]
        if self.faults.omit_last_chunk:
            chunks.pop()
        if self.faults.repeat_chunk:
            chunks.append(chunks[0])
        for chunk in chunks:
            yield transfer_pb2.TransferEvent(chunk=chunk)


def _refusal(header, mapper: ReferenceMap, covered: int):
    """The few checks that tests rely on."""
    if header.source.identity != mapper.source.identity:
        return (
            types_pb2.OUTCOME_FALLBACK_REPREFILL,
            types_pb2.REASON_INCOMPATIBLE_MODEL,
            types_pb2.REASON_CLASS_CLIENT,
            "source.identity differs",
        )
    if header.limits.HasField("max_latency") and header.limits.max_latency.ToNanoseconds() == 0:
        return (
            types_pb2.OUTCOME_FALLBACK_REPREFILL,
            types_pb2.REASON_LATENCY_BUDGET,
            types_pb2.REASON_CLASS_CAPACITY,
            "max_latency: 0",
        )
    if covered < 1:
        return (
            types_pb2.OUTCOME_FALLBACK_REPREFILL,
            types_pb2.REASON_NOT_WORTH_IT,
            types_pb2.REASON_CLASS_POLICY,
            "nothing to cover",
        )
    return None


def _completed(outcome, reason, cls, detail):
    decision = transfer_pb2.Decision(
        outcome=outcome, reason=reason, reason_class=cls, detail=detail
    )
    return transfer_pb2.TransferEvent(completed=transfer_pb2.TransferCompleted(decision=decision))


def _collect(requests, geometry, tokens):
    """Keys and values [layers, heads, tokens, dim] in storage dtype, every checksum verified."""
    dtype = storage_dtype(geometry.element_type)
    shape = (geometry.layers, geometry.kv_heads, tokens, geometry.head_dim)
    parts = {c: np.zeros(shape, dtype) for c in (KEY, VALUE)}
    for request in requests:
        chunk = request.chunk
        assert crc32c.crc32c(chunk.data) == chunk.crc32c
        layers = slice(chunk.layer_begin, chunk.layer_end)
        at = slice(chunk.token_begin, chunk.token_end)
        into = parts[chunk.component][layers, :, at]
        dense = np.frombuffer(chunk.data, dtype).reshape(into.transpose(0, 2, 1, 3).shape)
        into[...] = dense.transpose(0, 2, 1, 3)
    return parts[KEY], parts[VALUE]
