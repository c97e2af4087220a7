"""`ClusterStore`: typed access to a cluster's data in ZooKeeper.

Every broker has one. It reads everything, and writes the data that any broker may write: its own
registration, the ISR of partitions it leads, notifications, the cluster id. The controller's writes go
through the `ControllerWriter` that a won election returns.

All calls block, may come from any thread (watch callbacks aside) and are bounded by the session timeout; each
may raise `ZooKeeperUnavailable` or `SessionLost`. A watch passed in is called at most once, from the client
library's thread, also when the connection is lost: it may only put something into a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.config_store import ConfigStore, Entity, EntityKind
from barnabas.zookeeper.controller_writer import ControllerWriter, first_error
from barnabas.zookeeper.parents import children, make_again
from barnabas.zookeeper.registration import register_broker
from barnabas.zookeeper.seat import Seat
from barnabas.zookeeper.session import (
    MakeClient,
    SessionEvent,
    SessionLost,
    Start,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from barnabas.zookeeper.threads import Threads
from barnabas.zookeeper.znodes import (
    BrokerRegistration,
    ControllerNode,
    LeadershipState,
    MalformedZnode,
    StoredConfig,
    TopicAssignment,
)

log = logging.getLogger("barnabas.controller")

Watch = Callable[[Any], None]

_ISR_ROUNDS = 10
_ANY_VERSION = -1
_NOBODY: Mapping[BrokerId, BrokerEpoch] = MappingProxyType({})


class PartitionStateConflict(LocalError):
    """The state znode is not at the version that was expected.

    `current` is what stands there now, or None when the partition is gone.
    """

    def __init__(self, tp: TopicPartition, expected: int, current: LeadershipState | None) -> None:
        found = "no such node" if current is None else f"version {current.partition_epoch}: {current}"
        super().__init__(f"state of {tp}: expected version {expected}, found {found}")
        self.current = current


class ReplicaNotRegistered(LocalError):
    """A broker that was to join an ISR is not registered with the epoch given; nothing was written."""


class IsrStore(Protocol):
    """What a leader sees of the store; any thread, blocks."""

    def update_isr(
        self,
        tp: TopicPartition,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        controller_epoch: ControllerEpoch,
        isr: tuple[BrokerId, ...],
        expected_partition_epoch: int,
        joining: Mapping[BrokerId, BrokerEpoch] = ...,
        broker_epoch: BrokerEpoch = ...,
        topic_id: TopicId = ...,
    ) -> int: ...

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None: ...


class ClusterStore:
    """See the module. `connect` is ``host:port[,host:port…][/chroot]``.

    `on_session_event` is called on the session thread and may block; `on_fatal` is called should that thread
    end by an error.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_session_event: Callable[[SessionEvent], None] | None = None,
        on_fatal: Callable[[BaseException], None],
        make_client: MakeClient = KazooClient,
        threads: Threads | None = None,
    ) -> None:
        self.session = ZooKeeperSession(
            connect,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            on_fatal=on_fatal,
            make_client=make_client,
            threads=threads,
        )
        self.configs = ConfigStore(self.session)
        self._seat = Seat(self.session, self._highest_written_epoch)
        # The last readable registrations, in case a node is corrupted by hand later.
        self._registrations: dict[BrokerId, BrokerRegistration] = {}
        if on_session_event is not None:
            self.session.add_listener(on_session_event)

    def start(self) -> None:
        """Connect and create what every cluster has. Raises ZooKeeperUnavailable naming the address."""
        self.session.start()
        for outcome in self.session.run_all([_ensure(path) for path in paths.PERSISTENT]):
            outcome.get()

    def close(self) -> None:
        """End the session; what is ephemeral vanishes at once."""
        self.session.close()

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        self.session.add_listener(listener)

    def remove_session_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        self.session.remove_listener(listener)

    # Brokers

    def cluster_id(self) -> str:
        """The cluster's id, created by the first caller."""
        fresh = znodes.encode_cluster_id(znodes.encode_uuid(znodes.random_uuid()))
        found = self._data(paths.CLUSTER_ID)
        if found is None:
            made = self.session.attempt(lambda zk: zk.create_async(paths.CLUSTER_ID, fresh, makepath=True))
            if made.error is not None and not isinstance(made.error, NodeExistsError):
                raise made.error
            found = self._data(paths.CLUSTER_ID)
        if found is None:
            raise MalformedZnode(f"{paths.CLUSTER_ID} was deleted while it was being read")
        return znodes.decode_cluster_id(paths.CLUSTER_ID, found[0])

    def register_broker(
        self, registration: BrokerRegistration, *, newer_than: BrokerEpoch = NO_BROKER_EPOCH
    ) -> BrokerEpoch:
        """Register as an ephemeral node; see `barnabas.zookeeper.registration`. Raises BrokerIdTaken."""
        return register_broker(self.session, registration, newer_than=newer_than)

    def is_registered(self, broker: BrokerId, broker_epoch: BrokerEpoch, watch: Watch) -> bool:
        """Whether the registration with this epoch exists; its node is watched in either case."""
        stat = self.session.run(lambda zk: zk.exists_async(paths.broker_id(broker), watch))
        return stat is not None and stat.czxid == broker_epoch

    def brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerRegistration]:
        """All brokers whose registration is readable, or was readable before."""
        ids = [BrokerId(int(name)) for name in self._children(paths.BROKER_IDS, watch) if name.isdecimal()]
        by_path = {paths.broker_id(broker): broker for broker in ids}
        registrations = {}
        for path, (data, stat) in self._read(list(by_path)).items():
            broker = by_path[path]
            try:
                registrations[broker] = znodes.decode_broker(path, data, broker, stat.czxid)
            except MalformedZnode as error:
                known = self._registrations.get(broker)
                if known is None or known.broker_epoch != stat.czxid:
                    log.error("ignored: %s", error)
                    continue
                # The node is the same, so the process is too; only the data has changed.
                log.error("keeping the registration that was read before: %s", error)
                registrations[broker] = known
        self._registrations = registrations
        return dict(registrations)

    # Topics

    def topics(self, watch: Watch | None = None) -> list[str]:
        return self._children(paths.TOPICS, watch)

    def topic_assignments(
        self, topics: Iterable[str], watch: Callable[[str], None] | None = None
    ) -> dict[str, TopicAssignment | MalformedZnode]:
        """By topic; one that is gone is left out, one that cannot be read comes as its error.

        The watch is called with the topic's name.
        """
        names = {paths.topic(name): name for name in topics}
        watches = {} if watch is None else {path: _naming(watch, name) for path, name in names.items()}
        found = self._read(list(names), watches)
        result: dict[str, TopicAssignment | MalformedZnode] = {}
        for path, (data, stat) in found.items():
            name = names[path]
            try:
                result[name] = znodes.decode_topic(path, data, stat.version)
            except MalformedZnode as error:
                result[name] = error
        return result

    def topic_configs(self, topics: Iterable[str]) -> dict[str, StoredConfig]:
        """The overrides by topic; one without a readable node has none."""
        found = self.configs.read(Entity(EntityKind.TOPIC, name) for name in topics)
        return {entity.name: config for entity, config in found.items()}

    def partition_states(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        """What stands in the state znodes; partitions without a readable one are left out."""
        by_path = {paths.partition_state(tp): tp for tp in partitions}
        return {
            by_path[path]: state
            for path, (data, stat) in self._read(list(by_path)).items()
            if (state := znodes.readable_partition_state(path, data, stat.version)) is not None
        }

    def deletion_requests(self, watch: Watch | None = None) -> list[str]:
        return self._children(paths.DELETE_TOPICS, watch)

    # ISR

    def update_isr(
        self,
        tp: TopicPartition,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        controller_epoch: ControllerEpoch,
        isr: tuple[BrokerId, ...],
        expected_partition_epoch: int,
        joining: Mapping[BrokerId, BrokerEpoch] = _NOBODY,
        broker_epoch: BrokerEpoch = NO_BROKER_EPOCH,
        topic_id: TopicId = NO_TOPIC_ID,
    ) -> int:
        """Write the state by compare-and-set on the znode's version, and return the new version.

        Raises PartitionStateConflict when the version differs, unless what stands there is this very write,
        done before by a call whose answer was lost: calling again after ZooKeeperUnavailable is safe.

        The ``joining`` replicas must be registered with these epochs at the moment of the write (KIP-903),
        else ReplicaNotRegistered is raised. Then earlier attempts cannot succeed later either, because they
        require the same registrations, and an ended registration does not come back.

        With `broker_epoch` the leader itself must be registered with it, else SessionLost is raised. A
        request may be sent again in the next session, and the controller may by then count the leader as dead
        and need the replicas that the leader would remove from the ISR.

        A state of another topic than `topic_id` is a conflict. The topic was removed by hand, a new one has
        its name, and the versions of its nodes begin at 0 again. Raises MalformedZnode while the topic's node
        cannot be read, because without its id the write could hit the state of another topic.
        """
        # Of the state that is replaced; if that changes, the compare-and-set fails.
        before, present_id = self._state_and_topic_id(tp)
        if present_id != topic_id and NO_TOPIC_ID not in (present_id, topic_id):
            raise PartitionStateConflict(tp, expected_partition_epoch, before)
        known = {} if before is None else before.broker_epochs
        state = LeadershipState(
            leader=leader,
            leader_epoch=leader_epoch,
            isr=isr,
            controller_epoch=controller_epoch,
            partition_epoch=expected_partition_epoch,
            broker_epochs={broker: epoch for broker, epoch in {**known, **joining}.items() if broker in isr},
        )
        path, data = paths.partition_state(tp), znodes.encode_partition_state(state)
        lives = dict(joining) if broker_epoch == NO_BROKER_EPOCH else {**joining, leader: broker_epoch}
        missing: set[BrokerId] = set()
        for _ in range(_ISR_ROUNDS):
            version, missing = self._registrations_version(lives) if lives else (None, missing)
            if missing:
                break
            outcome = self.session.attempt(_set_state(path, data, expected_partition_epoch, lives, version))
            results = outcome.get()
            error = first_error(results)
            if error is None:
                return int(results[-1].version)
            if not isinstance(error, BadVersionError | NoNodeError):
                raise error
            if results[-1] is error:
                break
        else:
            raise ZooKeeperUnavailable(f"brokers register faster than the state of {tp} can be written")
        return self._not_written(tp, state, missing)

    def _state_and_topic_id(self, tp: TopicPartition) -> tuple[LeadershipState | None, TopicId]:
        """Read both in one round trip. Raises MalformedZnode if the topic's node cannot be read."""
        state_path, topic_path = paths.partition_state(tp), paths.topic(tp.topic)
        found = self._read([state_path, topic_path])
        state, topic_id = None, NO_TOPIC_ID
        if state_path in found:
            data, stat = found[state_path]
            state = znodes.readable_partition_state(state_path, data, stat.version)
        if topic_path in found:
            topic_id = znodes.decode_topic(topic_path, found[topic_path][0]).topic_id
        return state, topic_id

    def _not_written(self, tp: TopicPartition, state: LeadershipState, missing: set[BrokerId]) -> int:
        """The version, if an earlier attempt has written the state; else raises why this one failed."""
        current = self.partition_states([tp]).get(tp)
        if current == replace(state, partition_epoch=state.partition_epoch + 1):
            return current.partition_epoch
        if missing and current is not None and current.partition_epoch == state.partition_epoch:
            gone = f"{tp}: brokers {sorted(missing)} are no longer registered with the expected epochs"
            raise SessionLost(gone) if state.leader in missing else ReplicaNotRegistered(gone)
        raise PartitionStateConflict(tp, state.partition_epoch, current)

    def _registrations_version(
        self, expected: Mapping[BrokerId, BrokerEpoch]
    ) -> tuple[int | None, set[BrokerId]]:
        """The version of ``/brokers/ids``, and the brokers that do not have their epoch at that version.

        The version is read first, so that a registration in between makes the write fail.
        """
        parent = self.session.run(lambda zk: zk.exists_async(paths.BROKER_IDS))
        if parent is None:
            # Deleted by hand, with all registrations.
            return None, set(expected)
        found = self._read([paths.broker_id(broker) for broker in expected])
        missing = set()
        for broker, epoch in expected.items():
            registration = found.get(paths.broker_id(broker))
            if registration is None or registration[1].czxid != epoch:
                missing.add(broker)
        return int(parent.version), missing

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        """Tell the controller of changed ISRs, so that it tells everybody; a repetition does no harm."""
        data = znodes.encode_isr_change(list(partitions))
        self._notify(paths.ISR_CHANGES, paths.ISR_CHANGE_PREFIX, data)

    def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]:
        """By notification; one that cannot be read names no partition."""
        names = self._children(paths.ISR_CHANGES, watch)
        found = self._read([paths.isr_change(name) for name in names])
        changes = {}
        for path, (data, _) in found.items():
            try:
                partitions = znodes.decode_isr_change(path, data)
            except MalformedZnode as error:
                log.error("ignored: %s", error)
                partitions = []
            changes[path.rpartition("/")[2]] = partitions
        return changes

    # Failed log dirs

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        """Tell the controller that a broker has lost a log dir; a repetition does no harm."""
        data = znodes.encode_log_dir_event(broker)
        self._notify(paths.LOG_DIR_EVENTS, paths.LOG_DIR_EVENT_PREFIX, data)

    def log_dir_failures(self, watch: Watch | None = None) -> dict[str, BrokerId | None]:
        """The brokers that have lost a log dir, by notification; None for an unreadable one."""
        names = self._children(paths.LOG_DIR_EVENTS, watch)
        failures: dict[str, BrokerId | None] = {}
        for path, (data, _) in self._read([paths.log_dir_event(name) for name in names]).items():
            name = path.rpartition("/")[2]
            try:
                failures[name] = znodes.decode_log_dir_event(path, data)
            except MalformedZnode as error:
                log.error("ignored: %s", error)
                failures[name] = None
        return failures

    def _notify(self, parent: str, prefix: str, data: bytes) -> None:
        made = self.session.attempt(lambda zk: zk.create_async(prefix, data, sequence=True))
        if isinstance(made.error, NoNodeError):
            make_again(self.session, [parent])
            made = self.session.attempt(lambda zk: zk.create_async(prefix, data, sequence=True))
        made.get()

    # The controller

    def controller(self, watch: Watch | None = None) -> ControllerNode | None:
        """The controller's node; see `Seat.holder`."""
        return self._seat.holder(watch)

    def controller_epoch(self) -> ControllerEpoch:
        """The epoch of the last election, 0 before the first."""
        return self._seat.epoch()

    def become_controller(self, broker: BrokerId) -> ControllerWriter | None:
        """Stand for election: None when another broker is the controller."""
        return self._seat.take(broker)

    def depose_controller(self, seen: ControllerNode, broker: BrokerId) -> ControllerWriter | None:
        """Become controller in place of a dead process; None if its node is gone."""
        return self._seat.take_from(seen, broker)

    def _highest_written_epoch(self) -> ControllerEpoch:
        assigned = self.topic_assignments(self.topics())
        states = self.partition_states(
            TopicPartition(topic, index)
            for topic, found in assigned.items()
            if isinstance(found, TopicAssignment)
            for index in found.replicas
        )
        return max((state.controller_epoch for state in states.values()), default=ControllerEpoch(0))

    def _children(self, path: str, watch: Watch | None) -> list[str]:
        return children(self.session, path, watch)

    def _data(self, path: str) -> tuple[bytes, Any] | None:
        return self._read([path]).get(path)

    def _read(
        self, wanted: Sequence[str], watches: Mapping[str, Watch] | None = None
    ) -> Mapping[str, tuple[bytes, Any]]:
        """Data and stat by path; nodes that do not exist are left out, and not watched."""
        found = {}
        by_path = watches or {}
        outcomes = self.session.run_all([_get(path, by_path.get(path)) for path in wanted])
        for path, outcome in zip(wanted, outcomes, strict=True):
            if not isinstance(outcome.error, NoNodeError):
                found[path] = outcome.get()
        return found


def _get(path: str, watch: Watch | None = None) -> Start:
    return lambda zk: zk.get_async(path, watch)


def _naming(watch: Callable[[str], None], name: str) -> Watch:
    return lambda _: watch(name)


def _set_state(
    path: str, data: bytes, version: int, registered: Iterable[BrokerId], registrations_version: int | None
) -> Start:
    """Compare-and-set that fails if a broker has registered since that version, or one of these is gone."""

    def start(zk: Any) -> Any:
        transaction = zk.transaction()
        if registrations_version is not None:
            transaction.check(paths.BROKER_IDS, registrations_version)
        for broker in registered:
            transaction.check(paths.broker_id(broker), _ANY_VERSION)
        transaction.set_data(path, data, version)
        return transaction.commit_async()

    return start


def _ensure(path: str) -> Start:
    return lambda zk: zk.ensure_path_async(path)
