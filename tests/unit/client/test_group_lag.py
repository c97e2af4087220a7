"""The lag of groups, and its unknown parts."""

import pytest

from barnabas.client.admin.group_lag import PartitionLag, lag_text, lags_in, total_lag
from barnabas.client.admin.groups import GroupDescription
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.ids import BrokerId, TopicPartition

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("lags_and_ends", "total", "text"),
    [
        ([(3, 9), (4_000, 9_000)], 4_003, "lag 4,003"),
        ([(0, 9)], 0, "lag 0"),
        ([], None, "lag - (no committed offsets)"),
        ([(None, 9), (None, 9)], None, "lag - (2 partitions without a committed offset)"),
        (
            [(None, 9), (None, None), (6, 9), (1, 9)],
            None,
            "lag - (1 partition without a committed offset, 1 partition without a leader, 7 in the others)",
        ),
    ],
)
def test_an_unknown_lag_is_not_0(
    lags_and_ends: list[tuple[int | None, int | None]], total: int | None, text: str
) -> None:
    partitions = [
        PartitionLag(A0, None if lag is None or end is None else end - lag, end, lag)
        for lag, end in lags_and_ends
    ]
    assert total_lag(partitions) == total
    assert lag_text(partitions) == text


def test_the_lag_of_an_offset_beyond_the_end_is_unknown() -> None:
    group = GroupDescription("g", "Empty", "consumer", "", BrokerId(1), ())
    end = 14
    committed = {A0: OffsetAndMetadata(100), B0: OffsetAndMetadata(4)}
    partitions = lags_in(group, [A0, B0], committed, {}, {A0: end, B0: end})
    assert [partition.lag for partition in partitions] == [None, 10]
    assert (
        lag_text(partitions) == "lag - (1 partition with a committed offset beyond its end, 10 in the others)"
    )
