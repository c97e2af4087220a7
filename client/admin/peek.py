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
from barnabas.client.ask import AnswerOfOne, ask_leaders, results_of
from barnabas.client.cluster import FETCH_LANE, Cluster
from barnabas.client.consumer.partition_state import fetch_answers, fetch_request, received_records
from barnabas.client.isolation import IsolationLevel
from barnabas.protocol.errors import BarnabasError, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.fetch import FetchRequest
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
            leader = cluster.cache.leader_for(tp)
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
                    _request(cluster, own, 1, isolation, max_wait_ms=timeout_ms, max_bytes=1),
                    timeout_ms=limit_ms,
                    lane=PEEK_LANE,
                )
            )
            for node_id, own in by_leader.items()
        ]
        try:
            for upcoming in asyncio.as_completed(fetches):
                answer = await upcoming
                partitions = [each for topic in answer.body.responses for each in topic.partitions]
                has_records = any(len(received_records(each.records)) for each in partitions)
                answer.frame.release()
                if has_records:
                    return True
                for each in (answer.body, *partitions):
                    raise_for(each.error_code, "a fetch that waits for records was refused")
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
            request = _request(cluster, own, max_bytes, isolation, max_wait_ms=0, max_bytes=_MAX_ANSWER_BYTES)
            answer = await cluster.request_frame(node_id, request, timeout_ms=limit_ms, lane=FETCH_LANE)
            try:
                raise_for(answer.body.error_code, f"a fetch from broker {node_id} was refused")
                return results_of(
                    cluster,
                    tps,
                    fetch_answers(cluster.cache, answer.body),
                    lambda tp: f"{tp} could not be read at offset {offsets[tp]}",
                    lambda tp, partition: [
                        BatchSize(header.base_offset, header.next_offset, header.size_bytes)
                        for header in _headers(received_records(partition.records))
                        if header.next_offset > offsets[tp]
                    ],
                )
            finally:
                answer.frame.release()

        return await ask_leaders(cluster, offsets.keys(), self._timeout(timeout_ms), ask_one)


def _request(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    partition_max_bytes: int,
    isolation: IsolationLevel,
    **limits: int,
) -> FetchRequest:
    starts = {tp: (offset, cluster.cache.leader_epoch(tp)) for tp, offset in offsets.items()}
    options = {"min_bytes": 1, "isolation_level": isolation.value, **limits}
    return fetch_request(cluster.cache, starts, partition_max_bytes, **options)


def _headers(records: memoryview) -> Iterator[BatchHeader]:
    """Of all batches, also of an incomplete last one if its header is there."""
    end = 0
    for position, header in iter_batches(records):
        end = position + header.size_bytes
        yield header
    if len(records) - end >= HEADER_BYTES:
        yield parse_header(records, end)
