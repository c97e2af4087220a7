"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import Final

from barnabas.protocol import schema as s

LITERAL_PATTERN: Final = 3
"""The pattern type of the versions that have none."""
ANY: Final = 1
"""In a filter, the number of a type, an operation or a permission that matches all."""


@s.message
class AclDescription:
    principal: str = s.string()
    host: str = s.string()
    operation: int = s.int8()
    permission_type: int = s.int8()


@s.message
class DescribeAclsResource:
    resource_type: int = s.int8()
    resource_name: str = s.string()
    pattern_type: int = s.int8(since=1, default=LITERAL_PATTERN, ignorable=False)
    acls: list[AclDescription] = s.array(AclDescription)


@s.message
class DescribeAclsResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    resources: list[DescribeAclsResource] = s.array(DescribeAclsResource, default_factory=list)


@s.request(s.ApiKey.DESCRIBE_ACLS, versions=(0, 3), flexible_since=2)
class DescribeAclsRequest(s.RequestOf[DescribeAclsResponse]):
    """A filter that is None matches any value."""

    resource_type_filter: int = s.int8(default=ANY)
    resource_name_filter: str | None = s.string(nullable_since=0, default=None)
    pattern_type_filter: int = s.int8(since=1, default=LITERAL_PATTERN, ignorable=False)
    principal_filter: str | None = s.string(nullable_since=0, default=None)
    host_filter: str | None = s.string(nullable_since=0, default=None)
    operation: int = s.int8(default=ANY)
    permission_type: int = s.int8(default=ANY)


@s.message
class AclCreationResult:
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class CreateAclsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[AclCreationResult] = s.array(AclCreationResult)


@s.message
class AclCreation:
    resource_type: int = s.int8()
    resource_name: str = s.string()
    resource_pattern_type: int = s.int8(since=1, default=LITERAL_PATTERN, ignorable=False)
    principal: str = s.string()
    host: str = s.string()
    operation: int = s.int8()
    permission_type: int = s.int8()


@s.request(s.ApiKey.CREATE_ACLS, versions=(0, 3), flexible_since=2)
class CreateAclsRequest(s.RequestOf[CreateAclsResponse]):
    creations: list[AclCreation] = s.array(AclCreation)


@s.message
class DeleteAclsMatchingAcl:
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    resource_type: int = s.int8()
    resource_name: str = s.string()
    pattern_type: int = s.int8(since=1, default=LITERAL_PATTERN, ignorable=False)
    principal: str = s.string()
    host: str = s.string()
    operation: int = s.int8()
    permission_type: int = s.int8()


@s.message
class DeleteAclsFilterResult:
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = s.array(DeleteAclsMatchingAcl, default_factory=list)


@s.message
class DeleteAclsResponse:
    throttle_time_ms: int = s.int32(default=0)
    filter_results: list[DeleteAclsFilterResult] = s.array(DeleteAclsFilterResult)


@s.message
class DeleteAclsFilter:
    """A filter that is None matches any value."""

    resource_type_filter: int = s.int8(default=ANY)
    resource_name_filter: str | None = s.string(nullable_since=0, default=None)
    pattern_type_filter: int = s.int8(since=1, default=LITERAL_PATTERN, ignorable=False)
    principal_filter: str | None = s.string(nullable_since=0, default=None)
    host_filter: str | None = s.string(nullable_since=0, default=None)
    operation: int = s.int8(default=ANY)
    permission_type: int = s.int8(default=ANY)


@s.request(s.ApiKey.DELETE_ACLS, versions=(0, 3), flexible_since=2)
class DeleteAclsRequest(s.RequestOf[DeleteAclsResponse]):
    filters: list[DeleteAclsFilter] = s.array(DeleteAclsFilter)
