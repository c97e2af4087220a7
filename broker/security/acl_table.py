"""The ACLs of a cluster and the decisions that follow from them. Pure; a table is never changed.

A decision needs the ACLs of the name, of the literal name ``*`` and of every prefix of the name. They are
found without a look at the others: by name, and for prefixes by one binary search. ACLs of one resource are
kept as bits by principal and host, so thousands of them cost as much as one.

Source: `AclAuthorizer` of Apache Kafka 3.9; KIP-11, KIP-290 (prefixes), KIP-679 (any resource of a type).
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from barnabas.common.security.acl import (
    ANY_HOST,
    IMPLIES,
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import EVERYBODY, WILDCARD, Principal

Operations = int
"""A set of operations: the bit of each is ``1 << operation``."""
Who = tuple[tuple[Principal, str], ...]
"""The principals and hosts of the ACLs that apply to a peer."""

ALL_OPERATIONS: Final[Operations] = sum(
    1 << operation for operation in Operation if operation > Operation.ALL
)
_DENIED_SHIFT: Final = 16
_NO_ENTRIES: Final[Mapping[ResourcePattern, frozenset[AclEntry]]] = MappingProxyType({})


def canonical_host(host: str) -> str:
    """One spelling of an address; other texts are returned as they are.

    Java writes the zeros of an IPv6 address, Python leaves them out.
    """
    if host == ANY_HOST:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def who(principal: Principal, host: str) -> Who:
    host = canonical_host(host)
    return (principal, host), (principal, ANY_HOST), (EVERYBODY, host), (EVERYBODY, ANY_HOST)


class _Acls(NamedTuple):
    """The ACLs of one resource pattern, and the operations that they allow and deny, as bits."""

    entries: frozenset[AclEntry]
    bits: Mapping[tuple[Principal, str], int]

    @classmethod
    def of(cls, entries: frozenset[AclEntry]) -> _Acls:
        bits: dict[tuple[Principal, str], int] = {}
        for entry in entries:
            key = entry.principal, canonical_host(entry.host)
            bits[key] = bits.get(key, 0) | _bits(entry)
        return cls(entries, bits)

    def of_peer(self, peer: Who) -> int:
        bits = 0
        for key in peer:
            bits |= self.bits.get(key, 0)
        return bits


def _bits(entry: AclEntry) -> int:
    operation = entry.operation
    is_allowed = entry.permission is Permission.ALLOW
    if operation is Operation.ALL:
        operations = ALL_OPERATIONS
    else:
        operations = 1 << operation
        if is_allowed and operation in IMPLIES:
            operations |= 1 << IMPLIES[operation]
    return operations if is_allowed else operations << _DENIED_SHIFT


class AclTable:
    """The ACLs of all resource patterns that have some."""

    __slots__ = ("_acls", "_prefixes")

    def __init__(self, entries: Mapping[ResourcePattern, Collection[AclEntry]] = _NO_ENTRIES) -> None:
        self._acls = {
            pattern: _Acls.of(frozenset(of_pattern)) for pattern, of_pattern in entries.items() if of_pattern
        }
        self._prefixes = _prefixes_of(self._acls)

    def replaced(self, changes: Mapping[ResourcePattern, Collection[AclEntry]]) -> AclTable:
        """A table with other ACLs for these patterns; without entries a pattern has none."""
        table = AclTable.__new__(AclTable)
        acls = table._acls = dict(self._acls)
        for pattern, entries in changes.items():
            if entries:
                acls[pattern] = _Acls.of(frozenset(entries))
            else:
                acls.pop(pattern, None)
        are_prefixes_changed = any(
            pattern.pattern is PatternType.PREFIXED and (pattern in acls) != (pattern in self._acls)
            for pattern in changes
        )
        table._prefixes = _prefixes_of(acls) if are_prefixes_changed else self._prefixes
        return table

    def __iter__(self) -> Iterator[AclBinding]:
        for pattern, acls in self._acls.items():
            for entry in acls.entries:
                yield AclBinding(pattern, entry)

    @property
    def patterns(self) -> Collection[ResourcePattern]:
        return self._acls.keys()

    def entries(self, pattern: ResourcePattern) -> frozenset[AclEntry]:
        acls = self._acls.get(pattern)
        return frozenset() if acls is None else acls.entries

    def allowed(self, peer: Who, type_: ResourceType, name: str) -> Operations | None:
        """The operations that a peer may do on a resource; None if no ACL, of any peer, is about it."""
        bits, is_found = 0, False
        for acls in self._matching(type_, name):
            bits |= acls.of_peer(peer)
            is_found = True
        return bits & ~(bits >> _DENIED_SHIFT) & ALL_OPERATIONS if is_found else None

    def allows_any(self, peer: Who, operation: Operation, type_: ResourceType, *, by_default: bool) -> bool:
        """Whether a peer may do an operation on at least one resource that may exist.

        A denial of all names counts always; ``by_default`` is the answer for resources without ACLs.
        """
        allowed, denied = 1 << operation, 1 << operation + _DENIED_SHIFT
        of_peer = {
            pattern: bits
            for pattern, acls in self._acls.items()
            if pattern.type is type_ and (bits := acls.of_peer(peer)) & (allowed | denied)
        }
        if of_peer.get(ResourcePattern(type_, WILDCARD), 0) & denied:
            return False
        if by_default:
            return True
        denied_patterns = {pattern for pattern, bits in of_peer.items() if bits & denied}
        return any(
            bits & allowed and not _is_denied_whole(pattern, denied_patterns)
            for pattern, bits in of_peer.items()
        )

    def _matching(self, type_: ResourceType, name: str) -> Iterator[_Acls]:
        for literal in (name,) if name == WILDCARD else (name, WILDCARD):
            if (acls := self._acls.get(ResourcePattern(type_, literal))) is not None:
                yield acls
        prefixes = self._prefixes.get(type_)
        if prefixes is not None:
            for prefix in prefixes.of(name):
                yield self._acls[ResourcePattern(type_, prefix, PatternType.PREFIXED)]


def _is_denied_whole(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Whether every name of the pattern is denied by other patterns than the literal ``*``."""
    if pattern.pattern is PatternType.LITERAL:
        if pattern.name == WILDCARD:
            return False
        if pattern in denied:
            return True
    return any(each.pattern is PatternType.PREFIXED and pattern.name.startswith(each.name) for each in denied)


class _Prefixes:
    """The prefixes of one resource type.

    Take the greatest prefix in the list that does not sort above the name: all prefixes of the name are its
    prefixes too, because each text between a prefix and the name begins with that prefix. So each prefix
    knows the longest shorter one.
    """

    __slots__ = ("_parents", "_sorted")

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted = sorted(prefixes)
        self._parents: list[int] = []
        open_: list[int] = []
        for index, prefix in enumerate(self._sorted):
            while open_ and not prefix.startswith(self._sorted[open_[-1]]):
                open_.pop()
            self._parents.append(open_[-1] if open_ else -1)
            open_.append(index)

    def of(self, name: str) -> Iterator[str]:
        index = bisect_right(self._sorted, name) - 1
        while index >= 0:
            if name.startswith(prefix := self._sorted[index]):
                yield prefix
            index = self._parents[index]


def _prefixes_of(patterns: Iterable[ResourcePattern]) -> Mapping[ResourceType, _Prefixes]:
    by_type: dict[ResourceType, list[str]] = {}
    for pattern in patterns:
        if pattern.pattern is PatternType.PREFIXED:
            by_type.setdefault(pattern.type, []).append(pattern.name)
    return {type_: _Prefixes(names) for type_, names in by_type.items()}
