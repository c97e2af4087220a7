"""All replicas of this broker: what the handlers append to and read from, and what the controller rules.

Handlers on IO workers call `append` and `fetch`, the controller's requests `become_leader_or_follower` and
`stop_replicas`, the scheduler the periodic methods. The partitions are found in a dict that `RoleChanges`
alone changes, under its lock, and that is read without it.

Two things follow every change and happen outside all partition locks: the purgatories are told what moved,
and the fetchers which leaders to follow.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from barnabas.broker.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.config.topic_settings import TopicSettingsTable
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.record_checks import RecordsRefused, is_quickly_prepared
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.purgatory import Purgatory, Reaper
from barnabas.broker.replication.appending import (
    AppendOutcome,
    DelayedProduce,
    Unacknowledged,
    append_checked,
)
from barnabas.broker.replication.cold_reads import ColdReads
from barnabas.broker.replication.disk_failures import DiskFailures
from barnabas.broker.replication.failed_replicas import FailedReplicas
from barnabas.broker.replication.fence import Fence
from barnabas.broker.replication.fetcher import FetcherManager
from barnabas.broker.replication.fetching import (
    DelayedFetch,
    FetchItem,
    FetchParams,
    FetchResult,
    FetchSource,
    FixedItems,
    read_all,
    refusing_to_wait,
)
from barnabas.broker.replication.follower_sessions import FollowerSessions
from barnabas.broker.replication.isr_changes import IsrChanges, IsrStore
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.partition_listeners import PartitionListener, PartitionListeners
from barnabas.broker.replication.record_deletion import RecordDeletions
from barnabas.broker.replication.replica_views import Role
from barnabas.broker.replication.role_changes import RoleChanges
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import (
    NO_CONTROLLER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import LeaderAndIsrRequest, PartitionError, StopReplicaRequest

logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1
_MAX_TO_WAKE: Final = 8


class ReplicaManager:
    """See the module."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        metadata: MetadataCache,
        isr_store: IsrStore,
        reaper: Reaper,
        *,
        topic_settings: TopicSettingsTable,
        make_fetchers: Callable[[ReplicaManager], FetcherManager],
        max_lag_ms: float,
        on_fatal: Callable[[BaseException], None],
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self.broker_id = broker_id
        self.produce_purgatory = Purgatory("produce", reaper)
        self.follower_purgatory = Purgatory("follower-fetch", reaper)
        self.consumer_purgatory = Purgatory("consumer-fetch", reaper)
        self.logs, self._metadata, self._now_ms = logs, metadata, now_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        self.deletions = RecordDeletions(
            reaper,
            self._writable,
            lambda: metadata.current.brokers,
            note_error=self.note_error,
            log_start_moved=self._log_start_moved,
            now_ms=now_ms,
        )
        self.fence = Fence(self._fenced)
        # Told of each partition whose role may have changed, without any lock held; they may not block.
        self.role_listeners: list[Callable[[TopicPartition], None]] = []
        # For those that read as consumers do.
        self.listeners = PartitionListeners[PartitionListener]()
        self.follower_sessions = FollowerSessions(self.follower_purgatory.check_and_complete)
        # Appended to, and their followers not woken yet; see `wake_followers`.
        self._to_wake: deque[TopicPartition] = deque()
        # The long poll of each follower; bounded by the number of brokers.
        self._parked: dict[BrokerId, DelayedFetch] = {}
        self.cold_reads = ColdReads(self.partition, self.note_error, on_fatal=on_fatal)
        moved, epoch = self._high_watermark_moved, self._leading_epoch
        self.isr_changes = IsrChanges(
            isr_store, broker_epoch=epoch, now_ms=now_ms, on_high_watermark=moved, on_fatal=on_fatal
        )
        self._fetchers = make_fetchers(self)
        self._roles = RoleChanges(
            broker_id,
            logs,
            self._partitions,
            self._fetchers,
            topic_settings=topic_settings,
            max_lag_ms=max_lag_ms,
            now_ms=now_ms,
            role_changed=self._role_changed,
            note_error=self.note_error,
            role_refused=lambda: self.disk_failures.note_refused_role(),
        )
        self.disk_failures = DiskFailures(
            broker_id, logs, isr_store, drop_lost=self._roles.drop_lost, on_fatal=on_fatal
        )

    def start(self) -> None:
        self.isr_changes.start()
        self.disk_failures.start()
        self.cold_reads.start()
        self._fetchers.start()

    def stop(self) -> None:
        """End the threads and answer what waits; the logs are closed by their manager."""
        self._fetchers.stop()
        self.isr_changes.stop()
        self.disk_failures.stop()
        self.cold_reads.stop()
        for purgatory in (
            self.produce_purgatory,
            self.follower_purgatory,
            self.consumer_purgatory,
            self.deletions.purgatory,
        ):
            purgatory.shut_down()
        self.checkpoint_high_watermarks()

    # Looking things up.

    def partition(self, name: TopicPartition) -> Partition:
        """Raises KAFKA_STORAGE_ERROR when its disk failed, NOT_LEADER_OR_FOLLOWER when others are known to
        hold it, else UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self._partitions.get(name)
        if found is not None:
            return found
        reason = self.logs.offline_partitions.get(name)
        if reason is not None:
            raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {reason}")
        if name.partition in self._metadata.current.partitions_of(name.topic):
            raise api_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} holds no {name}")
        raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}")

    def _writable(self, name: TopicPartition, acks: int = 1) -> Partition:
        """As `partition`, and raises NOT_LEADER_OR_FOLLOWER while this broker is fenced."""
        reason = self.fence.reason if acks != ACKS_ALL else self.doubt(name)
        if reason is not None:
            raise api_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
        return self.partition(name)

    def doubt(self, name: TopicPartition) -> str | None:
        """Why this broker may not act as the leader of a partition, even for acks=all; or None."""
        reason = self.fence.reason
        if reason is None or self.fence.loss is not None:
            return reason
        found = self._partitions.get(name)
        return None if found is not None and found.is_witnessed(self._now_ms()) else reason

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def offline_partitions(self) -> dict[TopicPartition, Path | None]:
        """The replicas that are lost because of their disk, and the log dir of each where it is known."""
        return {name: self.logs.dir_of_offline(name) for name in self.logs.offline_partitions.copy()}

    @property
    def failed(self) -> FailedReplicas:
        """The replicas that an unforeseen error has put out of service."""
        return self._roles.failed

    def fail_follower(self, partition: Partition, leader_epoch: LeaderEpoch, error: Exception) -> None:
        """Put a follower of that epoch out of service, and no other replica."""
        self._roles.fail_follower(partition, leader_epoch, error)

    def note_error(self, error: ApiError) -> None:
        """Take the log dir offline if the error is a disk failure. Any thread, with any lock."""
        self.disk_failures.note(error)

    @property
    def leader_count(self) -> int:
        return sum(partition.is_leader for partition in self.partitions())

    # Fencing: without a ZooKeeper session a broker cannot know whether it still leads.

    @property
    def fenced(self) -> str | None:
        """Why this broker refuses to write, or None."""
        return self.fence.reason

    @property
    def controller_epoch(self) -> ControllerEpoch:
        """The newest controller epoch that this broker knows."""
        return self._roles.controller_epoch

    def begin_life(
        self, broker_epoch: BrokerEpoch, controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    ) -> None:
        """This broker has registered; requests with an older broker or controller epoch are refused now."""
        self._roles.begin_life(broker_epoch, controller_epoch)

    def end_life(self, reason: str) -> None:
        """The registration is gone: refuse writes, and all that is still meant for the life that ended."""
        ended = self._roles.broker_epoch
        self._roles.end_life()
        self.fence.registration_lost(reason, ended)

    def _fenced(self) -> None:
        """Another broker may lead now: answer the waiting fetches, so that the clients look for it."""
        for partition in self.partitions():
            if partition.is_leader:
                self._tell_consumers(partition.partition)

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self._roles.broker_epoch

    def _leading_epoch(self) -> BrokerEpoch | None:
        """The epoch of the registration, once the controller has sent its roles; None before."""
        return None if self.fence.loss is not None else self.broker_epoch

    # Produce.

    def looks_long_into(self, batches: Sequence[tuple[TopicPartition, ProducedBatches]]) -> bool:
        """Whether checking these batches before the append may take more than a moment."""
        now_ms = wall_clock_ms()
        return any(
            (partition := self._partitions.get(name)) is not None
            and not is_quickly_prepared(produced.batches, partition.log.config, now_ms)
            for name, produced in batches
        )

    def waits_for_disk(self, batches: Sequence[tuple[TopicPartition, ProducedBatches]]) -> bool:
        """Whether an append of these batches may wait for the disk."""
        return any(
            (partition := self._partitions.get(name)) is not None and partition.log.config.waits_for_disk
            for name, _ in batches
        )

    def append(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[tuple[TopicPartition, ProducedBatches]],
        answer: Callable[[list[AppendOutcome]], None],
        *,
        since: LeaderEpoch | None = None,
        below_min_isr: bool = False,
    ) -> None:
        """Append to the leaders and call ``answer`` once: now, or with acks=all when all in sync have it.

        The record bytes are not used after this returns. A coordinator of this broker gives the epoch since
        which it coordinates: where leadership has been elsewhere meanwhile, its records are refused. With
        ``below_min_isr`` they are written even to too few replicas, which acks=all is then told afterwards.
        """
        now_ms = self._now_ms()
        outcomes: list[AppendOutcome] = []
        unacknowledged: list[Unacknowledged] = []
        moved: list[TopicPartition] = []
        for name, produced in batches:
            outcome = AppendOutcome(name)
            outcomes.append(outcome)
            require_all = acks == ACKS_ALL and not below_min_isr
            appended = self._append_one(outcome, produced, acks, require_all, now_ms, since)
            if appended is None:
                continue
            if acks == ACKS_ALL:
                unacknowledged.append(appended)
            if appended.high_watermark_moved:
                moved.append(name)
        delayed = None
        if unacknowledged:
            delayed = DelayedProduce(int(now_ms) + timeout_ms, unacknowledged, lambda: answer(outcomes))
            self.produce_purgatory.try_complete_else_watch(
                delayed, [append.partition.partition for append in unacknowledged]
            )
        for outcome in outcomes:
            if outcome.base_offset >= 0:
                self._to_wake.append(outcome.partition)
        if len(self._to_wake) >= _MAX_TO_WAKE:
            self.wake_followers()
        for name in moved:
            self._high_watermark_moved(name)
        if delayed is None:
            answer(outcomes)

    def _append_one(
        self,
        outcome: AppendOutcome,
        produced: ProducedBatches,
        acks: int,
        require_all: bool,
        now_ms: float,
        since: LeaderEpoch | None,
    ) -> Unacknowledged | None:
        """Append to one partition, and note the outcome; None when that is an error."""
        partition = None
        try:
            partition = self._writable(outcome.partition, acks)
            appended = append_checked(
                partition,
                produced,
                require_all=require_all,
                now_ms=now_ms,
                wall_clock_ms=wall_clock_ms(),
                since=since,
            )
        except (ApiError, RecordsRefused) as error:
            if isinstance(error, RecordsRefused):
                outcome.record_faults = error.faults
            else:
                self.note_error(error)
            outcome.error, outcome.message = error.code, str(error)
            if partition is not None and partition.is_leader:
                # A producer whose id is unknown here learns by it whether its records were merely deleted.
                outcome.log_start_offset = partition.log.log_start_offset
            return None
        outcome.base_offset = appended.result.base_offset
        outcome.log_append_time_ms = appended.result.log_append_time_ms
        outcome.log_start_offset = partition.log.log_start_offset
        return Unacknowledged(
            partition,
            appended.leader_epoch,
            appended.required_offset,
            outcome,
            appended.high_watermark_moved,
        )

    def wake_followers(self) -> None:
        """Answer the followers' long polls for what was appended since the last call.

        Called at the end of a worker's run, not after each append: the requests that one connection has
        pipelined then travel to the followers in one fetch, and are acknowledged by the next.
        """
        names = set()
        while self._to_wake:
            try:
                names.add(self._to_wake.popleft())
            except IndexError:
                # Another worker was faster.
                break
        self._tell_followers(names)

    def _tell_followers(self, names: Collection[TopicPartition]) -> None:
        self.follower_sessions.tell(names)
        # Those that have no session, or none yet.
        for name in names:
            self.follower_purgatory.check_and_complete(name)

    def _high_watermark_moved(self, name: TopicPartition) -> None:
        self._tell_of_high_watermark(name)
        self._tell_consumers(name)

    def _tell_of_high_watermark(self, name: TopicPartition) -> None:
        """Wake the waiting produce requests, and mark the partition in the followers' sessions."""
        self.produce_purgatory.check_and_complete(name)
        self.follower_sessions.mark(name)

    def _log_start_moved(self, name: TopicPartition) -> None:
        self._tell_followers([name])
        self._tell_consumers(name)

    def _tell_consumers(self, name: TopicPartition) -> None:
        self.listeners.changed(name)
        self.consumer_purgatory.check_and_complete(name)

    # Fetch.

    def fetch(
        self, params: FetchParams, items: Sequence[FetchItem], answer: Callable[[FetchResult], None]
    ) -> None:
        """`fetch_from` for partitions that do not change while it waits."""
        self.fetch_from(params, FixedItems(items), answer)

    def fetch_from(
        self, params: FetchParams, source: FetchSource, answer: Callable[[FetchResult], None]
    ) -> None:
        """Read, and call ``answer`` once: now if there is enough or something is wrong, else later.

        A follower has one long poll at a time: a newer fetch, even an empty one, has the older answered at
        once. So a follower that is given more partitions to follow need not wait for its poll to run out.
        """
        found = read_all(self.partition, self.note_error, params, source.items())
        moved: list[TopicPartition] = []
        if params.is_follower:
            superseded = self._parked.pop(params.replica_id, None)
            if superseded is not None:
                superseded.force_complete()
            found, moved = self._note_progress(params, found)
        elif self.fence.reason is not None:
            found = refusing_to_wait(found, self.doubt)
        try:
            self._answer_or_park(params, source, found, answer)
        finally:
            # After the answer, because there may be many consumers and the follower should not wait for them.
            for name in moved:
                self._tell_consumers(name)

    def _answer_or_park(
        self,
        params: FetchParams,
        source: FetchSource,
        found: FetchResult,
        answer: Callable[[FetchResult], None],
    ) -> None:
        watched = source.watched
        if found.is_cold or found.is_urgent or not watched or params.max_wait_ms <= 0:
            self.cold_reads.finish(params, found, answer)
            return
        if found.bytes_read >= params.min_bytes:
            answer(found)
            return
        delayed = DelayedFetch(
            int(self._now_ms()) + params.max_wait_ms,
            params,
            source,
            self.partition,
            self.note_error,
            lambda found: self.cold_reads.finish(params, found, answer),
        )
        purgatory = self.consumer_purgatory
        if params.is_follower:
            purgatory = self.follower_purgatory
            # Only for brokers that exist: a stranger could make up ever new ids.
            if params.replica_id in self._metadata.current.brokers:
                self._parked[params.replica_id] = delayed
        purgatory.try_complete_else_watch(delayed, watched)

    def _note_progress(
        self, params: FetchParams, found: FetchResult
    ) -> tuple[FetchResult, list[TopicPartition]]:
        """Move high watermarks and expand ISRs by the log ends that a follower's fetch reports.

        Returns its answer, and the partitions whose consumers to wake.
        """
        now_ms = self._now_ms()
        registered = self._metadata.current.broker_epoch(params.replica_id)
        moved = []
        outcomes = list(found.outcomes)
        is_urgent = found.is_urgent
        for index, (item, _, read, _) in enumerate(outcomes):
            if read is None or read.diverging is not None:
                continue
            try:
                partition = self.partition(item.partition)
                progress = partition.follower_fetched(
                    params.replica_id,
                    current_leader_epoch=item.current_leader_epoch,
                    broker_epoch=params.replica_epoch,
                    registered_broker_epoch=registered,
                    fetch_offset=item.fetch_offset,
                    log_start_offset=item.log_start_offset,
                    leader_log_end_offset=read.log_end_offset,
                    now_ms=now_ms,
                )
            except ApiError as error:
                outcomes[index] = outcomes[index]._replace(error=error.code, read=None)
                is_urgent = True
                continue
            if progress.high_watermark_moved:
                moved.append(item.partition)
            self.deletions.check(item.partition)
            if progress.may_join_isr:
                pending = partition.propose_expand(params.replica_id, registered)
                if pending is not None:
                    self.isr_changes.submit(partition, pending)
        for name in moved:
            self._tell_of_high_watermark(name)
        return found._replace(outcomes=outcomes, is_urgent=is_urgent), moved

    # The controller's requests; see `RoleChanges`.

    def check_epochs(self, controller_epoch: int, broker_epoch: int) -> None:
        """Raises STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH."""
        self._roles.check_epochs(controller_epoch, broker_epoch)

    def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> list[PartitionError]:
        """Take the roles that the controller gives; the errors per partition.

        Raises STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH for the request as a whole.
        """
        return self._roles.become_leader_or_follower(request)

    def settings_changed(self, topics: Collection[str] | None) -> None:
        """Put the changed settings of these topics, or with None of all, into force."""
        self._roles.settings_changed(topics)

    def stop_replicas(self, request: StopReplicaRequest) -> list[PartitionError]:
        """Give up replicas, and delete those that the controller says. Raises as the other one."""
        return self._roles.stop_replicas(request)

    def _role_changed(self, name: TopicPartition) -> None:
        """Wake the requests that wait for a partition whose role has changed."""
        for listener in self.role_listeners:
            listener(name)
        self.produce_purgatory.check_and_complete(name)
        self._tell_followers([name])
        self.deletions.check(name)
        self._tell_consumers(name)

    # Background work, called by the scheduler.

    def shrink_isrs(self) -> None:
        """Remove replicas from the ISRs that have not been caught up for ``replica.lag.time.max.ms``.

        High watermarks stop waiting for such replicas. Roles that were refused lately, or that failed some
        time ago, are requested again.
        """
        if self.failed.take_due():
            self.disk_failures.note_refused_role()
        self.disk_failures.retry_refused_roles()
        now_ms = self._now_ms()
        for partition in self.partitions():
            if partition.role is Role.LEADER:
                pending = partition.propose_shrink(now_ms)
                if pending is not None:
                    self.isr_changes.submit(partition, pending)
                if partition.advance_high_watermark(now_ms):
                    self._high_watermark_moved(partition.partition)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks down, so that a restart need not begin at the log's start."""
        marks = self._roles.unclaimed_high_watermarks()
        marks |= {partition.partition: partition.high_watermark for partition in self.partitions()}
        self.logs.checkpoint_high_watermarks(marks)

    def retain(self) -> None:
        """Apply time and size retention to every log."""
        before = [(partition, partition.log.log_start_offset) for partition in self.partitions()]
        deleted = self.logs.retention_pass(wall_clock_ms(), self._high_watermark_of)
        if deleted:
            logger.info("retention deleted %d segments", deleted)
        for partition, log_start_offset in before:
            if partition.log.log_start_offset != log_start_offset:
                self._log_start_moved(partition.partition)

    def _high_watermark_of(self, name: TopicPartition) -> int | None:
        found = self._partitions.get(name)
        return None if found is None else found.high_watermark
