from google.protobuf import duration_pb2 as _duration_pb2
from kvbridge.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListRequest(_message.Message):
    __slots__ = ["session_id"]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ["pool_ids", "region_ids"]
    POOL_IDS_FIELD_NUMBER: _ClassVar[int]
    REGION_IDS_FIELD_NUMBER: _ClassVar[int]
    pool_ids: _containers.RepeatedScalarFieldContainer[str]
    region_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, region_ids: _Optional[_Iterable[str]] = ..., pool_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ["tenant"]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ["lease", "session_id"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    session_id: str
    def __init__(self, session_id: _Optional[str] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PoolPlane(_message.Message):
    __slots__ = ["base_offset", "head_stride", "page_stride", "region_id", "scales", "token_stride"]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HEAD_STRIDE_FIELD_NUMBER: _ClassVar[int]
    PAGE_STRIDE_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STRIDE_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    head_stride: int
    page_stride: int
    region_id: str
    scales: _containers.RepeatedScalarFieldContainer[float]
    token_stride: int
    def __init__(self, region_id: _Optional[str] = ..., base_offset: _Optional[int] = ..., page_stride: _Optional[int] = ..., token_stride: _Optional[int] = ..., head_stride: _Optional[int] = ..., scales: _Optional[_Iterable[float]] = ...) -> None: ...

class RegisterPoolRequest(_message.Message):
    __slots__ = ["keys", "model", "pages", "session_id", "tokens_per_page", "values"]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_PAGE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[PoolPlane]
    model: _types_pb2.ModelSpec
    pages: int
    session_id: str
    tokens_per_page: int
    values: _containers.RepeatedCompositeFieldContainer[PoolPlane]
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[_Union[_types_pb2.ModelSpec, _Mapping]] = ..., tokens_per_page: _Optional[int] = ..., pages: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[PoolPlane, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[PoolPlane, _Mapping]]] = ...) -> None: ...

class RegisterPoolResponse(_message.Message):
    __slots__ = ["generation", "pool_id"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    pool_id: str
    def __init__(self, pool_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class RegisterRegionRequest(_message.Message):
    __slots__ = ["bytes", "numa_node", "session_id", "shm_name", "ticket", "writable"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SHM_NAME_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    numa_node: int
    session_id: str
    shm_name: str
    ticket: str
    writable: bool
    def __init__(self, session_id: _Optional[str] = ..., bytes: _Optional[int] = ..., ticket: _Optional[str] = ..., numa_node: _Optional[int] = ..., writable: bool = ..., shm_name: _Optional[str] = ...) -> None: ...

class RegisterRegionResponse(_message.Message):
    __slots__ = ["generation", "region_id", "ticket"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    region_id: str
    ticket: str
    def __init__(self, region_id: _Optional[str] = ..., generation: _Optional[int] = ..., ticket: _Optional[str] = ...) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ["id", "session_id"]
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    session_id: str
    def __init__(self, session_id: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class UnregisterResponse(_message.Message):
    __slots__ = ["draining"]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: bool = ...) -> None: ...
