"""Offsets of a checkpoint: their form, and their comparison with the topics of the cluster."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.spark_connector.source.ranges import OffsetRange
from barnabas.spark_connector.source.stream_offsets import (
    StreamOffset,
    changes_since,
    parse_offset,
    ranges_between,
    without_start,
)

A, B = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d_e"]), st.integers(0, 300))
POSITIONS = st.dictionaries(PARTITIONS, st.integers(0, 1 << 62), max_size=8)


@given(st.builds(StreamOffset, POSITIONS, st.dictionaries(st.sampled_from("ab"), st.just(A)), POSITIONS))
def test_an_offset_is_read_as_it_was_written(offset: StreamOffset) -> None:
    assert parse_offset(json.dumps(offset.to_json())) == offset
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_text_of_an_offset_does_not_depend_on_the_order_of_its_parts() -> None:
    first = StreamOffset({T0: 1, T1: 2}, {"t": A, "u": B})
    second = StreamOffset({T1: 2, T0: 1}, {"u": B, "t": A})
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())


def test_a_checkpoint_of_the_kafka_source_is_taken_over() -> None:
    assert parse_offset('{"t":{"1":5,"0":23},"u":{}}') == StreamOffset({T0: 23, T1: 5})
    own = StreamOffset({T0: 23}, {"t": A}).to_json()
    assert own.pop("t") == {"0": 23}, "as the Kafka source has it"
    assert set(own) == {"@barnabas"}


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[1]",
        '{"t":5}',
        '{"t":{"x":1}}',
        '{"t":{"²":1}}',
        '{"t":{"0":-1}}',
        '{"t":{"0":true}}',
        '{"@barnabas":{}}',
        '{"@barnabas":5}',
        '{"@barnabas":{"version":1,"topic_ids":{"t":"x"}}}',
        '{"@barnabas":{"version":1,"starts":{"t":[1]}}}',
    ],
)
def test_a_malformed_offset_is_named(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"is malformed .*expected JSON") as raised:
        parse_offset(text)
    assert repr(text) in str(raised.value)


def test_an_offset_of_a_later_version_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"version 2, written by a newer barnabas.*upgrade"):
        parse_offset({"t": {"0": 1}, "@barnabas": {"version": 2}})


def test_a_topic_made_again_is_told_from_partitions_that_were_added_or_are_gone() -> None:
    offset = StreamOffset({T0: 5, T1: 5, TopicPartition("u", 0): 1}, {"t": A, "u": A})
    assert changes_since(offset, [T0, T1, TopicPartition("u", 0)], {"t": A, "u": A}) == ([], [], [])
    assert changes_since(offset, [T0, T1, T2], {"t": A}) == ([], [TopicPartition("u", 0)], [T2])
    u0 = TopicPartition("u", 0)
    again = changes_since(offset, [T0, u0], {"t": B, "u": A})
    assert again == (["t"], [], [T0]), "its partitions are others, and those that it lacks do not matter"


def test_ids_that_are_not_known_say_nothing() -> None:
    assert changes_since(StreamOffset({T0: 5}), [T0], {"t": A}) == ([], [], [])
    assert changes_since(StreamOffset({T0: 5}, {"t": A}), [T0], {}) == ([], [], [])


def test_the_ranges_of_a_batch() -> None:
    start = StreamOffset({T0: 5, T1: 7}, {"t": A})
    end = StreamOffset({T0: 9, T1: 7, T2: 4}, {"t": A})
    assert without_start(start, end) == [T2]
    assert ranges_between(start, end, {T2: 1}) == (
        [OffsetRange("t", 0, 5, 9, A), OffsetRange("t", 2, 1, 4, A)],
        [],
    )


def test_a_start_in_the_end_goes_first_so_that_a_replay_reads_the_same() -> None:
    end = StreamOffset({T0: 9, T2: 4}, {"t": B}, {T0: 2, T2: 3})
    # The start was resolved again, later.
    start = StreamOffset({T0: 8}, {"t": B})
    assert without_start(start, end) == []
    assert ranges_between(start, end, {}) == (
        [OffsetRange("t", 0, 2, 9, B), OffsetRange("t", 2, 3, 4, B)],
        [],
    )
    assert ranges_between(end, end, {}) == ([], []), "the starts are those of the batch before"


def test_a_start_beyond_its_end_is_reported() -> None:
    ranges, lost = ranges_between(StreamOffset({T0: 9}), StreamOffset({T0: 5}), {})
    assert (ranges, lost) == ([], [OffsetRange("t", 0, 9, 5)])
