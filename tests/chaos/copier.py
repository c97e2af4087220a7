"""A transactional copier in its own process, to be killed and stopped: it copies an input topic to an output.

``python copier.py BOOTSTRAP GROUP INPUT OUTPUT PARTITIONS TRANSACTIONAL_ID WIRE``. It reads committed records
as a member of the group, and commits their offsets in the transaction that has their copies. A copy names
its record of the input, and the attempt. JSON objects on standard output: an attempt before its first record
is sent, and its outcome as soon as it is known. It ends when its standard input is closed, or another
producer has fenced it. It runs with an earlier client too, and calls what both have. Not a test.
"""

import asyncio
import json
import os
import random
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.client import Consumer, ConsumerRecord, Producer
from barnabas.client.errors import ProducerFenced, TransactionOutcomeUnknown
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

SESSION_TIMEOUT_MS: Final = 3_000
TRANSACTION_TIMEOUT_MS: Final = 6_000
FENCED: Final = 3
"""The exit code of a copier that was fenced."""
HUNG: Final = 4
"""The exit code of a copier of librdkafka in a call that does not return."""
_ABORTS: Final = 0.1


class ChangeOfMind(Exception):
    """The copier aborts a transaction for no reason."""


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def read_clients(word: str) -> dict[str, str]:
    """The settings of clients: a file with them, or the bootstrap servers alone."""
    if not word.endswith(".json"):
        return {"bootstrap_servers": word}
    settings: dict[str, str] = json.loads(Path(word).read_text())
    return settings


class Copier:
    """One copier; it starts again with another consumer and producer after an error that it cannot undo."""

    def __init__(self, words: Sequence[str]) -> None:
        clients, self.group, self.source, self.target, partitions, self.id, self.wire = words
        self.clients = read_clients(clients)
        self.partitions = int(partitions)
        self.is_over = False
        self._name = f"{self.id}.{uuid.uuid4().hex[:8]}"
        self._attempts = 0
        self._chance = random.Random(self._name)

    async def run(self) -> None:
        while not self.is_over:
            try:
                async with (
                    Producer(
                        **self.clients,
                        wire=self.wire,
                        transactional_id=self.id,
                        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                        request_timeout_ms=2_000,
                        delivery_timeout_ms=10_000,
                        max_block_ms=10_000,
                        retry_backoff_ms=20,
                    ) as producer,
                    Consumer(
                        **self.clients,
                        wire=self.wire,
                        group_id=self.group,
                        isolation_level="read_committed",
                        enable_auto_commit=False,
                        auto_offset_reset="earliest",
                        session_timeout_ms=SESSION_TIMEOUT_MS,
                        heartbeat_interval_ms=300,
                        request_timeout_ms=2_000,
                    ) as consumer,
                ):
                    consumer.subscribe([self.source])
                    while not self.is_over:
                        # Not one size for a whole life: in the end one copier may have most of the work.
                        most = self._chance.choice((1, 10, 100))
                        if records := await consumer.poll(100, most):
                            await self.copy(producer, consumer, records)
            except ProducerFenced:
                raise
            except BarnabasError as error:
                print(f"{self._name} starts again: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.05)

    async def copy(self, producer: Producer, consumer: Consumer, records: list[ConsumerRecord]) -> None:
        """Copy records in one transaction; after an abort return to the committed offsets."""
        # Before the transaction: offsets of a later generation would be those of another owner.
        member = consumer.group_metadata()
        self._attempts += 1
        name = f"{self._name}.{self._attempts}"
        say(attempt=name, places=[(record.partition, record.offset) for record in records])
        try:
            await producer.begin_transaction()
            for record in records:
                number = int(record.key or b"0") // 2 % self.partitions
                value = b"%d %d %s %s" % (record.partition, record.offset, name.encode(), record.value)
                await producer.send(self.target, value, key=record.key, partition=number)
            offsets = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
            await producer.send_offsets_to_transaction(offsets, member)
            if self._chance.random() < _ABORTS:
                await producer.flush()
                raise ChangeOfMind
            await self.commit(producer)
            say(outcome="committed", of=name)
        except (ProducerFenced, TransactionOutcomeUnknown):
            raise
        except (BarnabasError, ChangeOfMind) as error:
            print(f"{name} is aborted: {error!r}", file=sys.stderr, flush=True)
            await producer.abort_transaction()
            say(outcome="aborted", of=name)
            committed = await consumer.committed(consumer.assignment())
            for tp, offset in committed.items():
                if offset is None:
                    consumer.seek_to_beginning(tp)
                else:
                    consumer.seek(tp, offset.offset)

    async def commit(self, producer: Producer) -> None:
        """Ask for the outcome until it is known."""
        while True:
            try:
                await producer.commit_transaction()
            except TransactionOutcomeUnknown as error:
                print(f"{self._name} asks again: {error!r}", file=sys.stderr, flush=True)
            else:
                return


def show_tasks() -> None:
    """Print where each task waits; the test asks for it when the copiers make no progress."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()


async def main() -> None:
    copier = Copier(sys.argv[1:])

    def wait_for_the_end() -> None:
        sys.stdin.read()
        copier.is_over = True

    # Not in the loop's pool of threads, which the loop joins when the copier is fenced.
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show_tasks)
    await copier.run()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ProducerFenced as fenced:
        print(f"fenced: {fenced}", file=sys.stderr, flush=True)
        os._exit(FENCED)
