"""The copier of `copier`, with confluent-kafka: the same arguments, the same lines on standard output.

librdkafka does not keep the time-out of `send_offsets_to_transaction`, and may never return from it if the
group's coordinator has died (its issues 5456 and 5511). Such a copier ends itself. Not a test.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from copier import FENCED, HUNG, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, read_clients, say

_PATIENCE_S: Final = 10.0
_HUNG_S: Final = 3 * _PATIENCE_S
_ABORTS: Final = 0.1


class Copier:
    """One copier; it starts again with another consumer and producer after an error that it cannot undo."""

    def __init__(self, words: Sequence[str]) -> None:
        clients, self.group, self.source, self.target, partitions, self.id, _ = words
        self.clients = {name.replace("_", "."): value for name, value in read_clients(clients).items()}
        self.partitions = int(partitions)
        self.is_over = False
        self._name = f"{self.id}.{uuid.uuid4().hex[:8]}"
        self._attempts = 0
        self._chance = random.Random(self._name)

    def run(self) -> None:
        while not self.is_over:
            consumer = Consumer(
                {
                    **self.clients,
                    "group.id": self.group,
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": SESSION_TIMEOUT_MS,
                    "heartbeat.interval.ms": 300,
                    "partition.assignment.strategy": "range",
                }
            )
            try:
                self._copy_all(consumer)
            except KafkaException as error:
                if is_fenced(error):
                    raise
                print(f"{self._name} starts again: {error!r}", file=sys.stderr, flush=True)
            finally:
                consumer.close()

    def _copy_all(self, consumer: Consumer) -> None:
        producer = Producer(
            {
                **self.clients,
                "transactional.id": self.id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "socket.timeout.ms": 4_000,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(_PATIENCE_S)
        consumer.subscribe([self.source])
        while not self.is_over:
            at_most = self._chance.choice((1, 10, 100))
            if messages := [each for each in consumer.consume(at_most, 0.1) if each.error() is None]:
                self._copy(producer, consumer, messages)

    def _copy(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
        """Copy records in one transaction; after an abort return to the committed offsets."""
        member = consumer.consumer_group_metadata()
        self._attempts += 1
        name = f"{self._name}.{self._attempts}"
        say(attempt=name, places=[(each.partition(), each.offset()) for each in messages])
        try:
            producer.begin_transaction()
            for each in messages:
                number = int(each.key() or b"0") // 2 % self.partitions
                value = b"%d %d %s %s" % (each.partition(), each.offset(), name.encode(), each.value())
                producer.produce(self.target, value, each.key(), number)
            ends = {each.partition(): each.offset() + 1 for each in messages}
            positions = [TopicPartition(self.source, *end) for end in ends.items()]
            hung = threading.Timer(_HUNG_S, os._exit, (HUNG,))
            hung.daemon = True
            hung.start()
            try:
                producer.send_offsets_to_transaction(positions, member, _PATIENCE_S)
            finally:
                hung.cancel()
            is_committed = self._chance.random() >= _ABORTS
            if is_committed:
                self._commit(producer)
            else:
                producer.abort_transaction(_PATIENCE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print(f"{name} is aborted: {error!r}", file=sys.stderr, flush=True)
            producer.abort_transaction(_PATIENCE_S)
            is_committed = False
        say(outcome="committed" if is_committed else "aborted", of=name)
        if not is_committed:
            for position in consumer.committed(consumer.assignment(), _PATIENCE_S):
                # Without a committed offset the partition begins with its first record.
                position.offset = max(position.offset, 0)
                # A partition that was revoked meanwhile is not assigned any more.
                with suppress(KafkaException):
                    consumer.seek(position)

    def _commit(self, producer: Producer) -> None:
        """Ask for the outcome until it is known."""
        while True:
            try:
                producer.commit_transaction(_PATIENCE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                print(f"{self._name} asks again: {error!r}", file=sys.stderr, flush=True)


def is_fenced(error: KafkaException) -> bool:
    return error.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


def main() -> None:
    copier = Copier(sys.argv[1:])

    def wait_for_the_end() -> None:
        sys.stdin.read()
        copier.is_over = True

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    copier.run()


if __name__ == "__main__":
    try:
        main()
    except KafkaException as fenced:
        print(f"fenced: {fenced}", file=sys.stderr, flush=True)
        os._exit(FENCED)
