"""What lies at some offsets, without the records: whether there are any, and the sizes of their batches.

For programs that plan reads of many partitions: each leader gets one fetch for all its partitions.

Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.client.admin.base import AdminBase
from barnabas.client.arguments import several
from barnabas.client.ask import AnswerOfOne, ask_leaders
from barnabas.client.cluster import FETCH_LANE, Cluster
from barnabas.client.consumer.partition_state import received_records
from barnabas.client.isolation import IsolationLevel
from barnabas.common.channel import Answer
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader, iter_batches, parse_header

log = logging.getLogger(__name__)

PEEK_LANE: Final = "peek"
"""Waiting fetches have a connection of their own, since other fetches would wait behind them."""
_LONGEST_PAUSE_S: Final = 0.1
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024


class BatchSize(NamedTuple):
    """A record batch in the log: its offsets from ``base_offset`` up to before ``next_offset``, its bytes."""

    base_offset: int
    next_offset: int
    size_bytes: int


class PeekAdmin(AdminBase):
    """The part of the admin client that looks at logs."""

    async def watch_topics(self, topics: Iterable[str] | str) -> None:
        """Keep the leaders of these topics from now on, and of no others.

        Calls about them then need no request for metadata.
        """
        self._open().watch_only(*several("topics", topics, str))

    async def wait_for_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        timeout_ms: int,
        isolation_level: str = "read_uncommitted",
    ) -> bool | None:
        """Wait until a partition has a record at its offset or after it; False after the timeout.

        The topics must be watched. None, after a pause, if a leader is unknown, does not answer or refuses.
        """
        cluster, isolation = self._open(), IsolationLevel.parse(isolation_level)
        pause_s = min(_LONGEST_PAUSE_S, timeout_ms / 1000)
        by_leader: dict[BrokerId, dict[TopicPartition, int]] = {}
        for tp, offset in offsets.items():
            leader = cluster.leader_for(tp)
            if leader is None:
                cluster.request_refresh()
                await asyncio.sleep(pause_s)
                return None
            by_leader.setdefault(leader.node_id, {})[tp] = offset
        if not by_leader:
            await asyncio.sleep(timeout_ms / 1000)
            return False
        limit_ms = timeout_ms + cluster.config.request_timeout_ms
        fetches = [
            asyncio.create_task(
                cluster.request_frame(
                    node_id,
                    _request(cluster, own, timeout_ms, 1, 1, isolation),
                    timeout_ms=limit_ms,
                    lane=PEEK_LANE,
                )
            )
            for node_id, own in by_leader.items()
        ]
        try:
            for upcoming in asyncio.as_completed(fetches):
                answer = await upcoming
                has_records, code = _news(answer)
                answer.frame.release()
                if has_records:
                    return True
                if code != ErrorCode.NONE:
                    raise api_error(code, "a fetch that waits for records was refused")
        except BarnabasError as error:
            log.debug("waiting for records ended: %s", error)
            for tp in offsets:
                cluster.invalidate(tp)
            await asyncio.sleep(pause_s)
            return None
        finally:
            for fetch in fetches:
                fetch.cancel()
        return False

    async def batch_sizes(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, list[BatchSize]]:
        """The batches from these offsets on, up to about ``max_bytes`` of each partition.

        The last one may be longer. A partition has none at its end, or if the batches of others filled the
        answer. Raises OFFSET_OUT_OF_RANGE.
        """
        isolation = IsolationLevel.parse(isolation_level)
        cluster = self._open()

        async def ask_one(
            node_id: BrokerId, tps: Sequence[TopicPartition], limit_ms: int
        ) -> AnswerOfOne[list[BatchSize]]:
            own = {tp: offsets[tp] for tp in tps}
            request = _request(cluster, own, 0, max_bytes, _MAX_ANSWER_BYTES, isolation)
            answer = await cluster.request_frame(node_id, request, timeout_ms=limit_ms, lane=FETCH_LANE)
            try:
                return dict(_sizes(cluster, tps, offsets, answer))
            finally:
                answer.frame.release()

        return await ask_leaders(cluster, offsets.keys(), self._timeout(timeout_ms), ask_one)


def _request(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    wait_ms: int,
    partition_max_bytes: int,
    max_bytes: int,
    isolation: IsolationLevel,
) -> FetchRequest:
    partitions = {
        tp: FetchPartition(
            partition=tp.partition,
            current_leader_epoch=leader.epoch if (leader := cluster.leader_for(tp)) is not None else -1,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
        )
        for tp, offset in offsets.items()
    }
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation.value,
        topics=[
            FetchTopic(topic=topic, topic_id=cluster.cache.topic_id(topic), partitions=own)
            for topic, own in by_topic(partitions.items()).items()
        ],
    )


def _news(answer: Answer) -> tuple[bool, int]:
    """Whether the answer has records, and its first error."""
    partitions = [partition for topic in answer.body.responses for partition in topic.partitions]
    codes = [answer.body.error_code, *(partition.error_code for partition in partitions)]
    has_records = any(len(received_records(partition.records)) for partition in partitions)
    return has_records, next((code for code in codes if code), ErrorCode.NONE)


def _sizes(
    cluster: Cluster, tps: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int], answer: Answer
) -> Iterator[tuple[TopicPartition, list[BatchSize] | BarnabasError]]:
    names = {cluster.cache.topic_id(tp.topic): tp.topic for tp in tps}
    answers = {
        TopicPartition(topic.topic or names.get(topic.topic_id, ""), partition.partition_index): partition
        for topic in answer.body.responses
        for partition in topic.partitions
    }
    for tp in tps:
        partition = answers.get(tp)
        code = answer.body.error_code or ErrorCode.UNKNOWN_SERVER_ERROR
        if partition is not None:
            code = partition.error_code
        if partition is None or code != ErrorCode.NONE:
            error = api_error(code, f"{tp} could not be read at offset {offsets[tp]}")
            if error.retriable:
                cluster.invalidate(tp)
            yield tp, error
            continue
        yield (
            tp,
            [
                BatchSize(header.base_offset, header.next_offset, header.size_bytes)
                for header in _headers(received_records(partition.records))
                if header.next_offset > offsets[tp]
            ],
        )


def _headers(records: memoryview) -> Iterator[BatchHeader]:
    """Of all batches, also of an incomplete last one if its header is there."""
    end = 0
    for position, header in iter_batches(records):
        end = position + header.size_bytes
        yield header
    if len(records) - end >= HEADER_BYTES:
        yield parse_header(records, end)
