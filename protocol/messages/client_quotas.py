"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol import schema as s


class QuotaMatch(IntEnum):
    """How a component of a filter matches the names of its entity type."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@s.message
class QuotaEntity:
    """``entity_name`` None: the default of the type."""

    entity_type: str = s.string()
    entity_name: str | None = s.string(nullable_since=0)


@s.message
class QuotaValue:
    key: str = s.string()
    value: float = s.float64()


@s.message
class QuotaEntry:
    entity: list[QuotaEntity] = s.array(QuotaEntity)
    values: list[QuotaValue] = s.array(QuotaValue)


@s.message
class DescribeClientQuotasResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default="")
    entries: list[QuotaEntry] | None = s.array(QuotaEntry, nullable_since=0)


@s.message
class QuotaFilterComponent:
    """``match_type`` is a `QuotaMatch`; ``match`` the name for EXACT, otherwise None."""

    entity_type: str = s.string()
    match_type: int = s.int8()
    match: str | None = s.string(nullable_since=0)


@s.request(s.ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1)
class DescribeClientQuotasRequest(s.RequestOf[DescribeClientQuotasResponse]):
    components: list[QuotaFilterComponent] = s.array(QuotaFilterComponent)
    strict: bool = s.boolean()


@s.message
class AlterQuotaResult:
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    entity: list[QuotaEntity] = s.array(QuotaEntity)


@s.message
class AlterClientQuotasResponse:
    throttle_time_ms: int = s.int32(default=0)
    entries: list[AlterQuotaResult] = s.array(AlterQuotaResult)


@s.message
class QuotaChange:
    """``remove``: the setting is removed, and ``value`` has no meaning."""

    key: str = s.string()
    value: float = s.float64()
    remove: bool = s.boolean()


@s.message
class AlterQuotaEntry:
    entity: list[QuotaEntity] = s.array(QuotaEntity)
    ops: list[QuotaChange] = s.array(QuotaChange)


@s.request(s.ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1)
class AlterClientQuotasRequest(s.RequestOf[AlterClientQuotasResponse]):
    entries: list[AlterQuotaEntry] = s.array(AlterQuotaEntry)
    validate_only: bool = s.boolean()
