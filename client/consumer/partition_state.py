"""One assigned partition: its position, its fetched batches, and the choice of the replica to read.

Guarantees: records come in offset order, each once and at or above the position; under read_committed no
record of an aborted transaction. The position moves over markers and skipped batches. Batches are decoded in
`poll`. The memory of an answer is reused after its last batch was decoded, and no view of it is used after
that. The rules for the read replica (KIP-392) and after a truncation (KIP-320) are pure functions.

A partition's state belongs to the consumer's event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from barnabas.client.config import BY_DURATION, ConsumerConfig
from barnabas.client.consumer_record import AnyRecord, record_of
from barnabas.client.isolation import AbortedBatches, IsolationLevel, aborted_batches
from barnabas.client.metadata import Leader, MetadataCache
from barnabas.client.serialization import Deserializers
from barnabas.common.texts import duration_ms, iso_time, ms_ago
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error
from barnabas.protocol.frames import Frame
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicPartition, by_topic
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages import fetch as wire
from barnabas.protocol.messages.log_offsets import LeaderEpochEndOffset
from barnabas.protocol.record_batch import BatchHeader, TimestampType, check_batch, iter_batches
from barnabas.protocol.records import RecordFields, decode_fields
from barnabas.protocol.schema import RecordsToSend

logger = logging.getLogger(__name__)

_NO_FIELDS: Final[list[RecordFields]] = []
NO_EPOCH: Final = -1
_NO_REPLICA: Final = -1
_UNDEFINED: Final = -1


def fetch_request(
    cache: MetadataCache,
    starts: Mapping[TopicPartition, tuple[int, int]],
    partition_max_bytes: int,
    **options: Any,
) -> wire.FetchRequest:
    """A Fetch request for these partitions, each with its start offset and leader epoch.

    The version decides whether it has the names or the ids of topics.
    """
    partitions = {
        tp: wire.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
        )
        for tp, (offset, leader_epoch) in starts.items()
    }
    topics = [
        wire.FetchTopic(topic=topic, topic_id=cache.topic_id(topic), partitions=of_topic)
        for topic, of_topic in by_topic(partitions.items()).items()
    ]
    return wire.FetchRequest(topics=topics, **options)


def fetch_answers(
    cache: MetadataCache, response: wire.FetchResponse
) -> dict[TopicPartition, wire.FetchPartitionResponse]:
    """The answer for each partition; topics that newer versions name by an unknown id have no name."""
    return {
        TopicPartition(
            topic.topic or cache.topic_name(TopicId(topic.topic_id)), partition.partition_index
        ): partition
        for topic in response.responses
        for partition in topic.partitions
    }


def is_throttled(response: wire.FetchResponse) -> bool:
    """Whether an answer has no partitions because the consumer is above its quota (KIP-219)."""
    return not response.responses and not response.error_code and response.throttle_time_ms > 0


def received_records(records: RecordsToSend) -> memoryview:
    """The record bytes of an answer as one view. Joins parts, which only a sender makes."""
    if records is None:
        return memoryview(b"")
    return memoryview(b"".join(records) if isinstance(records, list | tuple) else records)


def batches_from(tp: TopicPartition, offset: int, records: memoryview) -> list[tuple[int, BatchHeader]]:
    """Position and header of each whole batch that ends after an offset. Raises CORRUPT_MESSAGE."""
    batches = [
        (position, header) for position, header in iter_batches(records) if header.next_offset > offset
    ]
    if not batches:
        text = f"{len(records)} bytes of {tp} hold no whole batch at or after offset {offset}"
        raise api_error(ErrorCode.CORRUPT_MESSAGE, text)
    return batches


def out_of_range(tp: TopicPartition, offset: int, answer: wire.FetchPartitionResponse) -> ApiError:
    """The error for an offset outside the log, with the bounds of the log as far as the broker names them."""
    bounds = ""
    if answer.log_start_offset >= 0:
        bounds = f", which starts at {answer.log_start_offset}"
        if answer.high_watermark >= 0:
            bounds += f" and ends at {answer.high_watermark}"
    return api_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {tp} is outside the log{bounds}")


@dataclass(slots=True, eq=False)
class FetchedFrame:
    """The frame of one answer, shared by the partitions in it; released when all of them are decoded.

    The first user is its maker, which is done when all partitions have taken their part.
    """

    _frame: Frame
    _users: int = 1

    def use(self) -> None:
        self._users += 1

    def done(self) -> None:
        invariant(self._users > 0, "a frame is released more often than it was used")
        self._users -= 1
        if not self._users:
            self._frame.release()


@dataclass(slots=True, eq=False)
class _Chunk:
    """The batches of one answer for one partition that are not decoded yet."""

    view: memoryview
    batches: deque[tuple[int, BatchHeader]]
    frame: FetchedFrame
    aborted: AbortedBatches | None
    """The rule for the batches to skip; None if all are for the user."""

    def __post_init__(self) -> None:
        self.frame.use()

    def drop(self) -> None:
        self.batches.clear()
        self.view = memoryview(b"")
        self.frame.done()


class Reset(IntEnum):
    """The source of a partition's position, as the timestamp that ListOffsets takes.

    Other resets are times in ms, 0 or more: the first record that is as recent, or the end.
    """

    LATEST = -1
    EARLIEST = -2


def reset_of(config: ConsumerConfig) -> int | None:
    """The reset for an invalid position, by `auto_offset_reset`."""
    name = config.auto_offset_reset
    if name.startswith(BY_DURATION):
        return ms_ago(duration_ms(name.removeprefix(BY_DURATION)))
    return {"earliest": Reset.EARLIEST, "latest": Reset.LATEST}.get(name)


def reset_text(reset: int) -> str:
    if reset >= 0:
        return f"first offset since {iso_time(reset)}"
    return f"{Reset(reset).name.lower()} offset"


class ReadReplica(NamedTuple):
    """The replica that a leader named, and the time until which the choice is valid."""

    node_id: BrokerId
    advised_by: Leader
    until: float


def advised_replica(node_id: int, leader: Leader, now: float, lease_s: float) -> ReadReplica | None:
    """The replica named by a leader's answer; None means the leader itself.

    A leader that places readers by rack answers each fetch from another rack with no records and the name of
    a replica nearby, so a consumer with a rack must fetch from that replica.
    """
    if node_id in (_NO_REPLICA, leader.node_id):
        return None
    return ReadReplica(BrokerId(node_id), leader, now + lease_s)


def broker_to_read(
    replica: ReadReplica | None, leader: Leader, live: Container[BrokerId], now: float
) -> BrokerId:
    """The replica while the choice is valid: in time, by the same leader, its broker alive; or the leader."""
    if replica is None or replica.advised_by != leader or now >= replica.until or replica.node_id not in live:
        return leader.node_id
    return replica.node_id


class Verdict(Enum):
    """The validity of a partition's position on a new leader."""

    HOLDS = "holds"
    FETCHED_AHEAD = "only records fetched ahead were truncated"
    TRUNCATED = "records that were taken were truncated"
    NO_COMMON_HISTORY = "the leader has neither the epoch nor an earlier one"


def judge(fetch_offset: int, taken_offset: int, answer: LeaderEpochEndOffset) -> Verdict:
    """The verdict on a position, by the end of its epoch on the new leader; taken_offset ≤ fetch_offset.

    An unclean election may replace the history that was read by a shorter one. Once that has grown, offsets
    alone do not show the difference.
    """
    if answer.end_offset == _UNDEFINED or answer.leader_epoch == _UNDEFINED:
        return Verdict.NO_COMMON_HISTORY
    if answer.end_offset >= fetch_offset:
        return Verdict.HOLDS
    return Verdict.FETCHED_AHEAD if answer.end_offset >= taken_offset else Verdict.TRUNCATED


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition.

    ``position`` is the offset of the next record for the user, ``fetch_offset`` the start of the next fetch:
    position ≤ fetch_offset. Both are None while the position is unknown. Each has the leader epoch of the
    batch before it, -1 if unknown, which distinguishes a truncated log from one that only grew.
    """

    tp: TopicPartition
    check_crcs: bool
    skips_damaged: bool = False
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    deserializers: Deserializers | None = None
    position: int | None = None
    taken_offset: int = 0
    """The offset after the last record taken, perhaps not yet by the user: position ≤ taken_offset."""
    fetch_offset: int | None = None
    reset: int | None = None
    high_watermark: int = -1
    end_offset: int = -1
    """The end for this isolation in the last fetch, -1 if it is unknown: end_offset ≤ high_watermark."""
    log_start_offset: int = -1
    is_paused: bool = False
    flight: object | None = None
    """Its fetch in flight; answers to other fetches are dropped."""
    position_epoch: int = NO_EPOCH
    fetch_epoch: int = NO_EPOCH
    checked_epoch: int = NO_EPOCH
    """The epoch of the last leader whose log was found to hold ``fetch_offset``."""
    topic_id: TopicId = NO_TOPIC_ID
    """The topic that ``fetch_offset`` is an offset of; a topic that is made again has another id."""
    taken_topic_id: TopicId = NO_TOPIC_ID
    """The topic of the records taken last, which the user may hold while another topic is read."""
    restarts: int = 0
    """How often reading started over in another log, whose offsets are not those that were committed."""
    read_replica: ReadReplica | None = None
    """The replica to read, chosen by the leader."""
    retry_at: float = 0.0
    missing_since: float | None = None
    """The time since which the topic is known not to have this partition."""
    error: BarnabasError | None = None
    """The error that the next poll raises; nothing is fetched meanwhile."""
    is_sought: bool = False
    """Whether nothing was fetched since a seek, so that a fetch that waits must not delay the next one."""
    generation: int = 0
    """Counts seeks: records fetched or taken before a seek are dropped."""
    buffered_bytes: int = 0
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    _chunks: deque[_Chunk] = field(default_factory=deque, init=False)
    _fields: list[RecordFields] = field(default_factory=list, init=False)
    _index: int = field(default=0, init=False)
    _pending_next: int = field(default=0, init=False)

    @property
    def has_data(self) -> bool:
        """Whether records wait for the user, here or in the consumer that took them."""
        is_handed_out = self.position is None or self.position >= self.taken_offset
        return self._index < len(self._fields) or bool(self._chunks) or not is_handed_out

    def seek(self, offset: int | None, reset: int | None, epoch: int = NO_EPOCH) -> None:
        """Continue from an offset, or from one that a reset finds; buffered records are dropped.

        ``epoch`` is the epoch of the record before the offset, if known.
        """
        self.generation += 1
        self.is_sought = True
        self.position = self.fetch_offset = offset
        self.taken_offset = offset or 0
        self.position_epoch = self.fetch_epoch = epoch
        self.checked_epoch = NO_EPOCH
        self.topic_id = NO_TOPIC_ID
        self.reset = reset
        self.error = None
        self.retry_at = 0.0
        self.missing_since = None
        self.drop_buffered()

    def skip_to(self, offset: int) -> bool:
        """Seek forwards within the batch that is being taken, as past a record that cannot be read.

        What is fetched stays. False if the offset is elsewhere.
        """
        fields = self._fields
        if not fields or not self.taken_offset <= offset <= self._pending_next:
            return False
        while self._index < len(fields) and fields[self._index][0] < offset:
            self._index += 1
        self.position = self.taken_offset = offset
        self.error = None
        return True

    def is_of(self, topic_id: TopicId) -> bool:
        """Whether the position is one of this topic; the first id that is known after a seek is its own."""
        if self.topic_id == NO_TOPIC_ID and self.fetch_offset is not None:
            self.topic_id = topic_id
        return NO_TOPIC_ID in (topic_id, self.topic_id) or topic_id == self.topic_id

    def rewind(self, offset: int | None) -> None:
        """Seek to an offset at or before the position; the epoch of the history is kept, and the topic.

        It may be newer than the epoch of the record before the offset, because histories diverge only once.
        """
        epoch, checked_epoch, topic_id = self.position_epoch, self.checked_epoch, self.topic_id
        self.seek(offset, None, epoch)
        self.checked_epoch, self.topic_id = checked_epoch, topic_id

    def drop_buffered(self) -> None:
        """Release the records that were fetched ahead; they are refetched."""
        for chunk in self._chunks:
            chunk.drop()
        self._chunks.clear()
        self._fields = _NO_FIELDS
        self._index = 0
        self.buffered_bytes = 0
        if self.fetch_offset is not None:
            self.fetch_offset = self.taken_offset
            self.fetch_epoch = self.position_epoch

    def truncate(self, end_offset: int, epoch: int) -> None:
        """Drop the fetched records from an offset on, of which the user has none.

        ``epoch`` is the epoch of the last record before the offset.
        """
        invariant(self.taken_offset <= end_offset, "%s: records that were taken are truncated", self.tp)
        self.drop_buffered()
        if self.taken_offset == end_offset:
            self.fetch_epoch = self.position_epoch = epoch

    def add(self, answer: wire.FetchPartitionResponse, frame: FetchedFrame) -> bool:
        """Add the records of a fetch at ``fetch_offset``; False without records.

        Raises CORRUPT_MESSAGE and its kind.
        """
        self.high_watermark = answer.high_watermark
        is_committed = self.isolation is IsolationLevel.READ_COMMITTED
        self.end_offset = answer.last_stable_offset if is_committed else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        offset = self.fetch_offset
        if not answer.records or offset is None:
            return False
        records = received_records(answer.records)
        batches = batches_from(self.tp, offset, records)
        aborted = aborted_batches(self.isolation, answer.aborted_transactions)
        self._chunks.append(_Chunk(records, deque(batches), frame, aborted))
        self.buffered_bytes += len(records)
        self.fetch_offset = batches[-1][1].next_offset
        self.fetch_epoch = batches[-1][1].partition_leader_epoch
        return True

    def take(self, max_records: int) -> list[AnyRecord]:
        """The next records, at most ``max_records`` and of one batch; moves the position past them.

        Empty only if there is no data. Raises decoding errors, the position then stays before the damaged
        batch, and RecordDeserializationError, the position then stays before the record.
        """
        while self._index >= len(self._fields):
            if not self._decode_next():
                return []
        fields = self._fields[self._index : self._index + max_records]
        records: list[AnyRecord]
        if self.deserializers is None:
            head = self.tp
            tail = (self.timestamp_type,)
            records = [record_of(head + record + tail) for record in fields]
        else:
            records = self.deserializers.records(self.tp, fields, self.timestamp_type)
        self._index += len(records)
        if self._index >= len(self._fields):
            self._fields = _NO_FIELDS
            self._index = 0
            self.position = self.taken_offset = self._pending_next
        else:
            self.position = self.taken_offset = records[-1].offset + 1
        return records

    def _decode_next(self) -> bool:
        """Decode one batch; False without a batch. It may hold no record for the user."""
        if not self._chunks:
            return False
        chunk = self._chunks[0]
        position, header = chunk.batches[0]
        view = chunk.view[position : position + header.size_bytes]
        fields: list[RecordFields] = []
        try:
            if not (chunk.aborted is not None and chunk.aborted.skips(header)) and not header.is_control:
                fields = decode_fields(view, check_crc=self.check_crcs)
            elif self.check_crcs:
                # A damaged header must not hide records.
                check_batch(view)
        except ApiError as error:
            if not self.skips_damaged:
                raise
            offsets = f"offsets {header.base_offset} to {header.last_offset} of {self.tp}"
            logger.warning("%s are skipped, because they cannot be decoded: %s", offsets, error)
        chunk.batches.popleft()
        if not chunk.batches:
            self._chunks.popleft()
            self.buffered_bytes -= len(chunk.view)
            chunk.drop()
        start = self.taken_offset
        if fields and fields[0][0] < start:
            fields = [record for record in fields if record[0] >= start]
        self._fields, self._index = fields, 0
        self._pending_next = header.next_offset
        self.position_epoch = header.partition_leader_epoch
        self.timestamp_type = header.timestamp_type
        if not fields:
            self.position = self.taken_offset = header.next_offset
        else:
            self.taken_topic_id = self.topic_id
        return True
