"""The guarantees of ACLs in ZooKeeper, over the simulated one and over a real one, as `store_contract`."""

from collections.abc import Callable, Collection, Mapping

import pytest
from kazoo.exceptions import NoAuthError

from barnabas.common.security.acl import (
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import EVERYBODY, Principal
from barnabas.protocol.errors import ApiError
from barnabas.zookeeper import acls, paths
from barnabas.zookeeper.acls import AclChanges, StoredAcls, check_name, decode_change, encode_change, path_of
from barnabas.zookeeper.notifications import list_notices
from barnabas.zookeeper.session import Outcome
from barnabas.zookeeper.store import ClusterStore

OpenStore = Callable[..., ClusterStore]

T = ResourcePattern(ResourceType.TOPIC, "t")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "p-", PatternType.PREFIXED)
READ = AclEntry(Principal.user("alice"), "*", Operation.READ, Permission.ALLOW)
WRITE = AclEntry(Principal.user("CN=a:b"), "10.0.0.1", Operation.DESCRIBE_CONFIGS, Permission.DENY)
CLOSED = {AclEntry(EVERYBODY, "*", Operation.ALL, Permission.DENY)}


class Broker:
    """The ACLs that a broker has in force."""

    def __init__(self, store: ClusterStore) -> None:
        self.store = store
        self.in_force: dict[ResourcePattern, Collection[AclEntry]] = {}
        self.changes = AclChanges(store.acls, apply=self._apply, now_ms=lambda: 0, on_fatal=_raise)
        self.changes.load()

    def _apply(self, changes: Mapping[ResourcePattern, Collection[AclEntry]]) -> None:
        self.in_force |= changes

    def add(self, pattern: ResourcePattern, *entries: AclEntry) -> None:
        self.changes.change(pattern, frozenset(entries).union)

    def remove(self, pattern: ResourcePattern, *entries: AclEntry) -> None:
        self.changes.change(pattern, lambda present: present - set(entries))

    def data_of(self, path: str) -> bytes:
        data: bytes = self.store.session.run(lambda zk: zk.get_async(path))[0]
        return data

    def write(self, path: str, data: bytes) -> None:
        self.store.session.run(lambda zk: zk.set_async(path, data))

    def delete(self, path: str) -> None:
        self.store.session.run(lambda zk: zk.delete_async(path))

    def notices(self) -> list[str]:
        return [
            path
            for folder in (paths.ACL_CHANGES, paths.EXTENDED_ACL_CHANGES)
            for path in list_notices(self.store.session, folder)
        ]


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
def broker(open_store: OpenStore) -> Broker:
    return Broker(open_store())


def test_acls_have_kafkas_paths_and_formats(broker: Broker) -> None:
    broker.add(T, READ, WRITE)
    broker.add(PREFIX, READ)
    assert broker.data_of("/kafka-acl/Topic/t") == (
        b'{"version":1,"acls":['
        b'{"principal":"User:CN=a:b","permissionType":"Deny","operation":"DescribeConfigs","host":"10.0.0.1"},'
        b'{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"}]}'
    )
    assert b"User:alice" in broker.data_of("/kafka-acl-extended/prefixed/TransactionalId/p-")
    literal, extended = broker.notices()
    assert literal == "/kafka-acl-changes/acl_changes_0000000000"
    assert extended == "/kafka-acl-extended-changes/acl_changes_0000000000"
    assert broker.data_of(literal) == b"TOPIC:t"
    assert broker.data_of(extended) == (
        b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"p-","patternType":"PREFIXED"}'
    )


def test_a_change_reaches_brokers_by_its_notification(broker: Broker, open_store: OpenStore) -> None:
    broker.add(T, READ)
    other, odd = Broker(open_store()), ResourcePattern(ResourceType.GROUP, "a b*:ü<>%...")
    assert other.in_force == {T: {READ}}
    broker.add(T, WRITE)
    broker.add(PREFIX, READ)
    broker.add(odd, READ)
    other.changes.read_changes()
    assert other.in_force == {T: {READ, WRITE}, PREFIX: {READ}, odd: {READ}} == broker.in_force
    other.remove(T, READ, WRITE)
    broker.changes.read_changes()
    assert broker.in_force == {T: frozenset(), PREFIX: {READ}, odd: {READ}}
    assert broker.store.acls.read([T])[T] == StoredAcls(), "the node goes with the last ACL"


def test_a_change_that_changes_nothing_writes_nothing(broker: Broker) -> None:
    broker.add(T, READ)
    broker.add(T, READ)
    broker.remove(PREFIX, READ)
    assert len(broker.notices()) == 1


def test_a_change_is_made_again_if_others_were_faster(broker: Broker, open_store: OpenStore) -> None:
    other, seen = Broker(open_store()), []

    def interrupted(entries: frozenset[AclEntry]) -> frozenset[AclEntry]:
        seen.append(entries)
        if len(seen) == 1:
            other.add(T, READ)
        if len(seen) == 2:
            other.remove(T, READ)
        return entries | {WRITE}

    broker.changes.change(T, interrupted)
    assert seen == [set(), {READ}, set()]
    assert broker.in_force == {T: {WRITE}}


def test_acls_that_were_deleted_while_nobody_watched_are_gone(broker: Broker) -> None:
    broker.add(T, READ)
    broker.add(PREFIX, READ)
    broker.delete(path_of(T))
    broker.changes.load()
    assert broker.in_force == {T: frozenset(), PREFIX: {READ}}


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read"}]}',
        b'{"version":1,"acls":[{"principal":"a","permissionType":"Allow","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Any","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"Fly","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"Read","host":1}]}',
    ],
)
def test_an_unreadable_node_never_opens_what_was_closed(
    broker: Broker, open_store: OpenStore, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add(T, READ)
    broker.add(PREFIX, READ)
    broker.write(path_of(T), data)
    broker.changes.load()
    assert broker.in_force == {T: {READ}, PREFIX: {READ}}, "ACLs that were read before stay"
    started = Broker(open_store())
    assert started.in_force == {T: CLOSED, PREFIX: {READ}}
    assert "/kafka-acl/Topic/t is closed for all but super users" in caplog.text
    with pytest.raises(ApiError, match="/kafka-acl/Topic/t cannot be read"):
        started.add(T, READ)
    broker.write(path_of(T), b'{"version":1,"acls":[]}')
    started.changes.load()
    assert started.in_force == {T: frozenset(), PREFIX: {READ}}


def test_odd_nodes_are_ignored_and_old_spellings_are_read(broker: Broker) -> None:
    entry = b'{"principal":"User:alice","permissionType":"ALLOW","operation":"READ","host":"*"}'
    data = b'{"version":1,"acls":[%s]}' % entry
    broker.store.session.run(lambda zk: zk.create_async("/kafka-acl/Fly", b""))
    broker.store.session.run(lambda zk: zk.create_async("/kafka-acl/Topic/t", data))
    broker.store.session.run(lambda zk: zk.create_async("/kafka-acl/Topic/empty", b""))
    broker.changes.load()
    empty = ResourcePattern(ResourceType.TOPIC, "empty")
    assert broker.in_force == {T: {READ}, empty: frozenset()}


@pytest.mark.parametrize(
    ("pattern", "data"),
    [
        (T, b"nonsense"),
        (PREFIX, b"nonsense"),
        (PREFIX, b'{"version":2,"resourceType":"TOPIC","name":"t","patternType":"LITERAL"}'),
        (PREFIX, b'{"version":1,"resourceType":"TOPIC","name":"t","patternType":"MATCH"}'),
    ],
)
def test_all_is_read_if_a_notification_is_unreadable(
    broker: Broker, open_store: OpenStore, pattern: ResourcePattern, data: bytes
) -> None:
    other = Broker(open_store())
    broker.add(pattern, READ)
    broker.write(broker.notices()[0], data)
    other.changes.read_changes()
    assert other.in_force == {pattern: {READ}}


def test_a_folder_that_was_deleted_is_made_again(broker: Broker) -> None:
    for path in ("/kafka-acl/Topic", paths.ACL_CHANGES):
        broker.delete(path)
    broker.add(T, READ)
    assert broker.store.acls.read_all() == {T: StoredAcls(frozenset({READ}), 0)}
    assert len(broker.notices()) == 1


def test_a_node_is_closed_though_its_former_acls_were_removed(broker: Broker) -> None:
    broker.add(T, READ)
    broker.remove(T, READ)
    broker.store.session.run(lambda zk: zk.create_async(path_of(T), b"nonsense"))
    broker.changes.load()
    assert broker.in_force == {T: CLOSED}


def test_a_node_that_zookeeper_does_not_let_us_read_is_unreadable() -> None:
    assert not acls._stored(T, Outcome(None, NoAuthError(), False)).is_readable


def test_a_name_that_no_node_can_have_changes_nothing(broker: Broker) -> None:
    for name in ("..", "a/b"):
        with pytest.raises(ApiError, match="invalid resource name"):
            broker.add(ResourcePattern(ResourceType.TOPIC, name), READ)
    assert (broker.notices(), broker.in_force) == ([], {})


def test_acls_that_do_not_fit_into_a_node_are_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "_MAX_DATA_BYTES", 200)
    broker.add(T, READ)
    with pytest.raises(ApiError, match=r"INVALID_REQUEST.*at most 200"):
        broker.add(T, WRITE)
    assert broker.in_force == {T: {READ}}


@pytest.mark.parametrize("pattern", [T, PREFIX, ResourcePattern(ResourceType.GROUP, "a:b/ü")])
def test_a_notification_names_any_pattern(pattern: ResourcePattern) -> None:
    folder = paths.ACL_CHANGES if pattern.pattern is PatternType.LITERAL else paths.EXTENDED_ACL_CHANGES
    assert decode_change(f"{folder}/acl_changes_0", encode_change(pattern)) == pattern


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/", "a\x00", "a\x1f", "\x7f", "\x9f", "\ue000", "\ufff0"]
)
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="INVALID_REQUEST"):
        check_name(name)
    check_name("a b*:ü<>%...\u00a0\ufdfd")
