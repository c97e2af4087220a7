"""The part of a topic that a query is about: for each partition the offsets, as the cluster has them now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.peek import LogPiece
from barnabas.client.metadata import TopicInfo
from barnabas.common.texts import count
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.ui.message_query import Place, Query, Where
from barnabas.ui.message_scan import Read

TIMEOUT_MS: Final = 5_000
"""Of each request, so that a partition without a leader is an error and not a wait."""
_PAUSES: Final = 50
_PAUSE_S: Final = 0.1

Offsets = dict[TopicPartition, int]


@dataclass
class Range:
    """low ≤ high in each partition; `unread` names the others, `notes` other differences."""

    topic: TopicInfo
    low: Offsets
    high: Offsets
    log_start: Offsets
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reader(admin: Admin, ends: Mapping[TopicPartition, int] | None = None) -> Read:
    """`ends`: the high watermarks that were known, of which reads expect the records before them.

    A new leader learns its high watermark from its followers. Until then it has no records there, and for
    ever if the log was truncated: a read then raises OFFSET_NOT_AVAILABLE after five seconds.
    """
    known = ends or {}

    async def read(starts: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, LogPiece]:
        for left in range(_PAUSES, -1, -1):
            pieces = await admin.read_log(starts, max_bytes=max_bytes, timeout_ms=TIMEOUT_MS)
            short = [tp for tp, at in starts.items() if pieces[tp].high_watermark <= at < known.get(tp, 0)]
            if not short:
                return pieces
            if left:
                await asyncio.sleep(_PAUSE_S)
        tp = short[0]
        text = f"{tp} ended before offset {known[tp]:,}, now before {pieces[tp].high_watermark:,}"
        raise api_error(ErrorCode.OFFSET_NOT_AVAILABLE, text)

    return read


async def find_range(admin: Admin, query: Query) -> Range:
    """Raises BarnabasError, and ValueError for a partition that the topic does not have."""
    topic = (await admin.describe_topics(query.topic))[query.topic]
    numbers = [info.partition for info in topic.partitions]
    if query.partition is not None and query.partition not in numbers:
        has = count(len(numbers), "partition")
        raise ValueError(f"partition {query.partition}: topic {query.topic} has {has}, from 0 on")
    chosen = [info for info in topic.partitions if query.partition in (None, info.partition)]
    unread = [
        f"Partition {info.partition} has no leader; its records cannot be read now."
        for info in chosen
        if info.leader < 0
    ]
    tps = [TopicPartition(query.topic, info.partition) for info in chosen if info.leader >= 0]
    log_start = await _listed(admin, dict.fromkeys(tps, "earliest"))
    log_end = await _listed(admin, dict.fromkeys(tps, "latest"))
    result = Range(topic, {}, {}, log_start, unread)
    result.high = await _offsets(admin, query.end, result, log_end)
    if query.start.is_backward:
        result.low = dict(log_start)
        if query.start.where is Where.BEFORE:
            result.high = await _offsets(admin, query.start, result, result.high)
    else:
        result.low = await _offsets(admin, query.start, result, result.high)
    return result


async def _listed(admin: Admin, specs: Mapping[TopicPartition, str | int]) -> Offsets:
    if not specs:
        return {}
    listed = await admin.list_offsets(dict(specs), timeout_ms=TIMEOUT_MS)
    return {tp: int(each.offset) for tp, each in listed.items()}


async def _offsets(admin: Admin, place: Place, found: Range, ends: Offsets) -> Offsets:
    """The offset of a place in each partition, between the start of the log and these ends."""
    starts = found.log_start
    if place.where is Where.LATEST:
        return dict(ends)
    if place.where is Where.EARLIEST:
        return {tp: min(starts[tp], end) for tp, end in ends.items()}
    if place.where is Where.TIME:
        listed = await _listed(admin, dict.fromkeys(ends, place.number))
        return {tp: end if listed[tp] < 0 else min(listed[tp], end) for tp, end in ends.items()}
    if place.where is Where.OFFSET:
        for tp, end in ends.items():
            if not starts[tp] <= place.number <= end and len(found.notes) < 5:
                bounds = f"partition {tp.partition} has offsets {starts[tp]:,} to before {end:,}"
                found.notes.append(f"Offset {place.number:,} is outside of the range: {bounds}.")
        return {tp: min(max(place.number, starts[tp]), end) for tp, end in ends.items()}
    # A partition that a link does not name is not read.
    named = place.offsets or {}
    default = starts if place.where is Where.BEFORE else ends
    return {tp: min(max(named.get(tp.partition, default[tp]), starts[tp]), end) for tp, end in ends.items()}
