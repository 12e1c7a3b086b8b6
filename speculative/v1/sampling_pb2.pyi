from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcceptanceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_RULE_UNSPECIFIED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_COUPLED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_REJECTION: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_ADASD: _ClassVar[AcceptanceRule]

class AdasdVariant(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADASD_VARIANT_UNSPECIFIED: _ClassVar[AdasdVariant]
    ADASD_VARIANT_BAYES: _ClassVar[AdasdVariant]
    ADASD_VARIANT_MIDPOINT: _ClassVar[AdasdVariant]

class AdasdLabels(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADASD_LABELS_UNSPECIFIED: _ClassVar[AdasdLabels]
    ADASD_LABELS_EXACT: _ClassVar[AdasdLabels]
    ADASD_LABELS_SELF: _ClassVar[AdasdLabels]
ACCEPTANCE_RULE_UNSPECIFIED: AcceptanceRule
ACCEPTANCE_RULE_COUPLED: AcceptanceRule
ACCEPTANCE_RULE_REJECTION: AcceptanceRule
ACCEPTANCE_RULE_ADASD: AcceptanceRule
ADASD_VARIANT_UNSPECIFIED: AdasdVariant
ADASD_VARIANT_BAYES: AdasdVariant
ADASD_VARIANT_MIDPOINT: AdasdVariant
ADASD_LABELS_UNSPECIFIED: AdasdLabels
ADASD_LABELS_EXACT: AdasdLabels
ADASD_LABELS_SELF: AdasdLabels

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ...) -> None: ...

class AdasdOptions(_message.Message):
    __slots__ = ("variant", "labels")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    variant: AdasdVariant
    labels: AdasdLabels
    def __init__(self, variant: _Optional[_Union[AdasdVariant, str]] = ..., labels: _Optional[_Union[AdasdLabels, str]] = ...) -> None: ...

class SparseDistribution(_message.Message):
    __slots__ = ("token_ids", "weights_fp16", "tail_mass")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FP16_FIELD_NUMBER: _ClassVar[int]
    TAIL_MASS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    weights_fp16: bytes
    tail_mass: float
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., weights_fp16: _Optional[bytes] = ..., tail_mass: _Optional[float] = ...) -> None: ...
