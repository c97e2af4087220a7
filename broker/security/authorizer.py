"""Authorization: whether the peer of a session may do an operation on a resource.

Super users may do everything. For other peers the ACLs decide: a denial before a permission, and a resource
without ACLs is closed, or open to all by ``allow.everyone.if.no.acl.found``. Answers are the same as those of
Apache Kafka's `AclAuthorizer`, and so are the lines of the log `kafka.authorizer.logger`.

Any thread asks; one thread at a time replaces ACLs. The operations that a session may do are remembered with
it, for a bounded number of resources, until an ACL changes or the session gets another principal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Final

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.acl_table import ALL_OPERATIONS, AclTable, Operations, Who, who
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import (
    SUPPORTED_OPERATIONS,
    AclEntry,
    Operation,
    ResourcePattern,
    ResourceType,
    pascal_name,
)
from barnabas.common.security.principal import Principal
from barnabas.protocol.schema import ApiKey

AUTHORIZER_LOG: Final = "kafka.authorizer.logger"
_audit: Final = logging.getLogger(AUTHORIZER_LOG)
_TRACE: Final = 5
"""Below DEBUG: decisions that neither grant nor refuse a request."""
_OF_RECORDS: Final = (Operation.READ, Operation.WRITE)
_NO_NAMES: Final[frozenset[str]] = frozenset()
_MAX_REMEMBERED: Final = 256
_MAX_NAME_LENGTH: Final = 256
"""Of a remembered resource; peers choose the names."""


class _Grants:
    """The operations that the peer of one session may do on the resources that it named last."""

    __slots__ = ("are_logged", "by_resource", "principal", "topics", "version", "who")

    def __init__(self, session: Session, version: int, is_super_user: bool) -> None:
        self.principal = session.principal
        self.version = version
        self.who: Who | None = None if is_super_user else who(session.principal, session.host)
        self.are_logged = _audit.isEnabledFor(logging.DEBUG)
        """Whether permissions are logged, and not denials alone."""
        self.by_resource: dict[tuple[ResourceType, str], Operations] = {}
        self.topics: dict[Operation, set[str]] = {operation: set() for operation in _OF_RECORDS}
        """The topics that it may read and write, of those in `by_resource`; none if permissions are
        logged."""

    def remember(self, resource_type: ResourceType, name: str, operations: Operations) -> None:
        if len(self.by_resource) >= _MAX_REMEMBERED:
            self.by_resource.clear()
            for names in self.topics.values():
                names.clear()
        self.by_resource[resource_type, name] = operations
        if resource_type is ResourceType.TOPIC and not self.are_logged:
            for operation, names in self.topics.items():
                if operations >> operation & 1:
                    names.add(name)


class Authorizer:
    """Starts without ACLs."""

    def __init__(
        self, *, super_users: Collection[Principal] = (), allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._without_acls: Operations = ALL_OPERATIONS if allow_everyone_if_no_acl_found else 0
        self._lock = threading.Lock()
        # One tuple, so that a reader sees a table with its version.
        self._current = (0, AclTable())

    @property
    def table(self) -> AclTable:
        return self._current[1]

    def replace(self, changes: Mapping[ResourcePattern, Collection[AclEntry]]) -> None:
        """Give these resource patterns other ACLs; a pattern without entries has none from now on."""
        with self._lock:
            version, table = self._current
            self._current = (version + 1, table.replaced(changes))

    def is_super_user(self, principal: Principal) -> bool:
        return principal in self._super_users

    def allows(
        self,
        session: Session,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        api: ApiKey,
        *,
        references: int = 1,
        logs_denied: bool = True,
    ) -> bool:
        """Whether the peer may do the operation on the resource; the decision is logged.

        ``references`` is how often the request refers to the resource. ``logs_denied`` is False where the
        request did not name the resource, such as in a list of all topics.
        """
        is_allowed = self._operations(session, resource_type, name) >> operation & 1 == 1
        if is_allowed:
            if not session.grants.are_logged:
                return True
            level = logging.DEBUG
        else:
            level = logging.INFO if logs_denied else _TRACE
        if _audit.isEnabledFor(level):
            resource = f"{pascal_name(resource_type)}:LITERAL:{name}"
            _log(level, session, operation, resource, api, references, is_allowed=is_allowed)
        return is_allowed

    def known_topics(self, session: Session, operation: Operation) -> set[str] | frozenset[str] | None:
        """The topics that the peer may read, or write to, as far as that is remembered; None if it may all.

        For requests that come by the thousands. Ask `allows` for other topics; if permissions are logged,
        for all of them.
        """
        grants: _Grants | None = session.grants
        if grants is None or grants.version != self._current[0] or grants.principal is not session.principal:
            return _NO_NAMES
        if grants.who is None and not grants.are_logged:
            return None
        return grants.topics[operation]

    def allows_any(
        self, session: Session, operation: Operation, resource_type: ResourceType, api: ApiKey
    ) -> bool:
        """Whether the peer may do the operation on at least one resource of the type (KIP-679).

        Not remembered: it takes time in proportion to the number of ACLs.
        """
        is_allowed = self.is_super_user(session.principal) or self.table.allows_any(
            who(session.principal, session.host),
            operation,
            resource_type,
            by_default=self._without_acls != 0,
        )
        level = logging.DEBUG if is_allowed else logging.INFO
        if _audit.isEnabledFor(level):
            resource = f"{pascal_name(resource_type)}:UNKNOWN:NONE"
            _log(level, session, operation, resource, api, 0, is_allowed=is_allowed)
        return is_allowed

    def authorized_operations(self, session: Session, resource_type: ResourceType, name: str) -> int:
        """The bits of the operations that answers of Describe and Metadata requests carry (KIP-430)."""
        return self._operations(session, resource_type, name) & _SUPPORTED[resource_type]

    def _operations(self, session: Session, resource_type: ResourceType, name: str) -> Operations:
        version, table = self._current
        grants: _Grants | None = session.grants
        if grants is None or grants.version != version or grants.principal is not session.principal:
            grants = session.grants = _Grants(session, version, self.is_super_user(session.principal))
        if grants.who is None:
            return ALL_OPERATIONS
        key = resource_type, name
        operations = grants.by_resource.get(key)
        if operations is None:
            operations = table.allowed(grants.who, resource_type, name)
            if operations is None:
                operations = self._without_acls
            if len(name) <= _MAX_NAME_LENGTH:
                grants.remember(resource_type, name, operations)
        return operations


def make_authorizer(config: BrokerConfig) -> Authorizer | None:
    """None if ``authorizer.class.name`` is empty."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        super_users=config.super_users,
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )


_SUPPORTED: Final = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in SUPPORTED_OPERATIONS.items()
}


def _log(
    level: int,
    session: Session,
    operation: Operation,
    resource: str,
    api: ApiKey,
    references: int,
    *,
    is_allowed: bool,
) -> None:
    _audit.log(
        level,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s with "
        "resourceRefCount = %d",
        session.principal,
        "Allowed" if is_allowed else "Denied",
        pascal_name(operation),
        session.host,
        resource,
        pascal_name(api),
        references,
    )
