from kvbridge.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CIRCUIT_OVERRIDE_AUTO: CircuitOverride
CIRCUIT_OVERRIDE_FORCE_CLOSED: CircuitOverride
CIRCUIT_OVERRIDE_FORCE_OPEN: CircuitOverride
CIRCUIT_OVERRIDE_UNSPECIFIED: CircuitOverride
DESCRIPTOR: _descriptor.FileDescriptor

class ArtifactInfo(_message.Message):
    __slots__ = ["digest", "last_error", "load_seconds", "resident_bytes", "route", "verdict"]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    last_error: str
    load_seconds: float
    resident_bytes: int
    route: str
    verdict: str
    def __init__(self, route: _Optional[str] = ..., digest: _Optional[str] = ..., resident_bytes: _Optional[int] = ..., verdict: _Optional[str] = ..., load_seconds: _Optional[float] = ..., last_error: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListArtifactsResponse(_message.Message):
    __slots__ = ["artifacts"]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[ArtifactInfo]
    def __init__(self, artifacts: _Optional[_Iterable[_Union[ArtifactInfo, _Mapping]]] = ...) -> None: ...

class LoadArtifactRequest(_message.Message):
    __slots__ = ["path", "route"]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    path: str
    route: str
    def __init__(self, route: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LoadArtifactResponse(_message.Message):
    __slots__ = ["artifact"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: ArtifactInfo
    def __init__(self, artifact: _Optional[_Union[ArtifactInfo, _Mapping]] = ...) -> None: ...

class SetRouteRequest(_message.Message):
    __slots__ = ["canary_share", "circuit", "route", "stage"]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    canary_share: float
    circuit: CircuitOverride
    route: str
    stage: _transfer_pb2.RouteStage
    def __init__(self, route: _Optional[str] = ..., stage: _Optional[_Union[_transfer_pb2.RouteStage, str]] = ..., canary_share: _Optional[float] = ..., circuit: _Optional[_Union[CircuitOverride, str]] = ...) -> None: ...

class SetRouteResponse(_message.Message):
    __slots__ = ["previous"]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    previous: _transfer_pb2.RouteStage
    def __init__(self, previous: _Optional[_Union[_transfer_pb2.RouteStage, str]] = ...) -> None: ...

class UnloadArtifactRequest(_message.Message):
    __slots__ = ["route"]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    route: str
    def __init__(self, route: _Optional[str] = ...) -> None: ...

class UnloadArtifactResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class CircuitOverride(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
