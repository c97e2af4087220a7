"""The requests, answers and limits of a transactional id, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.coordinators.transactions.records import NO_EPOCH
from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition

WAIT_MS: Final = 5_000
"""The time that a request waits for a transition of its id, by default."""
LOADING_WAIT_MS: Final = 1_000
"""The time that a request waits for its id to be loaded."""
MAX_WAITING: Final = 16
"""The requests of one id that may wait. One producer has one at a time; the others are of zombies."""


class TransactionLimits(NamedTuple):
    """``max_timeout_ms`` is transaction.max.timeout.ms, ``expiration_ms`` transactional.id.expiration.ms."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 60 * 60 * 1000


# ---- requests


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Answered by `ProducerGiven`. ``producer_id`` and ``producer_epoch`` are both -1, or both given."""

    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Answered by an ErrorCode for all partitions.

    It is also AddOffsetsToTxn, with the partition of the group, and what a broker adds at the first write.
    """

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """Answered by a dict of an ErrorCode for each partition."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Answered by `Ended`. ``transaction_version`` is 2 for clients with an epoch for every transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int


@dataclass(frozen=True, slots=True)
class PrepareTransaction:
    """Answered by an ErrorCode."""

    producer_id: int
    producer_epoch: int


Request = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | PrepareTransaction


# ---- answers


class ProducerGiven(NamedTuple):
    """``ongoing_producer_id`` and ``ongoing_producer_epoch`` name a prepared transaction that was kept."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_EPOCH
    ongoing_producer_id: ProducerId = NO_PRODUCER_ID
    ongoing_producer_epoch: ProducerEpoch = NO_EPOCH


class Ended(NamedTuple):
    """The id and the epoch of the producer's next transaction; without them it needs InitProducerId.

    A process that ends a prepared transaction does not get those of a producer that came since.
    """

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_EPOCH


Response = ProducerGiven | Ended | ErrorCode | Mapping[TopicPartition, ErrorCode]


def refused(request: Request, error: ErrorCode) -> Response:
    """The answer to a request that had no effect."""
    match request:
        case InitProducerId():
            return ProducerGiven(error)
        case EndTransaction():
            return Ended(error)
        case VerifyPartitions():
            return dict.fromkeys(request.partitions, error)
        case _:
            return error


# ---- requests to others


class MarkersToWrite(NamedTuple):
    """Write this marker, however long it takes, and report each partition to `markers_written`.

    A partition whose topic is gone, or whose log has a later epoch of the producer, counts as written.
    ``transaction_version`` 2: the epoch is above that of all records of the transaction. The next coordinator
    of the id sends them again, with its own coordinator epoch.
    """

    number: int
    marker: TransactionMarker


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """Get a new producer id, and pass it or the error to `producer_id_given` once."""


ToOthers = MarkersToWrite | ProducerIdWanted
