"""The delivery of one task's record batches, at least once.

A task opens a delivery, sends its batches, and finishes it: then every batch is acknowledged as `acks` says,
or the batch's error is raised. The next task of the process may have the producer after a finished delivery;
after a failed one it is closed at once, so that nothing of a failed task is sent later.

A delivery belongs to the thread of its task.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final, Self

from pyspark.sql.datasource import WriterCommitMessage

from barnabas.client.config import ProducerConfig
from barnabas.client.producer.blocking import Producer, RecordFuture
from barnabas.protocol.errors import UnknownTopicOrPartitionError
from barnabas.spark_connector.columns.encode import EncodedBatch, TopicLayout
from barnabas.spark_connector.idle_clients import IdleClients
from barnabas.spark_connector.sink.sink_options import SinkOptions

_CHECK_MS: Final = 10_000
"""How long the driver waits for a topic that a broker may be about to create."""


class Delivery:
    """Record batches on their way to the brokers."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self._pending: deque[RecordFuture] = deque()

    @classmethod
    def open(cls, options: SinkOptions) -> Self:
        """Take or make a producer. Raises NoBrokerReachable naming every server that was tried."""
        return cls(_producers.take(config := options.producer_config(), lambda: Producer(config)))

    def find_topic(self, name: str) -> TopicLayout:
        """The partitions of a topic. Raises UNKNOWN_TOPIC_OR_PARTITION after `kafka.max.block.ms`."""
        partitions = self.producer.partitions_for(name)
        led = tuple(info.partition for info in partitions if info.leader >= 0)
        return TopicLayout(len(partitions), led or tuple(range(len(partitions))))

    def send(self, batch: EncodedBatch) -> None:
        """Hand a batch to the producer; waits for room in its memory.

        Raises the error of an earlier batch that has failed, and BufferExhausted.
        """
        self._pending.append(self.producer.hand_over_batch(batch.topic, batch.partition, batch.data))
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def flush(self) -> None:
        """Wait until every batch is acknowledged. Raises the error of the first one that failed."""
        self.producer.flush()
        while self._pending:
            self._pending.popleft().result()

    def finish(self) -> WriterCommitMessage:
        """As `flush`; the next task may then have the producer."""
        self.flush()
        _producers.give_back(self.producer.config, self.producer)
        return WriterCommitMessage()

    def abandon(self) -> None:
        """Drop what is not delivered yet, after an error."""
        self.producer.close(timeout_ms=0)


_producers = IdleClients[ProducerConfig, Producer]()


def check_topic(options: SinkOptions) -> None:
    """Make sure on the driver that the topic of the options exists, or that the brokers create it.

    Once in a process for each topic. Raises NoBrokerReachable and UNKNOWN_TOPIC_OR_PARTITION.
    """
    if options.topic is not None:
        _check_topic(options.producer_config(), options.topic)


@lru_cache(maxsize=256)
def _check_topic(config: ProducerConfig, topic: str) -> None:
    limit_ms = min(_CHECK_MS, config.max_block_ms)
    # Without idempotence no producer id is requested.
    with Producer(config, max_block_ms=limit_ms, enable_idempotence=False) as producer:
        try:
            producer.partitions_for(topic)
        except UnknownTopicOrPartitionError:
            raise UnknownTopicOrPartitionError(
                f"option 'topic' is {topic!r}, which does not exist, and the brokers did not create it "
                f"within {limit_ms} ms; create it first",
            ) from None
