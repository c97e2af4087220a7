"""The ACLs of a cluster in ZooKeeper, in the layout and the formats of Apache Kafka.

A node holds all ACLs of one resource pattern. `AclStore` changes it by compare-and-set, in one transaction
with a notification. `AclChanges` passes the present ACLs to ``apply``: all at start, then those that it
changes itself or that a notification names. The calls block; any thread but the client library's.

An error never grants a right. Without ZooKeeper, and for a node that becomes unreadable, the ACLs that were
read last stay in force. If such a node was never read, it may hold denials: its resources are closed for all
but super users.
Source: `ZkAclStore`, `ZkAclChangeStore`, `AclEntry` and `AclAuthorizer` of Apache Kafka 3.9; KIP-290.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError

from barnabas.common.security.acl import (
    ANY_HOST,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    pascal_name,
)
from barnabas.common.security.principal import EVERYBODY, Principal
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.zookeeper import paths
from barnabas.zookeeper.errors import as_api_errors
from barnabas.zookeeper.json_nodes import MalformedZnode, dump, reading
from barnabas.zookeeper.notifications import Notice, NotificationWatcher
from barnabas.zookeeper.requests import (
    Transaction,
    ensure,
    first_error,
    get,
    list_children,
    recreate,
    retry_cas,
)
from barnabas.zookeeper.session import ZooKeeperSession

log = logging.getLogger("barnabas.zookeeper")

N = TypeVar("N", bound=IntEnum)

Apply = Callable[[Mapping[ResourcePattern, Collection[AclEntry]]], None]
Edit = Callable[[frozenset[AclEntry]], frozenset[AclEntry]]

_FOLDERS: Final = {PatternType.LITERAL: paths.ACLS, PatternType.PREFIXED: paths.PREFIXED_ACLS}
_CHANGES: Final = {PatternType.LITERAL: paths.ACL_CHANGES, PatternType.PREFIXED: paths.EXTENDED_ACL_CHANGES}
_TYPES: Final = {pascal_name(type_): type_ for type_ in ResourceType if type_ > ResourceType.ANY}
_VERSION: Final = 1
_MAX_DATA_BYTES: Final = 1_000_000
"""ZooKeeper closes the connection of a client that sends more than 1 MiB."""
_CLOSED: Final = frozenset({AclEntry(EVERYBODY, ANY_HOST, Operation.ALL, Permission.DENY)})
"""In force for a node that was never readable."""


class StoredAcls(NamedTuple):
    """The ACLs of a pattern; the version is that of the node, -1 without one."""

    entries: frozenset[AclEntry] = frozenset()
    version: int = -1
    is_readable: bool = True


def path_of(pattern: ResourcePattern) -> str:
    return f"{_FOLDERS[pattern.pattern]}/{pascal_name(pattern.type)}/{pattern.name}"


def check_name(name: str) -> None:
    """Raises INVALID_REQUEST for a name that no node can have; Kafka does not encode the names either."""
    if not name:
        raise api_error(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    if "/" in name or name in (".", "..") or any(map(_is_illegal, name)):
        raise api_error(
            ErrorCode.INVALID_REQUEST, f"ACL binding contains invalid resource name: {name[:_MAX_SHOWN]!r}"
        )


_MAX_SHOWN: Final = 100


def _is_illegal(char: str) -> bool:
    """As ZooKeeper's `PathUtils` has it."""
    return (
        char <= "\x1f"
        or "\x7f" <= char <= "\x9f"
        or "\ud800" <= char <= "\uf8ff"
        or "\ufff0" <= char <= "\uffff"
    )


# The formats


def encode_entries(entries: Iterable[AclEntry]) -> bytes:
    return dump(
        {
            "version": _VERSION,
            "acls": [
                {
                    "principal": str(entry.principal),
                    "permissionType": pascal_name(entry.permission),
                    "operation": pascal_name(entry.operation),
                    "host": entry.host,
                }
                for entry in sorted(entries)
            ],
        }
    )


def decode_entries(path: str, data: bytes) -> frozenset[AclEntry]:
    """Raises MalformedZnode, also for a permission or an operation that has no meaning here."""
    if not data:
        return frozenset()
    with reading(path, data) as body:
        if body["version"] != _VERSION:
            raise ValueError(f"version {body['version']}")
        return frozenset(
            AclEntry(
                _principal(acl["principal"]),
                _text(acl["host"]),
                _member(Operation, acl["operation"], Operation.ALL),
                _member(Permission, acl["permissionType"], Permission.DENY),
            )
            for acl in body["acls"]
        )


def encode_change(pattern: ResourcePattern) -> bytes:
    """The data of a notification; that of a literal pattern is older than the patterns."""
    if pattern.pattern is PatternType.LITERAL:
        return f"{pattern.type.name}:{pattern.name}".encode()
    return dump(
        {
            "version": _VERSION,
            "resourceType": pattern.type.name,
            "name": pattern.name,
            "patternType": pattern.pattern.name,
        }
    )


def decode_change(path: str, data: bytes) -> ResourcePattern:
    """Raises MalformedZnode."""
    if path.startswith(f"{paths.ACL_CHANGES}/"):
        with reading(path, data, bytes.decode) as text:
            type_, _, name = text.partition(":")
            return ResourcePattern(_resource_type(type_), name)
    with reading(path, data) as body:
        if body["version"] > _VERSION:
            raise ValueError(f"version {body['version']}")
        return ResourcePattern(
            _resource_type(body["resourceType"]),
            _text(body["name"]),
            _member(PatternType, body["patternType"], PatternType.LITERAL),
        )


def _resource_type(text: str) -> ResourceType:
    return ResourceType(_member(ResourceType, text.replace("_", ""), ResourceType.TOPIC))


def _member(kind: type[N], text: str, lowest: N) -> N:
    """The member of a name in any case, not below the lowest that has a meaning in an ACL."""
    for member in kind:
        if member >= lowest and pascal_name(member).upper() == text.upper():
            return member
    raise ValueError(f"{text!r} is no {kind.__name__}")


def _principal(text: str) -> Principal:
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is no principal")
    return Principal(kind, name)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


# Reading and writing


class AclStore:
    """Calls raise `ZooKeeperUnavailable` or `SessionLost`."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session

    def create_folders(self) -> None:
        folders = [f"{folder}/{type_}" for folder in _FOLDERS.values() for type_ in _TYPES]
        for outcome in self.session.run_all([ensure(path) for path in (*folders, *_CHANGES.values())]):
            outcome.get()

    def read(self, patterns: Iterable[ResourcePattern]) -> dict[ResourcePattern, StoredAcls]:
        """The present ACLs; none for a pattern without a node."""
        chosen = list(patterns)
        outcomes = self.session.run_all([get(path_of(pattern)) for pattern in chosen])
        return {pattern: _stored(pattern, outcome) for pattern, outcome in zip(chosen, outcomes, strict=True)}

    def read_all(self) -> dict[ResourcePattern, StoredAcls]:
        """Of every pattern that has a node."""
        return self.read(self._patterns())

    def _patterns(self) -> Iterator[ResourcePattern]:
        for pattern_type, folder in _FOLDERS.items():
            for name in sorted(list_children(self.session, folder)):
                type_ = _TYPES.get(name)
                if type_ is None:
                    log.warning("ignored: %s/%s is no type of resources", folder, name)
                    continue
                for resource in list_children(self.session, f"{folder}/{name}"):
                    yield ResourcePattern(type_, resource, pattern_type)

    def replace(self, pattern: ResourcePattern, entries: Collection[AclEntry], former: StoredAcls) -> bool:
        """Write all ACLs of a pattern and the notification; False if they are not ``former`` any more.

        The node goes with the last ACL. Raises INVALID_REQUEST if they are too many for a node.
        """
        path, data = path_of(pattern), encode_entries(entries)
        if len(data) > _MAX_DATA_BYTES:
            text = f"the ACLs of {path} take {len(data)} bytes; at most {_MAX_DATA_BYTES} are stored"
            raise api_error(ErrorCode.INVALID_REQUEST, text)
        transaction = Transaction()
        if former.version < 0:
            transaction.create(path, data)
        elif entries:
            transaction.set(path, data, former.version)
        else:
            transaction.delete(path, former.version)
        changes = _CHANGES[pattern.pattern]
        transaction.create(f"{changes}/{paths.ACL_CHANGE_PREFIX}", encode_change(pattern), sequence=True)
        outcome = self.session.attempt(transaction)
        error = first_error(outcome.get())
        if error is None:
            return True
        if not isinstance(error, BadVersionError | NodeExistsError | NoNodeError):
            raise error
        if outcome.retried and self.read([pattern])[pattern].entries == frozenset(entries):
            # It may be our own write: its answer was lost.
            return True
        if isinstance(error, NoNodeError):
            recreate(self.session, [f"{_FOLDERS[pattern.pattern]}/{pascal_name(pattern.type)}", changes])
        return False


def _stored(pattern: ResourcePattern, outcome: Any) -> StoredAcls:
    if isinstance(outcome.error, NoNodeError):
        return StoredAcls()
    path = path_of(pattern)
    if isinstance(outcome.error, NoAuthError):
        log.error("the ACLs in %s cannot be read: ZooKeeper refuses it", path)
        return StoredAcls(version=0, is_readable=False)
    data, stat = outcome.get()
    try:
        return StoredAcls(decode_entries(path, data), stat.version)
    except MalformedZnode as error:
        log.error("ACLs cannot be read: %s", error)
        return StoredAcls(version=stat.version, is_readable=False)


class AclChanges(NotificationWatcher):
    """`change` may be called by any thread; ``apply`` is called by one at a time."""

    subject = "ACLs"

    def __init__(
        self,
        store: AclStore,
        *,
        apply: Apply,
        now_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._apply = apply
        # Held from a read or write of ACLs until they are in force: older ones never replace newer ones.
        self._lock = threading.Lock()
        # The patterns whose ACLs are in force.
        self._present: set[ResourcePattern] = set()
        super().__init__(
            store.session, list(_CHANGES.values()), name="acl-changes", now_ms=now_ms, on_fatal=on_fatal
        )

    def change(self, pattern: ResourcePattern, edit: Edit) -> None:
        """Write the ACLs that ``edit`` makes of those of a pattern, and put them in force.

        It is called again if others write meanwhile. Raises REQUEST_TIMED_OUT, INVALID_REQUEST for a name
        that cannot be stored, and the errors of ``edit``.
        """
        check_name(pattern.name)

        def attempt() -> StoredAcls | None:
            former = self._store.read([pattern])[pattern]
            if not former.is_readable:
                text = f"the ACLs in {path_of(pattern)} cannot be read; repair the node, or delete it"
                raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            entries = edit(former.entries)
            if entries == former.entries or self._store.replace(pattern, entries, former):
                return StoredAcls(entries)
            return None

        with self._lock, as_api_errors():
            what = f"the ACLs of {pattern.name!r} are changed by others again and again"
            self._pass_on({pattern: retry_cas(attempt, what)})

    def load(self) -> None:
        """See `NotificationWatcher`; the folders are created first."""
        self._store.create_folders()
        super().load()

    def _read_all(self) -> None:
        with self._lock:
            stored = self._store.read_all()
            # Deleted while nobody watched.
            gone = self._present - stored.keys()
            self._pass_on(dict.fromkeys(gone, StoredAcls()) | stored)

    def _read_changed(self, notices: Mapping[str, Notice]) -> None:
        try:
            patterns = {decode_change(path, notice.data) for path, notice in notices.items()}
        except MalformedZnode as error:
            log.error("all ACLs are read, because a notification of a change is unreadable: %s", error)
            self._read_all()
            return
        with self._lock:
            self._pass_on(self._store.read(patterns))
        log.info("ACLs changed: %s", ", ".join(sorted(map(path_of, patterns))))

    def _pass_on(self, read: Mapping[ResourcePattern, StoredAcls]) -> None:
        changes: dict[ResourcePattern, frozenset[AclEntry]] = {}
        for pattern, stored in read.items():
            if stored.is_readable:
                changes[pattern] = stored.entries
            elif pattern in self._present:
                log.error("the ACLs of %s stay as they were read before", path_of(pattern))
            else:
                log.error("%s is closed for all but super users until it is readable", path_of(pattern))
                changes[pattern] = _CLOSED
        self._apply(changes)
        for pattern, entries in changes.items():
            if entries:
                self._present.add(pattern)
            else:
                self._present.discard(pattern)
