"""One attempt at a transfer: one stream, from the header to the decision."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from kvbridge.cargo import Cargo
from kvbridge.chunks import DamagedAnswer
from kvbridge.progress import LayerProgress
from kvbridge.result import TransferCancelled, TransferResult, fallback, from_decision, plane_word
from kvbridge.trace import TRACEPARENT, answered_ids
from kvbridge.v1 import transfer_pb2, types_pb2

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
class Listener:
    """What a caller wants to know, and may do, while its transfer runs. Called on its own thread."""

    cancel: CancelToken | None = None
    on_layers: Callable[[int, int], None] | None = None
    on_source_released: Callable[[], None] | None = None


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


def _with_trace(
    result: TransferResult, call: Any, metadata: tuple[tuple[str, str], ...]
) -> TransferResult:
    """With the ids of the server's span. Waits for the call's end where the caller is traced."""
    if all(name != TRACEPARENT for name, _ in metadata):
        return result
    trace_id, span_id = answered_ids(call.trailing_metadata())
    return dataclasses.replace(result, trace_id=trace_id, span_id=span_id)


class Attempt:
    """Runs once."""

    def __init__(
        self, header: transfer_pb2.TransferHeader, cargo: Cargo, listener: Listener
    ) -> None:
        self._header = transfer_pb2.TransferHeader()
        self._header.CopyFrom(header)  # where the bytes are differs from plane to plane
        self._cargo = cargo
        self._listener = listener
        self._gate = _Gate()
        self._decided = False
        self.peer_plane = ""  # between two servers, once accepted

    @property
    def over(self) -> bool:
        """Whether the server said that it is done with the source and the target."""
        return self._decided

    @property
    def accepted(self) -> bool:
        """Whether Accepted came."""
        return self._gate.opened

    def run(
        self, method: Any, timeout: float, metadata: tuple[tuple[str, str], ...]
    ) -> TransferResult:
        """method: the Transfer call. Raises TransferCancelled, and what the listener raises."""
        self._cargo.locate(self._header)
        call = method(self._requests(), timeout=timeout, metadata=metadata)
        cancel = self._listener.cancel
        if cancel is not None:
            cancel.attach(call)
        try:
            return _with_trace(self._read(call), call, metadata)
        except DamagedAnswer as error:
            return fallback("transport", str(error))
        except grpc.RpcError as error:
            if cancel is not None and cancel.cancelled:
                raise TransferCancelled(self._header.request_id) from None
            reason = _REASON_OF_STATUS.get(error.code(), "internal")
            if reason == "unreachable" and self.accepted:
                reason = "transport"
            status = error.code().name
            broken = fallback(reason, f"{status}: {error.details()}")
            broken = dataclasses.replace(broken, call_status=status)
            return _with_trace(broken, call, metadata)
        finally:
            self._gate.close()
            call.cancel()  # no-op once it has ended

    def _requests(self) -> Iterator[bytes]:
        """Runs in gRPC's thread, one message ahead of the network, while events are read. A refused
        transfer has moved no payload."""
        yield transfer_pb2.TransferRequest(header=self._header).SerializeToString()
        if self._gate.wait():
            yield from self._cargo.source.messages()

    def _read(self, call: Any) -> TransferResult:
        """Events until the decision. DamagedAnswer says what is wrong with them."""
        covered = 0
        layers: LayerProgress | None = None
        for event in call:
            kind = event.WhichOneof("event")
            if kind == "accepted":
                covered = self._covered(event.accepted.covered_tokens)
                if self._header.peer:
                    self.peer_plane = plane_word(event.accepted.plane)
                new = covered - self._header.first_token
                layers = LayerProgress(
                    self._header.target.geometry.layers, new, self._listener.on_layers
                )
                self._cargo.answer.begin(covered)
                self._gate.open()
            elif kind == "chunk":
                self._cargo.answer.take(event.chunk)
            elif kind == "layers_ready" and layers is not None:
                layers.add(event.layers_ready)
            elif kind == "source_released" and self._listener.on_source_released is not None:
                self._listener.on_source_released()
            elif kind == "completed":
                self._decided = True
                return self._conclude(event.completed.decision, covered)
        raise DamagedAnswer("the stream ended without a decision")

    def _covered(self, accepted: int) -> int:
        """The token count of Accepted, which must not make the client allocate more than it sent."""
        least, most = self._header.first_token, self._header.source_selection.tokens
        if not least <= accepted <= most:
            raise DamagedAnswer(
                f"accepted.covered_tokens: expected {least} to {most}, got {accepted}"
            )
        return accepted

    def _conclude(self, decision: transfer_pb2.Decision, covered: int) -> TransferResult:
        if decision.outcome != types_pb2.OUTCOME_APPLIED:
            return from_decision(decision, None, None)
        if not self.accepted or decision.covered_tokens != covered:
            raise DamagedAnswer(
                f"decision.covered_tokens: expected the {covered} accepted, got {decision.covered_tokens}"
            )
        answer = self._cargo.answer.finish()
        return from_decision(decision, *(answer or (None, None)))
