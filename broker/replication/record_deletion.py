"""DeleteRecords, on the replicas' side: move the log's start, and wait until the followers have done so too.

The leader moves its own start at once. Its followers learn of it by their fetches and tell by their next ones
that they have followed; an operation waits in the purgatory for the last of those that live, or for its
deadline. What lies below the start is no longer read; its segments go with the next pass of retention.
Any thread.

Source: KIP-107.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from barnabas.broker.purgatory import DelayedOperation, Purgatory, Reaper
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from barnabas.protocol.topic_names import INTERNAL_TOPICS

LivingBrokers = Callable[[], Container[BrokerId]]


@dataclass(slots=True)
class DeletionOutcome:
    """What became of one partition; ``low_watermark`` is the least log start of its living replicas."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    low_watermark: int = -1


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A start that the leader has moved and that its followers must reach."""

    partition: Partition
    required_offset: Offset
    outcome: DeletionOutcome


class DelayedDeletion(DelayedOperation):
    """One DeleteRecords request whose followers have not all followed yet."""

    def __init__(
        self, deadline_ms: int, deletions: list[_Deletion], living: LivingBrokers, answer: Callable[[], None]
    ) -> None:
        super().__init__(deadline_ms)
        self._waiting = deletions
        self._living = living
        self._answer = answer

    def try_complete(self) -> bool:
        living = self._living()
        self._waiting = [one for one in self._waiting if not _is_settled(one, living)]
        return not self._waiting

    def on_expiration(self) -> None:
        for one in self._waiting:
            one.outcome.error = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        self._answer()


def _is_settled(deletion: _Deletion, living: Container[BrokerId]) -> bool:
    try:
        low_watermark = deletion.partition.low_watermark(living)
    except ApiError as error:
        deletion.outcome.error = error.code
        return True
    if low_watermark < deletion.required_offset:
        return False
    deletion.outcome.low_watermark = low_watermark
    return True


class RecordDeletions:
    """The deletions of one broker. ``log_start_moved`` is called for each partition, without locks."""

    def __init__(
        self,
        reaper: Reaper,
        partition_of: Callable[[TopicPartition], Partition],
        living: LivingBrokers,
        *,
        note_error: Callable[[ApiError], None],
        log_start_moved: Callable[[TopicPartition], None],
        now_ms: Callable[[], float],
    ) -> None:
        self.purgatory = Purgatory("delete-records", reaper)
        self._partition_of = partition_of
        self._living = living
        self._note_error = note_error
        self._log_start_moved = log_start_moved
        self._now_ms = now_ms

    def delete(
        self,
        timeout_ms: int,
        wanted: Sequence[tuple[TopicPartition, int]],
        answer: Callable[[list[DeletionOutcome]], None],
    ) -> None:
        """Drop what is below these offsets (-1: all that is committed); ``answer`` once, now or later."""
        outcomes: list[DeletionOutcome] = []
        deletions: list[_Deletion] = []
        for name, offset in wanted:
            outcome = DeletionOutcome(name)
            outcomes.append(outcome)
            try:
                if name.topic in INTERNAL_TOPICS:
                    raise api_error(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name.topic} belongs to the brokers alone"
                    )
                partition = self._partition_of(name)
                partition.check_leading()
                if not partition.log.config.is_deleted_by_age:
                    raise api_error(
                        ErrorCode.POLICY_VIOLATION, f"{name} is only compacted; its records cannot be deleted"
                    )
                required = partition.delete_records(offset)
            except ApiError as error:
                self._note_error(error)
                outcome.error = error.code
                continue
            deletions.append(_Deletion(partition, required, outcome))
        for one in deletions:
            self._log_start_moved(one.outcome.partition)
        delayed = DelayedDeletion(
            int(self._now_ms()) + timeout_ms, deletions, self._living, lambda: answer(outcomes)
        )
        self.purgatory.try_complete_else_watch(delayed, [one.outcome.partition for one in deletions])

    def check(self, name: TopicPartition) -> None:
        """A follower has fetched, or the role has changed."""
        if self.purgatory.waiting:
            self.purgatory.check_and_complete(name)
