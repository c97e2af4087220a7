"""The demo's copy: consume, transform, produce, exactly once, while a broker dies and returns.

One process reads the departures and writes them to another topic. Each transaction has the copies of some
records and the offsets up to which they were read, so both are committed or both are aborted. When a
transaction fails, the reader goes back to the committed offsets and copies the records again.

On the demo's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.cli.demo.screen import Update
from barnabas.cli.demo.traffic import KILL_AT, RESTART_AT, Failover
from barnabas.cli.exit_codes import CommandError
from barnabas.client import Consumer, ConsumerRecord, Producer
from barnabas.client.errors import TransactionAbortable
from barnabas.protocol.ids import TopicPartition

_RECORDS_OF_TRANSACTION: Final = 2_000
_STALL_S: Final = 30.0


@dataclass
class Copied:
    """The outcome: committed records and transactions, and the transactions that were aborted."""

    records: int = 0
    transactions: int = 0
    aborted: int = 0
    seconds: float = 0.0


class Copy:
    """``group`` keeps the offsets; ``failover`` begins half way."""

    def __init__(self, bootstrap: str, source: str, target: str, group: str, failover: Failover) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._target = target
        self._group = group
        self._failover = failover
        self.copied = Copied()

    async def run(self, partitions: Iterable[int], total: int, show_progress: Update) -> Copied:
        """Copy ``total`` records. Raises CommandError if no more records arrive before the end."""
        assigned = [TopicPartition(self._source, partition) for partition in partitions]
        started = last_seen = time.monotonic()
        async with (
            Consumer(
                bootstrap_servers=self._bootstrap,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
            Producer(bootstrap_servers=self._bootstrap, transactional_id=self._group) as producer,
        ):
            consumer.assign(assigned)
            while self.copied.records < total:
                records = await consumer.poll(max_records=_RECORDS_OF_TRANSACTION)
                if records:
                    last_seen = time.monotonic()
                    if not await self._copy(producer, records):
                        await _rewind(consumer, assigned)
                    self._steer_failover(total)
                    show_progress(self.copied.records)
                elif time.monotonic() - last_seen > _STALL_S:
                    raise CommandError(f"no records came for {_STALL_S:.0f} s from {self._source}")
            self.copied.seconds = time.monotonic() - started
            await self._failover.finish()
        return self.copied

    async def _copy(self, producer: Producer, records: list[ConsumerRecord]) -> bool:
        """Copy records in one transaction; False if it was aborted."""
        offsets = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        try:
            async with producer.transaction():
                for record in records:
                    await producer.send(self._target, record.value, record.key, partition=record.partition)
                await producer.send_offsets_to_transaction(offsets, self._group)
        except TransactionAbortable:
            self.copied.aborted += 1
            return False
        self.copied.records += len(records)
        self.copied.transactions += 1
        for tp in offsets:
            self._failover.note_acknowledged(tp.partition)
        return True

    def _steer_failover(self, total: int) -> None:
        if self.copied.records >= total * KILL_AT:
            self._failover.kill()
        if self.copied.records >= total * RESTART_AT:
            self._failover.restart()


async def _rewind(consumer: Consumer, assigned: list[TopicPartition]) -> None:
    """Continue from the committed offsets."""
    for tp, committed in (await consumer.committed(assigned)).items():
        consumer.seek(tp, 0 if committed is None else committed.offset)
