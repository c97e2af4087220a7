"""The guarantees of the store, over the simulated ZooKeeper and over a real one.

`tests/unit/zookeeper/test_store.py` and `tests/cluster/test_store.py` import these tests; the fixture
`open_store` of each folder decides which server they run on.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper import store as store_module
from barnabas.zookeeper.configs import (
    ALL_BROKERS,
    ConfigStore,
    Entity,
    EntityKind,
    changed_entities,
    desanitize,
    sanitize,
)
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import (
    BrokerIdTaken,
    ControllerMoved,
    LeadershipConflict,
    ReplicaNotRegistered,
    SessionLost,
    ZooKeeperRolledBack,
)
from barnabas.zookeeper.notifications import Notice, list_notices, read_notices
from barnabas.zookeeper.registration import register_broker
from barnabas.zookeeper.requests import read
from barnabas.zookeeper.session import Outcome, Start
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    LeadershipState,
    ReplicaAssignment,
    StoredConfig,
    TopicAssignment,
)
from tests.support.controlled_broker import ControlledBroker

OpenStore = Callable[..., ClusterStore]
ONE, TWO = BrokerId(1), BrokerId(2)
TP = TopicPartition("t", 0)
TOPIC, BROKER = Entity.topic("t"), Entity.broker(BrokerId(7))
UNUSED, OTHER = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)


@pytest.fixture
def store(open_store: OpenStore) -> ClusterStore:
    return open_store()


@pytest.fixture
def writer(store: ClusterStore) -> ControllerWriter:
    writer = store.election.run(ONE)
    assert writer is not None
    return writer


def registration(
    broker: BrokerId, endpoint: Endpoint = UNUSED, directory: str | None = "a directory"
) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker,
        listeners=(AdvertisedListener("PLAINTEXT", *endpoint),),
        timestamp_ms=1,
        directories=() if directory is None else (directory,),
    )


def leadership(
    leader: BrokerId, isr: tuple[BrokerId, ...], epoch: int = 0, version: int = 0
) -> LeadershipState:
    return LeadershipState(
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        isr=isr,
        controller_epoch=ControllerEpoch(1),
        partition_epoch=version,
    )


def topic_of(partitions: int, *replicas: BrokerId) -> TopicAssignment:
    return TopicAssignment(
        topic_id=TopicId(znodes.random_uuid()),
        partitions=dict.fromkeys(range(partitions), ReplicaAssignment(replicas)),
    )


def lead(writer: ControllerWriter, *isr: BrokerId) -> None:
    """Create a topic with a partition on brokers 1 and 2 that broker 1 leads."""
    writer.create_topic("t", topic_of(1, ONE, TWO), {})
    writer.create_leadership({TP: leadership(ONE, isr)})


def register_elsewhere(store: ClusterStore, ours: BrokerRegistration, **arguments: Any) -> BrokerEpoch:
    """Register, and wait for at most 100 ms."""
    arguments = {
        "probe": lambda endpoint: False,
        "grace_ms": 100 - store.session.session_timeout_ms,
    } | arguments
    return register_broker(store.session, ours, **arguments)


def notices(store: ClusterStore) -> dict[str, Notice]:
    """The notifications of changed settings, by path."""
    return read_notices(store.session, list_notices(store.session, paths.CONFIG_CHANGES))


# Cluster and registrations


def test_the_first_store_creates_the_nodes_and_the_id_of_the_cluster(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    assert all(first.session.run(lambda zk, path=path: zk.exists_async(path)) for path in paths.PERSISTENT)
    cluster_id = first.cluster_id({"f": 2})
    assert len(cluster_id) == 22
    assert second.cluster_id({"f": 1}) == cluster_id
    assert second.features.read().levels == {"f": 2}


def test_registering_again_in_the_same_session_gives_the_same_epoch(store: ClusterStore) -> None:
    epoch = store.register_broker(registration(ONE))
    assert store.register_broker(registration(ONE)) == epoch
    assert store.brokers()[ONE].broker_epoch == epoch


def test_a_registration_is_changed_in_place(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    epoch = store.register_broker(registration(ONE))
    moved = registration(ONE, Endpoint("elsewhere", 9))
    assert store.update_registration(moved, epoch)
    [found] = other.brokers().values()
    assert (found.broker_epoch, found.endpoint("PLAINTEXT")) == (epoch, Endpoint("elsewhere", 9))
    assert not store.update_registration(registration(ONE), BrokerEpoch(epoch - 1))
    assert not store.update_registration(registration(TWO), epoch)
    assert other.brokers() == {ONE: found}


def test_a_taken_broker_id_is_refused_while_its_holder_answers(open_store: OpenStore) -> None:
    holder = ControlledBroker()
    try:
        open_store().register_broker(registration(ONE, holder.endpoint))
        with pytest.raises(BrokerIdTaken, match=f"broker id 1 is already taken by {holder.endpoint}"):
            open_store().register_broker(registration(ONE))
    finally:
        holder.die()


def test_a_broker_waits_for_the_session_of_its_dead_predecessor(open_store: OpenStore) -> None:
    predecessor = open_store()
    epoch = predecessor.register_broker(registration(ONE))

    def end_session(endpoint: Endpoint) -> bool:
        predecessor.session.close()
        return False

    successor = registration(ONE, OTHER, "another directory")
    assert register_elsewhere(open_store(), successor, probe=end_session, grace_ms=0) > epoch


@pytest.mark.parametrize("directory", ["the first directory", None])
@pytest.mark.parametrize("endpoint", [UNUSED, OTHER], ids=["equal addresses", "another address"])
def test_a_registration_with_another_directory_is_not_replaced(
    open_store: OpenStore, directory: str | None, endpoint: Endpoint
) -> None:
    first = open_store()
    epoch = first.register_broker(registration(ONE, directory=directory))
    with pytest.raises(BrokerIdTaken, match=r"still registered by 127\.0\.0\.1:1") as taken:
        register_elsewhere(open_store(), registration(ONE, endpoint, "the second directory"))
    assert first.brokers()[ONE].broker_epoch == epoch
    assert (directory or "an unknown directory") in str(taken.value)
    assert "the second directory" in str(taken.value)


def test_a_broker_that_holds_the_registered_directory_takes_over_at_once(open_store: OpenStore) -> None:
    store = open_store()
    epoch = store.register_broker(registration(ONE))
    probed: list[AdvertisedListener] = []
    # Its address may have changed; only the registered one is probed.
    successor = registration(ONE, OTHER)
    no_wait = -store.session.session_timeout_ms
    assert register_elsewhere(open_store(), successor, probe=probed.append, grace_ms=no_wait) > epoch
    assert [listener.endpoint for listener in probed] == [UNUSED]


def test_a_newer_registration_is_not_ours_from_an_earlier_run(open_store: OpenStore) -> None:
    """Of two brokers on copies of one directory, neither may remove the other again and again."""
    ours, successor = open_store(), open_store()
    epoch = ours.register_broker(registration(ONE))
    later = successor.register_broker(registration(ONE))
    with pytest.raises(BrokerIdTaken):
        register_elsewhere(ours, registration(ONE), newer_than=epoch)
    assert successor.brokers()[ONE].broker_epoch == later


def test_a_zookeeper_that_repeats_zxids_is_an_error(store: ClusterStore) -> None:
    """After the restore of an older backup no registration is newer than the last one."""
    with pytest.raises(ZooKeeperRolledBack, match="start this broker again"):
        register_elsewhere(store, registration(ONE), newer_than=BrokerEpoch(1 << 60))
    assert store.brokers() == {}


# Elections and fencing


def test_one_of_three_wins_the_election(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(3)]
    writers = [store.election.run(BrokerId(index)) for index, store in enumerate(stores)]
    assert [writer is not None for writer in writers] == [True, False, False]
    node = stores[2].election.current()
    assert node is not None
    assert (node.broker_id, stores[1].election.epoch()) == (0, 1)
    assert [stores[1].election.has_reached(epoch) for epoch in (0, 1, 2, 2**31 - 1)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_node_of_our_own_session_does_not_block_our_election(
    store: ClusterStore, writer: ControllerWriter
) -> None:
    again = store.election.run(ONE)
    assert again is not None
    assert again.epoch == writer.epoch + 1


def test_no_write_of_a_replaced_controller_succeeds(open_store: OpenStore, writer: ControllerWriter) -> None:
    lead(writer, ONE, TWO)
    writer.resign()
    store = open_store()
    assert store.election.run(TWO) is not None
    before = store.leadership([TP])
    writes: list[Callable[[], object]] = [
        lambda: writer.update_leadership({TP: leadership(TWO, (TWO,), epoch=1)}),
        lambda: writer.create_leadership({TopicPartition("t", 1): leadership(ONE, (ONE,))}),
        lambda: writer.create_topic("u", topic_of(1, ONE), {}),
        lambda: writer.set_topic_assignment("t", topic_of(1, TWO)),
        lambda: writer.request_deletion("t"),
        lambda: writer.delete_topic("t"),
        lambda: writer.resign(),
    ]
    for write in writes:
        with pytest.raises(ControllerMoved):
            write()
    assert store.leadership([TP]) == before
    assert store.topics() == ["t"]
    assert store.deletion_requests() == {}
    assert store.election.current() is not None


# States


def test_states_are_written_by_compare_and_set(store: ClusterStore, writer: ControllerWriter) -> None:
    writer.create_topic("t", topic_of(2, ONE, TWO), {})
    created = writer.create_leadership({TP: leadership(ONE, (ONE, TWO))})
    assert created.written[TP].partition_epoch == 0
    # A call that is repeated after a lost answer has the same result.
    for _ in range(2):
        assert store.update_isr(TP, leadership(ONE, (ONE,))) == 1
    stale = writer.update_leadership({TP: leadership(TWO, (TWO,), epoch=1, version=0)})
    assert stale.written == {}
    assert stale.conflicts == {TP: leadership(ONE, (ONE,), version=1)}
    fresh = writer.update_leadership({TP: leadership(TWO, (TWO,), epoch=1, version=1)})
    assert fresh.written[TP].partition_epoch == 2
    with pytest.raises(LeadershipConflict) as conflict:
        store.update_isr(TP, leadership(ONE, (ONE, TWO), version=1))
    assert conflict.value.current == leadership(TWO, (TWO,), epoch=1, version=2)
    with pytest.raises(LeadershipConflict) as conflict:
        store.update_isr(TopicPartition("t", 1), leadership(ONE, (ONE,)))
    assert conflict.value.current is None


def test_isr_changes_read_the_node_of_their_topic_only_after_it_has_changed(
    store: ClusterStore, writer: ControllerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all partitions of the topic, and after the return of a broker each of them has a change."""
    looked_into: list[str] = []
    monkeypatch.setattr(
        store_module, "read", lambda session, paths: (looked_into.extend(paths), read(session, paths))[1]
    )
    topic = topic_of(3, ONE, TWO)
    partitions = [TopicPartition("t", index) for index in range(3)]

    def change(version: int) -> None:
        for tp in partitions:
            state = leadership(ONE, (ONE,), version=version)
            assert store.update_isr(tp, state, topic_id=topic.topic_id) == version + 1

    writer.create_topic("t", topic, {})
    writer.create_leadership(dict.fromkeys(partitions, leadership(ONE, (ONE, TWO))))
    change(0)
    assert looked_into == [paths.topic("t")]
    assert writer.set_topic_assignment("t", replace(topic, version=0))
    change(1)
    assert looked_into == [paths.topic("t")] * 2
    writer.delete_topic("t")
    writer.create_topic("t", topic_of(3, ONE, TWO), {})
    writer.create_leadership({TP: leadership(ONE, (ONE, TWO))})
    with pytest.raises(LeadershipConflict):
        store.update_isr(TP, leadership(ONE, (ONE,)), topic_id=topic.topic_id)


def test_a_refused_write_of_many_stops_no_other(store: ClusterStore, writer: ControllerWriter) -> None:
    partitions = [TopicPartition("t", index) for index in range(120)]
    writer.create_topic("t", topic_of(120, ONE, TWO), {})
    writer.create_leadership({partitions[70]: leadership(TWO, (TWO,))})
    created = writer.create_leadership(dict.fromkeys(partitions, leadership(ONE, (ONE, TWO))))
    assert created.conflicts == {partitions[70]: leadership(TWO, (TWO,))}
    assert list(created.written) == [tp for tp in partitions if tp != partitions[70]]
    store.update_isr(partitions[5], leadership(ONE, (ONE,)))
    updated = writer.update_leadership(dict.fromkeys(partitions, leadership(TWO, (TWO,), epoch=1)))
    assert updated.conflicts == {partitions[5]: leadership(ONE, (ONE,), version=1)}
    assert len(updated.written) == 119
    missing = TopicPartition("t", 120)
    found = store.leadership([missing, *partitions])
    assert found == updated.written | updated.conflicts
    assert list(found) == partitions


def test_a_state_that_an_earlier_controller_began_is_completed(
    store: ClusterStore, writer: ControllerWriter
) -> None:
    writer.create_topic("t", topic_of(2, ONE), {})
    begun = TopicPartition("t", 1)
    writer.create_leadership({TP: leadership(ONE, (ONE,))})
    store.session.run(lambda zk: zk.create_async(paths.partition(begun), b""))
    updates = writer.create_leadership({TP: leadership(TWO, (TWO,)), begun: leadership(ONE, (ONE,))})
    assert updates.written == {begun: leadership(ONE, (ONE,))}
    assert updates.conflicts == {TP: leadership(ONE, (ONE,))}


@pytest.mark.parametrize("is_joining", [True, False], ids=["a replica that joins", "the leader"])
def test_an_isr_changes_only_while_a_broker_is_registered_with_its_epoch(
    store: ClusterStore, writer: ControllerWriter, open_store: OpenStore, is_joining: bool
) -> None:
    before, after = ((ONE,), (ONE, TWO)) if is_joining else ((ONE, TWO), (ONE,))
    broker, error = (TWO, ReplicaNotRegistered) if is_joining else (ONE, SessionLost)
    lead(writer, *before)

    def change(epoch: BrokerEpoch, version: int = 0) -> int:
        if is_joining:
            return store.update_isr(TP, leadership(ONE, after, version=version), joining={TWO: epoch})
        return store.update_isr(TP, leadership(ONE, after, version=version), broker_epoch=epoch)

    first = open_store()
    earlier = first.register_broker(registration(broker))
    first.session.close()
    with pytest.raises(error):
        change(earlier)
    present = open_store().register_broker(registration(broker))
    with pytest.raises(error):
        change(earlier)
    assert store.leadership([TP])[TP].isr == before
    # A call that is repeated after a lost answer, even if that registration has ended by then.
    assert [change(present), change(present), change(earlier)] == [1, 1, 1]
    with pytest.raises(LeadershipConflict):
        change(present, version=7)


def test_a_broker_that_registers_again_during_the_write_does_not_join(
    store: ClusterStore, writer: ControllerWriter, open_store: OpenStore
) -> None:
    lead(writer, ONE)
    earlier = open_store()
    epoch = earlier.register_broker(registration(TWO))
    attempt = store.session.attempt
    starts: list[Start] = []

    def attempt_late(start: Start) -> Outcome:
        starts.append(start)
        if len(starts) == 2:
            # The registrations were read; this is the write.
            earlier.session.close()
            open_store().register_broker(registration(TWO))
        return attempt(start)

    store.session.attempt = attempt_late
    with pytest.raises(ReplicaNotRegistered):
        store.update_isr(TP, leadership(ONE, (ONE, TWO)), joining={TWO: epoch})
    assert store.leadership([TP])[TP] == leadership(ONE, (ONE,))


# Settings


def change(configs: ConfigStore, entity: Entity, **values: str) -> StoredConfig:
    assert configs.replace(entity, values, configs.read([entity])[entity])
    return configs.read([entity])[entity]


def test_settings_are_replaced_only_as_they_were_read(store: ClusterStore, writer: ControllerWriter) -> None:
    writer.create_topic("t", topic_of(1, ONE), {})
    configs = store.configs
    first = configs.read([TOPIC])[TOPIC]
    second = change(configs, TOPIC, a="1")
    third = change(configs, TOPIC, a="2")
    assert (dict(second.values), second.version) == ({"a": "1"}, first.version + 1)
    assert third.zxid > second.zxid
    for former in (StoredConfig(), first, second):
        assert not configs.replace(TOPIC, {"a": "3"}, former)
    assert store.topic_configs(["t", "x"]) == {"t": third, "x": StoredConfig()}
    assert len(notices(store)) == 2
    assert changed_entities(notices(store)) == [TOPIC]


def test_unreadable_settings_leave_the_former_ones_and_no_retention_limit(
    store: ClusterStore, writer: ControllerWriter
) -> None:
    writer.create_topic("t", topic_of(1, ONE), {})
    former = change(store.configs, TOPIC, **{"retention.ms": "1000"})
    change(store.configs, BROKER, b="2")
    for entity in (TOPIC, BROKER):
        store.session.run(lambda zk, path=entity.path: zk.set_async(path, b"{"))
    unreadable = store.configs.read([TOPIC, BROKER])
    assert unreadable[TOPIC].values == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert not unreadable[TOPIC].is_readable
    assert unreadable[TOPIC].zxid < former.zxid
    assert unreadable[BROKER].values == {}


def test_settings_have_kafkas_paths_and_formats(store: ClusterStore) -> None:
    change(store.configs, ALL_BROKERS, a="1")
    change(store.configs, BROKER, b="2")

    def data_of(path: str) -> bytes:
        return store.session.run(lambda zk: zk.get_async(path))[0]

    assert data_of("/config/brokers/<default>") == b'{"version":1,"config":{"a":"1"}}'
    assert data_of("/config/brokers/7") == b'{"version":1,"config":{"b":"2"}}'
    assert set(store.configs.read_all(EntityKind.BROKER)) == {ALL_BROKERS, BROKER}
    [first, _] = notices(store)
    assert first == "/config/changes/config_change_0000000000"
    assert data_of(first) == b'{"version":2,"entity_path":"brokers/<default>"}'


def test_users_clients_and_addresses_have_kafkas_paths(store: ClusterStore) -> None:
    keys = {
        Entity.user("alice"): "users/alice",
        Entity.user("CN=a b*c~+/ü,O=%"): "users/CN%3Da%20b%2Ac%7E%2B%2F%C3%BC%2CO%3D%25",
        Entity.user(None): "users/<default>",
        Entity.user("<default>"): "users/%3Cdefault%3E",
        Entity.user(".."): "users/%2E%2E",
        Entity.user("alice", "x/y"): "users/alice/clients/x%2Fy",
        Entity.user(None, None): "users/<default>/clients/<default>",
        Entity.client_id("a.b"): "clients/a.b",
        Entity.ip("10.0.0.1"): "ips/10.0.0.1",
        Entity.ip(None): "ips/<default>",
    }
    for number, (entity, key) in enumerate(keys.items()):
        assert Entity.of_key(key) == entity
        assert entity.path == f"/config/{key}"
        change(store.configs, entity, number=str(number))
    read = {kind: store.configs.read_all(kind) for kind in EntityKind}
    for kind in (EntityKind.USER, EntityKind.CLIENT, EntityKind.IP):
        assert {entity: config.values for entity, config in read[kind].items() if config.values} == {
            entity: {"number": str(number)} for number, entity in enumerate(keys) if entity.kind is kind
        }
    assert changed_entities(notices(store)) == list(keys)
    for odd in ("users", "users/a/b", "users/a/clients/b/c", "clients/a/clients/b", "odd/a"):
        with pytest.raises(ValueError, match=r"names no topic|not a valid"):
            Entity.of_key(odd)


def test_a_name_of_any_characters_survives_sanitizing() -> None:
    for name in ("", ".", "..", "<default>", "a+b c", "100%", "ü/\N{SNOWMAN}", "~*"):
        assert desanitize(sanitize(name)) == name
    assert desanitize("a+b") == "a b"


def test_the_nodes_of_users_go_with_their_last_setting(store: ClusterStore) -> None:
    alice, pair, other = Entity.user("alice"), Entity.user("alice", "x"), Entity.user("alice", "y")

    def set_to(entity: Entity, **values: str) -> None:
        store.configs.change(entity, lambda _: values)

    def present() -> set[str]:
        return {entity.key for entity in store.configs.read_all(EntityKind.USER)}

    set_to(alice, a="1")
    set_to(pair, b="2")
    set_to(other, c="3")
    set_to(alice)
    # A parent stays for its children.
    assert present() == {"users/alice", "users/alice/clients/x", "users/alice/clients/y"}
    set_to(pair)
    assert present() == {"users/alice", "users/alice/clients/y"}
    set_to(other)
    assert present() == set()
    set_to(pair, b="2")
    set_to(alice, a="1")
    set_to(pair)
    assert present() == {"users/alice"}
    before = len(notices(store))
    set_to(Entity.client_id("nobody"))
    assert len(notices(store)) == before


def test_a_user_that_kafka_made_for_its_pairs_has_no_settings(
    store: ClusterStore, caplog: pytest.LogCaptureFixture
) -> None:
    user = Entity.user("alice")
    store.session.run(lambda zk: zk.create_async(user.path, b""))
    assert store.configs.read([user])[user].is_readable
    store.session.run(lambda zk: zk.set_async(user.path, b'{"config":"SCRAM-SHA-256=salt=c2FsdA=="}'))
    assert not store.configs.read([user])[user].is_readable
    assert "c2FsdA" not in caplog.text
    assert "/config/users/alice holds unreadable data" in caplog.text
    assert "c2FsdA" not in repr(StoredConfig({"SCRAM-SHA-256": "salt=c2FsdA=="}))


def test_a_topic_that_does_not_exist_has_no_settings(store: ClusterStore) -> None:
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        store.configs.replace(TOPIC, {"a": "1"}, StoredConfig())
    assert not store.configs.read([TOPIC])[TOPIC].exists
    assert not notices(store)
