"""The records of ``__transaction_state``, with keys and values in Kafka's own schemas, byte for byte.

The state of a transactional id is the last record of its id. A record without a value is a tombstone: the id
has expired.

A value is written in version 0 unless the feature ``transaction.version`` is 1 or more, or a field has to be
stored that only the flexible version 1 (KIP-915) has. Kafka reads version 1 from 3.5 on. Tags up to 3 are
Kafka's; the high ones are ours, and Kafka's tools skip them.

Pure functions; any thread. Source: ``TransactionLogKey.json`` and ``TransactionLogValue.json`` in Apache
Kafka; KIP-890 and KIP-939 for the tagged fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.protocol.codec_kafka import VersionedCodec
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from barnabas.protocol.schema import WireType, array, int8, int16, int32, int64, message, string

NO_EPOCH: Final = ProducerEpoch(-1)
NO_TIMESTAMP: Final = -1
NOT_PREPARED: Final = -1
_KEY_VERSION: Final = 0
_VALUE_VERSIONS: Final = range(2)
_FLEXIBLE_SINCE: Final = 1
_LAST_PRODUCER_EPOCH_TAG: Final = 10_000
_PREPARED_TIMEOUT_TAG: Final = 10_001
NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()

_STATES: Final = dict(enumerate(TransactionState))
_STATUS_OF: Final = {state: status for status, state in _STATES.items()}


@message
class TransactionLogKey:
    transactional_id: str = string()


@message
class PartitionsSchema:
    topic: str = string()
    partition_ids: list[int] = array(WireType.INT32)


@message
class TransactionLogValue:
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=NO_PRODUCER_ID)
    next_producer_id: int = int64(since=1, tag=1, default=NO_PRODUCER_ID)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, nullable_since=0, default=None
    )
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2, default=0)
    next_producer_epoch: int = int16(since=1, tag=3, default=NO_EPOCH)
    last_producer_epoch: int = int16(since=1, tag=_LAST_PRODUCER_EPOCH_TAG, default=NO_EPOCH)
    prepared_timeout_ms: int = int32(since=1, tag=_PREPARED_TIMEOUT_TAG, default=NOT_PREPARED)


class TransactionMetadata(NamedTuple):
    """The stored state of a transactional id. A plain tuple, because one is made for every id on loading.

    ``previous_producer_id`` and ``last_producer_epoch`` name the producer whose request led to this state, if
    it is not the present one: it may repeat that request. ``next_producer_id`` and ``next_producer_epoch``
    are what the producer has after this transaction, if that is not the present id and epoch.
    ``client_transaction_version`` is 2 if the epoch was raised to end the transaction.
    ``prepared_timeout_ms`` is the next transaction's time-out, while a prepared one (without any) is ongoing.
    """

    state: TransactionState
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    last_update_timestamp_ms: int
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    start_timestamp_ms: int = NO_TIMESTAMP
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_epoch: ProducerEpoch = NO_EPOCH
    last_producer_epoch: ProducerEpoch = NO_EPOCH
    client_transaction_version: int = 0
    prepared_timeout_ms: int = NOT_PREPARED

    @property
    def is_prepared(self) -> bool:
        return self.prepared_timeout_ms != NOT_PREPARED


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    transactional_id: str
    value: TransactionMetadata | None


_KEY: Final = VersionedCodec(TransactionLogKey, range(_KEY_VERSION, _KEY_VERSION + 1))
_VALUE: Final = VersionedCodec(TransactionLogValue, _VALUE_VERSIONS, flexible_since=_FLEXIBLE_SINCE)


def to_bytes(record: TransactionRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; the value of a tombstone is None. Raises Unencodable.

    ``transaction_version`` is the finalised level of the feature ``transaction.version``.
    """
    key = _KEY.encode(TransactionLogKey(transactional_id=record.transactional_id), _KEY_VERSION)
    stored = record.value
    if stored is None:
        return key, None
    value = TransactionLogValue(
        producer_id=stored.producer_id,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        producer_epoch=stored.producer_epoch,
        transaction_timeout_ms=stored.timeout_ms,
        transaction_status=_STATUS_OF[stored.state],
        transaction_partitions=_by_topic(stored),
        transaction_last_update_timestamp_ms=stored.last_update_timestamp_ms,
        transaction_start_timestamp_ms=stored.start_timestamp_ms,
        client_transaction_version=stored.client_transaction_version,
        next_producer_epoch=stored.next_producer_epoch,
        last_producer_epoch=stored.last_producer_epoch,
        prepared_timeout_ms=stored.prepared_timeout_ms,
    )
    return key, _VALUE.encode(value, 1 if transaction_version >= 1 or _needs_tags(stored) else 0)


def _needs_tags(stored: TransactionMetadata) -> bool:
    """Without these fields the next coordinator would refuse a repeated request, or forget a producer id."""
    return (
        stored.client_transaction_version > 0
        or stored.last_producer_epoch != NO_EPOCH
        or stored.previous_producer_id != NO_PRODUCER_ID
        or stored.next_producer_id != NO_PRODUCER_ID
        or stored.is_prepared
    )


def _by_topic(stored: TransactionMetadata) -> list[PartitionsSchema] | None:
    """The partitions to store; None in the state Empty, as Kafka writes it."""
    if stored.state is TransactionState.EMPTY:
        return None
    return [
        PartitionsSchema(topic=topic, partition_ids=[name.partition for name in names])
        for topic, names in groupby(sorted(stored.partitions), key=attrgetter("topic"))
    ]


def read_key(key: bytes) -> str:
    """The transactional id. Raises MalformedFrame, also for keys of later versions."""
    stored: TransactionLogKey = _KEY.decode(key)
    return stored.transactional_id


def read_value(data: bytes) -> TransactionMetadata:
    """Raises MalformedFrame, also for an unknown state."""
    value: TransactionLogValue = _VALUE.decode(data)
    state = _STATES.get(value.transaction_status)
    if state is None:
        raise MalformedFrame(f"a transaction has the state {value.transaction_status}; known are 0 to 7")
    return TransactionMetadata(
        state,
        ProducerId(value.producer_id),
        ProducerEpoch(value.producer_epoch),
        value.transaction_timeout_ms,
        value.transaction_last_update_timestamp_ms,
        frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        )
        if value.transaction_partitions
        else NO_PARTITIONS,
        value.transaction_start_timestamp_ms,
        ProducerId(value.previous_producer_id),
        ProducerId(value.next_producer_id),
        ProducerEpoch(value.next_producer_epoch),
        ProducerEpoch(value.last_producer_epoch),
        value.client_transaction_version,
        value.prepared_timeout_ms,
    )
