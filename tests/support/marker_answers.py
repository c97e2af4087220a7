"""Answers to WriteTxnMarkers."""

from collections.abc import Callable, Iterable

from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.partitions import PartitionResult, TopicResult
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersResponse,
)


def markers_answer(
    markers: Iterable[WritableTxnMarker], code_of: Callable[[TopicPartition], int]
) -> WriteTxnMarkersResponse:
    """The answer with the error code of each partition, in the order of the markers."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    TopicResult(
                        name=topic.name,
                        partitions=[
                            PartitionResult(
                                partition_index=index, error_code=code_of(TopicPartition(topic.name, index))
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in markers
        ]
    )
