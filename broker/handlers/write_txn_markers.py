"""WriteTxnMarkers: end transactions in the partitions that this broker leads.

Coordinators send it, and operators: ``kafka-transactions.sh abort`` ends a hanging transaction by a marker
with coordinator epoch -1. So it is served on every listener.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.markers import MarkerOutcome, TransactionMarker
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TIMEOUT_MS: Final = 30_000
"""The default of Kafka's ``request.timeout.ms``; the request has no field for it."""


def handle(services: Services, request: ApiRequest) -> None:
    body: WriteTxnMarkersRequest = request.body
    markers = [_marker(marker) for marker in body.markers]

    @request.answering
    def answer(outcomes: list[MarkerOutcome]) -> None:
        results = map(_result, markers, outcomes)
        request.respond(WriteTxnMarkersResponse(markers=list(results)))

    services.replicas.markers.write(markers, TIMEOUT_MS, answer)


def _marker(marker: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
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
