from google.protobuf import duration_pb2 as _duration_pb2
from kvbridge.v1 import events_pb2 as _events_pb2
from kvbridge.v1 import plan_pb2 as _plan_pb2
from kvbridge.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CIRCUIT_STATE_CLOSED: CircuitState
CIRCUIT_STATE_HALF_OPEN: CircuitState
CIRCUIT_STATE_OPEN: CircuitState
CIRCUIT_STATE_UNSPECIFIED: CircuitState
DESCRIPTOR: _descriptor.FileDescriptor
OVERFLOW_POLICY_FAIL: OverflowPolicy
OVERFLOW_POLICY_SATURATE: OverflowPolicy
OVERFLOW_POLICY_UNSPECIFIED: OverflowPolicy
ROUTE_STAGE_CANARY: RouteStage
ROUTE_STAGE_LIVE: RouteStage
ROUTE_STAGE_OFF: RouteStage
ROUTE_STAGE_SHADOW: RouteStage
ROUTE_STAGE_UNSPECIFIED: RouteStage
SERVER_STATE_DEGRADED: ServerState
SERVER_STATE_DRAINING: ServerState
SERVER_STATE_READY: ServerState
SERVER_STATE_STARTING: ServerState
SERVER_STATE_UNSPECIFIED: ServerState

class Decision(_message.Message):
    __slots__ = ["approximate", "artifact_digest", "bytes_in", "bytes_out", "covered_tokens", "detail", "dirty_pages", "hops", "map_side", "max_abs", "outcome", "reason", "reason_class", "route", "salt", "saturated_elements", "shadow_selected", "stages", "token_ids_sha256"]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DIRTY_PAGES_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    MAP_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_CLASS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SATURATED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_SELECTED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_SHA256_FIELD_NUMBER: _ClassVar[int]
    approximate: bool
    artifact_digest: str
    bytes_in: int
    bytes_out: int
    covered_tokens: int
    detail: str
    dirty_pages: _containers.RepeatedScalarFieldContainer[int]
    hops: int
    map_side: _types_pb2.MapSide
    max_abs: float
    outcome: _types_pb2.Outcome
    reason: _types_pb2.Reason
    reason_class: _types_pb2.ReasonClass
    route: str
    salt: str
    saturated_elements: int
    shadow_selected: bool
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    token_ids_sha256: str
    def __init__(self, outcome: _Optional[_Union[_types_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., reason_class: _Optional[_Union[_types_pb2.ReasonClass, str]] = ..., detail: _Optional[str] = ..., covered_tokens: _Optional[int] = ..., artifact_digest: _Optional[str] = ..., hops: _Optional[int] = ..., approximate: bool = ..., salt: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., max_abs: _Optional[float] = ..., saturated_elements: _Optional[int] = ..., shadow_selected: bool = ..., dirty_pages: _Optional[_Iterable[int]] = ..., token_ids_sha256: _Optional[str] = ..., route: _Optional[str] = ..., map_side: _Optional[_Union[_types_pb2.MapSide, str]] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ["backend", "element_types", "features", "max_chunk_bytes", "max_request_bytes", "max_tokens", "memory_socket", "peers", "planes", "routes", "tile_tokens", "version"]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SOCKET_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    TILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    backend: str
    element_types: _containers.RepeatedScalarFieldContainer[_types_pb2.ElementType]
    features: _containers.RepeatedScalarFieldContainer[str]
    max_chunk_bytes: int
    max_request_bytes: int
    max_tokens: int
    memory_socket: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    planes: _containers.RepeatedScalarFieldContainer[_types_pb2.Plane]
    routes: _containers.RepeatedCompositeFieldContainer[RouteInfo]
    tile_tokens: int
    version: str
    def __init__(self, version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., routes: _Optional[_Iterable[_Union[RouteInfo, _Mapping]]] = ..., element_types: _Optional[_Iterable[_Union[_types_pb2.ElementType, str]]] = ..., planes: _Optional[_Iterable[_Union[_types_pb2.Plane, str]]] = ..., max_tokens: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., tile_tokens: _Optional[int] = ..., backend: _Optional[str] = ..., memory_socket: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ["route"]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    route: str
    def __init__(self, route: _Optional[str] = ...) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ["routes", "state", "version"]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    routes: _containers.RepeatedCompositeFieldContainer[RouteHealth]
    state: ServerState
    version: str
    def __init__(self, state: _Optional[_Union[ServerState, str]] = ..., routes: _Optional[_Iterable[_Union[RouteHealth, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class LayersReady(_message.Message):
    __slots__ = ["layer_begin", "layer_end", "token_begin", "token_end"]
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    layer_begin: int
    layer_end: int
    token_begin: int
    token_end: int
    def __init__(self, layer_begin: _Optional[int] = ..., layer_end: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_end: _Optional[int] = ...) -> None: ...

class ReadyUpTo(_message.Message):
    __slots__ = ["token_end"]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    token_end: int
    def __init__(self, token_end: _Optional[int] = ...) -> None: ...

class RemoteEndpoint(_message.Message):
    __slots__ = ["address", "token"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    address: str
    token: bytes
    def __init__(self, address: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class ReportQualityRequest(_message.Message):
    __slots__ = ["artifact_digest", "kl_nats", "nll_delta", "positions", "request_id", "route", "top1_agreement"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KL_NATS_FIELD_NUMBER: _ClassVar[int]
    NLL_DELTA_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TOP1_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    kl_nats: float
    nll_delta: float
    positions: int
    request_id: str
    route: str
    top1_agreement: float
    def __init__(self, request_id: _Optional[str] = ..., route: _Optional[str] = ..., artifact_digest: _Optional[str] = ..., kl_nats: _Optional[float] = ..., top1_agreement: _Optional[float] = ..., nll_delta: _Optional[float] = ..., positions: _Optional[int] = ...) -> None: ...

class ReportQualityResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RouteHealth(_message.Message):
    __slots__ = ["artifact_digest", "circuit", "detail", "route", "serving", "stage", "verdict"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    circuit: CircuitState
    detail: str
    route: str
    serving: bool
    stage: RouteStage
    verdict: str
    def __init__(self, route: _Optional[str] = ..., stage: _Optional[_Union[RouteStage, str]] = ..., serving: bool = ..., detail: _Optional[str] = ..., artifact_digest: _Optional[str] = ..., verdict: _Optional[str] = ..., circuit: _Optional[_Union[CircuitState, str]] = ...) -> None: ...

class RouteInfo(_message.Message):
    __slots__ = ["artifact_digest", "route", "source", "stage", "target"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    route: str
    source: _types_pb2.ModelSpec
    stage: RouteStage
    target: _types_pb2.ModelSpec
    def __init__(self, route: _Optional[str] = ..., source: _Optional[_Union[_types_pb2.ModelSpec, _Mapping]] = ..., target: _Optional[_Union[_types_pb2.ModelSpec, _Mapping]] = ..., artifact_digest: _Optional[str] = ..., stage: _Optional[_Union[RouteStage, str]] = ...) -> None: ...

class SourceFailed(_message.Message):
    __slots__ = ["detail", "outcome", "reason"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    detail: str
    outcome: _types_pb2.Outcome
    reason: _types_pb2.Reason
    def __init__(self, outcome: _Optional[_Union[_types_pb2.Outcome, str]] = ..., reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class SourceReleased(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class StageTime(_message.Message):
    __slots__ = ["seconds", "stage"]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    stage: str
    def __init__(self, stage: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class TransferAccepted(_message.Message):
    __slots__ = ["artifact_digest", "covered_tokens", "expected_seconds", "plane", "remote", "tile_tokens"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    TILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    covered_tokens: int
    expected_seconds: _types_pb2.Estimate
    plane: _types_pb2.Plane
    remote: RemoteEndpoint
    tile_tokens: int
    def __init__(self, covered_tokens: _Optional[int] = ..., tile_tokens: _Optional[int] = ..., plane: _Optional[_Union[_types_pb2.Plane, str]] = ..., expected_seconds: _Optional[_Union[_types_pb2.Estimate, _Mapping]] = ..., artifact_digest: _Optional[str] = ..., remote: _Optional[_Union[RemoteEndpoint, _Mapping]] = ...) -> None: ...

class TransferChunk(_message.Message):
    __slots__ = ["component", "crc32c", "data", "layer_begin", "layer_end", "token_begin", "token_end"]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    component: _types_pb2.Component
    crc32c: int
    data: bytes
    layer_begin: int
    layer_end: int
    token_begin: int
    token_end: int
    def __init__(self, layer_begin: _Optional[int] = ..., layer_end: _Optional[int] = ..., component: _Optional[_Union[_types_pb2.Component, str]] = ..., token_begin: _Optional[int] = ..., token_end: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TransferCompleted(_message.Message):
    __slots__ = ["decision"]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    def __init__(self, decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class TransferEvent(_message.Message):
    __slots__ = ["accepted", "chunk", "completed", "layers_ready", "source_released"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    LAYERS_READY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RELEASED_FIELD_NUMBER: _ClassVar[int]
    accepted: TransferAccepted
    chunk: TransferChunk
    completed: TransferCompleted
    layers_ready: LayersReady
    source_released: SourceReleased
    def __init__(self, accepted: _Optional[_Union[TransferAccepted, _Mapping]] = ..., chunk: _Optional[_Union[TransferChunk, _Mapping]] = ..., layers_ready: _Optional[_Union[LayersReady, _Mapping]] = ..., source_released: _Optional[_Union[SourceReleased, _Mapping]] = ..., completed: _Optional[_Union[TransferCompleted, _Mapping]] = ...) -> None: ...

class TransferHeader(_message.Message):
    __slots__ = ["artifact_digest", "first_token", "hops", "limits", "peer", "prompt_tokens", "request_id", "route", "source", "source_selection", "streamed_source", "target", "target_selection", "tenant"]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SELECTION_FIELD_NUMBER: _ClassVar[int]
    STREAMED_SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_SELECTION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    first_token: int
    hops: int
    limits: TransferLimits
    peer: str
    prompt_tokens: int
    request_id: str
    route: str
    source: _types_pb2.ModelSpec
    source_selection: _types_pb2.KvSelection
    streamed_source: bool
    target: _types_pb2.ModelSpec
    target_selection: _types_pb2.KvSelection
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., route: _Optional[str] = ..., source: _Optional[_Union[_types_pb2.ModelSpec, _Mapping]] = ..., target: _Optional[_Union[_types_pb2.ModelSpec, _Mapping]] = ..., source_selection: _Optional[_Union[_types_pb2.KvSelection, _Mapping]] = ..., target_selection: _Optional[_Union[_types_pb2.KvSelection, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., limits: _Optional[_Union[TransferLimits, _Mapping]] = ..., hops: _Optional[int] = ..., streamed_source: bool = ..., first_token: _Optional[int] = ..., artifact_digest: _Optional[str] = ..., peer: _Optional[str] = ...) -> None: ...

class TransferLimits(_message.Message):
    __slots__ = ["max_covered_tokens", "max_latency", "native_tail", "overflow"]
    MAX_COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LATENCY_FIELD_NUMBER: _ClassVar[int]
    NATIVE_TAIL_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    max_covered_tokens: int
    max_latency: _duration_pb2.Duration
    native_tail: int
    overflow: OverflowPolicy
    def __init__(self, max_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_covered_tokens: _Optional[int] = ..., native_tail: _Optional[int] = ..., overflow: _Optional[_Union[OverflowPolicy, str]] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ["chunk", "header", "ready_up_to", "source_failed"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    READY_UP_TO_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FAILED_FIELD_NUMBER: _ClassVar[int]
    chunk: TransferChunk
    header: TransferHeader
    ready_up_to: ReadyUpTo
    source_failed: SourceFailed
    def __init__(self, header: _Optional[_Union[TransferHeader, _Mapping]] = ..., chunk: _Optional[_Union[TransferChunk, _Mapping]] = ..., ready_up_to: _Optional[_Union[ReadyUpTo, _Mapping]] = ..., source_failed: _Optional[_Union[SourceFailed, _Mapping]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ["route"]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    route: str
    def __init__(self, route: _Optional[str] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ["event", "route_event"]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _events_pb2.DecisionEvent
    route_event: _events_pb2.RouteEvent
    def __init__(self, event: _Optional[_Union[_events_pb2.DecisionEvent, _Mapping]] = ..., route_event: _Optional[_Union[_events_pb2.RouteEvent, _Mapping]] = ...) -> None: ...

class OverflowPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RouteStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CircuitState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
