"""The consumer's partitions: their start offsets, and the order in which they hand out records.

Partitions take turns, so that none starves. A partition is not fetched until its start is known: the request
for its committed offset is retried after every retriable error, because a reset must not replace a committed
offset. A seek of the user takes precedence. Everything here runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter, length_hint
from typing import Final

from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.measurements import ConsumerMetrics, distances
from barnabas.client.consumer.partition_state import PartitionState, Reset, reset_of
from barnabas.client.consumer_record import AnyRecord
from barnabas.client.errors import BarnabasError, NotAssigned, RecordDeserializationError, report_bug
from barnabas.client.metrics import Metrics
from barnabas.client.offsets import (
    OffsetAndMetadata,
    OffsetsOrRecords,
    Partition,
    offsets_after,
    partition_of,
)
from barnabas.client.serialization import Deserializers
from barnabas.common.backoff import Retries
from barnabas.protocol.errors import AuthenticationFailed
from barnabas.protocol.ids import NO_TOPIC_ID, TopicPartition

log = logging.getLogger(__name__)

NEVER: Final = float("inf")

Committed = dict[TopicPartition, OffsetAndMetadata | None]
FetchCommitted = Callable[[Collection[TopicPartition], int], Awaitable[Committed]]
"""Fetches committed offsets within a time limit in ms."""


def first_offsets(records: Sequence[AnyRecord]) -> dict[TopicPartition, int]:
    """The offset of the first of these records in each partition."""
    return {record.tp: int(record.offset) for record in reversed(records)}


def by_partition(records: Sequence[AnyRecord]) -> dict[TopicPartition, list[AnyRecord]]:
    lists: dict[TopicPartition, list[AnyRecord]] = {}
    for place, of_one in groupby(records, itemgetter(0, 1)):
        lists.setdefault(TopicPartition(*place), []).extend(of_one)
    return lists


@dataclass(slots=True)
class InHand:
    """The records that were handed out last and may not be processed yet: one list, or one record.

    The user's next step, or a commit, shows that records are processed.
    """

    firsts: dict[TopicPartition, int] = field(default_factory=dict)
    """The first offset of each partition in a list."""
    record: AnyRecord | None = None
    """A record that was handed out by itself."""

    def clear(self) -> None:
        self.record = None
        if self.firsts:
            self.firsts = {}

    def offsets(self) -> dict[TopicPartition, int]:
        """The offset of each partition from which records are in hand."""
        return self.firsts if self.record is None else first_offsets([self.record])

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The user commits these offsets, so the records before them are processed."""
        self.firsts = {
            tp: max(first, offsets[tp].offset) if tp in offsets else first
            for tp, first in self.offsets().items()
        }
        self.record = None


class Assignment:
    """The partitions of one consumer; ``changed`` is called when some can be fetched or have an error."""

    def __init__(
        self,
        config: ConsumerConfig,
        changed: Callable[[], None],
        deserializers: Deserializers | None = None,
    ) -> None:
        self._config = config
        self._deserializers = deserializers
        self._changed = changed
        self.states: dict[TopicPartition, PartitionState] = {}
        self.metrics = ConsumerMetrics()
        self._turns: deque[PartitionState] = deque()
        self._searches: set[asyncio.Task[None]] = set()
        """Tasks that find the start offsets of new partitions."""
        self.current: Iterator[AnyRecord] = iter(())
        """The records that `getone` and `async for` return one by one."""
        self.current_state: PartitionState | None = None
        """The partition of those records."""
        self.current_generation = 0
        self.in_hand = InHand()
        self.held_back: deque[AnyRecord] = deque()
        """Records that the blocking facade polled and did not hand out; the position is before them."""
        self.has_passed = False
        """True if the last `collect` without records moved a position: over markers, or batches to skip."""
        self.appeared: set[TopicPartition] = set()
        """Partitions that are newer than the consumer, so that a reset must not skip their first records."""
        self._failed: PartitionState | None = None
        """The partition whose error is raised next; the records of others come first and may never end."""

    # Adding and dropping partitions

    def add(self, partitions: Iterable[TopicPartition], fetch: FetchCommitted | None) -> None:
        """Read more partitions, each from the offset that ``fetch`` gets, or by `auto_offset_reset`."""
        # The generations before any seek of the user, which raises them.
        new = {(state := self._add(tp)): state.generation for tp in partitions if tp not in self.states}
        if fetch is not None and new:
            for state in new:
                state.retry_at = NEVER
            task = asyncio.get_running_loop().create_task(self._search(new, fetch))
            self._searches.add(task)
            task.add_done_callback(self._searches.discard)

    def add_at(self, partitions: Iterable[TopicPartition], starts: Committed) -> None:
        """Read more partitions, each from its committed offset, or by `auto_offset_reset`."""
        new = [self._add(tp) for tp in partitions]
        self._place({state: state.generation for state in new}, starts, None)

    def _add(self, tp: TopicPartition) -> PartitionState:
        state = PartitionState(
            tp,
            check_crcs=self._config.check_crcs,
            skips_damaged=self._config.skip_damaged_batches,
            isolation=self._config.isolation,
            deserializers=self._deserializers,
        )
        self.states[tp] = state
        state.seek(None, self._reset_of(tp))
        self._turns.append(state)
        return state

    def _reset_of(self, tp: TopicPartition) -> int | None:
        reset = reset_of(self._config)
        return Reset.EARLIEST if reset is not None and tp in self.appeared else reset

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._forget_held_back(tp)
            self._leave_current(self.states[tp])
            self.states.pop(tp).seek(None, None)
        self._turns = deque(self.states.values())

    def close(self) -> None:
        for task in self._searches:
            task.cancel()
        self._drop_current()
        self.states.clear()
        self._turns.clear()

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions that may be committed, of all partitions with a position."""
        held_back = first_offsets(self.held_back)
        consumed: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, state in self.states.items():
            if state.position is not None:
                consumed[tp] = OffsetAndMetadata(state.position, "", state.position_epoch)
                # An earlier position is kept, as in `rewind`: the topic was made again.
                if (first := held_back.get(tp, state.position)) < state.position:
                    consumed[tp] = OffsetAndMetadata(first)
        return consumed

    def snapshot(self) -> Metrics:
        """The measurements of `CONSUMER_METRICS` that are the consumer's own. Any thread."""
        # Copies, because their threads may change them meanwhile.
        states, held_back = list(self.states.values()), self.held_back.copy()
        metrics = self.metrics.snapshot(length_hint(self.current) + len(held_back))
        metrics["assigned-partitions"] = len(states)
        return metrics | distances(states, first_offsets(held_back))

    def to_commit(self, offsets: OffsetsOrRecords | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions, or the offsets that the user names; records before them are processed."""
        to_commit = positions = self.consumed()
        if offsets is not None:
            to_commit = offsets_after(offsets)
            if not isinstance(offsets, Mapping):
                # The position has the leader epoch as well.
                to_commit = {
                    tp: own if (own := positions.get(tp, offset)).offset == offset.offset else offset
                    for tp, offset in to_commit.items()
                }
        self.in_hand.committed(to_commit)
        return to_commit

    # Positions

    def states_of(self, partitions: Iterable[Partition]) -> list[PartitionState]:
        """All of them, so that nothing is changed if one is not assigned: raises NotAssigned."""
        found = []
        for tp in map(partition_of, partitions):
            if (state := self.states.get(tp)) is None:
                raise NotAssigned(f"{tp} is not assigned to this consumer")
            found.append(state)
        return found

    def seek(self, state: PartitionState, offset: int | None, reset: int | None) -> None:
        self._leave(state)
        if offset is None or not state.skip_to(offset):
            state.seek(offset, reset)
        self._changed()

    def seek_to_committed(self, starts: Committed) -> None:
        """Continue from committed offsets, or by `auto_offset_reset`."""
        states = [self.states[tp] for tp in starts if tp in self.states]
        for state in states:
            self._leave(state)
        self._place({state: state.generation for state in states}, starts, None)

    def _leave(self, state: PartitionState) -> None:
        """The user chooses another position than that of the records handed out."""
        self._forget_held_back(state.tp)
        self._leave_current(state)
        state.taken_topic_id = NO_TOPIC_ID

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from earlier offsets, as those that the blocking facade polled but did not hand out.

        A position that has changed since, by a seek or a reset, is kept unless it is later.
        """
        for tp, offset in offsets.items():
            state = self.states.get(tp)
            if state is not None and state.position is not None and offset < state.position:
                self._leave_current(state)
                state.rewind(offset)

    def first_held_back(self, tp: TopicPartition) -> int | None:
        """The offset of the first record of a partition in ``held_back``."""
        return next((int(record.offset) for record in self.held_back if record[:2] == tp), None)

    def give_back(self) -> None:
        """Rewind to the records held back."""
        records, self.held_back = self.held_back, deque()
        self.take_back(records)

    def take_back(self, records: Sequence[AnyRecord]) -> None:
        """Rewind to records that were collected and that the user did not get."""
        self.metrics.records -= len(records)
        self.rewind(first_offsets(records))
        self._changed()

    def _forget_held_back(self, tp: TopicPartition) -> None:
        if self.held_back:
            kept = deque(record for record in self.held_back if record[:2] != tp)
            self.metrics.records -= len(self.held_back) - len(kept)
            self.held_back = kept

    def put_back(self) -> None:
        self.rewind(self.in_hand.offsets())
        self.in_hand.clear()

    def pause(self, state: PartitionState) -> None:
        """Hand out no records; the current ones are refetched after the resume."""
        state.is_paused = True
        if (first := self.first_held_back(state.tp)) is not None:
            self._forget_held_back(state.tp)
            self.rewind({state.tp: first})
        if self.current_state is state:
            position = state.position
            self._drop_current()
            state.rewind(position)

    async def _search(self, generations: dict[PartitionState, int], fetch: FetchCommitted) -> None:
        offsets: Committed = {}
        failure: BarnabasError | None = None
        retries = Retries(self._config.make_retry_backoff())
        try:
            while tps := [state.tp for state, before in generations.items() if state.generation == before]:
                try:
                    offsets = await fetch(tps, self._config.default_api_timeout_ms)
                    break
                except AuthenticationFailed as refusal:
                    # A poll raises it, and the next attempt may succeed.
                    for state, before in generations.items():
                        if state.generation == before:
                            state.error = refusal
                    self._changed()
                    await asyncio.sleep(self._config.retry_backoff_ms / 1000)
                except BarnabasError as error:
                    if error.retriable:
                        log.warning("%s; retrying", error)
                    await retries.wait_after(error)
        except BarnabasError as error:
            failure = error
        except Exception as bug:  # noqa: BLE001 - the next poll raises every bug; it would wait otherwise
            failure = report_bug("finding the start offsets failed", bug)
        self._place(generations, offsets, failure)

    def _place(
        self, generations: dict[PartitionState, int], offsets: Committed, failure: BarnabasError | None
    ) -> None:
        for state, generation in generations.items():
            if state.generation != generation:
                continue
            if (start := offsets.get(state.tp)) is not None:
                state.seek(start.offset, None, start.leader_epoch)
                # Leaders of newer epochs are asked whether they have the record before it.
                state.checked_epoch = start.leader_epoch
            else:
                state.seek(None, self._reset_of(state.tp))
                state.error = failure
        self._changed()

    # Handing out records

    def collect(
        self, limit: int, *, from_one_partition: bool = False, only: Collection[TopicPartition] = ()
    ) -> list[AnyRecord]:
        """The next records, at most ``limit``, in order within a partition. Raises a partition's error.

        If ``only`` names partitions, the others keep their records and their errors.
        """
        records: list[AnyRecord] = []
        if (current := self.current_state) is not None and (not only or current.tp in only):
            records = self.finish_current()
        in_hand: dict[TopicPartition, int] = {}
        if records:
            in_hand = first_offsets(records[:1])
        if len(records) > limit:
            self._begin_current(records[limit:])
            records = records[:limit]
        elif not records:
            self._raise_overdue_error(only)
        made_room = self.has_passed = False
        for _ in range(len(self._turns)):
            if len(records) >= limit or (records and from_one_partition):
                break
            state = self._turns[0]
            self._turns.rotate(-1)
            if state.is_paused or (only and state.tp not in only):
                continue
            before, reached = state.buffered_bytes, state.taken_offset
            if isinstance(state.error, RecordDeserializationError):
                # The cause may have been a passing one, as of a schema registry.
                state.error, made_room = None, True
            try:
                while len(records) < limit and (taken := state.take(limit - len(records))):
                    in_hand.setdefault(state.tp, int(taken[0].offset))
                    records += taken
                    self.metrics.records += len(taken)
            except BarnabasError as damage:
                state.error = damage
            except BaseException:
                # Of a deserializer, as KeyboardInterrupt: the records that were taken are not lost.
                self.take_back(records)
                raise
            made_room = made_room or state.buffered_bytes < before
            self.metrics.bytes += before - state.buffered_bytes
            self.has_passed = self.has_passed or state.taken_offset > reached
            if state.error is not None and self._failed is None:
                self._failed = state
        if made_room:
            self._changed()
        if not records:
            self._raise_overdue_error(only)
        self.in_hand.firsts = in_hand
        return records

    def take_current(self) -> bool:
        """Begin to hand out one partition's next records one by one; False without records."""
        records = self.collect(self._config.max_poll_records, from_one_partition=True)
        self.in_hand.clear()
        if not records:
            return False
        self._begin_current(records)
        return True

    def _begin_current(self, records: list[AnyRecord]) -> None:
        state = self.states[records[0].tp]
        self.current, self.current_state = iter(records), state
        self.current_generation = state.generation
        state.position = records[0].offset

    def finish_current(self) -> list[AnyRecord]:
        """Stop handing out records one by one; returns the remaining ones.

        The list is empty if the partition's position has changed meanwhile, for example by a truncation.
        """
        remaining, state = list(self.current), self.current_state
        self.current, self.current_state = iter(()), None
        if state is None or state.generation != self.current_generation:
            self.metrics.records -= len(remaining)
            return []
        state.position = state.taken_offset
        return remaining

    def _drop_current(self) -> None:
        self.metrics.records -= len(self.finish_current())

    def _leave_current(self, state: PartitionState) -> None:
        if self.current_state is state:
            self._drop_current()

    def _raise_overdue_error(self, only: Collection[TopicPartition]) -> None:
        """Raise the error of a partition that failed in the last poll, if it persists."""
        state, self._failed = self._failed, None
        if state is not None and only and state.tp not in only:
            # A later poll finds it again.
            return
        if state is not None and self.states.get(state.tp) is state and state.error is not None:
            error = state.error
            if isinstance(error, AuthenticationFailed):
                # Raised once for each attempt.
                state.error = None
                self._changed()
            raise error.again()
