"""DeleteRecords, on the replicas' side: move the log's start, and wait until the followers have done so too.

The leader moves its own start at once. Its followers learn of it in the answers to their fetches, and report
their new start in the next ones. An operation waits in the purgatory for the last living follower, or for its
deadline. Records below the start are no longer read; the next pass of retention deletes their segments. Any
thread.

Source: KIP-107.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from barnabas.broker.base.purgatory import Cancel, DelayedCall, Purgatory, Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from barnabas.protocol.topic_names import INTERNAL_TOPICS


@dataclass(slots=True)
class DeletionOutcome:
    """The result for one partition; ``low_watermark`` is the least log start of its living replicas."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    low_watermark: int = -1


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A start that the leader has moved and that its followers must reach."""

    partition: Partition
    required_offset: Offset
    outcome: DeletionOutcome

    def is_settled(self, alive: Container[BrokerId]) -> bool:
        try:
            low_watermark = self.partition.low_watermark(alive)
        except ApiError as error:
            self.outcome.error = error.code
            return True
        if low_watermark < self.required_offset:
            return False
        self.outcome.low_watermark = low_watermark
        return True


class RecordDeletions:
    """The deletions of one broker. ``log_start_moved`` is called for each partition, without locks."""

    def __init__(
        self,
        reaper: Reaper,
        partition_of: Callable[[TopicPartition], Partition],
        metadata: MetadataCache,
        *,
        note_error: Callable[[ApiError], None],
        log_start_moved: Callable[[TopicPartition], None],
        now_ms: Callable[[], float],
    ) -> None:
        self.purgatory = Purgatory("delete-records", reaper)
        self._partition_of = partition_of
        self._metadata = metadata
        self._note_error = note_error
        self._log_start_moved = log_start_moved
        self._now_ms = now_ms

    def delete(
        self,
        timeout_ms: int,
        offsets: Sequence[tuple[TopicPartition, int]],
        answer: Callable[[list[DeletionOutcome]], None],
    ) -> Cancel:
        """Drop the records below these offsets (-1: all that are committed).

        ``answer`` is called once, now or later, unless the result is called before.
        """
        outcomes: list[DeletionOutcome] = []
        deletions: list[_Deletion] = []
        for tp, offset in offsets:
            outcome = DeletionOutcome(tp)
            outcomes.append(outcome)
            try:
                deletions.append(self._delete(tp, offset, outcome))
            except ApiError as error:
                self._note_error(error)
                outcome.error = error.code
        tps = [deletion.outcome.partition for deletion in deletions]
        for tp in tps:
            self._log_start_moved(tp)

        def are_settled() -> bool:
            nonlocal deletions
            alive = self._metadata.current.brokers
            deletions = [deletion for deletion in deletions if not deletion.is_settled(alive)]
            return not deletions

        def on_deadline() -> None:
            for deletion in deletions:
                deletion.outcome.error = ErrorCode.REQUEST_TIMED_OUT

        deadline_ms = self._now_ms() + timeout_ms
        delayed = DelayedCall(deadline_ms, are_settled, lambda: answer(outcomes), on_deadline)
        self.purgatory.try_complete_else_watch(delayed, tps)
        return delayed.cancel

    def _delete(self, tp: TopicPartition, offset: int, outcome: DeletionOutcome) -> _Deletion:
        if tp.topic in INTERNAL_TOPICS:
            raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers may change {tp.topic}")
        partition = self._partition_of(tp)
        partition.check_leading()
        if not partition.log.config.is_deleted_by_age:
            raise api_error(
                ErrorCode.POLICY_VIOLATION, f"{tp} is only compacted; its records cannot be deleted"
            )
        return _Deletion(partition, partition.delete_records(offset), outcome)

    def check(self, tp: TopicPartition) -> None:
        """A follower has fetched, or the role has changed."""
        if self.purgatory.waiting:
            self.purgatory.check_and_complete(tp)
