"""DescribeAcls, CreateAcls and DeleteAcls.

Without an authorizer they are refused with SECURITY_DISABLED, as by Apache Kafka. A change is in force on
this broker before it is answered, and on the others when they have read its notification. Each entry of a
request has its own outcome. Changes run on the slow-work thread, because they wait for ZooKeeper.

Source: `AclApis` and `AclAuthorizer` of Apache Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.security.acl_table import AclTable
from barnabas.common.security.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import Principal
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.messages import acls as wire
from barnabas.zookeeper.acls import AclChanges

logger = logging.getLogger(__name__)

N = TypeVar("N", bound=IntEnum)

_DISABLED: Final = api_error(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def _member(kind: type[N], number: int) -> N:
    """The number of a request; raises INVALID_REQUEST for one without a meaning."""
    if member := kind(number):
        return member
    raise api_error(ErrorCode.INVALID_REQUEST, f"{number} is no {kind.__name__} of an ACL")


def _filter(body: wire.DescribeAclsRequest | wire.DeleteAclsFilter) -> AclFilter:
    """Raises INVALID_REQUEST."""
    return AclFilter(
        _member(ResourceType, body.resource_type_filter),
        body.resource_name_filter,
        _member(PatternType, body.pattern_type_filter),
        body.principal_filter,
        body.host_filter,
        _member(Operation, body.operation),
        _member(Permission, body.permission_type),
    )


# Describing


def handle_describe(services: Services, request: ApiRequest) -> None:
    if services.authorizer is None:
        request.respond(wire.DescribeAclsResponse(error_code=_DISABLED.code, error_message=_DISABLED.text))
        return
    try:
        chosen = _filter(request.body)
    except ApiError as error:
        answer = wire.DescribeAclsResponse(error_code=error.code, error_message=ErrorTexts().of(error))
        request.respond(answer)
        return
    by_pattern: defaultdict[ResourcePattern, list[wire.AclDescription]] = defaultdict(list)
    for binding in services.authorizer.table:
        if chosen.fits(binding):
            by_pattern[binding.resource].append(wire.AclDescription(**_of_entry(binding.entry)))
    resources = [
        wire.DescribeAclsResource(**_of_pattern(pattern), acls=acls) for pattern, acls in by_pattern.items()
    ]
    request.respond(wire.DescribeAclsResponse(error_code=ErrorCode.NONE, resources=resources))


def _of_pattern(pattern: ResourcePattern) -> dict[str, Any]:
    return {
        "resource_type": pattern.type,
        "resource_name": pattern.name,
        "pattern_type": pattern.pattern,
    }


def _of_entry(entry: AclEntry) -> dict[str, Any]:
    return {
        "principal": str(entry.principal),
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


# Creating


def handle_create(services: Services, request: ApiRequest) -> None:
    body: wire.CreateAclsRequest = request.body
    outcomes: list[ApiError | None] = [_DISABLED] * len(body.creations)
    if services.acls is not None:
        outcomes = _create(services.acls, body.creations)
        count = outcomes.count(None)
        logger.info("%d of %d ACLs are added for %s", count, len(outcomes), _whom(request))
    texts = ErrorTexts()
    results = [
        wire.AclCreationResult(error_code=ErrorCode.NONE)
        if error is None
        else wire.AclCreationResult(error_code=error.code, error_message=texts.of(error))
        for error in outcomes
    ]
    request.respond(wire.CreateAclsResponse(results=results))


def _whom(request: ApiRequest) -> str:
    return f"{request.raw.peer.session.principal}, {request}"


def _create(acls: AclChanges, creations: Sequence[wire.AclCreation]) -> list[ApiError | None]:
    """The error of each creation, or None."""
    outcomes: list[ApiError | None] = [None] * len(creations)
    by_pattern: defaultdict[ResourcePattern, dict[int, AclEntry]] = defaultdict(dict)
    kept = ErrorTexts()
    for number, creation in enumerate(creations):
        try:
            binding = _binding(creation)
        except ApiError as error:
            outcomes[number] = kept.kept(error)
        else:
            by_pattern[binding.resource][number] = binding.entry
    for pattern, entries in by_pattern.items():
        added = frozenset(entries.values())
        try:
            acls.change(pattern, added.union)
        except ApiError as error:
            for number in entries:
                outcomes[number] = kept.kept(error)
    return outcomes


def _binding(creation: wire.AclCreation) -> AclBinding:
    """Raises INVALID_REQUEST."""
    pattern = ResourcePattern(
        _member(ResourceType, creation.resource_type),
        creation.resource_name,
        _member(PatternType, creation.resource_pattern_type),
    )
    operation, permission = (
        _member(Operation, creation.operation),
        _member(Permission, creation.permission_type),
    )
    problem = None
    if pattern.type is ResourceType.ANY:
        problem = "resourceType must not be ANY"
    elif pattern.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = f"patternType must not be {pattern.pattern.name}"
    elif operation is Operation.ANY:
        problem = "operation must not be ANY"
    elif permission is Permission.ANY:
        problem = "permissionType must not be ANY"
    elif pattern.type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not creation.host:
        problem = "the host must not be empty; * stands for all hosts"
    if problem is not None:
        raise api_error(ErrorCode.INVALID_REQUEST, problem)
    try:
        principal = Principal.parse(creation.principal)
    except ValueError as error:
        raise api_error(ErrorCode.INVALID_REQUEST, str(error)) from None
    return AclBinding(pattern, AclEntry(principal, creation.host, operation, permission))


# Deleting


class _Deletion:
    """The ACLs that the filters of a request have chosen, each by the first that fits."""

    def __init__(self, filters: Sequence[wire.DeleteAclsFilter]) -> None:
        self.filters: dict[int, AclFilter] = {}
        self.errors: dict[int, ApiError] = {}
        """Of filters, by their number."""
        self.chosen: defaultdict[int, list[tuple[AclBinding, ApiError | None]]] = defaultdict(list)
        self._kept = ErrorTexts()
        for number, body in enumerate(filters):
            try:
                self.filters[number] = _filter(body)
            except ApiError as error:
                self.errors[number] = self._kept.kept(error)

    def patterns(self, table: AclTable) -> Iterable[ResourcePattern]:
        """The patterns of this broker's table, and patterns in filters, which it may not have heard of."""
        patterns = dict.fromkeys(table.patterns)
        for chosen in self.filters.values():
            if chosen.type is ResourceType.ANY or chosen.name is None:
                continue
            for kind in (PatternType.LITERAL, PatternType.PREFIXED):
                if chosen.pattern in (PatternType.ANY, kind):
                    patterns[ResourcePattern(chosen.type, chosen.name, kind)] = None
        return patterns

    def delete_from(self, acls: AclChanges, pattern: ResourcePattern) -> None:
        filters = {number: each for number, each in self.filters.items() if each.fits_resource(pattern)}
        if not filters:
            return
        doomed: dict[AclEntry, int] = {}

        def remove(entries: frozenset[AclEntry]) -> frozenset[AclEntry]:
            doomed.clear()
            for entry in entries:
                number = next((number for number, each in filters.items() if each.fits_entry(entry)), None)
                if number is not None:
                    doomed[entry] = number
            return entries - doomed.keys()

        failure: ApiError | None = None
        try:
            acls.change(pattern, remove)
        except ApiError as error:
            failure = self._kept.kept(error)
            if not doomed and failure.code != ErrorCode.INVALID_REQUEST:
                # They could not be read. No ACL has a name that is invalid.
                self.errors |= dict.fromkeys(filters, failure)
        for entry, number in sorted(doomed.items()):
            self.chosen[number].append((AclBinding(pattern, entry), failure))

    def result(self, number: int, texts: ErrorTexts) -> wire.DeleteAclsFilterResult:
        error = self.errors.get(number)
        result = wire.DeleteAclsFilterResult(error_code=ErrorCode.NONE)
        if error is not None:
            result.error_code, result.error_message = error.code, texts.of(error)
        for (pattern, entry), failure in self.chosen[number]:
            acl = wire.DeleteAclsMatchingAcl(**_of_pattern(pattern), **_of_entry(entry))
            if failure is not None:
                acl.error_code, acl.error_message = failure.code, texts.of(failure)
            result.matching_acls.append(acl)
        return result


def handle_delete(services: Services, request: ApiRequest) -> None:
    body: wire.DeleteAclsRequest = request.body
    texts = ErrorTexts()
    if services.acls is None or services.authorizer is None:
        result = wire.DeleteAclsFilterResult(error_code=_DISABLED.code, error_message=texts.of(_DISABLED))
        request.respond(wire.DeleteAclsResponse(filter_results=[result for _ in body.filters]))
        return
    deletion = _Deletion(body.filters)
    for pattern in deletion.patterns(services.authorizer.table):
        deletion.delete_from(services.acls, pattern)
    count = sum(failure is None for chosen in deletion.chosen.values() for _, failure in chosen)
    logger.info("%d ACLs are removed for %s", count, _whom(request))
    results = [deletion.result(number, texts) for number in range(len(body.filters))]
    request.respond(wire.DeleteAclsResponse(filter_results=results))
