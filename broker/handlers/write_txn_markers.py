"""WriteTxnMarkers: end transactions in the partitions that this broker leads.

Coordinators send it, and operators: ``kafka-transactions.sh abort`` ends a hanging transaction by a marker
with coordinator epoch -1. So it is served on every listener.

A marker of a later coordinator epoch fences the earlier ones. One above all leader epochs of the transaction
topic that this broker knows is refused, or any client could fence the coordinators for ever; a coordinator
that has just moved sends it again.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.marker_writer import MarkerOutcome, TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import by_topic, named_once
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.protocol.topic_names import TRANSACTIONS_TOPIC

TIMEOUT_MS: Final = 30_000
"""The default of Kafka's ``request.timeout.ms``; the request has no field for it."""
_ANY_EPOCH: Final = 2**31 - 1


def handle(services: Services, request: ApiRequest) -> None:
    body: WriteTxnMarkersRequest = request.body
    markers = [_marker(marker) for marker in body.markers]

    last_epoch = _last_coordinator_epoch(services)

    @request.answering
    def answer(outcomes: list[MarkerOutcome]) -> None:
        rest = iter(outcomes)
        results = [
            _result(marker, next(rest) if marker.coordinator_epoch <= last_epoch else _of_the_future(marker))
            for marker in markers
        ]
        request.respond(WriteTxnMarkersResponse(markers=results))

    possible = [marker for marker in markers if marker.coordinator_epoch <= last_epoch]
    services.replicas.markers.write(possible, TIMEOUT_MS, answer)


def _last_coordinator_epoch(services: Services) -> int:
    """The highest epoch that a coordinator can have; without the topic there is nothing to fence."""
    partitions = services.metadata.current.partitions_of(TRANSACTIONS_TOPIC)
    return max((state.leader_epoch for state in partitions.values()), default=_ANY_EPOCH)


def _of_the_future(marker: TransactionMarker) -> MarkerOutcome:
    return dict.fromkeys(marker.partitions, ErrorCode.UNKNOWN_LEADER_EPOCH)


def _marker(marker: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        named_once((topic.name, topic.partition_indexes) for topic in marker.topics),
        marker.transaction_version,
    )


def _result(marker: TransactionMarker, outcome: MarkerOutcome) -> WritableTxnMarkerResult:
    results = [
        (name, WritableTxnMarkerPartitionResult(partition_index=name.partition, error_code=int(error)))
        for name, error in outcome.items()
    ]
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(name=topic, partitions=partitions)
            for topic, partitions in by_topic(results).items()
        ],
    )
