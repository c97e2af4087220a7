"""All replicas of this broker: appends, fetches, and the events that wake waiting requests.

Handlers on IO workers call `append` and `fetch`, the scheduler the periodic methods. The controller's
requests (LeaderAndIsr, StopReplica) go to `roles`, in `become_leader_or_follower.py`, which alone changes the
table of partitions; the table is read without its lock. After each change, outside all partition locks, the
waiting requests that it concerns are woken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.base.purgatory import Cancel, Purgatory, Reaper, Timers
from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.log.appending import AppendResult, ProducedBatches
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.producer_state import AppendOrigin, VerificationGuards
from barnabas.broker.log.record_checks import RecordsRefused
from barnabas.broker.replication.become_leader_or_follower import RoleChanges
from barnabas.broker.replication.delayed_delete import RecordDeletions
from barnabas.broker.replication.delayed_fetch import (
    DelayedFetch,
    FetchItem,
    FetchParams,
    FetchReader,
    FetchResult,
    FetchSource,
    refusing,
    refusing_to_wait,
)
from barnabas.broker.replication.delayed_produce import DelayedProduce, Unacknowledged
from barnabas.broker.replication.failures import DiskFailures
from barnabas.broker.replication.fence import Fence
from barnabas.broker.replication.fetch_sessions import FetchSession, FetchSessions
from barnabas.broker.replication.fetcher_thread import FetcherManager
from barnabas.broker.replication.isr_changes import IsrChanges, IsrStore
from barnabas.broker.replication.marker_writer import TransactionMarkers
from barnabas.broker.replication.near_replicas import NearConsumer
from barnabas.broker.replication.partition import EVER, Partition
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.broker.replication.sliced_checks import SlicedChecks
from barnabas.broker.replication.subscriptions import FollowerEnd, Send, Subscription, leaves_nothing
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse, RecordError
from barnabas.zookeeper.znodes import LeadershipState

logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1
_MAX_TO_WAKE: Final = 8

_UNGUARDED: Final[Mapping[TopicPartition, VerificationGuards]] = {}

AppendAnswer = Callable[[list[PartitionProduceResponse]], None]
"""Takes the answer for each batch, in the order of the batches."""


class ReplicaManager:
    """The ``role_listeners`` are called, without any lock, for each partition whose role may have changed;
    they may not block. ``_to_wake`` are the partitions with new records whose followers are not woken yet.
    ``_parked`` is the long poll of each follower, bounded by the number of brokers.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        metadata: MetadataCache,
        isr_store: IsrStore,
        reaper: Reaper,
        *,
        topic_settings: TopicConfigs,
        make_fetchers: Callable[[ReplicaManager], FetcherManager],
        max_lag_ms: float,
        max_fetch_sessions: int,
        call_soon: Callable[[Callable[[], None]], None],
        on_fatal: Callable[[BaseException], None],
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self.broker_id, self.logs, self._metadata = broker_id, logs, metadata
        self.now_ms, self._max_lag_ms = now_ms, max_lag_ms
        self.produce_purgatory = Purgatory("produce", reaper)
        self.follower_purgatory = Purgatory("follower-fetch", reaper)
        self.consumer_purgatory = Purgatory("consumer-fetch", reaper)
        self.follower_sessions = FetchSessions(self._wake_follower, metadata, now_ms)
        self.role_listeners: list[Callable[[TopicPartition], None]] = []
        self.fence, self.traffic = Fence(self._fenced), Traffic()
        self.disk_failures = DiskFailures(broker_id, logs, isr_store, on_fatal=on_fatal)
        of, note = topic_settings.of, self.disk_failures.note
        moved = self._log_start_moved
        self.deletions = RecordDeletions(
            reaper, self._writable, metadata, note_error=note, log_start_moved=moved, now_ms=now_ms
        )
        self.leader_quota = ReplicationQuota(broker_id, lambda topic: of(topic).throttled_leaders)
        self.follower_quota = ReplicationQuota(broker_id, lambda topic: of(topic).throttled_followers)
        self._reader = FetchReader(self.partition, note, self.traffic, self.leader_quota, on_fatal=on_fatal)
        waiting, shared = self.consumer_purgatory, self._reader.shared
        wakes = self.consumer_wakes = SlicedChecks(waiting, call_soon, shared, on_fatal=on_fatal)
        self.consumer_sessions = FetchSessions(wakes.note, metadata, now_ms, max_fetch_sessions)
        self.markers, self.fetchers = TransactionMarkers(self), make_fetchers(self)
        self.roles = RoleChanges(
            broker_id,
            logs,
            self.fetchers,
            self.disk_failures,
            self.fence,
            topic_settings=topic_settings,
            max_lag_ms=max_lag_ms,
            now_ms=now_ms,
            role_changed=self._role_changed,
        )
        self.isr_changes = IsrChanges(
            isr_store,
            broker_epoch=self.roles.registered_epoch,
            now_ms=now_ms,
            on_high_watermark=self._high_watermark_moved,
            on_deposed=self._deposed,
            on_fatal=on_fatal,
        )
        self._to_wake, self._parked = deque[TopicPartition](), dict[BrokerId, DelayedFetch]()

    def start(self) -> None:
        self.isr_changes.start()
        self.disk_failures.start()
        self._reader.start()
        self.consumer_wakes.start()
        self.fetchers.start()

    def stop(self) -> None:
        """End the threads and answer the waiting requests; the logs are closed by their manager."""
        self.fetchers.stop()
        self.isr_changes.stop()
        self.disk_failures.stop()
        self._reader.stop()
        self.consumer_wakes.stop()
        for purgatory in (
            self.produce_purgatory,
            self.follower_purgatory,
            self.consumer_purgatory,
            self.deletions.purgatory,
        ):
            purgatory.shut_down()
        self.checkpoint_high_watermarks()

    # Lookups

    def partition(self, tp: TopicPartition) -> Partition:
        """Raises KAFKA_STORAGE_ERROR if its disk failed, NOT_LEADER_OR_FOLLOWER if only other brokers hold
        it, else UNKNOWN_TOPIC_OR_PARTITION.
        """
        partition = self.roles.partitions.get(tp)
        if partition is not None:
            return partition
        reason = self.logs.offline_partitions.get(tp)
        if reason is not None:
            raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline: {reason}")
        if self._metadata.current.has(tp):
            raise api_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} holds no {tp}")
        raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")

    def partitions(self) -> list[Partition]:
        return list(self.roles.partitions.values())

    def doubt(self, tp: TopicPartition) -> str | None:
        """Why this broker may not act as the leader of a partition, or None."""
        reason = self.fence.reason
        partition = self.roles.partitions.get(tp)
        if self.fence.loss is not None or partition is None:
            return reason
        now_ms = self.now_ms()
        if reason is not None:
            return None if partition.is_witnessed(now_ms) else reason
        if partition.is_proven(now_ms, self._max_lag_ms):
            return None
        return f"the followers of {tp} do not fetch, and ZooKeeper has not confirmed its leader lately"

    def _writable(self, tp: TopicPartition, acks: int = 1) -> Partition:
        """The `partition`; raises NOT_LEADER_OR_FOLLOWER while this broker may not write to it.

        A deposed leader acknowledges nothing to acks=all, so only without ZooKeeper are these in doubt. The
        others are refused then anyway.
        """
        reason = self.fence.reason
        if (acks == ACKS_ALL) == (reason is not None):
            reason = self.doubt(tp)
        if reason is not None:
            raise api_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
        return self.roles.partitions.get(tp) or self.partition(tp)

    # Produce

    def waits_for_disk(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether an append to one of these partitions may wait for the disk."""
        held = [self.roles.partitions.get(tp) for tp in partitions]
        return any(partition is not None and partition.waits_for_disk for partition in held)

    def append(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[tuple[TopicPartition, ProducedBatches]],
        answer: AppendAnswer,
        *,
        since: LeaderEpoch = EVER,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guards: Mapping[TopicPartition, VerificationGuards] = _UNGUARDED,
        below_min_isr: bool = False,
        timers: Timers | None = None,
        texts: ErrorTexts | None = None,
    ) -> Cancel | None:
        """Append to the leaders and call ``answer`` once: now, or with acks=all when all in sync have it.

        The result, if there is one, ends the wait for all in sync without an answer; ``timers`` or the reaper
        end it at its deadline. The record bytes are not used after this returns. ``since``, ``origin`` and
        ``guards``: see `Partition.append_as_leader`. ``below_min_isr`` writes even to too few replicas.
        """
        now_ms, wall_ms = self.now_ms(), wall_clock_ms()
        responses: list[PartitionProduceResponse] = []
        unacknowledged: list[Unacknowledged] = []
        moved: list[TopicPartition] = []
        for tp, produced in batches:
            partition, response = None, PartitionProduceResponse(index=tp.partition, error_code=0)
            responses.append(response)
            try:
                partition = self._writable(tp, acks)
                high_watermark = partition.high_watermark
                appended = partition.append_as_leader(
                    produced,
                    require_all=acks == ACKS_ALL and not below_min_isr,
                    now_ms=now_ms,
                    wall_clock_ms=wall_ms,
                    since=since,
                    origin=origin,
                    guards=guards.get(tp),
                )
            except (ApiError, RecordsRefused) as error:
                texts = texts or ErrorTexts()
                self.traffic.of_any(tp.topic).note_refusal(len(produced.view), error.code)
                self._refuse(response, partition, error, texts)
                continue
            self._note_append(tp, appended, response)
            if acks == ACKS_ALL:
                unacknowledged.append(Unacknowledged(partition, appended, response))
            if partition.high_watermark != high_watermark:
                moved.append(tp)
        cancel = None
        if unacknowledged := [append for append in unacknowledged if not append.settle()]:
            delayed = DelayedProduce(now_ms + timeout_ms, unacknowledged, lambda: answer(responses))
            self.produce_purgatory.watch(delayed, delayed.watched, timers)
            cancel = delayed.cancel
        if len(self._to_wake) >= _MAX_TO_WAKE:
            self.wake_followers()
        for tp in moved:
            self._high_watermark_moved(tp)
        if cancel is None:
            answer(responses)
        return cancel

    def _note_append(
        self, tp: TopicPartition, appended: AppendResult, response: PartitionProduceResponse
    ) -> None:
        self.traffic.of(tp.topic).note_append(appended.size_bytes, appended.record_count)
        response.base_offset = appended.base_offset
        response.log_append_time_ms = appended.log_append_time_ms
        response.log_start_offset = appended.log_start_offset
        self._to_wake.append(tp)

    def _refuse(
        self,
        response: PartitionProduceResponse,
        partition: Partition | None,
        error: ApiError | RecordsRefused,
        texts: ErrorTexts,
    ) -> None:
        if isinstance(error, RecordsRefused):
            response.record_errors = [
                RecordError(batch_index=fault.index, batch_index_error_message=texts.take(fault.message))
                for fault in error.faults
            ]
        else:
            self.disk_failures.note(error)
        response.error_code, response.error_message = error.code, texts.take(str(error))
        if partition is not None and partition.is_leader:
            # A producer whose id is unknown here learns by it whether its records were merely deleted.
            response.log_start_offset = partition.log.log_start_offset

    # Wake-ups

    def has_followers_to_wake(self) -> bool:
        return bool(self._to_wake)

    def wake_followers(self) -> None:
        """Answer the followers' long polls for the records that were appended since the last call.

        Called at the end of a worker's run, not after each append: the requests that one connection has
        pipelined then travel to the followers in one fetch, and are acknowledged by the next.
        """
        tps: dict[TopicPartition, None] = {}
        while self._to_wake:
            try:
                tps[self._to_wake.popleft()] = None
            except IndexError:
                # Another worker was faster.
                break
        self._wake_followers_of(tps)

    def _wake_followers_of(self, tps: Collection[TopicPartition]) -> None:
        self.follower_sessions.listeners.wake(tps)
        # Fetches without a session watch the partitions themselves.
        for tp in tps:
            self.follower_purgatory.check_and_complete(tp)

    def _wake_follower(self, session: FetchSession) -> None:
        """Push to a subscription; else answer the waiting fetch."""
        subscription = session.subscription
        if subscription is not None:
            subscription.wake()
        else:
            self.follower_purgatory.check_and_complete(session)

    def _wake_consumers_of(self, tp: TopicPartition) -> None:
        self.consumer_sessions.listeners.wake((tp,))
        self.consumer_wakes.note(tp)

    def _acknowledge(self, tp: TopicPartition) -> None:
        """Wake the produce requests that wait for the high watermark; the next fetch of followers has it.

        A follower that consumers read is sent it at once: they would wait there for a whole fetch of it.
        """
        self.produce_purgatory.check_and_complete(tp)
        partition = self.roles.partitions.get(tp)
        if partition is not None and partition.is_read_at_followers:
            self.follower_sessions.listeners.wake((tp,))
        else:
            self.follower_sessions.listeners.mark(tp)

    def wake_consumers(self, tps: Iterable[TopicPartition]) -> None:
        """The high watermarks of these followers have moved; wake the consumers that read from them."""
        for tp in tps:
            self._wake_consumers_of(tp)

    def _high_watermark_moved(self, tp: TopicPartition) -> None:
        self._acknowledge(tp)
        self._wake_consumers_of(tp)

    def _log_start_moved(self, tp: TopicPartition) -> None:
        self._wake_followers_of((tp,))
        self._wake_consumers_of(tp)

    def _role_changed(self, tp: TopicPartition) -> None:
        for listener in self.role_listeners:
            listener(tp)
        self.produce_purgatory.check_and_complete(tp)
        self._wake_followers_of((tp,))
        self.deletions.check(tp)
        self._wake_consumers_of(tp)

    def _deposed(self, tp: TopicPartition, state: LeadershipState) -> None:
        self._metadata.learn_leader(tp, state)
        self._role_changed(tp)

    def _fenced(self) -> None:
        """Another broker may lead now: answer the waiting fetches, so that the clients look for it."""
        for partition in self.partitions():
            if partition.is_leader:
                self._wake_consumers_of(partition.partition)

    # Fetch

    def fetch(
        self,
        params: FetchParams,
        source: FetchSource,
        answer: Callable[[FetchResult], None],
        timers: Timers | None = None,
    ) -> Cancel | None:
        """Read, and call ``answer`` once: now if there is enough or something is wrong, else later.

        The result, if any, ends the wait without an answer. At its deadline ``timers`` end it, or the reaper.
        A follower has one long poll at a time: a newer fetch, even an empty one, answers the older at once.
        So a follower of additional partitions need not wait until its poll expires.
        """
        reader, items = self._reader, source.items()
        result: FetchResult | None = None
        watched: Sequence[Hashable] = ()
        may_wait = params.max_wait_ms > 0 and self.fence.reason is None and not params.is_follower
        if may_wait and reader.finds_nothing(params, items):
            watched = source.watched
        if not watched:
            result = reader.read_all(params, items)
            is_settled = False
            if params.is_follower:
                superseded = self._parked.pop(params.replica_id, None)
                if superseded is not None:
                    superseded.force_complete()
                reported = [
                    (item, read.log_end_offset)
                    for item, read in result.outcomes
                    if not read.error and read.diverging is None
                ]
                if refused := self._note_progress(params, reported):
                    result = refusing(result, refused)
                is_settled = params.subscribes and isinstance(source, FetchSession) and leaves_nothing(result)
            elif self.fence.reason is not None:
                result = refusing_to_wait(result, self.doubt)
            may_wait = params.max_wait_ms > 0 and not is_settled and not result.is_enough(params)
            if not (may_wait and (watched := source.watched)):
                return reader.finish(params, result, answer)
        deadline_ms = self.now_ms() + params.max_wait_ms
        delayed = DelayedFetch(deadline_ms, params, source, reader, answer, result, self.doubt)
        purgatory = self.consumer_purgatory
        if params.is_follower:
            purgatory = self.follower_purgatory
            # Only for brokers that exist, since ids could be made up.
            if params.replica_id in self._metadata.current.brokers:
                self._parked[params.replica_id] = delayed
        purgatory.try_complete_else_watch(delayed, watched, timers)
        return delayed.cancel

    def send_consumers_near(self) -> None:
        """Send consumers to a replica on their rack from now on, by `replica.selector.class`."""
        self._reader.near_consumer = lambda params: NearConsumer.on(
            params.rack_id, params.listener_name, self._metadata, self.now_ms()
        )

    def subscription(
        self, number: int, session: FetchSession, params: FetchParams, send: Send, peer: object
    ) -> Subscription:
        return Subscription(number, session, params, self._reader, send, peer)

    def note_reported(
        self, subscription: Subscription, push_number: int, ends: Sequence[FollowerEnd]
    ) -> None:
        """A follower has applied a push. Raises UnfitProgress."""
        partitions = self.roles.partitions
        reported = [
            (item, partition.log_end_offset)
            for item in subscription.reported(push_number, ends)
            if (partition := partitions.get(item.partition)) is not None
        ]
        if self._note_progress(subscription.params, reported):
            # The next fetch is answered with the error.
            subscription.end()
        subscription.wake()

    def _note_progress(
        self, params: FetchParams, reported: Iterable[tuple[FetchItem, Offset]]
    ) -> dict[TopicPartition, ErrorCode]:
        """Move high watermarks and expand ISRs by the log ends that a follower reports.

        Each item comes with the leader's log end at that time. Returns the error of each refused partition.
        """
        now_ms = self.now_ms()
        registered = self._metadata.current.broker_epoch(params.replica_id)
        moved = []
        refused: dict[TopicPartition, ErrorCode] = {}
        for item, leader_log_end_offset in reported:
            try:
                partition = self.partition(item.partition)
                progress = partition.follower_fetched(
                    params.replica_id,
                    current_leader_epoch=item.current_leader_epoch,
                    broker_epoch=params.replica_epoch,
                    registered_broker_epoch=registered,
                    fetch_offset=item.fetch_offset,
                    log_start_offset=item.log_start_offset,
                    leader_log_end_offset=leader_log_end_offset,
                    now_ms=now_ms,
                )
            except ApiError as error:
                refused[item.partition] = error.code
                continue
            if progress.pending is not None:
                # First, because a proposal that is not submitted keeps the ISR pending.
                self.isr_changes.submit(partition, progress.pending)
            if progress.high_watermark_moved:
                moved.append(item.partition)
            self.deletions.check(item.partition)
        for tp in moved:
            self._high_watermark_moved(tp)
        return refused

    # Background work, called by the scheduler

    def shrink_isrs(self, *, may_shrink: bool = True) -> None:
        """Remove replicas from the ISRs that have not been caught up for ``replica.lag.time.max.ms``.

        Not unless it ``may_shrink``: their fetches may lie unread. High watermarks stop waiting for such
        replicas. Roles that were refused lately, or that failed some time ago, are requested again.
        """
        if self.roles.failed.take_due():
            self.disk_failures.note_refused_role()
        self.disk_failures.retry_refused_roles()
        now_ms = self.now_ms()
        for partition in self.partitions():
            if partition.is_leader:
                pending = partition.propose_shrink(now_ms) if may_shrink else None
                if pending is not None:
                    self.isr_changes.submit(partition, pending)
                elif not partition.is_proven(now_ms, self._max_lag_ms / 2):
                    self.isr_changes.confirm(partition)
                if partition.advance_high_watermark(now_ms):
                    self._high_watermark_moved(partition.partition)
                partition.forget_consumers(now_ms)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks to disk, so that a restart need not begin at the log's start."""
        marks = self.roles.unclaimed_high_watermarks()
        marks |= {partition.partition: partition.high_watermark for partition in self.partitions()}
        self.logs.checkpoint_high_watermarks(marks)

    def committed_ends(self, tp: TopicPartition) -> tuple[Offset, Offset] | None:
        """The last stable offset and the high watermark of a replica; None without a role here."""
        partition = self.roles.partitions.get(tp)
        return None if partition is None else (partition.last_stable_offset, partition.high_watermark)

    def retain(self, now_ms: int) -> None:
        """Apply time and size retention to every log, at this time of the wall clock."""

        def high_watermark_of(tp: TopicPartition) -> int | None:
            partition = self.roles.partitions.get(tp)
            return None if partition is None else partition.high_watermark

        before = [(partition, partition.log.log_start_offset) for partition in self.partitions()]
        deleted = self.logs.retention_pass(now_ms, high_watermark_of)
        if deleted:
            logger.info("retention deleted %d segments", deleted)
        for partition, log_start_offset in before:
            if partition.log.log_start_offset != log_start_offset:
                partition.log_start_moved()
                self._log_start_moved(partition.partition)
