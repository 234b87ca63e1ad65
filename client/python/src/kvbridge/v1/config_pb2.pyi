from google.protobuf import duration_pb2 as _duration_pb2
from kvbridge.v1 import transfer_pb2 as _transfer_pb2
from kvbridge.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AuthConfig(_message.Message):
    __slots__ = ["san", "tokens_file"]
    SAN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FILE_FIELD_NUMBER: _ClassVar[int]
    san: _containers.RepeatedCompositeFieldContainer[SanGrant]
    tokens_file: str
    def __init__(self, tokens_file: _Optional[str] = ..., san: _Optional[_Iterable[_Union[SanGrant, _Mapping]]] = ...) -> None: ...

class CircuitConfig(_message.Message):
    __slots__ = ["enabled", "max_bad_share", "min_transfers", "open_for", "probes", "window"]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_SHARE_FIELD_NUMBER: _ClassVar[int]
    MIN_TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FOR_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    max_bad_share: float
    min_transfers: int
    open_for: _duration_pb2.Duration
    probes: int
    window: _duration_pb2.Duration
    def __init__(self, enabled: bool = ..., window: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., min_transfers: _Optional[int] = ..., max_bad_share: _Optional[float] = ..., open_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., probes: _Optional[int] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ["auth", "drain", "engine", "limits", "listen", "log", "memory", "metrics", "peers", "routes", "tenants", "ucx"]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LISTEN_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    UCX_FIELD_NUMBER: _ClassVar[int]
    auth: AuthConfig
    drain: DrainConfig
    engine: EngineConfig
    limits: LimitsConfig
    listen: ListenConfig
    log: LogConfig
    memory: MemoryConfig
    metrics: MetricsConfig
    peers: _containers.RepeatedCompositeFieldContainer[PeerConfig]
    routes: _containers.RepeatedCompositeFieldContainer[RouteConfig]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantConfig]
    ucx: UcxConfig
    def __init__(self, listen: _Optional[_Union[ListenConfig, _Mapping]] = ..., engine: _Optional[_Union[EngineConfig, _Mapping]] = ..., limits: _Optional[_Union[LimitsConfig, _Mapping]] = ..., routes: _Optional[_Iterable[_Union[RouteConfig, _Mapping]]] = ..., drain: _Optional[_Union[DrainConfig, _Mapping]] = ..., log: _Optional[_Union[LogConfig, _Mapping]] = ..., metrics: _Optional[_Union[MetricsConfig, _Mapping]] = ..., memory: _Optional[_Union[MemoryConfig, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantConfig, _Mapping]]] = ..., auth: _Optional[_Union[AuthConfig, _Mapping]] = ..., ucx: _Optional[_Union[UcxConfig, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerConfig, _Mapping]]] = ...) -> None: ...

class DrainConfig(_message.Message):
    __slots__ = ["deadline", "delay"]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    deadline: _duration_pb2.Duration
    delay: _duration_pb2.Duration
    def __init__(self, delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrillConfig(_message.Message):
    __slots__ = ["reason", "share"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    reason: _types_pb2.Reason
    share: float
    def __init__(self, reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., share: _Optional[float] = ...) -> None: ...

class EngineConfig(_message.Message):
    __slots__ = ["isa", "threads", "tile_tokens"]
    ISA_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    isa: str
    threads: int
    tile_tokens: int
    def __init__(self, threads: _Optional[int] = ..., tile_tokens: _Optional[int] = ..., isa: _Optional[str] = ...) -> None: ...

class LimitsConfig(_message.Message):
    __slots__ = ["idle_timeout", "max_inflight_bytes", "max_inflight_transfers", "max_request_bytes", "max_tenant_bytes", "max_tokens", "tiles_in_flight"]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TILES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    idle_timeout: _duration_pb2.Duration
    max_inflight_bytes: int
    max_inflight_transfers: int
    max_request_bytes: int
    max_tenant_bytes: int
    max_tokens: int
    tiles_in_flight: int
    def __init__(self, max_tokens: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_inflight_bytes: _Optional[int] = ..., max_inflight_transfers: _Optional[int] = ..., max_tenant_bytes: _Optional[int] = ..., tiles_in_flight: _Optional[int] = ..., idle_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListenConfig(_message.Message):
    __slots__ = ["admin", "allow_plaintext_off_host", "grpc", "health", "max_connection_age", "max_connection_age_grace", "reflection", "tls"]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PLAINTEXT_OFF_HOST_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTION_AGE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTION_AGE_GRACE_FIELD_NUMBER: _ClassVar[int]
    REFLECTION_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    admin: str
    allow_plaintext_off_host: bool
    grpc: _containers.RepeatedScalarFieldContainer[str]
    health: str
    max_connection_age: _duration_pb2.Duration
    max_connection_age_grace: _duration_pb2.Duration
    reflection: bool
    tls: TlsConfig
    def __init__(self, grpc: _Optional[_Iterable[str]] = ..., admin: _Optional[str] = ..., reflection: bool = ..., allow_plaintext_off_host: bool = ..., tls: _Optional[_Union[TlsConfig, _Mapping]] = ..., health: _Optional[str] = ..., max_connection_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_connection_age_grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LogConfig(_message.Message):
    __slots__ = ["format", "level"]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    format: str
    level: str
    def __init__(self, level: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class MemoryConfig(_message.Message):
    __slots__ = ["allowed_uids", "huge_pages", "lease", "max_bytes", "max_sessions", "max_tenant_bytes", "named_shm", "socket", "ticket_life"]
    ALLOWED_UIDS_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAMED_SHM_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    TICKET_LIFE_FIELD_NUMBER: _ClassVar[int]
    allowed_uids: _containers.RepeatedScalarFieldContainer[int]
    huge_pages: bool
    lease: _duration_pb2.Duration
    max_bytes: int
    max_sessions: int
    max_tenant_bytes: int
    named_shm: _containers.RepeatedCompositeFieldContainer[NamedShmConfig]
    socket: str
    ticket_life: _duration_pb2.Duration
    def __init__(self, socket: _Optional[str] = ..., max_bytes: _Optional[int] = ..., max_tenant_bytes: _Optional[int] = ..., max_sessions: _Optional[int] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ticket_life: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., huge_pages: bool = ..., allowed_uids: _Optional[_Iterable[int]] = ..., named_shm: _Optional[_Iterable[_Union[NamedShmConfig, _Mapping]]] = ...) -> None: ...

class MetricsConfig(_message.Message):
    __slots__ = ["latency_buckets"]
    LATENCY_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    latency_buckets: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, latency_buckets: _Optional[_Iterable[float]] = ...) -> None: ...

class NamedShmConfig(_message.Message):
    __slots__ = ["prefix", "tenant", "uid"]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    tenant: str
    uid: int
    def __init__(self, tenant: _Optional[str] = ..., prefix: _Optional[str] = ..., uid: _Optional[int] = ...) -> None: ...

class PeerConfig(_message.Message):
    __slots__ = ["address", "ca_file", "cert_file", "key_file", "name", "token_file"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CA_FILE_FIELD_NUMBER: _ClassVar[int]
    CERT_FILE_FIELD_NUMBER: _ClassVar[int]
    KEY_FILE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FILE_FIELD_NUMBER: _ClassVar[int]
    address: str
    ca_file: str
    cert_file: str
    key_file: str
    name: str
    token_file: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., ca_file: _Optional[str] = ..., cert_file: _Optional[str] = ..., key_file: _Optional[str] = ..., token_file: _Optional[str] = ...) -> None: ...

class PolicyConfig(_message.Message):
    __slots__ = ["max_abs", "max_covered_tokens", "max_hops", "max_latency", "min_covered_tokens", "native_tail", "salt", "shadow_rate"]
    MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    MAX_COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_HOPS_FIELD_NUMBER: _ClassVar[int]
    MAX_LATENCY_FIELD_NUMBER: _ClassVar[int]
    MIN_COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_TAIL_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SHADOW_RATE_FIELD_NUMBER: _ClassVar[int]
    max_abs: float
    max_covered_tokens: int
    max_hops: int
    max_latency: _duration_pb2.Duration
    min_covered_tokens: int
    native_tail: int
    salt: str
    shadow_rate: float
    def __init__(self, max_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_abs: _Optional[float] = ..., max_covered_tokens: _Optional[int] = ..., min_covered_tokens: _Optional[int] = ..., native_tail: _Optional[int] = ..., max_hops: _Optional[int] = ..., shadow_rate: _Optional[float] = ..., salt: _Optional[str] = ...) -> None: ...

class QualityConfig(_message.Message):
    __slots__ = ["enabled", "false_alarm_reports", "margin"]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    FALSE_ALARM_REPORTS_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    false_alarm_reports: int
    margin: float
    def __init__(self, enabled: bool = ..., margin: _Optional[float] = ..., false_alarm_reports: _Optional[int] = ...) -> None: ...

class RouteConfig(_message.Message):
    __slots__ = ["allow_unproven", "artifact", "canary_share", "circuit", "drill", "name", "policy", "precision", "quality", "source_config", "stage", "target_config"]
    ALLOW_UNPROVEN_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_CONFIG_FIELD_NUMBER: _ClassVar[int]
    allow_unproven: bool
    artifact: str
    canary_share: float
    circuit: CircuitConfig
    drill: DrillConfig
    name: str
    policy: PolicyConfig
    precision: str
    quality: QualityConfig
    source_config: str
    stage: _transfer_pb2.RouteStage
    target_config: str
    def __init__(self, name: _Optional[str] = ..., artifact: _Optional[str] = ..., stage: _Optional[_Union[_transfer_pb2.RouteStage, str]] = ..., canary_share: _Optional[float] = ..., source_config: _Optional[str] = ..., target_config: _Optional[str] = ..., allow_unproven: bool = ..., policy: _Optional[_Union[PolicyConfig, _Mapping]] = ..., precision: _Optional[str] = ..., circuit: _Optional[_Union[CircuitConfig, _Mapping]] = ..., quality: _Optional[_Union[QualityConfig, _Mapping]] = ..., drill: _Optional[_Union[DrillConfig, _Mapping]] = ...) -> None: ...

class SanGrant(_message.Message):
    __slots__ = ["groups", "name", "tenant"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    name: str
    tenant: str
    def __init__(self, name: _Optional[str] = ..., tenant: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class TenantConfig(_message.Message):
    __slots__ = ["max_inflight_bytes", "max_memory_bytes", "name", "weight"]
    MAX_INFLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    max_inflight_bytes: int
    max_memory_bytes: int
    name: str
    weight: float
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., max_inflight_bytes: _Optional[int] = ..., max_memory_bytes: _Optional[int] = ...) -> None: ...

class TlsConfig(_message.Message):
    __slots__ = ["cert_file", "client_ca_file", "key_file", "refresh_interval", "require_client_cert"]
    CERT_FILE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CA_FILE_FIELD_NUMBER: _ClassVar[int]
    KEY_FILE_FIELD_NUMBER: _ClassVar[int]
    REFRESH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_CLIENT_CERT_FIELD_NUMBER: _ClassVar[int]
    cert_file: str
    client_ca_file: str
    key_file: str
    refresh_interval: _duration_pb2.Duration
    require_client_cert: bool
    def __init__(self, cert_file: _Optional[str] = ..., key_file: _Optional[str] = ..., client_ca_file: _Optional[str] = ..., require_client_cert: bool = ..., refresh_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class UcxConfig(_message.Message):
    __slots__ = ["allow_plaintext_off_host", "frames_in_flight", "listen", "timeout", "transports"]
    ALLOW_PLAINTEXT_OFF_HOST_FIELD_NUMBER: _ClassVar[int]
    FRAMES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LISTEN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    allow_plaintext_off_host: bool
    frames_in_flight: int
    listen: str
    timeout: _duration_pb2.Duration
    transports: str
    def __init__(self, listen: _Optional[str] = ..., allow_plaintext_off_host: bool = ..., transports: _Optional[str] = ..., frames_in_flight: _Optional[int] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
