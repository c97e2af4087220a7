"""A world for one group: real coordinators on a real replicated log, and clients.

The topic of the `World` is the offsets topic. Every broker has its real `GroupCoordinator` with shards,
appends and loading, called by the real handlers; clients ask any broker for the coordinator.
"""

import random
import uuid
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators import group as group_module
from barnabas.broker.coordinators.effects import Moment
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.coordinators.group_records import Record, from_bytes
from barnabas.broker.coordinators.group_shard import GroupShard
from barnabas.broker.coordinators.led_shards import ShardState
from barnabas.broker.handlers import groups as group_handlers
from barnabas.broker.handlers import offsets as offset_handlers
from barnabas.broker.handlers import transaction_offsets
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from barnabas.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequest
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.simulation.broker import SimBroker
from tests.simulation.disk import Entry
from tests.simulation.group_transactions import Copier, confirm
from tests.simulation.requests import LISTENER, SimRequest
from tests.simulation.timed_world import EPOCH_MS, TimedWorld, Token
from tests.support.defaults import make_config
from tests.support.grouping import run_once

GROUP_ID: Final = "g"
TOPICS: Final = {"a": 3, "b": 2, "c": 4}
"""The topics that the group may read, with their numbers of partitions."""
_KNOWN: Final = {
    topic: SimpleNamespace(topic_id=TopicId(uuid.UUID(int=number))) for number, topic in enumerate(TOPICS, 1)
}
_APPEND_TIMEOUT_MS: Final = 5_000
_HANDLERS: Final[dict[type, Any]] = {
    JoinGroupRequest: group_handlers.handle_join,
    SyncGroupRequest: group_handlers.handle_sync,
    HeartbeatRequest: group_handlers.handle_heartbeat,
    LeaveGroupRequest: group_handlers.handle_leave,
    OffsetCommitRequest: offset_handlers.handle_commit,
    OffsetFetchRequest: offset_handlers._answer_fetch,
    TxnOffsetCommitRequest: transaction_offsets.handle,
}


@lru_cache
def _config(max_size: int, initial_delay_ms: int) -> BrokerConfig:
    return make_config(
        listeners=f"{LISTENER}://127.0.0.1:0",
        listener_security_protocol_map=f"{LISTENER}:PLAINTEXT",
        inter_broker_listener_name=LISTENER,
        offsets_topic_num_partitions=1,
        offsets_commit_timeout_ms=_APPEND_TIMEOUT_MS,
        group_max_size=max_size,
        group_initial_rebalance_delay_ms=initial_delay_ms,
    )


class GroupWorld(TimedWorld):
    # Longer than an append waits, so that an append may time out before the ISR shrinks.
    max_lag_ms = 6_000

    def __init__(self, seed: int, *, max_size: int, initial_delay_ms: int) -> None:
        draw = random.Random(seed)
        self.copiers: dict[str, Copier] = {}
        """By transactional id."""
        self.coordinators: dict[BrokerId, GroupCoordinator] = {}
        self._config = _config(max_size, initial_delay_ms)
        self._records: list[Record | None] = []
        # Member ids must be the same in every run of a seed.
        ids: Any = SimpleNamespace(uuid4=lambda: f"{draw.getrandbits(32):08x}")
        group_module.uuid = ids
        super().__init__(draw, 3, draw.choice((1, 2)), tp=TopicPartition(OFFSETS_TOPIC, 0))

    def close(self) -> None:
        super().close()
        group_module.uuid = uuid

    def started(self, broker: SimBroker) -> None:
        """Give a new process a coordinator for the partitions that it will lead."""
        coordinator = self.coordinators[broker.id] = GroupCoordinator(
            self._config,
            broker.replicas,
            broker.metadata,
            broker.reaper,
            create_topic=lambda: None,
            count_partitions=lambda: 1,
            now=lambda: Moment(broker.now_ms(), EPOCH_MS + int(self.now_ms)),
            on_fatal=_raise,
        )
        coordinator.listen()

    # Brokers

    def run_coordinators(self, broker: SimBroker) -> None:
        while run_once(self.coordinators[broker.id].shards):
            continue

    def has_turned(self, broker: SimBroker) -> None:
        self.judge.check(broker)

    # Clients

    def call(self, body: Any, answered: Callable[[Any], None], api_version: int | None = None) -> None:
        """Send a request to the coordinator that a broker names; the request or its answer may get lost."""
        self.request(self._find(), body, answered, api_version)

    def _find(self) -> SimBroker | None:
        broker = self.random.choice([broker for broker in self.brokers.values() if broker.is_up] or [None])
        if broker is None:
            return None
        try:
            address = self.coordinators[broker.id].topic.coordinator_of(GROUP_ID, LISTENER)
        except ApiError:
            return None
        return self.brokers[address.broker_id]

    def handle(self, token: Token, request: SimRequest) -> None:
        shard = self.shard_of(token.broker)
        token.since = -1 if shard is None else shard.since
        handler: Any = _HANDLERS[type(token.request)]
        handler(self._services(token.broker), request)

    def _services(self, broker: SimBroker) -> Any:
        known = SimpleNamespace(partitions_of=lambda topic: range(TOPICS[topic]), topics=_KNOWN)
        return SimpleNamespace(
            groups=self.coordinators[broker.id],
            verification=SimpleNamespace(confirm_append=confirm(self, broker)),
            replicas=broker.replicas,
            metadata=SimpleNamespace(current=known),
        )

    def start_copier(self) -> Copier:
        copier = Copier(self, len(self.copiers) + 1)
        self.copiers[copier.transactional_id] = copier
        return copier

    # State

    def shard_of(self, broker: SimBroker) -> GroupShard | None:
        return self.coordinators[broker.id].shards._shards.get(0)

    def groups_of(self, broker: SimBroker) -> list[Group]:
        shard = self.shard_of(broker) if broker.is_up else None
        return [] if shard is None else shard.machines()

    @property
    def leading_group(self) -> Group | None:
        """The group at the current leader, once its shard serves requests."""
        broker = self.brokers.get(self.state.leader)
        shard = None if broker is None or not broker.is_up else self.shard_of(broker)
        if shard is None or shard.state is not ShardState.SERVING:
            return None
        return next((group for group in shard.machines() if group.group_id == GROUP_ID), None)

    def committed_records(self) -> list[Record | None]:
        """The committed records of the log, None for markers; the index of a record is its offset."""
        self.check()
        for entry in self.truth.committed[len(self._records) :]:
            self._records.append(_record_of(entry))
        return self._records

    def inherited_records(self, broker: SimBroker, leader_epoch: int) -> list[Record | None]:
        """The records of earlier leader epochs in a coordinator's log that may be uncommitted."""
        view = broker.view
        if view is None:
            return []
        tail = view.between(len(self.truth.committed), view.log.log_end_offset)
        return [_record_of(entry) for entry in tail if entry.epoch < leader_epoch]


def _record_of(entry: Entry) -> Record | None:
    if entry.commits is not None:
        return None
    assert entry.key is not None
    assert not isinstance(entry.value, int)
    return from_bytes(entry.key, entry.value)


def _raise(error: BaseException) -> None:
    raise error
