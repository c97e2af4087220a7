"""Looks at the log at some offsets: whether there are records, the sizes of their batches, or the batches.

For programs that look at many partitions: each leader gets one fetch for all its partitions.

Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from barnabas.client.admin.base import AdminBase
from barnabas.client.arguments import several
from barnabas.client.ask import AnswerOfOne, ask_leaders, results_of
from barnabas.client.cluster import FETCH_LANE, Cluster
from barnabas.client.consumer.partition_state import fetch_answers, fetch_request, received_records
from barnabas.client.isolation import AbortedBatches, IsolationLevel, TransactionEnd
from barnabas.protocol.errors import BarnabasError, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchRequest
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader, iter_batches, parse_header

R = TypeVar("R")
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


class LogBatch(NamedTuple):
    """A record batch, and the end of its transaction: None outside of transactions, and for a marker."""

    header: BatchHeader
    data: bytes
    end: TransactionEnd | None


class LogPiece(NamedTuple):
    """Whole batches that follow each other, and the bounds of the log that they are in."""

    batches: list[LogBatch]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


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

        def sizes(tp: TopicPartition, partition: FetchPartitionResponse) -> list[BatchSize]:
            return [
                BatchSize(header.base_offset, header.next_offset, header.size_bytes)
                for header in _headers(received_records(partition.records))
                if header.next_offset > offsets[tp]
            ]

        return await self._fetch(offsets, max_bytes, isolation, timeout_ms, sizes)

    async def read_log(
        self, offsets: Mapping[TopicPartition, int], *, max_bytes: int, timeout_ms: int | None = None
    ) -> dict[TopicPartition, LogPiece]:
        """The batches from these offsets on up to the high watermark, with the ends of their transactions.

        Of each partition about ``max_bytes``. A partition has no batch at its end, or if the batches of
        others filled the answer: those that come first have precedence. Raises OFFSET_OUT_OF_RANGE.
        """
        committed, written = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        pieces: dict[TopicPartition, LogPiece] = {}
        left, isolation = dict(offsets), committed
        while left:
            # Only answers for committed readers list the aborted transactions, and they end at the LSO.
            taken = partial(_piece, left, isolation)
            pieces |= await self._fetch(left, max_bytes, isolation, timeout_ms, taken)
            is_at_lso = isolation is committed
            left = {
                tp: offset
                for tp, offset in left.items()
                if not pieces[tp].batches
                and offset < pieces[tp].high_watermark
                and (offset >= pieces[tp].last_stable_offset) is is_at_lso
            }
            isolation = written if is_at_lso else committed
        return {tp: pieces[tp] for tp in offsets}

    async def _fetch(
        self,
        offsets: Mapping[TopicPartition, int],
        max_bytes: int,
        isolation: IsolationLevel,
        timeout_ms: int | None,
        result: Callable[[TopicPartition, FetchPartitionResponse], R],
    ) -> dict[TopicPartition, R]:
        """The value that ``result`` returns for each partition; it must not keep views of the records."""
        cluster = self._open()

        async def ask_one(node_id: BrokerId, tps: Sequence[TopicPartition], limit_ms: int) -> AnswerOfOne[R]:
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
                    result,
                )
            finally:
                answer.frame.release()

        return await ask_leaders(cluster, offsets.keys(), self._timeout(timeout_ms), ask_one)


def _piece(
    offsets: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
    tp: TopicPartition,
    answer: FetchPartitionResponse,
) -> LogPiece:
    """The batches of an answer, copied."""
    view, offset = received_records(answer.records), offsets[tp]
    aborted = AbortedBatches(answer.aborted_transactions or ())
    is_committed = isolation is IsolationLevel.READ_COMMITTED
    batches: list[LogBatch] = []
    # An answer for all readers does not list the aborted transactions, so what lies below the LSO by now
    # has to be read again.
    if is_committed or answer.last_stable_offset <= offset:
        for position, header in iter_batches(view):
            # The rule sees every batch of the answer, because one begins or ends a transaction.
            is_aborted = aborted.skips(header)
            if header.next_offset > offset:
                data = bytes(view[position : position + header.size_bytes])
                batches.append(LogBatch(header, data, _end_of(header, is_committed, is_aborted)))
    return LogPiece(batches, answer.log_start_offset, answer.last_stable_offset, answer.high_watermark)


def _end_of(header: BatchHeader, is_committed: bool, is_aborted: bool) -> TransactionEnd | None:
    if header.is_control or not header.is_transactional:
        return None
    if not is_committed:
        return TransactionEnd.UNKNOWN
    return TransactionEnd.ABORTED if is_aborted else TransactionEnd.COMMITTED


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
