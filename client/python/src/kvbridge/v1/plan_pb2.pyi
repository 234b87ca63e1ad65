from kvbridge.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvidenceSummary(_message.Message):
    __slots__ = ["gap_recovered", "kl_nats", "provenance", "verdict"]
    GAP_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    KL_NATS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    gap_recovered: _types_pb2.Estimate
    kl_nats: _types_pb2.Estimate
    provenance: str
    verdict: str
    def __init__(self, verdict: _Optional[str] = ..., kl_nats: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., gap_recovered: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., provenance: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ["native_tail", "plane", "prefill_tokens_per_second", "prompt_tokens", "route"]
    NATIVE_TAIL_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    native_tail: int
    plane: _types_pb2.Plane
    prefill_tokens_per_second: float
    prompt_tokens: int
    route: str
    def __init__(self, route: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., native_tail: _Optional[int] = ..., prefill_tokens_per_second: _Optional[float] = ..., plane: _Optional[_Union[_types_pb2.Plane, str]] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ["artifact_digest", "break_even_tokens", "bytes_in", "bytes_out", "covered_tokens", "detail", "evidence", "map_flops", "map_seconds", "move_seconds", "prefill_seconds", "reason", "total_seconds", "worth_it"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BREAK_EVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    MAP_FLOPS_FIELD_NUMBER: _ClassVar[int]
    MAP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORTH_IT_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    break_even_tokens: _types_pb2.Estimate
    bytes_in: int
    bytes_out: int
    covered_tokens: int
    detail: str
    evidence: EvidenceSummary
    map_flops: float
    map_seconds: _types_pb2.Estimate
    move_seconds: _types_pb2.Estimate
    prefill_seconds: _types_pb2.Estimate
    reason: _types_pb2.Reason
    total_seconds: _types_pb2.Estimate
    worth_it: bool
    def __init__(self, worth_it: bool = ..., reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., detail: _Optional[str] = ..., covered_tokens: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., map_flops: _Optional[float] = ..., map_seconds: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., move_seconds: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., total_seconds: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., prefill_seconds: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., break_even_tokens: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., evidence: _Optional[_Union[EvidenceSummary, _Mapping]] = ..., artifact_digest: _Optional[str] = ...) -> None: ...
