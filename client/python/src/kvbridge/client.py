"""The client of kvbridged."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf import duration_pb2

from kvbridge import chunks
from kvbridge.arrays import Array, as_storage
from kvbridge.circuit import Circuit
from kvbridge.counters import ClientCounters
from kvbridge.digests import token_ids_digest
from kvbridge.result import (
    RpcFailed,
    TransferCancelled,
    TransferFallback,
    TransferResult,
    fallback,
    from_decision,
)
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, plan_pb2, transfer_pb2, transfer_pb2_grpc, types_pb2

_TRANSFER = "/kvbridge.v1.KvBridge/Transfer"
_KEY_STATES = {"roped": types_pb2.KEY_STATE_ROPED, "unroped": types_pb2.KEY_STATE_UNROPED}
_OVERFLOW = {
    "fail": transfer_pb2.OVERFLOW_POLICY_FAIL,
    "saturate": transfer_pb2.OVERFLOW_POLICY_SATURATE,
}
# Status codes are for calls that the server could not answer; each becomes a reason to prefill.
_REASON_OF_STATUS = {
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.UNIMPLEMENTED: "unreachable",
    grpc.StatusCode.UNAUTHENTICATED: "unreachable",
    grpc.StatusCode.PERMISSION_DENIED: "unreachable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline_exceeded",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_request",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overload",
    grpc.StatusCode.DATA_LOSS: "transport",
}
_INFRA = ("unreachable", "transport", "device_error")  # failures that open the circuit


class CancelToken:
    """Cancels a transfer from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether cancel() was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends the transfer that carries this token, now or as soon as it starts. Idempotent."""
        with self._lock:
            self._cancelled = True
            if self._call is not None:
                self._call.cancel()

    def attach(self, call: grpc.Call) -> None:
        """For the client: the call that is to be cancelled."""
        with self._lock:
            self._call = call
            if self._cancelled:
                call.cancel()


@dataclass(frozen=True)
class _Transfer:
    """One transfer, ready to be tried."""

    header: transfer_pb2.TransferHeader
    keys: list[Array]
    values: list[Array]
    deadline: float  # time.monotonic()
    cancel: CancelToken | None
    metadata: tuple[tuple[str, str], ...]


class _Gate:
    """Holds the payload back until the server has accepted the transfer."""

    def __init__(self) -> None:
        self._decided = threading.Event()
        self.opened = False

    def open(self) -> None:
        """The server has accepted."""
        self.opened = True
        self._decided.set()

    def close(self) -> None:
        """The transfer has ended; whoever waits goes home. No-op once open."""
        self._decided.set()

    def wait(self) -> bool:
        """Whether it was opened."""
        self._decided.wait()
        return self.opened


class Client:
    """Talks to one kvbridged. Make one per process and share it.

    target: "host:port" or "unix:/path.sock". on_fallback: "prefill" returns every outcome as a result;
    "fail" raises TransferFallback for those that are not applied. timeout: seconds, default deadline of
    every call. retries: further attempts after one that no server has accepted. circuit_threshold: after so
    many failures in a row (unreachable, transport, device_error) the client answers circuit_open itself,
    for circuit_cooldown seconds, then lets one transfer at a time through until one is answered.

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
        tile_tokens: int = chunks.TILE_TOKENS,
        max_chunk_bytes: int = chunks.MAX_CHUNK_BYTES,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        if on_fallback not in ("prefill", "fail"):
            raise ValueError(f'on_fallback: expected "prefill" or "fail", got {on_fallback!r}')
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = (
            grpc.secure_channel(target, credentials, options)
            if credentials
            else grpc.insecure_channel(target, options)
        )
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
        self._tile_tokens = tile_tokens
        self._max_chunk_bytes = max_chunk_bytes
        self._circuit = Circuit(circuit_threshold, circuit_cooldown)
        self._counters = ClientCounters()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls in flight are cancelled."""
        self._channel.close()

    def transfer(
        self,
        *,
        source: types_pb2.ModelSpec,
        target: types_pb2.ModelSpec,
        keys: Sequence[Array],
        values: Sequence[Array],
        route: str = "",
        positions: Sequence[int] | npt.NDArray[np.int64] | None = None,
        token_ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
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
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> TransferResult:
        """Turns the source model's cache into the target's.

        keys, values: [layers, kv_heads, tokens, head_dim], or one [kv_heads, tokens, head_dim] per layer;
        any strides, not copied as a whole; dtype as source.geometry states (arrays.py). positions: one per
        token, default 0, 1, 2, ...; -1 marks left padding. token_ids are digested, never sent.
        prompt_tokens: length of the prompt that the target goes on from, default the tokens given; the
        last max(1, native_tail) of it are never covered. max_latency: seconds, 0 falls back at once.
        hops: maps that this cache has been through.

        Every end of a transfer is a result (see on_fallback), an answer only after each byte of it was
        checked. Raises ValueError for arrays that are no cache, TransferCancelled after cancel().
        """
        layers = _check_layers(keys, values, source.geometry.element_type)
        header = transfer_pb2.TransferHeader(
            request_id=request_id if request_id is not None else uuid.uuid4().hex,
            tenant=tenant,
            route=route,
            source=source,
            target=target,
            prompt_tokens=prompt_tokens,
            hops=hops,
            limits=transfer_pb2.TransferLimits(
                max_latency=_duration(max_latency),
                max_covered_tokens=max_covered_tokens,
                native_tail=native_tail,
                overflow=_OVERFLOW[overflow],
            ),
            source_selection=types_pb2.KvSelection(
                tokens=layers[0][0].shape[1],
                positions=_positions(positions),
                token_ids_sha256=token_ids_digest(token_ids) if token_ids is not None else "",
                key_state=_KEY_STATES[key_state],
                scales=source_scales,
                inline=types_pb2.InlineLocation(),
            ),
            target_selection=types_pb2.KvSelection(
                scales=target_scales, inline=types_pb2.InlineLocation()
            ),
        )
        started = time.monotonic()
        deadline = started + (self._timeout if timeout is None else timeout)
        request = _Transfer(header, *layers, deadline, cancel, tuple(metadata))
        try:
            result = self._guarded(request)
        except TransferCancelled:
            self._counters.record("cancelled", "", time.monotonic() - started)
            raise
        seconds = time.monotonic() - started
        return self.conclude(
            dataclasses.replace(result, request_id=header.request_id, seconds=seconds)
        )

    def conclude(self, result: TransferResult) -> TransferResult:
        """Counts a transfer that has ended, also one that an adapter refused before it was sent, and
        returns it or raises TransferFallback, as on_fallback says."""
        self._counters.record(result.outcome, result.reason, result.seconds)
        if self._on_fallback == "fail" and not result.applied:
            raise TransferFallback(result)
        return result

    def _guarded(self, transfer: _Transfer) -> TransferResult:
        """Runs a transfer unless the circuit is open, and tells the circuit how it went."""
        if not self._circuit.admit():
            return fallback("circuit_open", "the last transfers went unanswered; not asked again yet")
        try:
            result = self._with_retries(transfer)
        except TransferCancelled:
            self._circuit.abandoned()
            raise
        if result.reason in _INFRA:
            self._circuit.failed()
        else:
            self._circuit.succeeded()
        return result

    def _with_retries(self, transfer: _Transfer) -> TransferResult:
        attempt = 0
        while True:
            attempt += 1
            result = self._attempt(transfer)
            # Unreachable means that no server has accepted it, and no payload leaves before that.
            if result.reason != "unreachable" or attempt > self._retries:
                return dataclasses.replace(result, attempts=attempt)
            if time.monotonic() >= transfer.deadline:
                return dataclasses.replace(result, attempts=attempt)
            self._counters.record_retry()

    def _attempt(self, transfer: _Transfer) -> TransferResult:
        gate = _Gate()
        call = self._transfer(
            self._requests(transfer, gate),
            timeout=max(0.0, transfer.deadline - time.monotonic()),
            metadata=transfer.metadata,
        )
        if transfer.cancel is not None:
            transfer.cancel.attach(call)
        try:
            return self._read(call, transfer.header, gate)
        except chunks.DamagedAnswer as error:
            return fallback("transport", str(error))
        except grpc.RpcError as error:
            if transfer.cancel is not None and transfer.cancel.cancelled:
                raise TransferCancelled(transfer.header.request_id) from None
            reason = _REASON_OF_STATUS.get(error.code(), "internal")
            if reason == "unreachable" and gate.opened:
                reason = "transport"
            return fallback(reason, f"{error.code().name}: {error.details()}")
        finally:
            gate.close()
            call.cancel()  # no-op once it has ended

    def _read(
        self, call: Any, header: transfer_pb2.TransferHeader, gate: _Gate
    ) -> TransferResult:
        """Events until the decision. DamagedAnswer says what is wrong with them."""
        answer: chunks.CacheAssembler | None = None
        covered = 0
        for event in call:
            kind = event.WhichOneof("event")
            if kind == "accepted":
                covered = _covered(event.accepted.covered_tokens, header)
                answer = chunks.CacheAssembler(header.target.geometry, covered)
                gate.open()
            elif kind == "chunk":
                if answer is None:
                    raise chunks.DamagedAnswer("answer chunk before Accepted")
                answer.add(event.chunk)
            elif kind == "completed":
                return _conclude(event.completed.decision, answer, covered)
        raise chunks.DamagedAnswer("the stream ended without a decision")

    def _requests(self, transfer: _Transfer, gate: _Gate) -> Iterator[bytes]:
        """Runs in gRPC's thread, one message ahead of the network, while events are read. A refused
        transfer has moved no payload."""
        yield transfer_pb2.TransferRequest(header=transfer.header).SerializeToString()
        if gate.wait():
            yield from chunks.encode_chunks(
                transfer.keys, transfer.values, self._tile_tokens, self._max_chunk_bytes
            )

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


def _check_layers(
    keys: Sequence[Array], values: Sequence[Array], kind: int
) -> tuple[list[Array], list[Array]]:
    """Keys and values as lists of layers in their storage dtype, all of one shape."""
    lists = tuple([as_storage(np.asarray(layer), kind) for layer in part] for part in (keys, values))
    if not lists[0] or len(lists[0]) != len(lists[1]):
        raise ValueError(
            f"keys and values: expected as many layers of both, got {len(lists[0])} and {len(lists[1])}"
        )
    shape = lists[0][0].shape
    for name, part in zip(("keys", "values"), lists):
        for index, layer in enumerate(part):
            if layer.ndim != 3 or layer.shape != shape:
                raise ValueError(
                    f"{name}[{index}]: expected [kv_heads, tokens, head_dim] = {shape} as keys[0], "
                    f"got {layer.shape}"
                )
    return lists[0], lists[1]


def _duration(seconds: float | None) -> duration_pb2.Duration | None:
    if seconds is None:
        return None
    duration = duration_pb2.Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


def _positions(
    positions: Sequence[int] | npt.NDArray[np.int64] | None,
) -> types_pb2.Positions | None:
    if positions is None:
        return None
    return types_pb2.Positions(list=np.asarray(positions, np.int64).tolist())


def _covered(accepted: int, header: transfer_pb2.TransferHeader) -> int:
    """The token count of Accepted, which must not make the client allocate more than it sent."""
    if not 0 <= accepted <= header.source_selection.tokens:
        raise chunks.DamagedAnswer(
            f"accepted.covered_tokens: expected at most {header.source_selection.tokens}, got {accepted}"
        )
    return accepted


def _conclude(
    decision: transfer_pb2.Decision, answer: chunks.CacheAssembler | None, covered: int
) -> TransferResult:
    if decision.outcome != types_pb2.OUTCOME_APPLIED:
        return from_decision(decision, None, None)
    if answer is None or decision.covered_tokens != covered:
        raise chunks.DamagedAnswer(
            f"decision.covered_tokens: expected the {covered} accepted, got {decision.covered_tokens}"
        )
    return from_decision(decision, *answer.finish())
