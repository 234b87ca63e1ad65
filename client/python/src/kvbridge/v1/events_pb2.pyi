from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvbridge.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecisionEvent(_message.Message):
    __slots__ = ["artifact", "covered_tokens", "detail", "outcome", "pair", "reason", "reason_class", "request_id", "schema", "span_id", "stage_ms", "time", "tokens", "total_ms", "trace_id"]
    class StageMsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    REASON_CLASS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    artifact: str
    covered_tokens: int
    detail: str
    outcome: _types_pb2.Outcome
    pair: str
    reason: _types_pb2.Reason
    reason_class: _types_pb2.ReasonClass
    request_id: str
    schema: str
    span_id: str
    stage_ms: _containers.ScalarMap[str, float]
    time: _timestamp_pb2.Timestamp
    tokens: int
    total_ms: float
    trace_id: str
    def __init__(self, schema: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ..., pair: _Optional[str] = ..., outcome: _Optional[_Union[_types_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., reason_class: _Optional[_Union[_types_pb2.ReasonClass, str]] = ..., detail: _Optional[str] = ..., tokens: _Optional[int] = ..., covered_tokens: _Optional[int] = ..., artifact: _Optional[str] = ..., stage_ms: _Optional[_Mapping[str, float]] = ..., total_ms: _Optional[float] = ..., trace_id: _Optional[str] = ..., span_id: _Optional[str] = ...) -> None: ...

class RouteEvent(_message.Message):
    __slots__ = ["cause", "detail", "pair", "schema", "time", "to", "what"]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    cause: str
    detail: str
    pair: str
    schema: str
    time: _timestamp_pb2.Timestamp
    to: str
    what: str
    def __init__(self, schema: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., pair: _Optional[str] = ..., what: _Optional[str] = ..., to: _Optional[str] = ..., cause: _Optional[str] = ..., detail: _Optional[str] = ..., **kwargs) -> None: ...
