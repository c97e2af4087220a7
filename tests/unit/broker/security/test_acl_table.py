"""The decisions of ACLs: the table beside a plain reading of Kafka's rules over the list of all ACLs."""

from collections.abc import Collection

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.broker.security.acl_table import AclTable, canonical_host, who
from barnabas.common.security.acl import (
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import Principal
from tests.support.soak import searched

TOPIC = ResourceType.TOPIC
ALICE, GROUP = Principal.user("alice"), Principal("Group", "alice")

# Few values of each kind, so that many of the drawn ACLs are about the drawn peer and resource.
names = st.sampled_from(["a", "ab", "abc", "b", "*"])
hosts = st.sampled_from(["10.0.0.1", "10.0.0.2", "*"])
peers = st.tuples(st.sampled_from([ALICE, GROUP]), st.sampled_from(["10.0.0.1", "10.0.0.2"]))
principals = st.sampled_from([ALICE, GROUP, Principal.user("*"), Principal("Group", "*")])
asked = st.sampled_from([operation for operation in Operation if operation > Operation.ALL])
operations = st.sampled_from(
    [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]
)
permissions = st.sampled_from([Permission.ALLOW, Permission.DENY])
patterns = st.builds(
    ResourcePattern,
    st.sampled_from([TOPIC, TOPIC, TOPIC, ResourceType.GROUP]),
    names,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
)
bindings = st.lists(
    st.builds(
        AclBinding,
        patterns,
        st.builds(AclEntry, principals, hosts, st.one_of(operations, asked), permissions),
    ),
    max_size=12,
)
about_writing = st.lists(
    st.builds(
        AclBinding,
        patterns,
        st.builds(
            AclEntry,
            st.sampled_from([ALICE, Principal.user("*")]),
            st.just("*"),
            st.sampled_from([Operation.ALL, Operation.WRITE]),
            permissions,
        ),
    ),
    max_size=5,
)
often = settings(max_examples=searched(5_000, usual=150))


def make_table(bindings: Collection[AclBinding]) -> AclTable:
    by_pattern: dict[ResourcePattern, set[AclEntry]] = {}
    for binding in bindings:
        by_pattern.setdefault(binding.resource, set()).add(binding.entry)
    return AclTable(by_pattern)


def is_about(pattern: ResourcePattern, type_: ResourceType, name: str) -> bool:
    if pattern.type is not type_:
        return False
    if pattern.pattern is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in ("*", name)


def applies(
    entry: AclEntry, peer: tuple[Principal, str], allowed: Collection[Operation], permission: Permission
) -> bool:
    return (
        entry.permission is permission
        and (entry.principal == peer[0] or str(entry.principal) == "User:*")
        and entry.host in (peer[1], "*")
        and (entry.operation in allowed or entry.operation is Operation.ALL)
    )


def model(
    bindings: Collection[AclBinding], peer: tuple[Principal, str], operation: Operation, name: str
) -> bool | None:
    entries = [binding.entry for binding in bindings if is_about(binding.resource, TOPIC, name)]
    if not entries:
        return None
    if any(applies(entry, peer, {operation}, Permission.DENY) for entry in entries):
        return False
    implying = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    allowing = {operation, *implying.get(operation, ())}
    return any(applies(entry, peer, allowing, Permission.ALLOW) for entry in entries)


def decide(table: AclTable, peer: tuple[Principal, str], operation: Operation, name: str) -> bool | None:
    operations = table.allowed(who(*peer), TOPIC, name)
    return None if operations is None else operations >> operation & 1 == 1


@often
@given(bindings, peers, asked, names)
def test_a_decision_follows_kafkas_rules(
    bindings: list[AclBinding], peer: tuple[Principal, str], operation: Operation, name: str
) -> None:
    assert decide(make_table(bindings), peer, operation, name) == model(bindings, peer, operation, name)


@often
@given(bindings, bindings, peers, asked, names)
def test_a_changed_table_equals_a_new_one(
    before: list[AclBinding],
    after: list[AclBinding],
    peer: tuple[Principal, str],
    operation: Operation,
    name: str,
) -> None:
    former, expected = make_table(before), make_table(after)
    changes = {pattern: expected.entries(pattern) for pattern in {*former.patterns, *expected.patterns}}
    changed = former.replaced(changes)
    assert set(changed) == set(expected) == set(after)
    assert set(former) == set(before)
    assert decide(changed, peer, operation, name) == decide(expected, peer, operation, name)


def writing(permission: Permission, name: str, pattern: PatternType = PatternType.LITERAL) -> AclBinding:
    return AclBinding(
        ResourcePattern(TOPIC, name, pattern), AclEntry(ALICE, "*", Operation.WRITE, permission)
    )


@often
@given(about_writing, st.booleans())
@example([writing(Permission.ALLOW, "a"), writing(Permission.DENY, "a")], False)
@example([writing(Permission.ALLOW, "a", PatternType.PREFIXED), writing(Permission.DENY, "a")], False)
def test_a_write_to_any_topic_is_allowed_if_some_name_is_writable(
    bindings: list[AclBinding], by_default: bool
) -> None:
    """Every name that the ACLs tell apart is tried: their own, each with a suffix, and one of no ACL."""
    table, peer = make_table(bindings), (ALICE, "10.0.0.1")
    named = {pattern.name for pattern in table.patterns}
    names = {"zz", *named, *(f"{name}z" for name in named)} - {"*"}
    decisions = [model(bindings, peer, Operation.WRITE, name) for name in names]
    is_denied_all = any(
        applies(binding.entry, peer, {Operation.WRITE}, Permission.DENY)
        and binding.resource == ResourcePattern(TOPIC, "*")
        for binding in bindings
    )
    assert table.allows_any(who(*peer), Operation.WRITE, TOPIC, by_default=by_default) == (
        not is_denied_all and (by_default or any(decisions))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("::1", "0:0:0:0:0:0:0:1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("FE80::A", "fe80:0:0:0:0:0:0:a")],
)
def test_an_address_has_many_spellings(one: str, other: str) -> None:
    table = AclTable(
        {ResourcePattern(TOPIC, "t"): [AclEntry(ALICE, other, Operation.READ, Permission.ALLOW)]}
    )
    assert decide(table, (ALICE, one), Operation.READ, "t") is True
    assert canonical_host("some.host") == "some.host"
