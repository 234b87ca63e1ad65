"""The client of kvbridged."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import grpc
import numpy as np
import numpy.typing as npt

from kvbridge import chunks
from kvbridge.arrays import Array, storage_dtype
from kvbridge.attempt import Attempt, CancelToken, Listener
from kvbridge.bearer import BearerToken
from kvbridge.cargo import (
    AnswerWay,
    Cargo,
    InlineAnswer,
    InlineSource,
    PagesAnswer,
    RegionSource,
    Source,
    StagedAnswer,
)
from kvbridge.circuit import Circuit
from kvbridge.closing import Closing
from kvbridge.counters import ClientCounters
from kvbridge.digests import token_ids_digest
from kvbridge.memory import MemoryUnavailable, SharedMemory
from kvbridge.pools import PagedCache
from kvbridge.prefix import MappedPrefix
from kvbridge.progress import Readiness
from kvbridge.request import (
    KEY_STATES,
    OVERFLOW,
    check_layers,
    duration,
    position_list,
    same_host,
)
from kvbridge.result import (
    APPLIED,
    RpcFailed,
    TransferCancelled,
    TransferFallback,
    TransferResult,
    fallback,
)
from kvbridge.staging import Staging
from kvbridge.trace import trace_metadata
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, plan_pb2, transfer_pb2, transfer_pb2_grpc, types_pb2

_TRANSFER = "/kvbridge.v1.KvBridge/Transfer"
_INFRA = ("unreachable", "transport", "device_error")  # failures that open the circuit
_MAX_TENANTS = 16  # with shared memory of their own
# A server that does not even answer a ping while a call runs, hung or cut off, is noticed after the first two. The
# last bounds one attempt to connect.
_LIVENESS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 5_000),
]
PlaneChoice = Literal["auto", "region", "inline"]
TargetPages = PagedCache | types_pb2.PoolLocation  # of this process, or of another one


@dataclass(frozen=True)
class _Transfer:
    """One transfer, ready to be tried."""

    header: transfer_pb2.TransferHeader
    source: Source
    into: TargetPages | None
    plane: PlaneChoice
    deadline: float  # time.monotonic()
    listener: Listener
    metadata: tuple[tuple[str, str], ...]

    @property
    def own(self) -> bool:
        """Whether this process may rely on the bytes on both sides without asking the server."""
        caches = (self.source.paged, self.into)
        return all(cache.pool.own for cache in caches if isinstance(cache, PagedCache))

    def elsewhere(self) -> AnswerWay | None:
        """The way of an answer that does not come to this process in shared memory, whatever the source does."""
        if isinstance(self.into, types_pb2.PoolLocation):
            return PagesAnswer(self.into)
        return self.in_the_call() if self.header.peer else None

    def in_the_call(self) -> AnswerWay:
        """Chunks. Not for another process's pages."""
        assert not isinstance(self.into, types_pb2.PoolLocation)
        return InlineAnswer(self.header.target.geometry, self.source.first_token, self.into)


def _in_shared_memory(transfer: _Transfer, memory: SharedMemory, staging: Staging) -> Cargo:
    """MemoryUnavailable when that can't be."""
    header, source, deadline = transfer.header, transfer.source, transfer.deadline
    answer = transfer.elsewhere()
    if answer is None and isinstance(transfer.into, PagedCache):
        answer = PagesAnswer(memory.locate(transfer.into, deadline))
    if answer is None:
        answer = StagedAnswer(memory, staging, header, source.first_token, deadline)
    try:
        return Cargo("region", RegionSource(memory, staging, header, source, deadline), answer)
    except BaseException:
        answer.close(orderly=False)
        raise


class Client(Closing):
    """Talks to one kvbridged. Make one per process and share it.

    target: "host:port" or "unix:/path.sock". on_fallback: "prefill" returns every outcome as a result;
    "fail" raises TransferFallback for those that are not applied. timeout: seconds, default deadline of
    every call. retries: further attempts after one that no server has accepted. circuit_threshold: after so
    many failures in a row (unreachable, transport, device_error) the client answers circuit_open itself,
    for circuit_cooldown seconds, then lets one transfer at a time through until one is answered. plane: "auto"
    uses memory that is shared with a server on this host, and falls back to chunks in the call where there is
    none (TransferResult.plane says which); "region" and "inline" insist. staging_bytes: most shared memory for
    caches that do not lie in a pool. credentials: TLS (grpc.ssl_channel_credentials). token: the caller's, or
    what returns it; goes with every call, and in the clear to this host only.

    Thread contract: every method from any thread.
    """

    def __init__(
        self,
        target: str,
        *,
        on_fallback: Literal["prefill", "fail"] = "prefill",
        timeout: float = 60.0,
        retries: int = 1,
        circuit_threshold: int = 5,
        circuit_cooldown: float = 5.0,
        plane: PlaneChoice = "auto",
        staging_bytes: int = 2 << 30,
        tile_tokens: int = chunks.TILE_TOKENS,
        max_chunk_bytes: int = chunks.MAX_CHUNK_BYTES,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | Callable[[], str] = "",
    ) -> None:
        if on_fallback not in ("prefill", "fail"):
            raise ValueError(f'on_fallback: expected "prefill" or "fail", got {on_fallback!r}')
        _check_plane(plane)
        if token and not credentials and not same_host(target):
            raise ValueError("token: expected credentials (TLS) for another host, got none")
        options = [("grpc.use_local_subchannel_pool", 1), *_LIVENESS]
        self._channel = (
            grpc.secure_channel(target, credentials, options)
            if credentials
            else grpc.insecure_channel(target, options)
        )
        if token:
            self._channel = grpc.intercept_channel(self._channel, BearerToken(token))
        self._transfer = self._channel.stream_stream(
            _TRANSFER,
            request_serializer=_identity,
            response_deserializer=transfer_pb2.TransferEvent.FromString,
        )
        self._bridge = transfer_pb2_grpc.KvBridgeStub(self._channel)  # type: ignore[no-untyped-call]
        self._admin = admin_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]
        self._on_fallback = on_fallback
        self._timeout = timeout
        self._retries = retries
        self._plane: PlaneChoice = plane
        self._same_host = same_host(target)
        self._staging_bytes = staging_bytes
        self._memories: dict[str, tuple[SharedMemory, Staging]] = {}
        self._memories_lock = threading.Lock()
        self._tile_tokens = tile_tokens
        self._max_chunk_bytes = max_chunk_bytes
        self._circuit = Circuit(circuit_threshold, circuit_cooldown)
        self._last_failure = ""
        self._counters = ClientCounters()

    def close(self) -> None:
        """Ends the connection; calls in flight are cancelled, and the server lets go of shared memory. Arrays of
        results stay valid."""
        with self._memories_lock:
            memories = [memory for memory, _ in self._memories.values()]
        for memory in memories:
            memory.close()
        self._channel.close()

    def memory(self, tenant: str = "") -> SharedMemory:
        """Where an engine on the server's host allocates the caches that it hands over in place. Nothing is
        asked of the server before it is used."""
        memory = self._memory_of(tenant)
        if memory is None:
            raise MemoryUnavailable("no_room", f"shared memory of more than {_MAX_TENANTS} tenants")
        return memory[0]

    def _memory_of(self, tenant: str) -> tuple[SharedMemory, Staging] | None:
        with self._memories_lock:
            if tenant not in self._memories:
                if len(self._memories) >= _MAX_TENANTS:
                    return None
                memory = SharedMemory(self._channel, tenant)
                self._memories[tenant] = memory, Staging(memory, self._staging_bytes)
            return self._memories[tenant]

    def transfer(
        self,
        *,
        source: types_pb2.ModelSpec,
        target: types_pb2.ModelSpec,
        keys: Sequence[Array] = (),
        values: Sequence[Array] = (),
        source_pages: PagedCache | None = None,
        target_pages: TargetPages | None = None,
        route: str = "",
        peer: str = "",
        positions: Sequence[int] | npt.NDArray[np.int64] | None = None,
        token_ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
        prefix: MappedPrefix | None = None,
        prompt_tokens: int = 0,
        native_tail: int = 1,
        max_covered_tokens: int = 0,
        max_latency: float | None = None,
        hops: int = 0,
        key_state: Literal["roped", "unroped"] = "roped",
        overflow: Literal["fail", "saturate"] = "fail",
        source_scales: Sequence[types_pb2.LayerScales] = (),
        target_scales: Sequence[types_pb2.LayerScales] = (),
        request_id: str | None = None,
        tenant: str = "",
        plane: PlaneChoice | None = None,
        ready: Iterable[int] | None = None,
        on_layers: Callable[[int, int], None] | None = None,
        on_source_released: Callable[[], None] | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        traceparent: str = "",
        tracestate: str = "",
        metadata: Sequence[tuple[str, str]] = (),
    ) -> TransferResult:
        """Turns the source model's cache into the target's.

        The source is either keys and values, [layers, kv_heads, tokens, head_dim] or one [kv_heads, tokens,
        head_dim] per layer (any strides; dtype as source.geometry states, arrays.py), or source_pages of a
        pool. The answer is written to target_pages, where given, else returned: pages of this process, or a
        PoolLocation of another one's (SharedMemory.locate), of the same tenant, at the server that maps. Pages on
        both sides move no byte beside the map itself; after a cancel or a broken call they may be written for
        some milliseconds still.

        peer: the server beside the target, by its name in this server's configuration; the cache travels there
        and is mapped there, or before it where the target's is the smaller one (map_side). The source is where it would be without. A PoolLocation is then of the peer's
        memory; without one the answer comes back in the call, and is copied to target_pages of this process. An
        unknown peer, pool or generation is invalid_request, by name; a peer that can't be reached or dies is
        transport, and what lies in target_pages is void.

        positions: one per token, default 0, 1, 2, ...; -1 marks left padding. token_ids are digested, never
        sent. prefix: what the target holds from earlier turns; only tokens after what it shares with token_ids
        are mapped, and all of them again when the server has another artifact now. prompt_tokens: length of
        the prompt that the target goes on from, default the tokens given; the last max(1, native_tail) of it
        are never covered. max_latency: seconds, 0 falls back at once. hops: maps that this cache has been
        through. plane: as the client's, for this transfer.

        ready: how many tokens of the source are there, ever more (SourceProgress), while prefill goes on;
        default: all. on_layers(begin, end): these layers of the target are whole, called in order on this
        thread; they are good, but the transfer may still fall back. on_source_released: source pages may be
        reused. traceparent, tracestate: the caller's W3C trace context; the transfer is a span of its trace, which
        the server's log and events name, and the result.

        Every end of a transfer is a result (see on_fallback), an answer only after each byte of it was
        checked. Raises ValueError for arrays that are no cache and for what is no trace context,
        TransferCancelled after cancel().
        """
        started = time.monotonic()
        plane = self._plane if plane is None else plane
        _check_plane(plane)
        payload = _source(source, keys, values, source_pages, ready)
        _check_pages("source_pages", source_pages, source, payload.tokens)
        if isinstance(target_pages, PagedCache):
            _check_pages("target_pages", target_pages, target, payload.tokens)
        header = transfer_pb2.TransferHeader(
            request_id=request_id if request_id is not None else uuid.uuid4().hex,
            tenant=tenant,
            route=route,
            peer=peer,
            source=source,
            target=target,
            prompt_tokens=prompt_tokens,
            hops=hops,
            limits=transfer_pb2.TransferLimits(
                max_latency=duration(max_latency),
                max_covered_tokens=max_covered_tokens,
                native_tail=native_tail,
                overflow=OVERFLOW[overflow],
            ),
            source_selection=types_pb2.KvSelection(
                tokens=payload.tokens,
                positions=position_list(positions),
                token_ids_sha256=token_ids_digest(token_ids) if token_ids is not None else "",
                key_state=KEY_STATES[key_state],
                scales=source_scales,
            ),
            target_selection=types_pb2.KvSelection(scales=target_scales),
        )
        request = _Transfer(
            header,
            payload,
            target_pages,
            plane,
            started + (self._timeout if timeout is None else timeout),
            Listener(cancel, on_layers, on_source_released),
            (*metadata, *trace_metadata(traceparent, tracestate)),
        )
        try:
            result = self._after(prefix, token_ids, request)
        except TransferCancelled:
            self._counters.record("cancelled", "", time.monotonic() - started)
            raise
        finally:
            payload.ready.close()
        seconds = time.monotonic() - started
        return self.conclude(
            dataclasses.replace(result, request_id=header.request_id, seconds=seconds)
        )

    def _after(
        self,
        prefix: MappedPrefix | None,
        token_ids: Sequence[int] | npt.NDArray[np.int64] | None,
        transfer: _Transfer,
    ) -> TransferResult:
        """A transfer of what comes after a prefix that is there, or of everything."""
        if prefix is None:
            return self._guarded(transfer)
        if token_ids is None or transfer.header.source_selection.HasField("positions"):
            raise ValueError("prefix: expected token_ids, and positions 0, 1, 2, ...")
        first = min(prefix.common(token_ids), _most_covered(transfer.header))
        if first < 1 or prefix.hops != transfer.header.hops + 1:
            return self._guarded(transfer)
        if first == _most_covered(transfer.header):
            return _nothing_new(prefix, first, transfer)
        result = self._guarded(_beginning_at(transfer, first, prefix.artifact_digest))
        if result.reason == "artifact_unavailable":
            return self._guarded(transfer)
        if result.reason == "not_worth_it":  # the route leaves the few new tokens to the target
            return _nothing_new(prefix, first, transfer)
        return result

    def conclude(self, result: TransferResult) -> TransferResult:
        """Counts a transfer that has ended, also one that an adapter refused before it was sent, and
        returns it or raises TransferFallback, as on_fallback says."""
        self._counters.record(result.outcome, result.reason, result.seconds)
        if result.plane:
            self._counters.record_plane(result.plane, result.plane_reason)
        if self._on_fallback == "fail" and not result.applied:
            raise TransferFallback(result)
        return result

    def _guarded(self, transfer: _Transfer) -> TransferResult:
        """Runs a transfer unless the circuit is open, and tells the circuit how it went."""
        if not self._circuit.admit():
            return fallback(
                "circuit_open", f"not asked after failures in a row; the last: {self._last_failure}"
            )
        try:
            result = self._on_a_plane(transfer)
        except BaseException:
            self._circuit.abandoned()
            raise
        if not result.attempts:
            self._circuit.abandoned()
        elif result.reason in _INFRA:
            self._last_failure = f"{result.reason}: {result.detail}"
            self._circuit.failed()
        else:
            self._circuit.succeeded()
        return result

    def _on_a_plane(self, transfer: _Transfer) -> TransferResult:
        """In shared memory where that can be; in the call where it can't, or where it turns out to be lost."""
        try:
            result = self._in_regions(transfer)
        except MemoryUnavailable as refusal:
            if transfer.plane == "region" or not transfer.own:
                why = "was asked for" if transfer.own else "is the only one to memory of the server's"
                missing = fallback("transport", f"plane: region {why}; {refusal}")
                return dataclasses.replace(missing, attempts=0)
            cargo = Cargo(
                "inline",
                InlineSource(transfer.source, self._tile_tokens, self._max_chunk_bytes),
                transfer.elsewhere() or transfer.in_the_call(),
            )
            result, _ = self._with_retries(transfer, cargo)
            return dataclasses.replace(
                result, plane_reason=refusal.word, plane_detail=refusal.detail
            )
        return result

    def _in_regions(self, transfer: _Transfer) -> TransferResult:
        """MemoryUnavailable when that can't be, and nothing has happened yet."""
        if transfer.plane == "inline":
            raise MemoryUnavailable("asked", "the caller chose the inline plane")
        if not self._same_host:
            raise MemoryUnavailable("other_host", "the server's address is not of this host")
        memories = self._memory_of(transfer.header.tenant)
        if memories is None:
            raise MemoryUnavailable("no_room", f"shared memory of more than {_MAX_TENANTS} tenants")
        cargo = _in_shared_memory(transfer, *memories)
        result, accepted = self._with_retries(transfer, cargo)
        if not accepted and not result.applied and not memories[0].still_there():
            raise MemoryUnavailable("session_lost", result.detail)
        return result

    def _with_retries(self, transfer: _Transfer, cargo: Cargo) -> tuple[TransferResult, bool]:
        """The last attempt's end, and whether it was accepted."""
        orderly, attempts = False, 0
        try:
            while True:
                attempts += 1
                attempt = Attempt(transfer.header, cargo, transfer.listener)
                left = max(0.0, transfer.deadline - time.monotonic())
                result = attempt.run(self._transfer, left, transfer.metadata)
                # Not accepted: no payload has left.
                lost = result.call_status == "UNAVAILABLE" and not attempt.accepted
                again = lost and attempts <= self._retries
                if not again or time.monotonic() >= transfer.deadline:
                    break
                self._counters.record_retry()
            orderly = attempt.over
        finally:
            cargo.close(orderly)
        first = transfer.source.first_token if result.applied else 0
        result = dataclasses.replace(
            result,
            attempts=attempts,
            plane=cargo.plane,
            peer_plane=attempt.peer_plane,
            first_token=first,
        )
        return result, attempt.accepted

    def plan(
        self,
        route: str,
        prompt_tokens: int,
        *,
        native_tail: int = 1,
        prefill_tokens_per_second: float = 0.0,
    ) -> plan_pb2.PlanResponse:
        """Whether a transfer is worth it. Moves no bytes; RpcFailed when it can't be answered."""
        answer: plan_pb2.PlanResponse = self._call(
            self._bridge.Plan,
            plan_pb2.PlanRequest(
                route=route,
                prompt_tokens=prompt_tokens,
                native_tail=native_tail,
                prefill_tokens_per_second=prefill_tokens_per_second,
            ),
        )
        return answer

    def health(self, route: str = "") -> transfer_pb2.HealthResponse:
        """State of the server and its routes; RpcFailed when it can't be answered."""
        answer: transfer_pb2.HealthResponse = self._call(
            self._bridge.Health, transfer_pb2.HealthRequest(route=route)
        )
        return answer

    def capabilities(self) -> transfer_pb2.GetCapabilitiesResponse:
        """Routes with both models, element types, limits; RpcFailed when it can't be answered."""
        answer: transfer_pb2.GetCapabilitiesResponse = self._call(
            self._bridge.GetCapabilities, transfer_pb2.GetCapabilitiesRequest()
        )
        return answer

    def load_artifact(self, route: str, path: str = "") -> admin_pb2.ArtifactInfo:
        """Switches a route to the artifact at `path` on the server's disk; RpcFailed says what is wrong
        with it, and the old one stays in use."""
        request = admin_pb2.LoadArtifactRequest(route=route, path=path)
        loaded: admin_pb2.LoadArtifactResponse = self._call(
            self._admin.LoadArtifact, request, retries=0
        )
        return loaded.artifact

    def list_artifacts(self) -> list[admin_pb2.ArtifactInfo]:
        """What is resident, one per route; RpcFailed when it can't be answered."""
        return list(self._call(self._admin.ListArtifacts, admin_pb2.ListArtifactsRequest()).artifacts)

    def metrics(self) -> dict[str, Any]:
        """The client's own counters, by metric name."""
        return {
            **self._counters.snapshot(),
            "kvbridge_client_circuit_state": int(self._circuit.state),
        }

    def _call(self, method: Any, request: Any, retries: int | None = None) -> Any:
        for left in reversed(range((self._retries if retries is None else retries) + 1)):
            try:
                return method(request, timeout=self._timeout)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or not left:
                    raise RpcFailed(error.code().name, error.details()) from None
        raise AssertionError("unreachable: the last attempt returns or raises")


def _identity(message: bytes) -> bytes:
    return message


def _check_plane(plane: str) -> None:
    if plane not in ("auto", "region", "inline"):
        raise ValueError(f'plane: expected "auto", "region" or "inline", got {plane!r}')


def _source(
    spec: types_pb2.ModelSpec,
    keys: Sequence[Array],
    values: Sequence[Array],
    pages: PagedCache | None,
    ready: Iterable[int] | None,
) -> Source:
    """What is to be mapped, given either way."""
    if pages is not None:
        if len(keys) or len(values):
            raise ValueError("keys, values: expected none beside source_pages")
        return Source([], [], pages, pages.tokens, 0, Readiness(pages.tokens, ready))
    layers = check_layers(keys, values, spec.geometry.element_type)
    tokens = layers[0][0].shape[1]
    return Source(*layers, None, tokens, 0, Readiness(tokens, ready))


def _check_pages(
    field: str, cache: PagedCache | None, spec: types_pb2.ModelSpec, tokens: int
) -> None:
    if cache is None:
        return
    if cache.tokens != tokens:
        raise ValueError(f"{field}.tokens: expected the source's {tokens}, got {cache.tokens}")
    if cache.pool.spec.geometry != spec.geometry:
        raise ValueError(f"{field}.pool: expected the geometry of the model, got another")


def _most_covered(header: transfer_pb2.TransferHeader) -> int:
    """Tokens that a server can cover at most; its route may cover fewer."""
    tokens, limits = header.source_selection.tokens, header.limits
    covered = min(tokens, (header.prompt_tokens or tokens) - max(1, limits.native_tail))
    if limits.max_covered_tokens:
        covered = min(covered, limits.max_covered_tokens)
    return max(0, covered)


def _beginning_at(transfer: _Transfer, first_token: int, artifact_digest: str) -> _Transfer:
    header = transfer_pb2.TransferHeader()
    header.CopyFrom(transfer.header)
    header.first_token = first_token
    header.artifact_digest = artifact_digest
    source = dataclasses.replace(transfer.source, first_token=first_token)
    return dataclasses.replace(transfer, header=header, source=source)


def _nothing_new(prefix: MappedPrefix, tokens: int, transfer: _Transfer) -> TransferResult:
    """All that could be covered is in place already."""
    geometry = transfer.header.target.geometry
    shape = (geometry.layers, geometry.kv_heads, 0, geometry.head_dim)
    empty = None if transfer.into else np.empty(shape, storage_dtype(geometry.element_type))
    return TransferResult(
        outcome=APPLIED,
        covered_tokens=tokens,
        first_token=tokens,
        keys=empty,
        values=empty,
        artifact_digest=prefix.artifact_digest,
        hops=prefix.hops,
        approximate=True,
        salt=prefix.salt,
        route=transfer.header.route,
        attempts=0,
    )
