"""The controller against a real ZooKeeper: store, registration, election, fencing, sessions, failover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin, TopicSettings
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, DeleteTopicState
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import (
    BrokerIdTaken,
    ControllerMoved,
    PartitionStateConflict,
    ReplicaNotRegistered,
    SessionLost,
    ZooKeeperRolledBack,
    ZooKeeperUnavailable,
)
from barnabas.zookeeper.registration import register_broker
from barnabas.zookeeper.session import Outcome, SessionEvent, Start
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    LeadershipState,
    ReplicaAssignment,
    TopicAssignment,
)
from tests.support.controlled_broker import ControlledBroker
from tests.support.defaults import controller_settings
from tests.support.waiting import wait_for

from .tools import SESSION_TIMEOUT_MS, OpenStore, expire_session

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
TP = TopicPartition("t", 0)
NOWHERE = Endpoint("127.0.0.1", 1)


@pytest.fixture
def store(open_store: OpenStore) -> ClusterStore:
    return open_store()


def registration(
    broker: BrokerId, endpoint: Endpoint = NOWHERE, directory: str | None = "a directory"
) -> BrokerRegistration:
    listener = AdvertisedListener("PLAINTEXT", *endpoint)
    directories = () if directory is None else (directory,)
    return BrokerRegistration(
        broker_id=broker, listeners=(listener,), timestamp_ms=1, directories=directories
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


def led_by_one(isr: tuple[BrokerId, ...], version: int) -> LeadershipState:
    return leadership(ONE, isr, version=version)


def topic_of(partitions: int, *replicas: BrokerId) -> TopicAssignment:
    return TopicAssignment(
        topic_id=TopicId(znodes.random_uuid()),
        partitions=dict.fromkeys(range(partitions), ReplicaAssignment(replicas)),
    )


def lead(store: ClusterStore, *isr: BrokerId) -> None:
    """Become the controller of a topic on brokers 1 and 2 that broker 1 leads with this ISR."""
    writer = store.election.run(ONE)
    assert writer is not None
    writer.create_topic("t", topic_of(1, ONE, TWO), {})
    writer.create_partition_states({TP: leadership(ONE, isr)})


def test_the_cluster_id_is_made_once_and_agreed_upon(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    found = first.cluster_id()
    assert len(found) == 22
    assert second.cluster_id() == found


def test_a_new_cluster_gets_its_paths_under_the_chroot(store: ClusterStore, zookeeper_connect: str) -> None:
    hosts, _, chroot = zookeeper_connect.partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        assert all(client.exists(f"/{chroot}{path}") for path in paths.PERSISTENT)
    finally:
        client.stop()
        client.close()


def test_a_zookeeper_that_is_down_is_named_in_the_error(fatal: list[BaseException]) -> None:
    store = ClusterStore(
        "127.0.0.1:1", session_timeout_ms=1_500, connection_timeout_ms=200, on_fatal=fatal.append
    )
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1 within 200 ms"):
        store.start()
    store.session.close()


def test_registering_again_in_the_same_session_gives_the_same_epoch(store: ClusterStore) -> None:
    epoch = store.register_broker(registration(ONE))
    assert store.register_broker(registration(ONE)) == epoch
    assert store.brokers()[ONE].broker_epoch == epoch


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
    old = predecessor.register_broker(registration(ONE))
    asked = threading.Event()

    def is_not_answered(endpoint: Endpoint) -> bool:
        asked.set()
        return False

    threading.Thread(target=lambda: (asked.wait(10), predecessor.session.close()), daemon=True).start()
    successor = registration(ONE, Endpoint("127.0.0.1", 2), "another directory")
    assert register_broker(open_store().session, successor, probe=is_not_answered) > old
    assert asked.is_set()


def test_a_silent_holder_is_waited_for_no_longer_than_the_bound(open_store: OpenStore) -> None:
    open_store().register_broker(registration(ONE))
    late = open_store()
    with pytest.raises(BrokerIdTaken, match=r"still registered by 127\.0\.0\.1:1"):
        register_broker(
            late.session,
            registration(ONE, Endpoint("127.0.0.1", 2), "another directory"),
            probe=lambda endpoint: False,
            grace_ms=100 - SESSION_TIMEOUT_MS,
        )


@pytest.mark.parametrize("theirs", ["the one's directory", None])
def test_equal_addresses_are_no_proof_that_a_registration_is_ours(
    open_store: OpenStore, theirs: str | None
) -> None:
    first = open_store()
    epoch = first.register_broker(registration(ONE, directory=theirs))
    with pytest.raises(BrokerIdTaken) as taken:
        register_broker(
            open_store().session,
            registration(ONE, directory="the other's directory"),
            grace_ms=100 - SESSION_TIMEOUT_MS,
        )
    assert first.brokers()[ONE].broker_epoch == epoch
    assert (theirs or "an unknown directory") in str(taken.value)
    assert "the other's directory" in str(taken.value)


def test_a_broker_that_holds_the_registered_directory_takes_over_at_once(open_store: OpenStore) -> None:
    old = open_store().register_broker(registration(ONE))
    asked: list[Endpoint] = []

    def ask(endpoint: Endpoint) -> bool:
        asked.append(endpoint)
        return False

    # Its address may have changed.
    successor = registration(ONE, Endpoint("127.0.0.1", 2))
    assert register_broker(open_store().session, successor, probe=ask, grace_ms=-SESSION_TIMEOUT_MS) > old
    assert asked == [NOWHERE]


def test_a_newer_registration_is_not_our_earlier_life(open_store: OpenStore) -> None:
    """As with two brokers on copies of one directory: neither may remove the other again and again."""
    ours = open_store()
    epoch = ours.register_broker(registration(ONE))
    successor = open_store()
    later = successor.register_broker(registration(ONE))
    with pytest.raises(BrokerIdTaken):
        register_broker(ours.session, registration(ONE), newer_than=epoch, grace_ms=100 - SESSION_TIMEOUT_MS)
    assert successor.brokers()[ONE].broker_epoch == later


def test_a_zookeeper_whose_zxids_went_back_is_not_retried_for_ever(open_store: OpenStore) -> None:
    """As after the restore of an older backup: no registration there is newer than the last one."""
    store = open_store()
    with pytest.raises(ZooKeeperRolledBack, match="start this broker again"):
        register_broker(store.session, registration(ONE), newer_than=BrokerEpoch(1 << 60))
    assert store.brokers() == {}


def test_one_of_three_wins_the_election(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(3)]
    won = [store.election.run(BrokerId(index)) for index, store in enumerate(stores)]
    assert [writer is not None for writer in won] == [True, False, False]
    node = stores[2].election.current()
    assert node is not None
    assert node.broker_id == 0
    assert stores[1].election.epoch() == 1


def test_a_node_of_our_own_session_does_not_block_our_election(store: ClusterStore) -> None:
    first = store.election.run(ONE)
    again = store.election.run(ONE)
    assert first is not None
    assert again is not None
    assert again.epoch == first.epoch + 1


def test_no_write_of_a_replaced_controller_succeeds(open_store: OpenStore) -> None:
    old_store, new_store = open_store(), open_store()
    old = old_store.election.run(ONE)
    assert old is not None
    assert old.create_topic("t", topic_of(1, ONE, TWO), {})
    old.create_partition_states({TP: leadership(ONE, (ONE, TWO))})
    old.resign()
    new = new_store.election.run(TWO)
    assert new is not None
    before = new_store.partition_states([TP])
    writes: list[Callable[[], object]] = [
        lambda: old.update_partition_states({TP: leadership(TWO, (TWO,), epoch=1)}),
        lambda: old.create_partition_states({TopicPartition("t", 1): leadership(ONE, (ONE,))}),
        lambda: old.create_topic("u", topic_of(1, ONE), {}),
        lambda: old.set_topic_assignment("t", topic_of(1, TWO)),
        lambda: old.request_deletion("t"),
        lambda: old.delete_topic("t"),
        lambda: old.resign(),
    ]
    for write in writes:
        with pytest.raises(ControllerMoved):
            write()
    assert new_store.partition_states([TP]) == before
    assert new_store.topics() == ["t"]
    assert new_store.deletion_requests() == []
    assert new_store.election.current() is not None


def test_states_are_written_by_compare_and_set(store: ClusterStore) -> None:
    writer = store.election.run(ONE)
    assert writer is not None
    writer.create_topic("t", topic_of(2, ONE, TWO), {})
    created = writer.create_partition_states({TP: leadership(ONE, (ONE, TWO))})
    assert created.written[TP].partition_epoch == 0
    version = store.update_isr(TP, led_by_one((ONE,), 0))
    assert version == 1
    # The same call again, as after a lost answer.
    assert store.update_isr(TP, led_by_one((ONE,), 0)) == 1
    stale = writer.update_partition_states({TP: leadership(TWO, (TWO,), epoch=1, version=0)})
    assert stale.written == {}
    assert stale.conflicts == {TP: leadership(ONE, (ONE,), version=1)}
    fresh = writer.update_partition_states({TP: leadership(TWO, (TWO,), epoch=1, version=1)})
    assert fresh.written[TP].partition_epoch == 2
    with pytest.raises(PartitionStateConflict) as conflict:
        store.update_isr(TP, led_by_one((ONE, TWO), 1))
    assert conflict.value.current == leadership(TWO, (TWO,), epoch=1, version=2)
    gone = TopicPartition("t", 1)
    with pytest.raises(PartitionStateConflict) as conflict:
        store.update_isr(gone, led_by_one((ONE,), 0))
    assert conflict.value.current is None


def test_an_isr_grows_by_a_broker_in_the_very_life_that_was_seen(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    lead(store, ONE)
    first = open_store()
    seen = first.register_broker(registration(TWO))

    def expand(version: int, epoch: BrokerEpoch) -> int:
        both = (ONE, TWO)
        return store.update_isr(TP, led_by_one(both, version), joining={TWO: epoch})

    first.session.close()
    with pytest.raises(ReplicaNotRegistered):
        expand(0, seen)
    again = open_store().register_broker(registration(TWO))
    with pytest.raises(ReplicaNotRegistered):
        expand(0, seen)
    assert store.partition_states([TP])[TP].isr == (ONE,)
    assert expand(0, again) == 1
    # The same call again, as after a lost answer, even if that registration has ended by then.
    assert expand(0, again) == 1
    assert expand(0, seen) == 1
    with pytest.raises(PartitionStateConflict):
        expand(7, again)


def test_a_broker_that_registers_between_the_look_and_the_write_does_not_join(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    lead(store, ONE)
    earlier = open_store()
    seen = earlier.register_broker(registration(TWO))
    attempt = store.session.attempt
    lives: list[BrokerEpoch] = []

    def late(start: Start) -> Outcome:
        if not lives:
            earlier.session.close()
            lives.append(open_store().register_broker(registration(TWO)))
        return attempt(start)

    store.session.attempt = late
    look = store._registrations_version

    def looked_before(expected: Mapping[BrokerId, BrokerEpoch]) -> tuple[int | None, set[BrokerId]]:
        store.session.attempt = attempt
        version = look(expected)
        store.session.attempt = late
        return version

    store._registrations_version = looked_before
    with pytest.raises(ReplicaNotRegistered):
        store.update_isr(TP, led_by_one((ONE, TWO), 0), joining={TWO: seen})
    assert lives[0] > seen
    assert store.partition_states([TP])[TP] == leadership(ONE, (ONE,))


def test_a_leader_changes_its_isr_only_while_registered_with_its_epoch(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    lead(store, ONE, TWO)

    def shrink(epoch: BrokerEpoch) -> int:
        return store.update_isr(TP, led_by_one((ONE,), 0), broker_epoch=epoch)

    first = open_store()
    seen = first.register_broker(registration(ONE))
    first.session.close()
    with pytest.raises(SessionLost):
        shrink(seen)
    again = open_store().register_broker(registration(ONE))
    with pytest.raises(SessionLost):
        shrink(seen)
    assert store.partition_states([TP])[TP].isr == (ONE, TWO)
    assert shrink(again) == 1
    # The same call again, as after a lost answer, even if that registration has ended by then.
    assert shrink(seen) == 1


def test_a_state_that_an_earlier_controller_began_is_completed(store: ClusterStore) -> None:
    writer = store.election.run(ONE)
    assert writer is not None
    writer.create_topic("t", topic_of(2, ONE), {})
    other = TopicPartition("t", 1)
    writer.create_partition_states({TP: leadership(ONE, (ONE,))})
    store.session.run(lambda zk: zk.create_async(paths.partition(other), b""))
    updates = writer.create_partition_states({TP: leadership(TWO, (TWO,)), other: leadership(ONE, (ONE,))})
    assert updates.written == {other: leadership(ONE, (ONE,))}
    assert updates.conflicts == {TP: leadership(ONE, (ONE,))}


def test_a_request_survives_a_restart_of_zookeeper(tmp_path: Path, open_store: OpenStore) -> None:
    server = ZooKeeper(tmp_path)
    server.start()
    events: list[SessionEvent] = []
    try:
        store = open_store(server.connect, on_session_event=events.append)
        epoch = store.register_broker(registration(ONE))
        server.kill()
        wait_for(lambda: events == [SessionEvent.SUSPENDED])
        restart = threading.Thread(target=server.start)
        restart.start()
        assert store.brokers()[ONE].broker_epoch == epoch
        restart.join()
        wait_for(lambda: events == [SessionEvent.SUSPENDED, SessionEvent.RESUMED])
        store.session.close()
    finally:
        server.stop()


def test_a_zookeeper_that_is_gone_for_a_session_timeout_is_reported(
    tmp_path: Path, open_store: OpenStore
) -> None:
    server = ZooKeeper(tmp_path)
    server.start()
    events: list[SessionEvent] = []
    try:
        store = open_store(server.connect, on_session_event=events.append)
        # Short only from here on: while the server lives, a busy machine may well keep it silent for as long.
        store.session.session_timeout_ms = 1_000
        server.kill()
        wait_for(lambda: events == [SessionEvent.SUSPENDED, SessionEvent.SILENT])
        with pytest.raises(ZooKeeperUnavailable):
            store.topics()
        store.session.close()
    finally:
        server.stop()


class Member:
    """A broker of the cluster under test: registration, controller, and the socket that gets its requests."""

    def __init__(
        self, broker_id: BrokerId, connect: str, open_store: OpenStore, fatal: list[BaseException]
    ) -> None:
        self.id = broker_id
        self.broker = ControlledBroker()
        self.events: list[SessionEvent] = []
        self.store = open_store(connect, on_session_event=self._session_changed)
        self.register()
        self.controller = Controller(
            broker_id,
            self.store,
            settings=controller_settings(),
            on_fatal=fatal.append,
        )
        self.controller.start()

    def register(self) -> None:
        made = registration(self.id, self.broker.endpoint)
        self.broker.broker_epoch = self.store.register_broker(made)

    def _session_changed(self, event: SessionEvent) -> None:
        self.events.append(event)
        if event is SessionEvent.RENEWED:
            self.register()

    def admin(self) -> TopicAdmin:
        return TopicAdmin(
            self.store,
            self.controller,
            settings=TopicSettings(num_partitions=1, default_replication_factor=1, delete_topic_enable=True),
            validate_config=lambda config: None,
        )

    def leaders(self) -> dict[TopicPartition, BrokerId]:
        """The leaders by the UpdateMetadata requests."""
        found = {}
        for request in self.broker.of(UpdateMetadataRequest):
            for topic in request.topic_states:
                for one in topic.partition_states:
                    tp = TopicPartition(topic.topic_name, one.partition_index)
                    found[tp] = BrokerId(one.leader)
                    if one.leader == LEADER_DURING_DELETE:
                        del found[tp]
        return found


@pytest.fixture
def members(
    zookeeper_connect: str, open_store: OpenStore, fatal: list[BaseException]
) -> Iterator[list[Member]]:
    """Three brokers, of which the first is the controller and knows the others."""
    started: list[Member] = []
    try:
        for broker in (ONE, TWO, THREE):
            started.append(Member(broker, zookeeper_connect, open_store, fatal))
            wait_for(lambda: started[0].controller.is_active)
            wait_for(lambda: len(started[0].controller.live_brokers) == len(started))
        yield started
    finally:
        for member in reversed(started):
            member.controller.stop()
        for member in started:
            member.broker.die()


def create(member: Member, name: str, partitions: int, factor: int = 3) -> None:
    results = member.admin().create_topics(
        [
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=factor,
                configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")],
            )
        ]
    )
    assert [result.error_code for result in results] == [ErrorCode.NONE]
    wait_for(lambda: len([tp for tp in member.leaders() if tp.topic == name]) == partitions)


def test_a_created_topic_reaches_every_broker(members: list[Member]) -> None:
    create(members[0], "t", 6)
    for member in members:
        wait_for(lambda member=member: len(member.leaders()) == 6)
        told = [
            (topic.topic_name, one.partition_index, one.is_new, one.leader_epoch)
            for request in member.broker.of(LeaderAndIsrRequest)
            for topic in request.topic_states
            for one in topic.partition_states
        ]
        assert sorted(told) == [("t", index, True, 0) for index in range(6)]
        configs = [
            {entry.name: entry.value for entry in topic.configs}
            for request in member.broker.of(LeaderAndIsrRequest)
            for topic in request.topic_states
        ]
        assert configs == [{"min.insync.replicas": "2"}] * len(configs)
    assert sorted(members[1].leaders().values()) == [1, 1, 2, 2, 3, 3]


def test_leaders_move_at_once_when_a_process_dies_though_its_session_lives(members: list[Member]) -> None:
    create(members[0], "t", 6)
    members[1].broker.die()
    wait_for(lambda: TWO not in members[2].leaders().values())
    assert TWO in members[0].store.brokers()
    states = members[0].store.partition_states([TopicPartition("t", index) for index in range(6)])
    wait_for(
        lambda: all(TWO not in state.isr for state in members[0].store.partition_states(states).values())
    )
    members[1].broker.revive()
    wait_for(lambda: len(members[0].controller.live_brokers) == 3)
    full = wait_for(lambda: [r for r in members[1].broker.of(LeaderAndIsrRequest) if r.is_full][1:])
    assert {one.partition_index for topic in full[0].topic_states for one in topic.partition_states} == set(
        range(6)
    )


def test_a_dropped_connection_alone_moves_no_leader(members: list[Member]) -> None:
    create(members[0], "t", 3)
    before = members[0].store.partition_states([TopicPartition("t", index) for index in range(3)])
    made = members[1].broker.connections_made
    members[1].broker.drop_connections()
    wait_for(lambda: members[1].broker.connections_made > made)
    create(members[0], "u", 1)
    assert members[0].store.partition_states(before) == before


def test_the_next_controller_takes_over_when_the_first_is_stopped(members: list[Member]) -> None:
    create(members[0], "t", 3)
    members[0].controller.stop()
    following = wait_for(lambda: [member for member in members[1:] if member.controller.is_active])[0]
    assert following.controller.epoch == 2
    wait_for(lambda: [r for r in members[0].broker.of(LeaderAndIsrRequest) if r.controller_epoch == 2])
    create(following, "u", 2)


def test_an_expired_session_ends_the_reign_and_the_broker_registers_anew(members: list[Member]) -> None:
    create(members[0], "t", 3)
    old_epoch = members[0].broker.broker_epoch
    expire_session(members[0].store.session._client)
    following = wait_for(lambda: [m for m in members if m.controller.is_active and m.controller.epoch == 2])[
        0
    ]
    wait_for(lambda: SessionEvent.RENEWED in members[0].events)
    # The event comes before the registration that it asks for; until then the list may be the old one.
    wait_for(lambda: members[0].broker.broker_epoch > old_epoch)
    wait_for(lambda: len(following.controller.live_brokers) == 3)
    assert members[0].events[-2:] == [SessionEvent.EXPIRED, SessionEvent.RENEWED]


def test_a_controlled_shutdown_moves_the_leaders_first(members: list[Member]) -> None:
    create(members[0], "t", 6)
    create(members[0], "alone", 3, factor=1)
    answers: list[tuple[ErrorCode, list[TopicPartition]]] = []
    epoch = members[1].broker.broker_epoch
    members[0].controller.controlled_shutdown(TWO, epoch, lambda code, left: answers.append((code, left)))
    wait_for(lambda: answers)
    assert answers == [(ErrorCode.NONE, [])]
    states = members[0].store.partition_states([TopicPartition("t", index) for index in range(6)])
    assert {TWO for state in states.values() if TWO in (state.leader, *state.isr)} == set()
    members[0].controller.controlled_shutdown(TWO, epoch - 1, lambda code, left: answers.append((code, left)))
    wait_for(lambda: len(answers) == 2)
    assert answers[1] == (ErrorCode.STALE_BROKER_EPOCH, [])
    members[2].controller.controlled_shutdown(TWO, epoch, lambda code, left: answers.append((code, left)))
    assert answers[2] == (ErrorCode.NOT_CONTROLLER, [])


def test_a_deleted_topic_leaves_nothing_behind(members: list[Member]) -> None:
    create(members[0], "t", 6)
    [result] = members[0].admin().delete_topics([DeleteTopicState(name="t")])
    assert result.error_code == ErrorCode.NONE
    wait_for(lambda: members[0].store.topics() == [])
    wait_for(lambda: members[0].store.deletion_requests() == [])
    assert not members[0].store.topic_configs(["t"])["t"].exists
    for member in members:
        deleted = {
            one.partition_index
            for request in member.broker.of(StopReplicaRequest)
            for topic in request.topic_states
            for one in topic.partition_states
            if one.delete_partition
        }
        assert deleted == set(range(6))
    create(members[0], "t", 2)


def test_an_isr_change_of_a_leader_reaches_every_broker(members: list[Member]) -> None:
    create(members[0], "t", 1)
    state = members[0].store.partition_states([TP])[TP]
    leader = next(member for member in members if member.id == state.leader)
    leader.store.update_isr(TP, replace(state, isr=(state.leader,)))
    leader.store.notify_isr_change([TP])

    def isrs(member: Member) -> list[list[int]]:
        return [
            one.isr
            for request in member.broker.of(UpdateMetadataRequest)
            for topic in request.topic_states
            for one in topic.partition_states
        ]

    for member in members:
        wait_for(lambda member=member: isrs(member)[-1:] == [[state.leader]])
    wait_for(lambda: members[0].store.isr_changes() == {})
