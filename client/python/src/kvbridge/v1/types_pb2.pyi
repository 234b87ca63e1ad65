from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ATTENTION_KIND_FULL: AttentionKind
ATTENTION_KIND_MLA: AttentionKind
ATTENTION_KIND_SHARED_KV: AttentionKind
ATTENTION_KIND_SLIDING: AttentionKind
ATTENTION_KIND_SSM: AttentionKind
ATTENTION_KIND_UNSPECIFIED: AttentionKind
COMPONENT_KEY: Component
COMPONENT_UNSPECIFIED: Component
COMPONENT_VALUE: Component
DESCRIPTOR: _descriptor.FileDescriptor
ELEMENT_TYPE_BF16: ElementType
ELEMENT_TYPE_F16: ElementType
ELEMENT_TYPE_F32: ElementType
ELEMENT_TYPE_F8_E4M3: ElementType
ELEMENT_TYPE_UNSPECIFIED: ElementType
KEY_STATE_ROPED: KeyState
KEY_STATE_UNROPED: KeyState
KEY_STATE_UNSPECIFIED: KeyState
MAP_SIDE_SOURCE: MapSide
MAP_SIDE_TARGET: MapSide
MAP_SIDE_UNSPECIFIED: MapSide
OUTCOME_APPLIED: Outcome
OUTCOME_FALLBACK_REPREFILL: Outcome
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_UNSUPPORTED: Outcome
PAIRING_HALF: Pairing
PAIRING_INTERLEAVED: Pairing
PAIRING_UNSPECIFIED: Pairing
PLANE_INLINE: Plane
PLANE_REGION: Plane
PLANE_UCX: Plane
PLANE_UNSPECIFIED: Plane
REASON_APP_GATE: Reason
REASON_ARTIFACT_INTEGRITY: Reason
REASON_ARTIFACT_UNAVAILABLE: Reason
REASON_BATCH_LIMIT: Reason
REASON_CLASS_CAPACITY: ReasonClass
REASON_CLASS_CLIENT: ReasonClass
REASON_CLASS_INFRA: ReasonClass
REASON_CLASS_INTERNAL: ReasonClass
REASON_CLASS_POLICY: ReasonClass
REASON_CLASS_QUALITY: ReasonClass
REASON_CLASS_UNSPECIFIED: ReasonClass
REASON_DEADLINE_EXCEEDED: Reason
REASON_DEVICE_ERROR: Reason
REASON_DEVICE_OOM: Reason
REASON_DRAINING: Reason
REASON_INCOMPATIBLE_MODEL: Reason
REASON_INTERNAL: Reason
REASON_INVALID_REQUEST: Reason
REASON_LATENCY_BUDGET: Reason
REASON_MAGNITUDE_BOUND: Reason
REASON_NON_FINITE: Reason
REASON_NOT_WORTH_IT: Reason
REASON_OVERLOAD: Reason
REASON_QUALITY_PROBE: Reason
REASON_ROUTE_DISABLED: Reason
REASON_SHAPE_MISMATCH: Reason
REASON_TOKEN_LIMIT: Reason
REASON_TRANSPORT: Reason
REASON_UNPROVEN_PAIR: Reason
REASON_UNSPECIFIED: Reason

class Estimate(_message.Message):
    __slots__ = ["source", "value"]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    source: str
    value: float
    def __init__(self, value: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class InlineLocation(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class KvGeometry(_message.Message):
    __slots__ = ["attention", "element_type", "head_dim", "head_order", "kv_heads", "layers", "tp_degree", "tp_rank"]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    HEAD_ORDER_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    attention: _containers.RepeatedScalarFieldContainer[AttentionKind]
    element_type: ElementType
    head_dim: int
    head_order: _containers.RepeatedScalarFieldContainer[int]
    kv_heads: int
    layers: int
    tp_degree: int
    tp_rank: int
    def __init__(self, layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., element_type: _Optional[_Union[ElementType, str]] = ..., attention: _Optional[_Iterable[_Union[AttentionKind, str]]] = ..., head_order: _Optional[_Iterable[int]] = ..., tp_degree: _Optional[int] = ..., tp_rank: _Optional[int] = ...) -> None: ...

class KvSelection(_message.Message):
    __slots__ = ["inline", "key_state", "pool", "positions", "remote", "scales", "token_ids_sha256", "tokens"]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    KEY_STATE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_SHA256_FIELD_NUMBER: _ClassVar[int]
    inline: InlineLocation
    key_state: KeyState
    pool: PoolLocation
    positions: Positions
    remote: RemoteLocation
    scales: _containers.RepeatedCompositeFieldContainer[LayerScales]
    token_ids_sha256: str
    tokens: int
    def __init__(self, tokens: _Optional[int] = ..., positions: _Optional[_Union[Positions, _Mapping]] = ..., token_ids_sha256: _Optional[str] = ..., key_state: _Optional[_Union[KeyState, str]] = ..., scales: _Optional[_Iterable[_Union[LayerScales, _Mapping]]] = ..., inline: _Optional[_Union[InlineLocation, _Mapping]] = ..., pool: _Optional[_Union[PoolLocation, _Mapping]] = ..., remote: _Optional[_Union[RemoteLocation, _Mapping]] = ...) -> None: ...

class LayerScales(_message.Message):
    __slots__ = ["key", "value"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: _containers.RepeatedScalarFieldContainer[float]
    value: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, key: _Optional[_Iterable[float]] = ..., value: _Optional[_Iterable[float]] = ...) -> None: ...

class ModelIdentity(_message.Message):
    __slots__ = ["adapter_digest", "chat_template_sha256", "family", "modality_digest", "model_id", "revision", "tokenizer_sha256"]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    MODALITY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    adapter_digest: str
    chat_template_sha256: str
    family: str
    modality_digest: str
    model_id: str
    revision: str
    tokenizer_sha256: str
    def __init__(self, family: _Optional[str] = ..., model_id: _Optional[str] = ..., revision: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ..., chat_template_sha256: _Optional[str] = ..., adapter_digest: _Optional[str] = ..., modality_digest: _Optional[str] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ["geometry", "identity", "rope"]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    geometry: KvGeometry
    identity: ModelIdentity
    rope: RopeSpec
    def __init__(self, identity: _Optional[_Union[ModelIdentity, _Mapping]] = ..., geometry: _Optional[_Union[KvGeometry, _Mapping]] = ..., rope: _Optional[_Union[RopeSpec, _Mapping]] = ...) -> None: ...

class PoolLocation(_message.Message):
    __slots__ = ["generation", "pages", "pool_id"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    pool_id: str
    def __init__(self, pool_id: _Optional[str] = ..., generation: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...

class Positions(_message.Message):
    __slots__ = ["list", "start"]
    LIST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    list: _containers.RepeatedScalarFieldContainer[int]
    start: int
    def __init__(self, start: _Optional[int] = ..., list: _Optional[_Iterable[int]] = ...) -> None: ...

class RemoteLocation(_message.Message):
    __slots__ = ["mapped"]
    MAPPED_FIELD_NUMBER: _ClassVar[int]
    mapped: bool
    def __init__(self, mapped: bool = ...) -> None: ...

class RopeParams(_message.Message):
    __slots__ = ["attention_factor", "inv_freq", "pairing", "rotary_dim"]
    ATTENTION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    INV_FREQ_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    ROTARY_DIM_FIELD_NUMBER: _ClassVar[int]
    attention_factor: float
    inv_freq: _containers.RepeatedScalarFieldContainer[float]
    pairing: Pairing
    rotary_dim: int
    def __init__(self, inv_freq: _Optional[_Iterable[float]] = ..., attention_factor: _Optional[float] = ..., rotary_dim: _Optional[int] = ..., pairing: _Optional[_Union[Pairing, str]] = ...) -> None: ...

class RopeSpec(_message.Message):
    __slots__ = ["layer_overrides", "max_position", "params"]
    class LayerOverridesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: RopeParams
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[RopeParams, _Mapping]] = ...) -> None: ...
    LAYER_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    layer_overrides: _containers.MessageMap[int, RopeParams]
    max_position: int
    params: RopeParams
    def __init__(self, params: _Optional[_Union[RopeParams, _Mapping]] = ..., layer_overrides: _Optional[_Mapping[int, RopeParams]] = ..., max_position: _Optional[int] = ...) -> None: ...

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Component(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class AttentionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Pairing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class KeyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ReasonClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Plane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class MapSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
