"""Reads a range of offsets as raw batches, for bulk users that decode many records at once.

Guarantees: every batch with an offset of the range is handed out once and in order, through changes of
leaders; with read_committed, no batch of an aborted transaction is. No batch is decoded or copied. The next
fetch is in flight while the caller works.

It runs on its cluster's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, TypedDict

from barnabas.client.cluster import FETCH_LANE, Cluster
from barnabas.client.consumer.partition_state import (
    batches_from,
    fetch_request,
    is_throttled,
    out_of_range,
    received_records,
)
from barnabas.client.errors import LogTruncated
from barnabas.client.isolation import IsolationLevel, aborted_batches
from barnabas.client.metadata import Leader
from barnabas.protocol.errors import (
    BarnabasError,
    ErrorCode,
    RequestTimedOutLocally,
    UnknownTopicOrPartitionError,
    api_error,
)
from barnabas.protocol.frames import Frame
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.fetch import FetchPartitionResponse

log = logging.getLogger(__name__)

DEFAULT_FETCH_BYTES: Final = 8 * 1024 * 1024
DEFAULT_STALL_TIMEOUT_MS: Final = 60_000
_MAX_WAIT_MS: Final = 500
_MISSING_TOPIC_MS: Final = 10_000


class RangeOptions(TypedDict, total=False):
    """The options of `read_range`, for those that pass them on."""

    fetch_max_bytes: int
    reuse_buffers: bool
    isolation_level: str
    topic_id: TopicId


class _Piece(NamedTuple):
    """Whole batches, in runs that follow each other, and the offset after the last batch of the answer."""

    runs: list[memoryview]
    next_offset: int
    topic_id: TopicId
    frame: Frame


async def read_range(
    cluster: Cluster,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    fetch_max_bytes: int = DEFAULT_FETCH_BYTES,
    stall_timeout_ms: int = DEFAULT_STALL_TIMEOUT_MS,
    reuse_buffers: bool = False,
    isolation_level: str = "read_uncommitted",
    topic_id: TopicId = NO_TOPIC_ID,
) -> AsyncIterator[memoryview]:
    """Yield the batches from ``start_offset`` up to before ``end_offset``, several in one buffer.

    The first batch may begin before the range and the last one end after it. With ``isolation_level``
    read_committed the batches of aborted transactions are left out, and records at the last stable offset
    or after it do not arrive. A buffer stays valid as long as
    it is held or, with ``reuse_buffers``, only until the next one is requested.
    Raises OFFSET_OUT_OF_RANGE if the log lacks offsets of the range, UNKNOWN_TOPIC_OR_PARTITION if the topic
    is gone for 10 s or lacks the partition, RequestTimedOutLocally if no records arrive for
    ``stall_timeout_ms``, and LogTruncated if the topic is deleted and made again meanwhile, or since it had
    the ``topic_id``.
    """
    if not 0 <= start_offset <= end_offset:
        raise ValueError(f"range {start_offset}..{end_offset} of {tp}: expected 0 ≤ start ≤ end")
    offset, isolation = start_offset, IsolationLevel.parse(isolation_level)
    upcoming: asyncio.Task[_Piece] | None = None

    def fetch(position: int) -> asyncio.Task[_Piece]:
        return asyncio.create_task(
            _next_piece(cluster, tp, topic_id, position, fetch_max_bytes, stall_timeout_ms, isolation)
        )

    try:
        while offset < end_offset:
            piece = await (upcoming or fetch(offset))
            invariant(piece.next_offset > offset, "reading %s does not advance from offset %d", tp, offset)
            offset, topic_id = piece.next_offset, piece.topic_id
            upcoming = fetch(offset) if offset < end_offset else None
            for run in piece.runs:
                yield run
                if reuse_buffers:
                    run.release()
            if reuse_buffers:
                piece.frame.release()
    finally:
        if upcoming is not None:
            upcoming.cancel()


async def _next_piece(
    cluster: Cluster,
    tp: TopicPartition,
    read_topic_id: TopicId,
    offset: int,
    max_bytes: int,
    stall_timeout_ms: int,
    isolation_level: IsolationLevel,
) -> _Piece:
    """The batches from an offset on; retries until a batch arrives. Those before are of ``read_topic_id``."""
    cluster.watch_topics(tp.topic)
    deadline = time.monotonic() + stall_timeout_ms / 1000
    last_error: BarnabasError | None = None
    while True:
        left_ms = int((deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            raise RequestTimedOutLocally(
                f"no records of {tp} at offset {offset} arrived within {stall_timeout_ms} ms"
            ) from last_error
        leader = await _leader(cluster, tp, left_ms, has_existed=read_topic_id != NO_TOPIC_ID)
        topic_id = cluster.cache.topic_id(tp.topic)
        if NO_TOPIC_ID not in (topic_id, read_topic_id) and topic_id != read_topic_id:
            raise LogTruncated(f"{tp} was deleted and made again before offset {offset} was read", None)
        request = fetch_request(
            cluster.cache,
            {tp: (offset, leader.epoch)},
            max_bytes,
            max_wait_ms=min(_MAX_WAIT_MS, left_ms),
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level.value,
        )
        try:
            answer = await cluster.ask_leader(tp, leader, request, FETCH_LANE)
        except BarnabasError as error:
            if not error.retriable:
                raise
            last_error = error
            continue
        if answer is None:
            continue
        if is_throttled(answer.body):
            # The time of the mute is no stall.
            deadline = time.monotonic() + (answer.body.throttle_time_ms + stall_timeout_ms) / 1000
            continue
        if not answer.body.responses:
            # The request as a whole was refused.
            code = answer.body.error_code or ErrorCode.UNKNOWN_SERVER_ERROR
            raise api_error(code, f"broker {leader.node_id} did not answer for {tp}")
        response: FetchPartitionResponse = answer.body.responses[0].partitions[0]
        if response.error_code == ErrorCode.NONE:
            piece = _whole_batches(tp, topic_id, offset, response, answer.frame, isolation_level)
            if piece is not None:
                return piece
            continue
        if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise out_of_range(tp, offset, response)
        last_error = api_error(response.error_code, f"{tp} could not be read at offset {offset}")
        if not last_error.retriable:
            raise last_error
        cluster.invalidate(tp)


async def _leader(cluster: Cluster, tp: TopicPartition, timeout_ms: int, *, has_existed: bool) -> Leader:
    """The leader, waiting for one. A topic that existed and is missing for `_MISSING_TOPIC_MS` is gone."""
    if (leader := cluster.cache.leader_for(tp)) is not None:
        return leader
    if has_existed:
        try:
            await cluster.topic(tp.topic, min(timeout_ms, _MISSING_TOPIC_MS))
        except UnknownTopicOrPartitionError:
            raise
        except BarnabasError as error:
            log.debug("whether topic %r exists is unknown: %s", tp.topic, error)
    return await cluster.leader(tp, timeout_ms)


def _whole_batches(
    tp: TopicPartition,
    topic_id: TopicId,
    offset: int,
    response: FetchPartitionResponse,
    frame: Frame,
    isolation_level: IsolationLevel,
) -> _Piece | None:
    """The answer without batches before the offset, without an incomplete last batch, and those to skip."""
    view = received_records(response.records)
    if not len(view):
        return None
    batches = batches_from(tp, offset, view)
    last_position, last = batches[-1]
    end = last_position + last.size_bytes
    aborted = aborted_batches(isolation_level, response.aborted_transactions)
    runs: list[memoryview] = []
    start = batches[0][0]
    if aborted is not None:
        for position, header in batches:
            if aborted.skips(header):
                if start < position:
                    runs.append(view[start:position])
                start = position + header.size_bytes
    if start < end:
        runs.append(view[start:end])
    return _Piece(runs, last.next_offset, topic_id, frame)
