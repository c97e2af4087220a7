"""The end of each micro-batch: what the cluster has now, what the limits allow, and what was lost.

Guarantees: a record is in exactly one batch, unless it is lost; a loss is an error that says its kind, or
with `failOnDataLoss` false a warning; and a batch that is planned again has the same offsets. A look at the
cluster is one request for ends to each leader; topics and log starts are looked at about once a second.

It lives in the process that Spark runs for the query, is used by one thread, and keeps one view open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from barnabas.protocol.errors import BarnabasError, ErrorCode, UnknownTopicOrPartitionError, api_error
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.spark_connector.option_kinds import EARLIEST
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.source.batch_reader import find_partitions, start_offsets
from barnabas.spark_connector.source.log_view import LogView, Topic
from barnabas.spark_connector.source.ranges import OffsetRange, offset_within
from barnabas.spark_connector.source.stream_limits import ByteWalk, available, share_offsets
from barnabas.spark_connector.source.stream_offsets import (
    Positions,
    StreamOffset,
    changes_since,
    ranges_between,
    without_start,
)

logger = logging.getLogger(__name__)

IDLE_WAIT_MS: Final = 500
_SOON_S: Final = 0.1
"""Spark polls an idle query at once. After a longer pause the query is not idle, or has an interval."""
_HELD_BACK_WAIT_S: Final = 0.1
_LOOK_EVERY_S: Final = 1.0
_LOOK_SHARE: Final = 0.01
"""The most time that looks at topics may take, since a pattern asks for all topics of a cluster."""
_SECOND_LOOKS: Final = 10
_SECOND_LOOK_S: Final = 0.2
"""A broker that has just started may not know a topic or the whole of its log: a loss is seen twice."""


class StreamPlanner:
    """Plans the batches of one query."""

    def __init__(
        self,
        options: SourceOptions,
        view: LogView,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._view = view
        self._clock = clock
        self._sleep = sleep
        self._known: Mapping[str, Topic] = {}
        self._partitions: Sequence[TopicPartition] = ()
        self._has_looked = False
        self._look_due = float("-inf")
        self._log_starts: Positions = {}
        self._log_starts_due = float("-inf")
        self._initial: StreamOffset | None = None
        self._is_available_now = False
        self._target: dict[TopicPartition, int] | None = None
        """The ends at the start of a query with Trigger.AvailableNow."""
        self._last_batch: float | None = None
        self._idle_at: tuple[StreamOffset, Positions] | None = None
        """The start that had nothing to read, and the ends of the log then."""
        self._idle_since = float("-inf")
        self._is_held_back = False
        self.newest: StreamOffset | None = None
        """The ends of the log at the last look."""

    def initial(self) -> StreamOffset:
        """Where a new query begins, resolved once. Raises as a batch read with these options."""
        if self._initial is None:
            self._look()
            options, partitions = self._options, self._partitions
            lows = self._view.log_start_offsets(partitions)
            starts = start_offsets(options, self._view, partitions)
            highs = self._view.end_offsets(partitions)
            option = options.start.option
            positions = {
                tp: offset_within(option, tp, start, lows[tp], highs[tp], options)
                if (start := starts[tp]) >= 0
                else (lows[tp] if start == EARLIEST else highs[tp])
                for tp in partitions
            }
            self._initial = StreamOffset(positions, self._topic_ids())
        return self._initial

    def fix_end(self) -> None:
        """Read up to the ends that the next look finds and no further: for Trigger.AvailableNow."""
        self._is_available_now = True

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """The end of the batch that begins at `start`, which is `start` itself if there is nothing to read.

        If the last call found nothing and was just now, wait a little for records.
        Raises OFFSET_OUT_OF_RANGE for lost records if `failOnDataLoss` is true.
        """
        was_idle = self._idle_at
        is_idle = was_idle is not None and was_idle[0] == start
        is_soon = self._clock() - self._idle_since < _SOON_S
        if was_idle is not None and is_idle and is_soon and not self._wait(*was_idle):
            self._idle_since = self._clock()
            return start
        end = self._latest(start, limited=limited)
        if end == start:
            self._idle_since = self._clock()
        else:
            self._idle_at = None
            self._last_batch = self._clock()
        return end

    def _wait(self, start: StreamOffset, ends: Positions) -> bool:
        """Wait for more records than up to `ends`; False if there is no reason to ask for the ends."""
        if self._is_available_now:
            return True
        if self._is_held_back:
            self._sleep(_HELD_BACK_WAIT_S)
            return True
        arrived = self._view.wait_for_records(ends, IDLE_WAIT_MS)
        if arrived is None:
            self._look_due = self._log_starts_due = float("-inf")
        if arrived is not False:
            return True
        before = self._partitions, self._topic_ids()
        if self._clock() >= self._look_due:
            self._look(start)
        return (self._partitions, self._topic_ids()) != before

    def _latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset:
        begin, ends = self._positions(start)
        topic_ids = self._topic_ids()
        self.newest = StreamOffset(ends, topic_ids)
        first_ever = start == self._initial
        starts = {
            tp: offset
            for tp, offset in begin.items()
            if first_ever
            or offset != start.positions.get(tp)
            or start.topic_ids.get(tp.topic, topic_ids[tp.topic]) != topic_ids[tp.topic]
        }
        self._idle_at = (start, ends)
        self._is_held_back = False
        is_as_before = begin == start.positions and (first_ever or not starts)
        if available(begin, ends) == 0 and is_as_before:
            return start
        if limited:
            if self._holds_back(available(begin, ends)):
                self._is_held_back = True
                return start
            ends = self._limited(begin, ends)
        return StreamOffset(ends, topic_ids, starts)

    def _holds_back(self, count: int) -> bool:
        """Whether a batch waits for more than ``count`` records, as in Spark's Kafka source."""
        least = self._options.min_offsets_per_trigger
        # The first batch does not wait; with AvailableNow nothing more would come.
        if least is None or self._last_batch is None or self._is_available_now:
            return False
        since_last_ms = 1000 * (self._clock() - self._last_batch)
        return count < least and since_last_ms < self._options.max_trigger_delay_ms

    def _limited(self, begin: Positions, ends: Positions) -> Positions:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            ends = share_offsets(options.max_offsets_per_trigger, begin, ends)
        if options.max_bytes_per_trigger is not None:
            walk = ByteWalk(options.max_bytes_per_trigger, begin, ends)
            while not walk.is_done:
                walk.found(self._view.batch_sizes(walk.positions, walk.piece_bytes))
            ends = walk.ends
        return ends

    def _positions(self, start: StreamOffset) -> tuple[Positions, Positions]:
        """Where to read from and the ends of the log, of the same partitions, after what was lost."""
        if self._clock() >= self._look_due:
            self._look(start)
        try:
            ends = self._ends()
        except UnknownTopicOrPartitionError:
            # A topic was deleted since the last look.
            self._look(start)
            ends = self._ends()
        changes = changes_since(start, self._partitions, self._topic_ids())
        for topic in changes.made_again:
            self._lose(
                f"topic {topic!r} was deleted and made again since the query read it, so the offsets of the "
                "checkpoint are not those of its records",
                "continuing at the start of the new topic",
            )
            ends |= self._ends_again([tp for tp in ends if tp.topic == topic])
        if changes.gone:
            self._lose(
                f"{', '.join(map(str, changes.gone))}: the checkpoint has offsets for partitions that are "
                "not read any more; their topics were deleted, or the options name others",
                "continuing without them",
            )
        begin = {tp: start.positions[tp] for tp in ends if tp not in changes.added}
        if changes.added:
            added = [tp for tp in changes.added if tp in ends]
            begin |= self._view.log_start_offsets(added)
            for tp in added:
                if begin[tp] > 0 and tp.topic not in changes.made_again:
                    self._lose(
                        f"{tp} was added since the last batch and starts at {begin[tp]}, not at 0",
                        "continuing there",
                    )
        self._find_losses(begin, ends)
        return begin, ends

    def _find_losses(self, begin: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Move the positions that the logs do not have any more; look again at ends before them."""
        behind = [tp for tp in begin if ends[tp] < begin[tp]]
        for _ in range(_SECOND_LOOKS):
            if not behind:
                break
            self._sleep(_SECOND_LOOK_S)
            ends |= self._ends_again(behind)
            behind = [tp for tp in behind if ends[tp] < begin[tp]]
        for tp in behind:
            self._lose(
                f"{tp} ends at {ends[tp]}, before offset {begin[tp]} of the checkpoint: its log was "
                "truncated by an unclean election, or its topic was made again",
                f"continuing at {ends[tp]}",
            )
            begin[tp] = ends[tp]
        unread = [tp for tp in begin if begin[tp] < ends[tp]]
        if unread and (self._clock() >= self._log_starts_due or not self._log_starts.keys() >= set(unread)):
            self._log_starts = self._view.log_start_offsets(unread)
            self._log_starts_due = self._clock() + _LOOK_EVERY_S
        for tp in unread:
            if (low := self._log_starts[tp]) > begin[tp]:
                self._lose(
                    f"{tp} no longer holds offset {begin[tp]}: retention or a deletion of records took "
                    f"{low - begin[tp]} offsets up to {low}",
                    f"continuing at {low}",
                )
                begin[tp] = low
                ends[tp] = max(low, ends[tp])

    def _lose(self, loss: str, remedy: str) -> None:
        if self._options.fail_on_data_loss:
            raise api_error(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{loss}. To go on all the same, {remedy}, set the option failOnDataLoss to false",
            )
        logger.warning("%s; %s", loss, remedy)

    def _ends(self) -> dict[TopicPartition, int]:
        """The ends now, or for Trigger.AvailableNow when the query began."""
        if not self._is_available_now:
            return self._view.end_offsets(self._partitions)
        if self._target is None:
            self._target = self._view.end_offsets(self._partitions)
        return {tp: self._target[tp] for tp in self._partitions if tp in self._target}

    def _ends_again(self, partitions: Iterable[TopicPartition]) -> Positions:
        """The ends now, also for Trigger.AvailableNow, whose ends of these partitions do not hold."""
        ends = self._view.end_offsets(partitions)
        if self._target is not None:
            self._target |= ends
        return ends

    def _look(self, start: StreamOffset | None = None) -> None:
        """Look at the topics and their partitions.

        A topic that does not exist is an error in a new query. One that `start` has is looked for again, and
        then left out.
        """
        began = self._clock()
        looks_left = _SECOND_LOOKS
        while True:
            try:
                known, partitions = find_partitions(self._options, self._view, warns=not self._has_looked)
            except BarnabasError as error:
                is_missing = isinstance(error, UnknownTopicOrPartitionError)
                if self._partitions and error.retriable and not is_missing:
                    logger.warning("the topics could not be looked at: %s", error)
                    return
                if start is None or not start.positions or not is_missing:
                    raise
                known, partitions = self._existing()
            if start is None or looks_left == 0 or start.positions.keys() <= set(partitions):
                break
            looks_left -= 1
            self._sleep(_SECOND_LOOK_S)
        if self._is_available_now and self._partitions:
            # Partitions that appear meanwhile are for the next run.
            partitions = [tp for tp in partitions if tp in set(self._partitions)]
        topics = {tp.topic for tp in partitions}
        if topics != {tp.topic for tp in self._partitions}:
            self._view.watch(sorted(topics))
        self._known, self._partitions, self._has_looked = known, partitions, True
        self._look_due = self._clock() + max(_LOOK_EVERY_S, (self._clock() - began) / _LOOK_SHARE)

    def _existing(self) -> tuple[dict[str, Topic], list[TopicPartition]]:
        """As `find_partitions`, without the topics and partitions that do not exist."""
        options = self._options
        known: dict[str, Topic] = {}
        for name in options.topics or {tp.topic: None for tp in options.partitions or ()}:
            with suppress(UnknownTopicOrPartitionError):
                known |= self._view.topics([name])
        present = [TopicPartition(name, index) for name, topic in known.items() for index in topic.partitions]
        if options.partitions is not None:
            present = [tp for tp in present if tp in options.partitions]
        return known, sorted(present)

    def _topic_ids(self) -> dict[str, TopicId]:
        return {tp.topic: self._known[tp.topic].topic_id for tp in self._partitions}

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The ranges of the batch between two offsets, planned for the first time or again."""
        missing = without_start(start, end)
        earliest = self._view.log_start_offsets(missing) if missing else {}
        for tp, offset in earliest.items():
            if offset > 0:
                self._lose(f"{tp} has no offset in the checkpoint and starts at {offset}", "beginning there")
        ranges, reversed_ranges = ranges_between(start, end, earliest)
        # A new query resolves its start again if it stops in the first batch, which then has its own starts,
        # or was empty.
        if start != self._initial:
            for part in reversed_ranges:
                self._lose(
                    f"the checkpoint begins a batch of {part.topic}-{part.partition} at {part.start_offset} "
                    f"and ends it at {part.end_offset}",
                    "reading nothing",
                )
        return ranges
