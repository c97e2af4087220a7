"""What the exactly-once sinks have decided: one record for each name, in a compacted topic of the cluster.

A name is a user's `kafka.transactional.id`. Its record has the last decided batch of each query, and of the
last decision the transactions that it commits. Only the holder of a `Claim` can write it: claiming fences the
holder before, at the coordinator of the transactional id ``<name>-register``. So a record that was read after
claiming stays the last one until the claimant itself writes.

`RegisterTopic` belongs to the event loop of its clients; the rest is plain data.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from barnabas.client.admin.topics import NewTopic
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import LogTruncated
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.errors import (
    BarnabasError,
    RequestTimedOutLocally,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_fields
from barnabas.spark_connector.source.ranges import REGISTER_TOPIC

if TYPE_CHECKING:
    from barnabas.client.admin.admin import Admin
    from barnabas.client.cluster import Cluster

MAX_QUERIES: Final = 64
"""Queries whose last batch a name remembers; the one that decided longest ago is forgotten first."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Of the transaction that writes a record: it delays readers of other names if its driver is killed."""

_VERSION: Final = 1
_PARTITIONS: Final = 4
_REPLICAS: Final = 3
_SETTINGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
_STABLE_TIMEOUT_S: Final = 4 * TRANSACTION_TIMEOUT_MS / 1000
"""Brokers look for transactions that timed out every ten seconds by default."""
_STABLE_POLL_S: Final = 0.02
_FETCH_BYTES: Final = 1 << 20


class UnreadableRegister(BarnabasError):
    """The record of a name is damaged, or of a later version of Barnabas."""


class CheckpointTooOld(BarnabasError):
    """The checkpoint of a query is older than what its sink has written."""


class Decision(NamedTuple):
    """A batch that is written, or will be: nobody aborts its transactions any more.

    ``batch_id`` is None for a batch write, which is never repeated. Records that are written after the
    ``transactions`` were committed leave these out.
    """

    query_id: str
    batch_id: int | None
    transactions: tuple[PreparedTransaction, ...] = ()


class SinkRecord(NamedTuple):
    """The decisions of a name, the newest last, at most one for each query."""

    decisions: tuple[Decision, ...] = ()

    @property
    def decided(self) -> tuple[Decision, ...]:
        """What later records keep once all transactions are committed: the last batches, without these."""
        return tuple(
            Decision(decision.query_id, decision.batch_id)
            for decision in self.decisions
            if decision.batch_id is not None
        )

    def encode(self) -> bytes:
        decisions = [
            {"query": query_id, "batch": batch_id, "transactions": [str(each) for each in transactions]}
            for query_id, batch_id, transactions in self.decisions
        ]
        return json.dumps({"version": _VERSION, "decisions": decisions}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Self:
        """Raises UnreadableRegister. None is a name without decisions."""
        if value is None:
            return cls()
        try:
            fields: dict[str, Any] = json.loads(value)
            if fields["version"] != _VERSION:
                raise UnreadableRegister(
                    f"has version {fields['version']}, this connector reads version {_VERSION}: "
                    "use the connector that wrote it"
                )
            return cls(
                tuple(
                    Decision(
                        entry["query"],
                        entry["batch"],
                        tuple(map(PreparedTransaction.parse, entry["transactions"])),
                    )
                    for entry in fields["decisions"]
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableRegister(f"is damaged: {error!r}") from error


class Claim(NamedTuple):
    """The right to decide one batch of a name, until somebody claims the name again.

    ``holder`` is the producer of ``<name>-register`` that claiming made; ``decided`` are the last batches of
    the name's queries at that time, and all their transactions are committed.
    """

    name: str
    holder: ProducerIdAndEpoch
    decided: tuple[Decision, ...] = ()

    def has_decided(self, query_id: str, batch_id: int | None) -> bool:
        """Whether a batch was decided before the claim, so that writing it again would repeat it.

        Raises CheckpointTooOld for a batch before the last decided one, which Spark repeats only if its
        checkpoint was set back: then the batch may have other rows than the one that was written.
        """
        last = next((each.batch_id for each in self.decided if each.query_id == query_id), None)
        if batch_id is None or last is None:
            return False
        if batch_id < last:
            raise CheckpointTooOld(
                f"sink {self.name!r} has written batch {last} of this query, and the checkpoint is at batch "
                f"{batch_id}: it was set back. Restore the newest checkpoint; a new one writes from its start"
            )
        return batch_id == last

    def record_with(self, decision: Decision) -> SinkRecord:
        """The next record of the name. `MAX_QUERIES` bounds it."""
        others = [each for each in self.decided if each.query_id != decision.query_id]
        return SinkRecord((*others[1 - MAX_QUERIES :], decision))


def register_id(name: str) -> str:
    """The transactional id that writes the record of a name."""
    return f"{name}-register"


def partition_of(name: str) -> TopicPartition:
    """The same for ever: partitions that somebody adds to the topic stay empty."""
    return TopicPartition(REGISTER_TOPIC, zlib.crc32(name.encode()) % _PARTITIONS)


class RegisterTopic:
    """The records of all names, over an admin and a cluster of one loop, which it does not close.

    It remembers what it has read, so that a later read fetches new records alone.
    """

    def __init__(self, admin: Admin, cluster: Cluster, settings: Mapping[str, Any]) -> None:
        """``settings`` are those of the connections, for the producers of records."""
        self._admin = admin
        self._cluster = cluster
        self._settings = settings
        self._topic_id = NO_TOPIC_ID
        self._read_to: dict[TopicPartition, int] = {}
        self._values: dict[TopicPartition, dict[str, bytes]] = {}

    async def read(self, name: str) -> bytes | None:
        """The last committed record of a name; None without one.

        Every record that was committed before the call is taken into account. An open transaction of another
        name in the same partition is waited for: RequestTimedOutLocally is raised if it stays open.
        """
        tp = partition_of(name)
        await self._find_or_create_topic()
        await self._read_up_to(tp, await self._stable_end(tp))
        return self._values.get(tp, {}).get(name)

    async def write(self, name: str, holder: ProducerIdAndEpoch, value: bytes) -> ProducerIdAndEpoch:
        """Commit the record of a name if the holder is its last claimant; returns the holder from then on.

        Raises ProducerFenced if it is not, and TransactionOutcomeUnknown.
        """
        # Imported here: tasks have no use for it.
        from barnabas.client.producer.producer import Producer

        tp = partition_of(name)
        producer = Producer(
            takes_over=holder,
            transactional_id=register_id(name),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            compression_type="gzip",
            **self._settings,
        )
        async with producer:
            await producer.begin_transaction()
            await producer.send(tp.topic, value, name.encode(), partition=tp.partition)
            await producer.commit_transaction()
            return producer.identity

    async def _find_or_create_topic(self) -> None:
        """What was read of a topic that has been deleted since is forgotten."""
        try:
            topic_id = await self._find_topic()
        except UnknownTopicOrPartitionError:
            topic_id = await self._create_topic()
        if topic_id != self._topic_id:
            self._read_to.clear()
            self._values.clear()
            if self._topic_id != NO_TOPIC_ID:
                await self._cluster.refresh(at_once=True)
            self._topic_id = topic_id

    async def _find_topic(self) -> TopicId:
        return (await self._admin.describe_topics([REGISTER_TOPIC]))[REGISTER_TOPIC].topic_id

    async def _create_topic(self) -> TopicId:
        brokers = len((await self._admin.describe_cluster()).nodes)
        replicas = min(_REPLICAS, brokers)
        topic = NewTopic(
            REGISTER_TOPIC,
            num_partitions=_PARTITIONS,
            replication_factor=replicas,
            configs={**_SETTINGS, "min.insync.replicas": str(min(2, replicas))},
        )
        try:
            return (await self._admin.create_topics(topic))[REGISTER_TOPIC].topic_id
        except TopicAlreadyExistsError:
            # Another driver was faster.
            return await self._find_topic()

    async def _stable_end(self, tp: TopicPartition) -> int:
        """The high watermark, once no open transaction is below it."""
        high_watermark = await self._end(tp, "read_uncommitted")
        deadline = time.monotonic() + _STABLE_TIMEOUT_S
        while await self._end(tp, "read_committed") < high_watermark:
            if time.monotonic() > deadline:
                raise RequestTimedOutLocally(
                    f"a transaction of another producer has been open in {tp} for {_STABLE_TIMEOUT_S:.0f} s; "
                    "`barnabas transactions` lists and ends it"
                )
            await asyncio.sleep(_STABLE_POLL_S)
        return high_watermark

    async def _end(self, tp: TopicPartition, isolation_level: str) -> int:
        return (await self._admin.list_offsets({tp: "latest"}, isolation_level=isolation_level))[tp].offset

    async def _read_up_to(self, tp: TopicPartition, end: int) -> None:
        start = self._read_to.get(tp, 0)
        if end < start:
            raise LogTruncated(f"{tp} ends at {end} and was read up to {start}", None)
        values = self._values.setdefault(tp, {})
        pieces = read_range(
            self._cluster,
            tp,
            start,
            end,
            fetch_max_bytes=_FETCH_BYTES,
            isolation_level="read_committed",
            topic_id=self._topic_id,
        )
        async for piece in pieces:
            for position, header in iter_batches(piece):
                if header.is_control:
                    continue
                for _, _, key, value, _ in decode_fields(piece[position : position + header.size_bytes]):
                    if key is not None and value is not None:
                        values[key.decode()] = value
                    elif key is not None:
                        values.pop(key.decode(), None)
        self._read_to[tp] = end
