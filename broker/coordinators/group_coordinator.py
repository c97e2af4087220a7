"""Knows the groups that this broker coordinates, and the coordinators of the others.

A broker coordinates the groups of the partitions of the offsets topic that it leads: one `GroupShard` each.
It opens a shard when it becomes leader and closes it when it no longer leads. Brokers do not hand over state,
because all of it is in the log. A separate thread loads shards, and requests get COORDINATOR_LOAD_IN_PROGRESS
meanwhile. A broker coordinates only partitions that it may write with acks=all: no partition after it has
lost its session; while ZooKeeper is silent, partitions whose followers are witnesses.

The number of partitions determines a group's coordinator, so a broker uses it only when it is certain: when
all partitions exist that the settings require, or when ZooKeeper confirms another number.

Any thread. The lock is held only briefly; the only lock taken under it is a shard's.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_effects import Effects, GroupLimits, Moment
from barnabas.broker.coordinators.group_loading import groups_of, last_records, without_collection
from barnabas.broker.coordinators.group_shard import GroupShard, ShardState
from barnabas.broker.coordinators.offsets_appends import OffsetsAppends
from barnabas.broker.coordinators.offsets_topic import OFFSETS_TOPIC, partition_of
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.purgatory import Reaper
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, api_error
from barnabas.protocol.ids import NO_BROKER, BrokerId, Endpoint, LeaderEpoch, TopicId, TopicPartition

logger = logging.getLogger(__name__)

TOO_FEW_EVERY_MS: Final = 30_000
"""The shortest interval between warnings that the offsets topic waits for brokers."""
RETRY_MS: Final = 1_000
"""The pause before a partition that could not be loaded is tried again."""
_MINUTE_MS: Final = 60_000

CountPartitions = Callable[[], int | None]
"""How many partitions the offsets topic has, None without it; blocks, raises LocalError or ApiError."""


class _Deleted(NamedTuple):
    """Deleted topics, and the ends of the offsets topic's partitions when the deletion arrived."""

    topics: frozenset[str]
    ends: dict[int, int]


class Found(NamedTuple):
    """Where a group's coordinator can be reached."""

    broker_id: BrokerId
    endpoint: Endpoint


class GroupCoordinator:
    """See the module. ``create_topic`` has the offsets topic made, and does not wait for it."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        reaper: Reaper,
        *,
        create_topic: Callable[[], object],
        count_partitions: CountPartitions,
        now: Callable[[], Moment],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._metadata = metadata
        self._reaper = reaper
        self._create_topic = create_topic
        self._count_partitions = count_partitions
        self._now = now
        self._on_fatal = on_fatal
        self._limits = GroupLimits(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_offset_metadata_bytes=config.offset_metadata_max_bytes,
        )
        self._retention_ms = config.offsets_retention_minutes * _MINUTE_MS
        # Told on the coordinator's thread when a partition's groups have been loaded.
        self.loaded_listeners: list[Callable[[], object]] = []
        # Guards all that follows, and is what the thread waits on.
        self._condition = threading.Condition()
        self._shards: dict[int, GroupShard] = {}
        self._to_close: list[GroupShard] = []
        self._to_load: list[GroupShard] = []
        self._deleted: list[_Deleted] = []
        self._checked: dict[str, TopicId] = {}
        self._to_check: set[str] = set()
        """Known topics, and those whose name may still have offsets of an earlier topic."""
        self._untold: dict[GroupShard, int] = {}
        """Shards opened since the last UpdateMetadata, with its number: this broker's topics may be older
        than those that the former coordinator knew."""
        self._counted: tuple[TopicId, int] | None = None
        self._must_count = False
        self._said_too_few_ms = -math.inf
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="group-coordinator", daemon=True)

    def start(self) -> None:
        """Hear of leaderships from now on."""
        self._replicas.role_listeners.append(self.role_changed)
        self._metadata.on_deletion(self.topics_deleted)
        self._metadata.on_update(self.topics_changed)
        for partition in self._replicas.partitions():
            self.role_changed(partition.partition)
        self._thread.start()

    def stop(self) -> None:
        """Stop coordinating, and answer the waiting requests."""
        with self._condition:
            self._is_stopping = True
            shards, self._shards = list(self._shards.values()), {}
            self._condition.notify()
        for shard in shards:
            shard.close()
        if self._thread.is_alive():
            self._thread.join(5.0)

    # Where groups are.

    def find(self, group_id: str, listener: str) -> Found:
        """The coordinator of a group, which need not exist. Raises COORDINATOR_NOT_AVAILABLE."""
        count = self._partition_count()
        if count is None:
            text = self._too_few() or f"{OFFSETS_TOPIC} is not there yet"
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        index = partition_of(group_id, count)
        state = self._metadata.current.partitions_of(OFFSETS_TOPIC).get(index)
        leader = NO_BROKER if state is None else self._metadata.leader_of(state)[0]
        endpoint = self._metadata.current.endpoint(leader, listener)
        if endpoint is None:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{index} has no leader at present"
            )
        return Found(leader, endpoint)

    def have_topic_made(self) -> None:
        """Begin to create the offsets topic, unless fewer brokers are alive than it has replicas
        (KIP-115)."""
        too_few = self._too_few()
        if too_few is None:
            self._create_topic()
            return
        now_ms = self._now().monotonic_ms
        if now_ms - self._said_too_few_ms >= TOO_FEW_EVERY_MS:
            self._said_too_few_ms = now_ms
            logger.warning("%s", too_few)

    def _too_few(self) -> str | None:
        """Why the offsets topic cannot be created now; None if it exists or enough brokers are alive."""
        current, factor = self._metadata.current, self._config.offsets_topic_replication_factor
        if OFFSETS_TOPIC in current.topics or len(current.brokers) >= factor:
            return None
        return (
            f"{OFFSETS_TOPIC} waits for brokers: offsets.topic.replication.factor is {factor}, "
            f"alive are {len(current.brokers)}"
        )

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that a group belongs to, serving now.

        Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
        """
        count = self._partition_count()
        if count is None:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is not there yet")
        index = partition_of(group_id, count)
        shard = self._shards.get(index)
        if shard is None:
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{OFFSETS_TOPIC}-{index} is led by another broker")
        doubt = self._replicas.doubt(shard.partition)
        if doubt is not None:
            raise api_error(ErrorCode.NOT_COORDINATOR, doubt)
        shard.check_serving()
        return shard

    def are_loading(self, group_ids: Iterable[str]) -> bool:
        """Whether some of these groups are being loaded here."""
        count = self._partition_count()
        if count is None:
            return False
        shards = (self._shards.get(partition_of(group_id, count)) for group_id in group_ids)
        return any(shard is not None and shard.state is ShardState.LOADING for shard in shards)

    def all_groups(self) -> tuple[list[Group], bool]:
        """Every group that is coordinated here, and whether there may be more: some are being loaded."""
        shards = self._undoubted()
        found = [group for shard in shards for group in shard.groups()]
        is_partial = len(shards) < len(self._shards)
        return found, is_partial or any(shard.state is ShardState.LOADING for shard in shards)

    def _partition_count(self) -> int | None:
        """None while it is not certain."""
        topic = self._metadata.current.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        counted = self._counted
        if counted is not None and counted[0] == topic.topic_id:
            return counted[1]
        count = len(topic.partitions)
        if count == self._config.offsets_topic_num_partitions and count - 1 in topic.partitions:
            self._counted = (topic.topic_id, count)
            return count
        with self._condition:
            self._must_count = True
            self._condition.notify()
        return None

    # What changes.

    def role_changed(self, name: TopicPartition) -> None:
        """Take up or give up a partition as this broker leads it or not. Any thread; does not wait."""
        if name.topic != OFFSETS_TOPIC:
            return
        with self._condition:
            # Read under the lock: of two changes at once, the one that comes here last sees what holds.
            partition = self._led(name)
            led = None if partition is None else (partition.log.topic_id, partition.leading_since)
            shard = self._shards.get(name.partition)
            if self._is_stopping or led == (None if shard is None else (shard.topic_id, shard.since)):
                return
            if shard is not None:
                del self._shards[name.partition]
                self._untold.pop(shard, None)
                shard.fence()
                self._to_close.append(shard)
            if partition is not None and led is not None:
                shard = self._shards[name.partition] = self._new_shard(partition, *led)
                self._untold[shard] = self._metadata.updates
                self._to_load.append(shard)
            self._condition.notify()

    def _led(self, name: TopicPartition) -> Partition | None:
        try:
            partition = self._replicas.partition(name)
        except ApiError:
            # It is not here, or its disk has failed.
            return None
        return partition if partition.is_leader else None

    def _new_shard(self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch) -> GroupShard:
        def max_batch_bytes() -> int:
            config = partition.log.config
            return min(config.max_message_bytes, config.segment_bytes)

        appends = OffsetsAppends(
            self._replicas,
            partition.partition,
            since,
            timeout_ms=self._config.offsets_commit_timeout_ms,
            max_batch_bytes=max_batch_bytes,
            wall_clock_ms=lambda: self._now().wall_ms,
        )
        return GroupShard(
            partition.partition,
            topic_id,
            since,
            appends,
            limits=self._limits,
            reaper=self._reaper,
            now=self._now,
            max_batch_bytes=max_batch_bytes,
            is_fenced=lambda: self._replicas.doubt(partition.partition) is not None,
        )

    def topics_deleted(self, topics: Collection[str]) -> None:
        """These topics are deleted; their offsets go too."""
        known = self._metadata.current.topics
        with self._condition:
            for name in topics:
                if name not in known:
                    self._checked.pop(name, None)
            self._deleted.append(_Deleted(frozenset(topics), self._log_ends()))
            self._condition.notify()

    def topics_changed(self, names: Iterable[str]) -> None:
        """Look for offsets of earlier topics under the names of newly known topics."""
        known = self._metadata.current.topics
        fresh = {
            name: known[name].topic_id
            for name in names
            if name in known and self._checked.get(name) != known[name].topic_id
        }
        if fresh or self._untold:
            with self._condition:
                self._checked |= fresh
                updates = self._metadata.updates
                told = [shard for shard, before in self._untold.items() if updates > before]
                for shard in told:
                    del self._untold[shard]
                self._to_check |= self._checked.keys() if told else fresh.keys()
                self._condition.notify()

    def _log_ends(self) -> dict[int, int]:
        led = ((index, self._led(shard.partition)) for index, shard in self._shards.items())
        return {index: found.log_end_offset for index, found in led if found is not None}

    def expire_offsets(self) -> None:
        """Remove offsets that have not been used for long; called by the scheduler."""
        for shard in self._serving():
            shard.for_all(lambda group, now: group.expire_offsets(now, self._retention_ms))

    def _serving(self) -> list[GroupShard]:
        """The shards that this broker may write to: in others a removal could not be logged."""
        return [shard for shard in self._undoubted() if shard.state is ShardState.SERVING]

    def _undoubted(self) -> list[GroupShard]:
        return [
            shard for shard in list(self._shards.values()) if self._replicas.doubt(shard.partition) is None
        ]

    # The coordinator's own thread: what may take long.

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
        except BaseException as error:
            logger.critical("the group coordinator died", exc_info=True)
            self._on_fatal(error)

    def _next(self) -> Callable[[], None] | None:
        """The most urgent work: first answer the requests of shards that have to be closed."""
        with self._condition:
            while not self._is_stopping:
                if self._to_close:
                    return self._to_close.pop(0).close
                if self._must_count:
                    self._must_count = False
                    return self._count
                if self._to_load:
                    shard = self._to_load.pop(0)
                    return lambda: self._load(shard)
                if self._deleted:
                    deleted = self._deleted.pop(0)
                    return lambda: self._forget_topics(deleted)
                if self._to_check:
                    names, self._to_check = self._to_check, set()
                    return lambda: self._forget_others(names)
                self._condition.wait()
            return None

    def run_once(self) -> bool:
        """Do one piece of the thread's work, for tests without the thread; False if there is none."""
        with self._condition:
            if not (self._to_close or self._must_count or self._to_load or self._deleted or self._to_check):
                return False
        work = self._next()
        if work is not None:
            work()
        return work is not None

    def _count(self) -> None:
        try:
            count = self._count_partitions()
        except (ApiError, LocalError) as error:
            logger.warning("the partitions of %s cannot be counted now: %s", OFFSETS_TOPIC, error)
            return
        topic = self._metadata.current.topics.get(OFFSETS_TOPIC)
        # Those that are in ZooKeeper and not in the metadata yet come soon; who asks then has them counted.
        if topic is not None and count == len(topic.partitions):
            self._counted = (topic.topic_id, count)

    def _load(self, shard: GroupShard) -> None:
        started_ms = self._now().monotonic_ms
        try:
            with without_collection():
                loaded = self._loaded(shard)
        except ApiError as error:
            self._replicas.note_error(error)
            if shard.state is ShardState.LOADING and not self._is_stopping:
                logger.error("%s cannot be loaded; it is tried again: %s", shard.partition, error)
                with self._condition:
                    self._to_load.append(shard)
                    self._condition.wait(RETRY_MS / 1000)
            return
        except Exception as error:  # noqa: BLE001 - any error fails only this partition's groups
            # The next coordinator would fail on the same bytes.
            self._replicas.failed.note(shard.partition, error, "loading its groups", is_retried=False)
            shard.fail()
            return
        if loaded is not None:
            for listener in self.loaded_listeners:
                listener()
            logger.info(
                "coordinates %s since leader epoch %d: %d groups of %d records, loaded in %.0f ms",
                shard.partition,
                shard.since,
                len(shard.groups()),
                loaded,
                self._now().monotonic_ms - started_ms,
            )

    def _loaded(self, shard: GroupShard) -> int | None:
        """Load; how many records there were, None when that is no longer wanted. Raises ApiError."""
        log = self._replicas.partition(shard.partition).log
        records = last_records(log, lambda: shard.state is ShardState.LOADING)
        if records is None:
            return None
        is_told = shard not in self._untold
        topics = self._metadata.current.topics
        known = {name: topic.topic_id for name, topic in topics.items()} if is_told else {}
        if not shard.load(groups_of(records, shard.partition, known)):
            return None
        # Topics that became known meanwhile were checked before this shard served.
        with self._condition:
            self._to_check |= self._checked.keys()
        return len(records)

    def _forget_topics(self, deleted: _Deleted) -> None:
        """A topic that was recreated meanwhile keeps the offsets committed since."""
        for index, shard in list(self._shards.items()):
            if shard in self._serving() and shard not in self._untold:
                shard.for_all(partial(self._forget, deleted.topics, deleted.ends.get(index, 0)))

    def _forget_others(self, names: Collection[str]) -> None:
        """Remove offsets of earlier topics with these names, such as topics deleted without a coordinator."""
        told = [shard for shard in self._serving() if shard not in self._untold]
        # Read after that: no former coordinator of these shards has known newer topics.
        known = self._metadata.current.topics
        topic_ids = {name: known[name].topic_id for name in names if name in known}

        def forget(group: Group, now: Moment) -> Effects:
            return group.remove_offsets(group.offsets.of_earlier_topics(topic_ids), now)

        for shard in told:
            shard.for_all(forget)

    def _forget(self, topics: frozenset[str], end: int, group: Group, now: Moment) -> Effects:
        # Under the group's lock: no client can commit for an unknown topic, so all its offsets are old.
        current = self._metadata.current
        known = {**current.hidden_topics, **{name: topic.topic_id for name, topic in current.topics.items()}}
        recreated = {name: known[name] for name in topics if name in known}
        gone = topics - recreated.keys()
        return group.remove_offsets(group.offsets.of_deleted_topics(gone, recreated, end), now)
