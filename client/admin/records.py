"""Deletes records from the start of logs (KIP-107). Belongs to the event loop of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.client.admin.base import AdminBase, raise_errors
from barnabas.client.arguments import check_mapping
from barnabas.client.ask import AnswerOfOne, ask_leaders, for_each, results_of
from barnabas.client.errors import PartitionErrors
from barnabas.client.isolation import IsolationLevel
from barnabas.client.offsets import ListedOffset, ask_for_offsets, check_offset, partition_of
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from barnabas.protocol.messages import log_offsets as wire
from barnabas.protocol.partition_entries import entries, in_topics

TO_HIGH_WATERMARK: Final = -1


class RecordAdmin(AdminBase):
    """The part of the admin client that deletes records."""

    async def delete_records(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, Offset]:
        """Delete the records before these offsets, -1 for the high watermark; returns the new log starts.

        Returns when all living replicas have moved their starts. Raises the error of the one partition, or
        PartitionErrors: OFFSET_OUT_OF_RANGE beyond the high watermark, POLICY_VIOLATION if the topic is only
        compacted, UNKNOWN_TOPIC_OR_PARTITION.
        """
        check_mapping("offsets", offsets, "partitions to offsets, such as {('orders', 0): 5}")
        before: dict[TopicPartition, int] = {}
        for partition, offset in offsets.items():
            tp = partition_of(partition)
            if offset != TO_HIGH_WATERMARK:
                check_offset(offset, f" of {tp}, or {TO_HIGH_WATERMARK}")
            before[tp] = offset
        limit_ms = self._timeout(timeout_ms)
        # Each by itself, so that one without a leader does not stop the others.
        outcomes = await for_each(before, lambda tp: self._delete(tp, before[tp], limit_ms))
        raise_errors(outcomes, len(before), PartitionErrors)
        return {tp: start for tp, start in outcomes.items() if not isinstance(start, BarnabasError)}

    async def _delete(self, tp: TopicPartition, before: int, timeout_ms: int) -> Offset | BarnabasError:
        cluster = self._open()

        async def ask_one(
            node_id: BrokerId, tps: Sequence[TopicPartition], limit_ms: int
        ) -> AnswerOfOne[Offset]:
            nonlocal before
            if before == TO_HIGH_WATERMARK:
                # Only once: a repeated request must not delete what was written meanwhile.
                latest, isolation = {tp: wire.LATEST_TIMESTAMP}, IsolationLevel.READ_UNCOMMITTED
                end = (await ask_for_offsets(cluster, node_id, latest, limit_ms, isolation))[tp]
                if not isinstance(end, ListedOffset):
                    return {tp: end}
                before = end.offset
            entry = wire.DeleteRecordsPartition(partition_index=tp.partition, offset=before)
            request = wire.DeleteRecordsRequest(
                topics=in_topics(wire.DeleteRecordsTopic, [(tp, entry)]),
                # So that the broker answers before the client gives up.
                timeout_ms=limit_ms * 9 // 10,
            )
            response = await cluster.request(node_id, request, timeout_ms=limit_ms)
            return results_of(
                cluster,
                tps,
                dict(entries(response.topics)),
                lambda tp: f"the records of {tp} before offset {before} were not deleted",
                lambda _, answer: Offset(answer.low_watermark),
            )

        try:
            return (await ask_leaders(cluster, [tp], timeout_ms, ask_one))[tp]
        except BarnabasError as error:
            return error
