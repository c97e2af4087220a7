"""A world of coordinators: every broker with all parts that take a share in groups and transactions.

Real are the replica managers with their logs, the coordinators of groups and of transactions with their
shards, appends and loading, the queue of markers, the verification of producers' partitions, and the
handlers. The connections between coordinators and brokers are simulated (`SimLinks`): requests are late,
lost, or arrive twice. A `Profile` says which topics there are besides the coordinators' own.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.coordinators.groups import group as group_module
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from barnabas.broker.coordinators.internal_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, InternalTopic
from barnabas.broker.coordinators.state_machine import Clock
from barnabas.broker.coordinators.topic_coordinator import Host
from barnabas.broker.coordinators.transactions import coordinator as transaction_coordinator
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.handlers import (
    groups,
    offsets,
    produce,
    transactions,
)
from barnabas.broker.handlers.waiting import wake_requests
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ConnectionClosed, RequestTimedOutLocally
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from barnabas.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from barnabas.protocol.messages.produce import InitProducerIdRequest, ProduceRequest
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    PrepareTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from barnabas.zookeeper.znodes import ReplicaAssignment, TopicAssignment
from tests.simulation.broker import SimBroker
from tests.simulation.member import raise_it
from tests.simulation.requests import LISTENER, SimRequest
from tests.simulation.timed_world import TimedWorld, Token
from tests.simulation.topics import Topics
from tests.simulation.truth import Violation
from tests.simulation.world import TOPIC_ID
from tests.support.grouping import run_once

OFFSETS: Final = TopicPartition(OFFSETS_TOPIC, 0)
STATES: Final = tuple(TopicPartition(TRANSACTIONS_TOPIC, partition) for partition in range(2))
MAX_TIMEOUT_MS: Final = 20_000
_LINK_TIMEOUT_MS: Final = 3_000
_APPEND_TIMEOUT_MS: Final = 1_000
"""Shorter than an ISR takes to shrink, so that appends time out and are in the log at last."""
_EXPIRATION_MS: Final = 2_500
_UNNOTICED_MS: Final = 500
"""The time, beside the allowed lag, for messages that were under way when a leader was elected."""
_RETENTION_MINUTES: Final = 5
"""Longer than a history, and shorter than two wall clocks may differ."""
MAX_SKEW_MS: Final = 240_000
"""From the world's clock; two brokers may differ by twice as much."""
_HANDLERS: Final[dict[type, Any]] = {
    JoinGroupRequest: groups.handle_join,
    SyncGroupRequest: groups.handle_sync,
    HeartbeatRequest: groups.handle_heartbeat,
    LeaveGroupRequest: groups.handle_leave,
    OffsetCommitRequest: offsets.handle_commit,
    OffsetFetchRequest: offsets._answer_fetch,
    InitProducerIdRequest: transactions.handle_init_producer_id,
    AddPartitionsToTxnRequest: transactions.handle_add_partitions,
    AddOffsetsToTxnRequest: transactions.handle_add_offsets,
    PrepareTxnRequest: transactions.handle_prepare,
    EndTxnRequest: transactions.handle_end,
    TxnOffsetCommitRequest: offsets.handle_transaction_commit,
    ProduceRequest: produce.handle,
    WriteTxnMarkersRequest: transactions.handle_write_markers,
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The settings of one kind of histories: its topics, its group, the delay of its clients' messages."""

    topics: Mapping[str, int] = field(default_factory=dict)
    """The topics with records, and their numbers of partitions."""
    names: Mapping[str, int] = field(default_factory=dict)
    """Topics that only groups know, without logs: their offsets are committed."""
    latest_ms: float = 6_000
    group_max_size: int = 1_000
    group_initial_rebalance_delay_ms: int = 0


_SETTINGS: Final[Mapping[str, object]] = {
    "listeners": f"{LISTENER}://127.0.0.1:0",
    "listener_security_protocol_map": f"{LISTENER}:PLAINTEXT",
    "inter_broker_listener_name": LISTENER,
    "offsets_topic_num_partitions": 1,
    "offsets_retention_minutes": _RETENTION_MINUTES,
    "transaction_state_log_num_partitions": len(STATES),
    "offsets_commit_timeout_ms": _APPEND_TIMEOUT_MS,
    "transaction_max_timeout_ms": MAX_TIMEOUT_MS,
    "transactional_id_expiration_ms": _EXPIRATION_MS,
    "transaction_two_phase_commit_enable": True,
}


_OTHER_SETTINGS: Final[Mapping[str, tuple[int, ...]]] = {
    "offsets_retention_minutes": (_RETENTION_MINUTES, 3 * _RETENTION_MINUTES),
    "transaction_max_timeout_ms": (MAX_TIMEOUT_MS, 3 * MAX_TIMEOUT_MS),
    "transactional_id_expiration_ms": (_EXPIRATION_MS, 3 * _EXPIRATION_MS),
}
_CHANGING_SETTINGS: Final = 1 / 3
"""The part of the histories in which settings change."""


class Deposition(NamedTuple):
    """A broker that leads a partition in an epoch, while ZooKeeper has another leader in a later one."""

    broker: BrokerId
    partition: TopicPartition
    leader_epoch: int
    later_epoch: int


class Parts:
    """The coordinators of a process, connected as in `barnabas.broker.coordinators.coordination`."""

    def __init__(self, world: CoordinatedWorld, broker: SimBroker) -> None:
        profile = world.profile
        config = broker.config
        links: Any = SimLinks(world, broker)
        slow_work: Any = SimpleNamespace(submit=lambda failed, work: work())
        store = broker.member.store
        self.producer_ids = ProducerIds(lambda: store.claim_producer_ids(broker.id), slow_work)
        host = Host(
            config,
            broker.replicas,
            broker.metadata,
            broker.reaper,
            now=Clock(broker.now_ms, broker.wall_ms),
            create_topic=lambda topic: None,
            count_partitions=lambda topic: 1 if topic == OFFSETS_TOPIC else len(STATES),
            run_aside=lambda work: work(),
            on_fatal=raise_it,
        )
        self.groups = GroupCoordinator(host)
        self.transactions = TransactionCoordinator(
            host,
            producer_ids=self.producer_ids,
            links=links,
            transaction_version=lambda: world.transaction_version,
        )
        self.verification = TransactionVerification(
            broker.id,
            broker.replicas,
            coordinator_of=lambda key: self.transactions.topic.coordinator_of(key, LISTENER)[0],
            ask_own=self.transactions.apply,
            links=links,
            is_enabled=True,
        )
        self.topic_purgatory = Purgatory("topics", broker.reaper)
        broker.metadata.on_update(functools.partial(wake_requests, self.topic_purgatory))
        self.groups.listen()
        self.transactions.listen()
        broker.services = SimpleNamespace(
            **{
                **vars(broker.services),
                "config": config,
                "groups": self.groups,
                "transactions": self.transactions,
                "verification": self.verification,
                "producer_ids": self.producer_ids,
                "topic_purgatory": self.topic_purgatory,
            }
        )
        self.services = broker.services
        """For the requests of clients."""
        if profile.names:
            known = _Known(broker, profile.names)
            self.services = SimpleNamespace(**{**vars(broker.services), "metadata": known})

    @property
    def are_at_rest(self) -> bool:
        """Whether no marker waits to be written and no question to be answered."""
        markers = self.transactions.markers
        return not markers._delayed.waiting and not any(
            queue.in_flight or queue.waiting
            for window in (markers._window, self.verification._window)
            for queue in window._queues.values()
        )


class _Known:
    """A broker's metadata with some topics more, which have no logs."""

    def __init__(self, broker: SimBroker, names: Mapping[str, int]) -> None:
        self._broker = broker
        self._names = names
        self.current = self
        self.topics = {
            topic: SimpleNamespace(topic_id=TopicId(uuid.UUID(int=number)))
            for number, topic in enumerate(names, 1)
        }

    def partitions_of(self, topic: str) -> Any:
        if topic in self._names:
            return range(self._names[topic])
        return self._broker.metadata.current.partitions_of(topic)

    def has(self, partition: TopicPartition) -> bool:
        return partition.partition in self.partitions_of(partition.topic)


class SimLinks:
    """The interface of `BrokerLinks`, over the world's network; belongs to one process."""

    def __init__(self, world: CoordinatedWorld, broker: SimBroker) -> None:
        self._world = world
        self._broker = broker
        self._life = broker.life

    def send(
        self,
        broker_id: BrokerId,
        request: Any,
        answer: Callable[[Any], None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        world, source, target = self._world, self._broker, self._world.brokers.get(broker_id)
        is_answered = False

        def give(response: Any) -> None:
            nonlocal is_answered
            if is_answered or not source.is_up or source.life != self._life:
                return
            if source.is_paused:
                world.at(50, lambda: give(response))
                return
            is_answered = True
            answer(response)
            world.has_turned(source)
            world.turn_soon(source)

        if target is None or source.metadata.current.broker_epoch(broker_id) is None:
            world.at(0, lambda: give(ConnectionClosed(f"broker {broker_id} is not alive")))
            return
        world.at(timeout_ms or _LINK_TIMEOUT_MS, lambda: give(RequestTimedOutLocally("no answer in time")))
        sent = world.judge.sent_markers(request)
        for _ in range(2 if world.chance(0.03) else 1):
            self._send_once(target, request, sent, give)

    def _send_once(self, target: SimBroker, request: Any, sent: Any, give: Callable[[Any], None]) -> None:
        world, source, life = self._world, self._broker, target.life
        ends = frozenset((source.id, target.id))

        def arrive() -> None:
            if ends in world.cut or world.chance(0.03):
                return
            if not target.is_up or target.life != life:
                world.at(0, lambda: give(ConnectionClosed(f"broker {target.id} is gone")))
            elif target.is_paused:
                world.at(50, arrive)
            else:
                open_before = world.judge.late_markers(target, sent)
                _HANDLERS[type(request)](target.services, SimRequest(request, respond))
                world.judge.markers_written(target, open_before)
                world.has_turned(target)
                world.turn_soon(target)

        def respond(response: Any) -> None:
            if target.is_up and target.life == life and ends not in world.cut and not world.chance(0.03):
                world.at(world.random.uniform(0, 5), lambda: give(response))

        slow_ms = world.random.uniform(100, 6_000) if world.chance(world.slow_links) else 0.0
        world.at(slow_ms or world.random.uniform(0, 10), arrive)


class CoordinatedWorld(TimedWorld):
    """Three brokers lead partitions of the states, of offsets and of data, each with three replicas."""

    def __init__(self, seed: int, profile: Profile, *, pushes: bool = False) -> None:
        draw = random.Random(seed)
        self.profile = profile
        self.max_lag_ms = draw.choice((1_500, 6_000))
        self.transaction_version = draw.choice((0, 2))
        self.slow_links = draw.choice((0.04, 0.04, 0.3))
        """The part of the requests between brokers, such as markers, that are late."""
        self.slow_requests = draw.choice((0.0, 0.1, 0.5))
        self.parts: dict[BrokerId, Parts] = {}
        self._led: dict[tuple[TopicId | None, TopicPartition], int] = {}
        """The newest leader epoch in which a broker has led a partition."""
        self._deposed_ms: dict[Deposition, float] = {}
        """When the last check, or an earlier one, has found that a leader was deposed."""
        self._resumed_ms: dict[BrokerId, float] = {}
        """When a paused broker has last resumed."""
        self._patch = pytest.MonkeyPatch()
        # Member ids must be the same in every run of a seed.
        ids: Any = SimpleNamespace(uuid4=lambda: f"{draw.getrandbits(32):08x}")
        self._patch.setattr(group_module, "uuid", ids)
        self._patch.setattr(transaction_coordinator, "APPEND_TIMEOUT_MS", _APPEND_TIMEOUT_MS)
        # A generator of its own, so that the other histories do not depend on it.
        self._restarts = random.Random(f"settings of {seed}")
        super().__init__(
            draw,
            3,
            draw.choice((1, 2, 2)),
            tp=OFFSETS,
            is_controller_apart=draw.random() < 0.5,
            has_settings=self._restarts.random() < _CHANGING_SETTINGS,
            pushes=pushes,
        )
        self.has_transactions = True
        for broker in self.brokers.values():
            self.skew(broker)

    def skew(self, broker: SimBroker) -> None:
        """Set a broker's wall clock: half of them are right."""
        skew_ms = self.random.randint(-MAX_SKEW_MS, MAX_SKEW_MS)
        broker.wall_skew_ms = skew_ms if self.random.random() < 0.5 else 0

    def close(self) -> None:
        super().close()
        self._patch.undo()

    def settings_of(self, broker: BrokerId) -> dict[str, object]:
        """Where settings change, a process may be given others than the one before."""
        given = (
            {}
            if self.settings is None
            else {name: self._restarts.choice(choices) for name, choices in _OTHER_SETTINGS.items()}
        )
        return {
            **super().settings_of(broker),
            **_SETTINGS,
            **given,
            "group_max_size": self.profile.group_max_size,
            "group_initial_rebalance_delay_ms": self.profile.group_initial_rebalance_delay_ms,
        }

    def overrides_of(self, topic: str) -> Mapping[str, str]:
        return {"cleanup.policy": "compact"} if topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) else {}

    def _create_topic(self, replicas: list[BrokerId]) -> None:
        controller = self.controller
        assert controller is not None
        own = {OFFSETS.topic: 1, TRANSACTIONS_TOPIC: len(STATES)}
        for number, (name, count) in enumerate({**own, **self.profile.topics}.items()):
            topic = TopicAssignment(
                topic_id=TopicId(uuid.UUID(int=TOPIC_ID.int + number)),
                partitions={
                    partition: ReplicaAssignment((*replicas[at:], *replicas[:at]))
                    for partition in range(count)
                    for at in [(partition + number) % len(replicas)]
                },
            )
            assert controller.writer.create_topic(name, topic, self.overrides_of(name))
        Topics(self)

    def check(self) -> None:
        super().check()
        self._check_deposed()

    def _check_deposed(self) -> None:
        """A broker acts as a leader only for a short time after another one has begun to lead."""
        former, self._deposed_ms = self._deposed_ms, {}
        leaders = [
            (broker, partition)
            for broker in self.brokers.values()
            if broker.can_act
            for partition in broker.replicas.partitions()
            if partition.is_leader
        ]
        for _, partition in leaders:
            key = partition.log.topic_id, partition.partition
            self._led[key] = max(self._led.get(key, -1), partition.leader_epoch)
        for broker, partition in leaders:
            deposition = self._deposition(broker, partition)
            if deposition is None:
                continue
            self._deposed_ms[deposition] = former.get(deposition, self.now_ms)
            if not self.may_lead_on(broker, partition) and broker.replicas.doubt(partition.partition) is None:
                raise Violation(
                    f"broker {broker.id} still acts as a leader: {deposition}, {partition.view()}"
                )

    def _deposition(self, broker: SimBroker, partition: Partition) -> Deposition | None:
        """None for a leader that no other one has followed.

        A broker that ZooKeeper names again, in an epoch that it does not know yet, may act: without it
        nothing was committed meanwhile. So each leader epoch of ZooKeeper is another deposition.
        """
        name = partition.partition
        if partition.leader_epoch >= self._led.get((partition.log.topic_id, name), -1):
            return None
        if not self.has_state(name) or self.state_of(name).leader == broker.id:
            return None
        return Deposition(broker.id, name, partition.leader_epoch, self.state_of(name).leader_epoch)

    def may_lead_on(self, broker: SimBroker, partition: Partition) -> bool:
        """Whether a leader was deposed so lately, if at all, that it need not have noticed.

        One that resumes finds fetches of its followers that are as old as its pause.
        """
        deposition = self._deposition(broker, partition)
        if deposition is None:
            return True
        return self.is_lately(broker, self._deposed_ms.get(deposition, self.now_ms))

    def is_deposed_coordinator(self, broker: SimBroker, transactional_id: str) -> bool:
        partition = broker.partition_of(self.state_partition_of(broker, transactional_id))
        return partition is None or self._deposition(broker, partition) is not None

    def state_partition_of(self, broker: SimBroker, transactional_id: str) -> TopicPartition:
        return STATES[self.parts[broker.id].transactions.topic.partition_of(transactional_id)]

    def is_lately(self, broker: SimBroker, at_ms: float) -> bool:
        """Whether a deposed leader may not have noticed what happened at a time."""
        since_ms = max(at_ms, self._resumed_ms.get(broker.id, 0.0))
        return self.now_ms - since_ms <= self.max_lag_ms + _UNNOTICED_MS

    def end_faults(self) -> None:
        for broker in self.brokers.values():
            if broker.is_paused:
                self.resume(broker)
        super().end_faults()

    def resume(self, broker: SimBroker) -> None:
        broker.is_paused = False
        self._resumed_ms[broker.id] = self.now_ms

    def started(self, broker: SimBroker) -> None:
        self.parts[broker.id] = Parts(self, broker)

    def acknowledged_alone(self, leader: SimBroker, tp: TopicPartition) -> None:
        self.judge.acknowledged_alone(leader, tp)

    def delay(self) -> float:
        is_late = self.chance(0.05)
        return self.random.uniform(100, self.profile.latest_ms) if is_late else self.random.uniform(0, 10)

    def run_coordinators(self, broker: SimBroker) -> None:
        parts = self.parts[broker.id]
        while run_once(parts.groups) or run_once(parts.transactions):
            continue

    def has_turned(self, broker: SimBroker) -> None:
        self.judge.check(broker)

    # Clients

    def handle(self, token: Token, request: SimRequest) -> None:
        shard = self.group_shard(token.broker)
        token.since = -1 if shard is None else shard.since
        self.judge.arrives(token)
        _HANDLERS[type(token.request)](self.parts[token.broker.id].services, request)

    def leader_of(self, tp: TopicPartition) -> SimBroker | None:
        """The leader as some broker names it."""
        broker = self._any_up()
        if broker is None:
            return None
        state = broker.metadata.current.partitions_of(tp.topic).get(tp.partition)
        return None if state is None else self.brokers.get(broker.metadata.leader_of(state)[0])

    def coordinator_of(self, transactional_id: str) -> SimBroker | None:
        return self._coordinator(lambda parts: parts.transactions.topic, transactional_id)

    def group_coordinator_of(self, group_id: str) -> SimBroker | None:
        return self._coordinator(lambda parts: parts.groups.topic, group_id)

    def _coordinator(self, topic_of: Callable[[Parts], InternalTopic], key: str) -> SimBroker | None:
        broker = self._any_up()
        if broker is None:
            return None
        try:
            coordinator, _ = topic_of(self.parts[broker.id]).coordinator_of(key, LISTENER)
        except ApiError:
            return None
        return self.brokers.get(coordinator)

    def _any_up(self) -> SimBroker | None:
        up = [broker for broker in self.brokers.values() if broker.is_up]
        return self.random.choice(up) if up else None

    def group_shard(self, broker: SimBroker) -> GroupShard | None:
        """The groups of a broker, in any state of loading."""
        return self.parts[broker.id].groups.get(OFFSETS.partition)
