"""How a transfer ended, as a caller sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbridge.arrays import Array
from kvbridge.v1 import transfer_pb2, types_pb2

APPLIED = "applied"
FALLBACK = "fallback_reprefill"
UNSUPPORTED = "unsupported"

# What the client itself finds out, and the class that an operator would file it under. The server's
# reasons come with their class.
_CLASS_OF = {
    "app_gate": "policy",
    "circuit_open": "infra",
    "deadline_exceeded": "capacity",
    "incompatible_model": "client",
    "internal": "internal",
    "invalid_request": "client",
    "overload": "capacity",
    "transport": "infra",
    "unreachable": "infra",
}


@dataclass(frozen=True)
class TransferResult:
    """Exactly one per transfer. `keys` and `values` are there if and only if it was `applied`, and the caller gave no
    target pages."""

    outcome: str  # "applied", "fallback_reprefill" or "unsupported"
    reason: str = ""  # metric label, e.g. "latency_budget"; empty when applied
    reason_class: str = ""  # client, policy, quality, capacity, infra or internal
    detail: str = ""  # one sentence for a person
    call_status: str = ""  # of gRPC, e.g. "UNAVAILABLE", where the call ended without the server's decision
    covered_tokens: int = 0  # tokens [0, covered_tokens) of the selection are mapped
    # [layers, kv_heads, covered_tokens - first_token, head_dim], the target's element type. On the region
    # plane they are views of shared memory, which is free again when the last view is gone.
    keys: Array | None = None
    values: Array | None = None
    artifact_digest: str = ""
    hops: int = 0  # maps that the result has been through
    approximate: bool = False  # must not satisfy an exact prefix lookup
    salt: str = ""  # to be mixed into a prefix cache's keys
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds by server stage
    bytes_in: int = 0
    bytes_out: int = 0
    max_abs: float = 0.0
    saturated_elements: int = 0
    shadow_selected: bool = False  # the server asks for a prefill as well, and a report of the difference
    token_ids_sha256: str = ""
    route: str = ""
    request_id: str = ""
    seconds: float = 0.0  # wall clock, as the caller saw it
    attempts: int = 1
    first_token: int = 0  # tokens before it were mapped earlier; keys and values begin with it
    # "region" or "inline": how the bytes travelled to the server, and back where the answer did not go elsewhere;
    # empty when nothing was asked
    plane: str = ""
    plane_reason: str = ""  # why not "region", a word of docs/metrics.md
    plane_detail: str = ""  # one sentence for a person
    peer_plane: str = ""  # "ucx" or "inline": what travelled on to the peer; empty: nothing did
    map_side: str = ""  # with a peer: "target", mapped there, or "source", mapped before it
    # Of the caller's trace, and of the server's span in it, as its log and events have them; empty where no server
    # answered, or no traceparent was given
    trace_id: str = ""
    span_id: str = ""

    @property
    def applied(self) -> bool:
        """Whether the target cache may be used."""
        return self.outcome == APPLIED

    @property
    def refused(self) -> bool:
        """Whether the server, which is there, does not let this caller in (`unreachable`): a token or certificate is
        missing, unknown, or granted other methods. `detail` says which."""
        return self.call_status in ("UNAUTHENTICATED", "PERMISSION_DENIED")

    def __str__(self) -> str:
        if self.applied:
            how = f" ({self.plane})" if self.plane else ""
            return f"applied: {self.covered_tokens} tokens in {self.seconds * 1e3:.1f} ms{how}"
        return f"{self.outcome}: {self.reason} ({self.detail})"


class TransferFallback(Exception):
    """Raised instead of returning a result that is not applied, when the client was told to."""

    def __init__(self, result: TransferResult) -> None:
        super().__init__(str(result))
        self.result = result


class TransferCancelled(Exception):
    """The caller cancelled the transfer; nothing of its answer may be used."""


class RpcFailed(Exception):
    """A call other than a transfer could not be answered."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def fallback(reason: str, detail: str, outcome: str = FALLBACK) -> TransferResult:
    """A result that the client itself decides on."""
    return TransferResult(
        outcome=outcome, reason=reason, reason_class=_CLASS_OF[reason], detail=detail
    )


def _enum_word(enum: object, value: int, prefix: str) -> str:
    """The lower-case word of an enum value; "internal" for one that only a newer server knows."""
    try:
        name: str = enum.Name(value)  # type: ignore[attr-defined]
    except ValueError:
        return "internal"
    return "" if name.endswith("_UNSPECIFIED") else name.removeprefix(prefix).lower()


def outcome_word(value: int) -> str:
    """E.g. "applied"."""
    return _enum_word(types_pb2.Outcome, value, "OUTCOME_")


def reason_word(value: int) -> str:
    """E.g. "latency_budget"."""
    return _enum_word(types_pb2.Reason, value, "REASON_")


def plane_word(value: int) -> str:
    """E.g. "ucx"."""
    return _enum_word(types_pb2.Plane, value, "PLANE_")


def from_decision(
    decision: transfer_pb2.Decision, keys: Array | None, values: Array | None
) -> TransferResult:
    """The result of a call that the server answered. Arrays only go with an applied one."""
    applied = decision.outcome == types_pb2.OUTCOME_APPLIED
    return TransferResult(
        outcome=outcome_word(decision.outcome),
        reason=reason_word(decision.reason),
        reason_class=_enum_word(types_pb2.ReasonClass, decision.reason_class, "REASON_CLASS_"),
        detail=decision.detail,
        covered_tokens=decision.covered_tokens,
        keys=keys if applied else None,
        values=values if applied else None,
        artifact_digest=decision.artifact_digest,
        hops=decision.hops,
        approximate=decision.approximate,
        salt=decision.salt,
        stages={stage.stage: stage.seconds for stage in decision.stages},
        bytes_in=decision.bytes_in,
        bytes_out=decision.bytes_out,
        max_abs=decision.max_abs,
        saturated_elements=decision.saturated_elements,
        shadow_selected=decision.shadow_selected,
        token_ids_sha256=decision.token_ids_sha256,
        route=decision.route,
        map_side=_enum_word(types_pb2.MapSide, decision.map_side, "MAP_SIDE_"),
    )
