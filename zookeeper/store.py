"""`ClusterStore`: typed access to a cluster's data in ZooKeeper.

Every broker has one. It reads everything, and writes the data that any broker may write: its registration,
the ISR of partitions that it leads, notifications, the cluster id, blocks of producer ids. Its parts are
`session`, `configs`, `acls`, `features` and `election`; a won election returns the `ControllerWriter` for a
controller's writes.

All calls block, may come from any thread but the client library's, and are bounded by the session timeout;
each may raise `ZooKeeperUnavailable` or `SessionLost`. A watch is called at most once, on the library's
thread, also when the connection is lost: it may only put something into a queue.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.acls import AclStore
from barnabas.zookeeper.admin_requests import decode_deletion
from barnabas.zookeeper.configs import ConfigStore, Entity
from barnabas.zookeeper.controller_election import ControllerElection
from barnabas.zookeeper.errors import (
    LeadershipConflict,
    ReplicaNotRegistered,
    SessionLost,
)
from barnabas.zookeeper.features import FeatureStore
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.multi_read import Client
from barnabas.zookeeper.registration import Probe, make_probe, register_broker
from barnabas.zookeeper.requests import (
    CAS_ROUNDS,
    Transaction,
    Watch,
    ensure,
    exists,
    first_error,
    get,
    list_children,
    read,
    read_leadership,
    recreate,
    retry_cas,
)
from barnabas.zookeeper.session import MakeClient, SessionEvent, Start, Threads, ZooKeeperSession
from barnabas.zookeeper.znodes import (
    BrokerRegistration,
    LeadershipState,
    StoredConfig,
    TopicAssignment,
)

log = logging.getLogger("barnabas.zookeeper")

T = TypeVar("T")

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
_LARGEST_PRODUCER_ID: Final = (1 << 63) - 1
_MOST_TOPIC_IDS: Final = 10_000
_NO_BROKERS: Mapping[BrokerId, BrokerEpoch] = MappingProxyType({})


class ClusterStore:
    """`connect` is ``host:port[,host:port…][/chroot]``.

    `on_session_event` is called on the session thread and may block. `on_fatal` is called if an error ends
    that thread.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_session_event: Callable[[SessionEvent], None] | None = None,
        on_fatal: Callable[[BaseException], None],
        make_client: MakeClient = Client,
        threads: Threads | None = None,
        probe: Probe | None = None,
    ) -> None:
        """``probe`` tells whether a broker answers at another's listener."""
        self._probe = probe or make_probe()
        self._topic_ids: dict[str, tuple[int, TopicId]] = {}
        """The id of each topic whose ISRs are changed here, and the last change of its node."""
        self.session = ZooKeeperSession(
            connect,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            on_fatal=on_fatal,
            make_client=make_client,
            threads=threads,
        )
        self.configs = ConfigStore(self.session)
        self.acls = AclStore(self.session)
        self.features = FeatureStore(self.session, self.brokers)
        self.election = ControllerElection(self.session, self._highest_written_epoch)
        if on_session_event is not None:
            self.session.add_listener(on_session_event)

    def start(self) -> None:
        """Connect and create the nodes that every cluster has. Raises ZooKeeperUnavailable."""
        self.session.start()
        for outcome in self.session.run_all([ensure(path) for path in paths.PERSISTENT]):
            outcome.get()

    # Brokers

    def cluster_id(self, levels: Mapping[str, int]) -> str:
        """The cluster's id, created by the first caller together with the first levels of its features.

        One transaction creates both. So a cluster that has an id but no levels is older than features, and
        keeps level 0 until it is upgraded.
        """
        node = read(self.session, [paths.CLUSTER_ID])
        if not node:
            self._create_cluster(levels)
            node = read(self.session, [paths.CLUSTER_ID])
        if not node:
            raise MalformedZnode(f"{paths.CLUSTER_ID} was deleted while it was being read")
        return znodes.decode_cluster_id(paths.CLUSTER_ID, node[paths.CLUSTER_ID][0])

    def _create_cluster(self, levels: Mapping[str, int]) -> None:
        """Unless another broker creates it first."""
        new_id = znodes.encode_cluster_id(znodes.encode_uuid(znodes.random_uuid()))
        # Otherwise it is an older cluster whose id was deleted by hand.
        is_new = not self.topics() and self.session.run(exists(paths.FEATURES)) is None
        transaction = Transaction().create(paths.CLUSTER_ID, new_id)
        if is_new:
            transaction.create(paths.FEATURES, znodes.encode_features(levels))
        error = first_error(self.session.run(transaction))
        if error is not None and not isinstance(error, NodeExistsError):
            raise error

    def shared_secret(self) -> bytes:
        """Random bytes that all brokers know, created by the first caller."""
        node = read(self.session, [paths.SECRET])
        if not node:
            outcome = self.session.attempt(Transaction().create(paths.SECRET, secrets.token_hex(32).encode()))
            error = first_error(outcome.get())
            if error is not None and not isinstance(error, NodeExistsError):
                raise error
            node = read(self.session, [paths.SECRET])
        return node[paths.SECRET][0]

    def register_broker(
        self,
        registration: BrokerRegistration,
        *,
        newer_than: BrokerEpoch = NO_BROKER_EPOCH,
    ) -> BrokerEpoch:
        """Register as an ephemeral node; see `barnabas.zookeeper.registration`. Raises BrokerIdTaken."""
        return register_broker(self.session, registration, newer_than=newer_than, probe=self._probe)

    def update_registration(self, registration: BrokerRegistration, broker_epoch: BrokerEpoch) -> bool:
        """Write other addresses into this broker's node; False if the registration of that epoch is over."""
        path, data = paths.broker_id(registration.broker_id), znodes.encode_broker(registration)
        found = read(self.session, [path]).get(path)
        if found is None or found[1].czxid != broker_epoch:
            return False
        outcome = self.session.attempt(lambda zk: zk.set_async(path, data, found[1].version))
        if isinstance(outcome.error, NoNodeError | BadVersionError):
            return False
        outcome.get()
        return True

    def is_registered(self, broker: BrokerId, broker_epoch: BrokerEpoch, watch: Watch) -> bool:
        """Whether the registration with this epoch exists; its node is watched in either case."""
        stat = self.session.run(exists(paths.broker_id(broker), watch))
        return stat is not None and stat.czxid == broker_epoch

    def brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerRegistration]:
        """All brokers whose registration is readable.

        The watch is also for the nodes: a broker may change its registration while it runs.
        """
        ids = [
            BrokerId(int(name))
            for name in list_children(self.session, paths.BROKER_IDS, watch)
            if name.isdecimal()
        ]
        by_path = {paths.broker_id(broker): broker for broker in ids}
        registrations = {}
        watches = None if watch is None else dict.fromkeys(by_path, watch)
        for path, (data, stat) in read(self.session, list(by_path), watches).items():
            broker = by_path[path]
            try:
                registrations[broker] = znodes.decode_broker(path, data, broker, stat.czxid)
            except MalformedZnode as error:
                log.error("ignored: %s", error)
        return registrations

    # Topics

    def topics(self, watch: Watch | None = None) -> list[str]:
        return list_children(self.session, paths.TOPICS, watch)

    def topic_assignments(
        self, topics: Iterable[str], watch: Callable[[str], None] | None = None
    ) -> dict[str, TopicAssignment | MalformedZnode]:
        """By topic; missing topics are omitted, and an unreadable one is returned as its error.

        The watch is called with the topic's name.
        """
        names = {paths.topic(name): name for name in topics}
        watches = {} if watch is None else {path: _naming(watch, name) for path, name in names.items()}
        assignments: dict[str, TopicAssignment | MalformedZnode] = {}
        for path, (data, stat) in read(self.session, list(names), watches).items():
            name = names[path]
            try:
                assignments[name] = znodes.decode_topic(path, data, stat.version)
            except MalformedZnode as error:
                assignments[name] = error
        return assignments

    def topic_configs(self, topics: Iterable[str]) -> dict[str, StoredConfig]:
        """The overrides by topic; empty for a topic without a readable node."""
        configs = self.configs.read(Entity.topic(name) for name in topics)
        return {entity.name: config for entity, config in configs.items()}

    def leadership(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        """The states of the partitions that have a readable state znode."""
        return read_leadership(self.session, partitions)

    def deletion_requests(self, watch: Watch | None = None) -> dict[str, TopicId]:
        """By topic the id of the topic to delete; `NO_TOPIC_ID` for any topic of the name."""
        names = list_children(self.session, paths.DELETE_TOPICS, watch)
        nodes = read(self.session, [paths.delete_topic(name) for name in names])
        requests = {name: nodes.get(paths.delete_topic(name)) for name in names}
        return {name: decode_deletion(node[0]) for name, node in requests.items() if node is not None}

    # ISRs and notifications

    def update_isr(
        self,
        tp: TopicPartition,
        state: LeadershipState,
        *,
        joining: Mapping[BrokerId, BrokerEpoch] = _NO_BROKERS,
        broker_epoch: BrokerEpoch = NO_BROKER_EPOCH,
        topic_id: TopicId = NO_TOPIC_ID,
    ) -> int:
        """Write a leader's state if the znode is at its `partition_epoch`; returns the new version.

        The broker epochs of the ISR are added. Raises LeadershipConflict if the version differs, unless
        the present state is this very write, made by a call whose answer was lost: calling again after
        ZooKeeperUnavailable is safe.

        The ``joining`` replicas must be registered with these epochs at the moment of the write (KIP-903),
        else ReplicaNotRegistered. With `broker_epoch` the leader must be, too, else SessionLost: the request
        may be sent again in the next session, when the controller counts the leader as dead and needs the
        replicas that the leader would remove. A later attempt requires the same registrations, and an ended
        registration does not come back, so after these errors no attempt can succeed.

        A state of another topic than `topic_id` is a conflict: versions begin at 0 again in a new topic of
        that name. Raises MalformedZnode while the topic's node cannot be read.
        """
        # If this state changes before the write, the compare-and-set fails.
        before, present_id = self._state_and_topic_id(tp)
        if present_id != topic_id and NO_TOPIC_ID not in (present_id, topic_id):
            raise LeadershipConflict(tp, state.partition_epoch, before)
        epochs = {**({} if before is None else before.broker_epochs), **joining}
        state = replace(state, broker_epochs={b: epoch for b, epoch in epochs.items() if b in state.isr})
        path, data = paths.leadership(tp), znodes.encode_leadership(state)
        required = dict(joining)
        if broker_epoch != NO_BROKER_EPOCH:
            required[state.leader] = broker_epoch

        def attempt() -> int | None:
            version, missing = self._registrations_version(required) if required else (None, set())
            if missing:
                return self._not_written(tp, state, missing)
            outcome = self.session.attempt(_set_state(path, data, state.partition_epoch, required, version))
            results = outcome.get()
            error = first_error(results)
            if error is None:
                return int(results[-1].version)
            if not isinstance(error, BadVersionError | NoNodeError):
                raise error
            return self._not_written(tp, state, missing) if results[-1] is error else None

        return retry_cas(attempt, f"brokers register faster than the state of {tp} can be written")

    def _state_and_topic_id(self, tp: TopicPartition) -> tuple[LeadershipState | None, TopicId]:
        """Read both in one round trip. Raises MalformedZnode if the topic's node cannot be read.

        The node of a topic has all its partitions, so it is read once for all of them and looked at later.
        """
        state_path, topic_path = paths.leadership(tp), paths.topic(tp.topic)
        state_read, topic_seen = self.session.run_all([get(state_path), exists(topic_path)])
        state, stat = None, topic_seen.get()
        if not isinstance(state_read.error, NoNodeError):
            data, state_stat = state_read.get()
            state = znodes.readable_leadership(state_path, data, state_stat.version)
        if stat is None:
            return state, NO_TOPIC_ID
        mzxid, topic_id = self._topic_ids.get(tp.topic, (-1, NO_TOPIC_ID))
        if mzxid != stat.mzxid:
            topic_id = NO_TOPIC_ID
            for data, stat in read(self.session, [topic_path]).values():
                topic_id = znodes.decode_topic(topic_path, data).topic_id
                if len(self._topic_ids) >= _MOST_TOPIC_IDS:
                    self._topic_ids.clear()
                self._topic_ids[tp.topic] = stat.mzxid, topic_id
        return state, topic_id

    def _not_written(self, tp: TopicPartition, state: LeadershipState, missing: set[BrokerId]) -> int:
        """The version if an earlier attempt has written the state; else raises the reason of the failure."""
        current = self.leadership([tp]).get(tp)
        if current == replace(state, partition_epoch=state.partition_epoch + 1):
            return current.partition_epoch
        if missing and current is not None and current.partition_epoch == state.partition_epoch:
            reason = f"{tp}: brokers {sorted(missing)} are no longer registered with the expected epochs"
            raise SessionLost(reason) if state.leader in missing else ReplicaNotRegistered(reason)
        raise LeadershipConflict(tp, state.partition_epoch, current)

    def _registrations_version(
        self, expected: Mapping[BrokerId, BrokerEpoch]
    ) -> tuple[int | None, set[BrokerId]]:
        """The version of ``/brokers/ids``, and the brokers that do not have their epoch at that version.

        The version is read first, so that a registration in between makes the write fail.
        """
        parent = self.session.run(exists(paths.BROKER_IDS))
        if parent is None:
            # Deleted by hand, with all registrations.
            return None, set(expected)
        nodes = read(self.session, [paths.broker_id(broker) for broker in expected])
        missing = set()
        for broker, epoch in expected.items():
            node = nodes.get(paths.broker_id(broker))
            if node is None or node[1].czxid != epoch:
                missing.add(broker)
        return int(parent.version), missing

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        """Notify the controller of changed ISRs, so that it updates all brokers. May be repeated."""
        self._notify(paths.ISR_CHANGES, paths.ISR_CHANGE_PREFIX, znodes.encode_partitions(partitions))

    def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]:
        """The partitions of each notification, by its path; an unreadable one names no partition."""
        changes = self._notifications(paths.ISR_CHANGES, znodes.decode_partitions, watch)
        return {path: partitions or [] for path, partitions in changes.items()}

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        """Notify the controller that a broker has lost a log dir. May be repeated."""
        self._notify(paths.LOG_DIR_EVENTS, paths.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(broker))

    def log_dir_failures(self, watch: Watch | None = None) -> dict[str, BrokerId | None]:
        """The broker that each notification names, by its path; None for an unreadable one."""
        return self._notifications(paths.LOG_DIR_EVENTS, znodes.decode_log_dir_event, watch)

    def _notifications(
        self, parent: str, decode: Callable[[str, bytes], T], watch: Watch | None
    ) -> dict[str, T | None]:
        names = list_children(self.session, parent, watch)
        found: dict[str, T | None] = {}
        for path, (data, _) in read(self.session, [f"{parent}/{name}" for name in names]).items():
            try:
                found[path] = decode(path, data)
            except MalformedZnode as error:
                log.error("ignored: %s", error)
                found[path] = None
        return found

    def _notify(self, parent: str, prefix: str, data: bytes) -> None:
        created = self.session.attempt(lambda zk: zk.create_async(prefix, data, sequence=True))
        if isinstance(created.error, NoNodeError):
            recreate(self.session, [parent])
            created = self.session.attempt(lambda zk: zk.create_async(prefix, data, sequence=True))
        created.get()

    # Producer ids

    def claim_producer_ids(self, broker: BrokerId) -> range:
        """The next block of ids for this broker alone; if an answer is lost, its ids stay unused.

        Source: `ProducerIdBlockZNode` of Apache Kafka 3.9; its brokers use the same node. Raises
        ZooKeeperUnavailable (also if others were faster a hundred times), SessionLost or MalformedZnode.
        """
        path = paths.PRODUCER_ID_BLOCK

        def attempt() -> range | None:
            outcome = self.session.attempt(get(path))
            if isinstance(outcome.error, NoNodeError):
                # Without data, as Kafka creates it, so that every claim is a compare-and-set.
                created = self.session.attempt(lambda zk: zk.create_async(path, b""))
                if created.error is not None and not isinstance(created.error, NodeExistsError):
                    raise created.error
                return None
            data, stat = outcome.get()
            first = znodes.decode_producer_id_block(path, data).stop if data else 0
            if first > _LARGEST_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
                raise LocalError(f"no producer ids are left; {path} holds {data!r}")
            block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
            claim = partial(_set, path, znodes.encode_producer_id_block(broker, block), stat.version)
            claimed = self.session.attempt(claim)
            if claimed.error is None:
                log.info("broker %d has the producer ids %d to %d", broker, block.start, block.stop - 1)
                return block
            if not isinstance(claimed.error, BadVersionError | NoNodeError):
                raise claimed.error
            return None

        return retry_cas(attempt, f"{path}: others were faster {CAS_ROUNDS} times")

    def _highest_written_epoch(self) -> ControllerEpoch:
        assigned = self.topic_assignments(self.topics())
        states = self.leadership(
            TopicPartition(topic, index)
            for topic, assignment in assigned.items()
            if isinstance(assignment, TopicAssignment)
            for index in assignment.partitions
        )
        return max((state.controller_epoch for state in states.values()), default=ControllerEpoch(0))


def _naming(watch: Callable[[str], None], name: str) -> Watch:
    return lambda _: watch(name)


def _set(path: str, data: bytes, version: int, zk: Any) -> Any:
    return zk.set_async(path, data, version)


def _set_state(
    path: str, data: bytes, version: int, registered: Iterable[BrokerId], registrations_version: int | None
) -> Start:
    """Compare-and-set that fails if a broker has registered since that version, or one of these is gone."""
    transaction = Transaction()
    if registrations_version is not None:
        transaction.check(paths.BROKER_IDS, registrations_version)
    for broker in registered:
        transaction.check(paths.broker_id(broker))
    return transaction.set(path, data, version)
