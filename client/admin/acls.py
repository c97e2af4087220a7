"""Access control lists: the requests that list, add and remove them.

Any broker with an authorizer answers; others refuse with SECURITY_DISABLED. The answering broker obeys a
change at once, the others within milliseconds. Belongs to the event loop of the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from barnabas.client.admin.base import AdminBase, error_of, raise_errors
from barnabas.client.arguments import several
from barnabas.client.ask import ToBroker
from barnabas.common.security.acl import (
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
from barnabas.protocol.errors import ApiError
from barnabas.protocol.messages import acls as wire


class AclAdmin(AdminBase):
    """The methods of `Admin` for ACLs."""

    async def describe_acls(
        self, acl_filter: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """The ACLs that fit a filter, all without one, in the order of their resources.

        ``AclFilter(ResourceType.TOPIC, "t", PatternType.MATCH)`` finds all that apply to the topic ``t``.
        """
        (chosen,) = several("acl_filter", acl_filter or AclFilter(), AclFilter)
        request = wire.DescribeAclsRequest(**_fields_of(chosen))
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        if error := error_of(response, "the ACLs were not listed"):
            raise error
        return sorted(_binding(resource, acl) for resource in response.resources for acl in resource.acls)

    async def create_acls(
        self, bindings: Iterable[AclBinding] | AclBinding, *, timeout_ms: int | None = None
    ) -> None:
        """Add ACLs; one that is there already stays as it is.

        Raises the error of a single ACL, and TopicErrors if some of several failed.
        """
        chosen = list(dict.fromkeys(several("bindings", bindings, AclBinding)))
        request = wire.CreateAclsRequest(
            creations=[
                wire.AclCreation(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    resource_pattern_type=resource.pattern,
                    principal=str(entry.principal),
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
                for resource, entry in chosen
            ]
        )
        # An ACL is added at most once, so a retry is harmless.
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        raise_errors(
            {
                str(binding): error_of(result, f"the ACL was not added: {binding}")
                for binding, result in zip(chosen, response.results, strict=True)
            },
            len(chosen),
        )

    async def delete_acls(
        self, filters: Iterable[AclFilter] | AclFilter, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Remove all ACLs that fit one of the filters; returns them.

        If the answer to a request is lost, it is repeated, and ACLs that the first one removed are not
        returned. Raises as `create_acls`.
        """
        chosen = several("filters", filters, AclFilter)
        request = wire.DeleteAclsRequest(
            filters=[wire.DeleteAclsFilter(**_fields_of(each)) for each in chosen]
        )
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        outcomes: dict[str, ApiError | None] = {}
        deleted: set[AclBinding] = set()
        for each, result in zip(chosen, response.filter_results, strict=True):
            outcomes[str(each)] = error_of(result, f"no ACL was removed by {each}")
            for acl in result.matching_acls:
                binding = _binding(acl, acl)
                if error := error_of(acl, f"the ACL was not removed: {binding}"):
                    outcomes[str(binding)] = error
                else:
                    deleted.add(binding)
        raise_errors(outcomes, len(outcomes))
        return sorted(deleted)


def _fields_of(chosen: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": chosen.type,
        "resource_name_filter": chosen.name,
        "pattern_type_filter": chosen.pattern,
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": chosen.operation,
        "permission_type": chosen.permission,
    }


def _binding(resource: Any, acl: Any) -> AclBinding:
    kind, _, name = acl.principal.partition(":")
    return AclBinding(
        ResourcePattern(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
        ),
        AclEntry(Principal(kind, name), acl.host, Operation(acl.operation), Permission(acl.permission_type)),
    )
