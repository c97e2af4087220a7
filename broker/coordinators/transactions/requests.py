"""The requests and answers of a transactional id, as plain data.

Messages of the protocol where these have all that the rules need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import EndTxnResponse, PrepareTxnRequest

WAIT_MS: Final = 5_000
"""The time that a request waits for a transition of its id, by default."""
LOADING_WAIT_MS: Final = 1_000
"""The time that a request waits for its id to be loaded."""
MAX_WAITING: Final = 16
"""The requests of one id that may wait. One producer has one at a time; the others are of zombies."""


# ---- requests


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Answered by an ErrorCode for all partitions; if it only verifies them, by a dict with one for each.

    It is also AddOffsetsToTxn, with the partition of the group, and what a broker asks at the first write.
    """

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Answered by an EndTxnResponse.

    ``transaction_version`` is 2 for clients with an epoch for every transaction.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int


Request = InitProducerIdRequest | AddPartitions | EndTransaction | PrepareTxnRequest
"""An InitProducerIdRequest is answered by its response, a PrepareTxnRequest by an ErrorCode."""
Response = InitProducerIdResponse | EndTxnResponse | ErrorCode | Mapping[TopicPartition, ErrorCode]


def refused(request: Request, error: ErrorCode) -> Response:
    """The answer to a request that had no effect."""
    match request:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error_code=error)
        case EndTransaction():
            return EndTxnResponse(error_code=error)
        case AddPartitions(verify_only=True):
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
