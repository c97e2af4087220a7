"""A consumer's figures for operators, under Kafka's names. A pure function of the partitions' states.

Kafka's are averages over a window; these are the values as of the last fetch.
"""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.client.consumer.fetched import PartitionState


def consumer_metrics(states: Iterable[PartitionState]) -> dict[str, int]:
    """The metrics of the partitions that were fetched at least once.

    - ``records-lag-max``: how many offsets the position of the worst partition is behind its high watermark;
    - ``records-lead-min``: how many offsets the position of the worst partition is ahead of its log's start,
      where retention deletes: at 0 the next records may be gone before they are read.
    """
    known = [
        (state.position, state.high_watermark, state.log_start_offset)
        for state in states
        if state.position is not None and state.high_watermark >= 0 and state.log_start_offset >= 0
    ]
    if not known:
        return {}
    return {
        "records-lag-max": max(max(0, high_watermark - position) for position, high_watermark, _ in known),
        "records-lead-min": min(max(0, position - log_start) for position, _, log_start in known),
    }
