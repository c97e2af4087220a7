"""Real sets of options of Spark's Kafka source, each with what a read with it gives, in either source.

The runner makes two topics with `RECORDS`, puts their names in with `of_topics`, and adds
``kafka.bootstrap.servers``. A set expects the places (topic, partition, offset) that are read, or `Refused`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

TOPIC: Final = "TOPIC"
"""Stands for a topic of two partitions with ten records each."""
OTHER: Final = "OTHER"
"""Stands for a topic of one partition with five records."""

FIRST_MS: Final = 1_700_000_000_000
PARTITIONS: Final = {TOPIC: (10, 10), OTHER: (5,)}
"""The records of each partition."""

Place = tuple[str, int, int]


class Record(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


RECORDS: Final = [
    Record(topic, partition, b"k%d" % offset, b"v%d" % offset, FIRST_MS + 1_000 * offset + 500 * partition)
    for topic, sizes in PARTITIONS.items()
    for partition, size in enumerate(sizes)
    for offset in range(size)
]
"""In the order of offsets: record n of TOPIC-1 is half a second younger than record n of the others."""


class Refused(NamedTuple):
    """The read fails; each source's error has its pattern."""

    kafka: str
    barnabas: str


class OptionSet(NamedTuple):
    name: str
    options: Mapping[str, str]
    expectation: frozenset[Place] | Refused


def of_topics(text: str, names: Mapping[str, str]) -> str:
    """A text of an option or a pattern with the names of real topics."""
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def _places(topic: str, *bounds: tuple[int, int]) -> frozenset[Place]:
    """The places of a topic whose partitions are read from one offset up to before another."""
    return frozenset(
        (topic, partition, offset)
        for partition, (start, end) in enumerate(bounds)
        for offset in range(start, end)
    )


_ALL: Final = _places(TOPIC, (0, 10), (0, 10))
_ALL_OTHER: Final = _places(OTHER, (0, 5))
_SUBSCRIBED: Final = {"subscribe": TOPIC}
_FUTURE: Final = str(FIRST_MS + 3_600_000)


def _at(seconds: float) -> int:
    return FIRST_MS + int(seconds * 1_000)


def _by_partition(*numbers: int, topic: str = TOPIC) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


def _batch(name: str, expectation: frozenset[Place] | Refused, **options: str) -> OptionSet:
    return OptionSet(name, _SUBSCRIBED | options, expectation)


_CHOICES: Final = [
    OptionSet("one topic", _SUBSCRIBED, _ALL),
    OptionSet("two topics", {"subscribe": f" {TOPIC} ,{OTHER}"}, _ALL | _ALL_OTHER),
    OptionSet("a pattern", {"subscribePattern": f"({TOPIC}|{OTHER})"}, _ALL | _ALL_OTHER),
    OptionSet("a pattern has to match the whole name", {"subscribePattern": f"{TOPIC}x?"}, _ALL),
    OptionSet("one partition", {"assign": json.dumps({TOPIC: [1]})}, _places(TOPIC, (0, 0), (0, 10))),
    OptionSet(
        "partitions of two topics",
        {"assign": json.dumps({TOPIC: [0], OTHER: [0]})},
        _places(TOPIC, (0, 10)) | _ALL_OTHER,
    ),
    OptionSet("names in capitals", {"SUBSCRIBE": TOPIC, "INCLUDEHEADERS": "TRUE"}, _ALL),
]

_OFFSETS: Final = [
    _batch("both ends by their words", _ALL, startingOffsets="earliest", endingOffsets="latest"),
    _batch("words in any case", _ALL, startingOffsets="Earliest", endingOffsets="LATEST"),
    _batch(
        "offsets by partition",
        _places(TOPIC, (2, 7), (0, 10)),
        startingOffsets=_by_partition(2, -2),
        endingOffsets=_by_partition(7, -1),
    ),
    _batch(
        "a start by partition alone", _places(TOPIC, (9, 10), (4, 10)), startingOffsets=_by_partition(9, 4)
    ),
    _batch("an end by partition alone", _places(TOPIC, (0, 1), (0, 0)), endingOffsets=_by_partition(1, 0)),
    _batch(
        "a start at its end",
        frozenset(),
        startingOffsets=_by_partition(4, 4),
        endingOffsets=_by_partition(4, 4),
    ),
]

_TIMESTAMPS: Final = [
    _batch(
        "from a time on",
        _places(TOPIC, (4, 10), (3, 10)),
        startingTimestamp=str(_at(3.5)),
    ),
    _batch(
        "between two times",
        _places(TOPIC, (2, 5), (2, 5)),
        startingTimestamp=str(_at(2)),
        endingTimestamp=str(_at(5)),
    ),
    _batch(
        "times by partition",
        _places(TOPIC, (1, 8), (5, 9)),
        startingOffsetsByTimestamp=_by_partition(_at(1), _at(5)),
        endingOffsetsByTimestamp=_by_partition(_at(7.2), _at(9.5)),
    ),
    _batch("an end after all records", _ALL, endingTimestamp=_FUTURE),
    _batch("an end before all records", frozenset(), endingTimestamp="1"),
    _batch(
        "a start after all records",
        Refused("No offset matched", "startingTimestamp has .* no record of this time or later"),
        startingTimestamp=_FUTURE,
    ),
    _batch(
        "a start after all records, at the end then",
        frozenset(),
        startingTimestamp=_FUTURE,
        startingOffsetsByTimestampStrategy="LATEST",
    ),
    _batch(
        "a start after the records of one partition",
        _places(TOPIC, (0, 0), (9, 10)),
        startingOffsetsByTimestamp=_by_partition(_at(9.4), _at(9.4)),
        startingOffsetsByTimestampStrategy="latest",
    ),
    _batch(
        "a time goes before times by partition and offsets",
        _places(TOPIC, (1, 9), (1, 9)),
        startingTimestamp=str(_at(1)),
        startingOffsetsByTimestamp=_by_partition(_at(5), _at(5)),
        startingOffsets=_by_partition(7, 7),
        endingTimestamp=str(_at(9)),
        endingOffsetsByTimestamp=_by_partition(_at(2), _at(2)),
        endingOffsets=_by_partition(3, 3),
    ),
    _batch(
        "times by partition go before offsets",
        _places(TOPIC, (5, 6), (5, 6)),
        startingOffsetsByTimestamp=_by_partition(_at(5), _at(5)),
        startingOffsets="latest",
        endingOffsetsByTimestamp=_by_partition(_at(6), _at(6)),
        endingOffsets="earliest",
    ),
    _batch(
        "starts by time and ends by offset, by partition",
        _places(TOPIC, (3, 8), (3, 4)),
        startingOffsetsByTimestamp=_by_partition(_at(3), _at(3)),
        endingOffsets=_by_partition(8, 4),
    ),
    _batch(
        "a start by time and an end by offset",
        _places(TOPIC, (3, 8), (3, 4)),
        startingTimestamp=str(_at(3)),
        endingOffsets=_by_partition(8, 4),
    ),
]

_OTHER_OPTIONS: Final = [
    _batch("more tasks than partitions", _ALL, minPartitions="7"),
    _batch("fewer tasks than partitions", _ALL, minPartitions="1"),
    _batch("small tasks", _ALL, maxRecordsPerPartition="3"),
    _batch("small and many tasks", _ALL, maxRecordsPerPartition="4", minPartitions="9"),
    _batch("headers", _ALL, includeHeaders="true"),
    _batch("data loss allowed", _ALL, failOnDataLoss="false"),
    _batch("committed records", _ALL, **{"kafka.isolation.level": "read_committed"}),
    _batch("a group", _ALL, **{"kafka.group.id": "reports", "groupIdPrefix": "ignored"}),
    _batch("a prefix of groups", _ALL, groupIdPrefix="reports"),
    _batch(
        "retries and time-outs",
        _ALL,
        **{
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "10",
            "kafkaConsumer.pollTimeoutMs": "60000",
        },
    ),
    _batch(
        "settings of the client",
        _ALL,
        **{
            "kafka.client.id": "report",
            "kafka.request.timeout.ms": "20000",
            "kafka.default.api.timeout.ms": "30000",
            "kafka.fetch.max.bytes": "1048576",
            "kafka.max.partition.fetch.bytes": "65536",
            "kafka.max.poll.records": "50",
            "kafka.session.timeout.ms": "10000",
            "kafka.reconnect.backoff.ms": "20",
            "kafka.security.protocol": "PLAINTEXT",
            "kafka.client.dns.lookup": "use_all_dns_ips",
        },
    ),
    _batch("a setting that no client knows", _ALL, **{"kafka.no.such.setting": "1"}),
    _batch(
        "what only streams have",
        _ALL,
        maxOffsetsPerTrigger="5",
        minOffsetsPerTrigger="2",
        maxTriggerDelay="10s",
    ),
]

_REFUSED: Final = [
    OptionSet(
        "no topics", {}, Refused("One of the following options must be", "exactly one of .* found none")
    ),
    _batch(
        "topics twice",
        Refused("Only one of the following options can be", "found subscribe and assign"),
        assign=json.dumps({TOPIC: [0]}),
    ),
    OptionSet(
        "an empty list of topics",
        {"subscribe": " , "},
        Refused("No topics to subscribe to", "subscribe=' , '"),
    ),
    OptionSet(
        "an empty pattern",
        {"subscribePattern": " "},
        Refused("Pattern to subscribe is empty", "subscribePattern="),
    ),
    OptionSet(
        "partitions in words", {"assign": TOPIC}, Refused("No topicpartitions to assign", "assign='TOPIC'")
    ),
    _batch(
        "a start at the end",
        Refused("starting offset can't be latest", "startingOffsets='latest': a batch"),
        startingOffsets="latest",
    ),
    _batch(
        "a start at the end of a partition",
        Refused("startingOffsets for TOPIC-1 can't be latest", "startingOffsets has -1 .* for TOPIC-1"),
        startingOffsets=_by_partition(0, -1),
    ),
    _batch(
        "an end at the start",
        Refused("ending offset can't be earliest", "endingOffsets='earliest': a batch"),
        endingOffsets="earliest",
    ),
    _batch(
        "an end at the start of a partition",
        Refused("ending offset for TOPIC-0 can't be earliest", "endingOffsets has -2 .* for TOPIC-0"),
        endingOffsets=_by_partition(-2, 3),
    ),
    _batch("an unknown word", Refused("Expected e.g.", "startingOffsets='first'"), startingOffsets="first"),
    _batch(
        "a time in words",
        Refused("Expected a single long value", "startingTimestamp='yesterday'"),
        startingTimestamp="yesterday",
    ),
    _batch(
        "times that are none",
        Refused("Expected e.g.", "endingOffsetsByTimestamp='7'"),
        endingOffsetsByTimestamp="7",
    ),
    _batch(
        "an unknown strategy",
        Refused("EARLIEST", "startingOffsetsByTimestampStrategy='earliest'"),
        startingTimestamp="1",
        startingOffsetsByTimestampStrategy="earliest",
    ),
    _batch(
        "an offset for one partition alone",
        Refused(
            "Kafka start(ing)? offsets don.t match|must specify all",
            "'startingOffsets' lacks an offset for TOPIC-1",
        ),
        startingOffsets=_by_partition(1),
    ),
    _batch(
        "an offset for a partition that is not there",
        Refused(
            "Kafka start(ing)? offsets don.t match|must specify all",
            "'endingOffsets' has an offset .* not read: TOPIC-2",
        ),
        endingOffsets=_by_partition(1, 2, 3),
    ),
    _batch(
        "a time for one partition alone",
        Refused(
            "Kafka timestamp based .* don.t match|must specify all",
            "'startingOffsetsByTimestamp' lacks a timestamp for TOPIC-1",
        ),
        startingOffsetsByTimestamp=_by_partition(_at(1)),
    ),
    _batch(
        "a start beyond its end",
        Refused(
            "after the ending offset|TOPIC-1",
            "startingOffsets has 7 for TOPIC-1, beyond endingOffsets with 6",
        ),
        startingOffsets=_by_partition(1, 7),
        endingOffsets=_by_partition(1, 6),
    ),
    _batch(
        "ends of other partitions than the starts",
        Refused("don.t match|different topic partitions|TOPIC-1", "name different partitions: TOPIC-1"),
        startingOffsets=_by_partition(1, 7),
        endingOffsets=_by_partition(1),
    ),
    _batch(
        "a time beyond its end",
        Refused(
            "after the ending offset|TOPIC-0",
            "startingOffsetsByTimestamp has .* for TOPIC-0, beyond endingOffsetsByTimestamp",
        ),
        startingOffsetsByTimestamp=_by_partition(_at(3), _at(1)),
        endingOffsetsByTimestamp=_by_partition(_at(2), _at(2)),
    ),
    _batch(
        "a time for all partitions beyond its end",
        Refused(
            "after the ending offset|TOPIC-",
            "startingTimestamp is offset 5 of TOPIC-., beyond endingTimestamp, offset 2",
        ),
        startingTimestamp=str(_at(5)),
        endingTimestamp=str(_at(2)),
    ),
    _batch("no tasks", Refused("minPartitions must be positive", "minPartitions='0'"), minPartitions="0"),
    _batch("half a task", Refused("1.5", "minPartitions='1.5'"), minPartitions="1.5"),
    _batch(
        "empty tasks",
        Refused("(?i)maxRecordsPerPartition must be positive", "maxRecordsPerPartition='0'"),
        maxRecordsPerPartition="0",
    ),
    _batch(
        "a minimum above the maximum",
        Refused(
            "minOffsetPerTrigger.5. is higher",
            "minOffsetsPerTrigger=5: expected at most maxOffsetsPerTrigger",
        ),
        minOffsetsPerTrigger="5",
        maxOffsetsPerTrigger="4",
    ),
    *(
        _batch(
            f"kafka.{name}",
            Refused(f"'{name}' is not supported", f"'kafka.{name}' is refused"),
            **{f"kafka.{name}": "x"},
        )
        for name in (
            "auto.offset.reset",
            "key.deserializer",
            "value.deserializer",
            "enable.auto.commit",
            "interceptor.classes",
        )
    ),
    _batch(
        "a wrong value for the client",
        Refused("", "kafka.request.timeout.ms='soon'"),
        **{"kafka.request.timeout.ms": "soon"},
    ),
    _batch(
        "a time-out in words",
        Refused("", "kafkaConsumer.pollTimeoutMs='long'"),
        **{"kafkaConsumer.pollTimeoutMs": "long"},
    ),
    _batch(
        "retries in words", Refused("", "fetchOffset.numRetries='some'"), **{"fetchOffset.numRetries": "some"}
    ),
    _batch("a wrong truth value", Refused("maybe", "failOnDataLoss='maybe'"), failOnDataLoss="maybe"),
    _batch("another wrong truth value", Refused("", "includeHeaders='maybe'"), includeHeaders="maybe"),
]

BATCH_SETS: Final = [*_CHOICES, *_OFFSETS, *_TIMESTAMPS, *_OTHER_OPTIONS, *_REFUSED]
"""For ``spark.read``."""

STREAM_SETS: Final = [
    _batch("a stream from the start", _ALL, startingOffsets="earliest"),
    _batch("a stream from now on", frozenset()),
    _batch("a stream from the end by its word", frozenset(), startingOffsets="latest"),
    _batch("a stream from offsets", _places(TOPIC, (10, 10), (7, 10)), startingOffsets=_by_partition(-1, 7)),
    _batch("a stream from a time on", _places(TOPIC, (4, 10), (4, 10)), startingTimestamp=str(_at(4))),
    _batch(
        "a stream from times by partition",
        _places(TOPIC, (1, 10), (8, 10)),
        startingOffsetsByTimestamp=_by_partition(_at(1), _at(8)),
    ),
    _batch(
        "a stream after all records",
        frozenset(),
        startingTimestamp=_FUTURE,
        startingOffsetsByTimestampStrategy="latest",
    ),
    OptionSet(
        "a stream of a partition",
        {"assign": json.dumps({OTHER: [0]}), "startingOffsets": "earliest"},
        _ALL_OTHER,
    ),
    _batch("a stream in small tasks", _ALL, startingOffsets="earliest", maxRecordsPerPartition="3"),
    _batch(
        "a stream with an end",
        Refused("ending offset not valid", "endingOffsets='latest': expected no end"),
        endingOffsets="latest",
    ),
    _batch(
        "a stream with an end by time",
        Refused("ending timestamp not valid", "endingOffsetsByTimestamp=.*: expected no end"),
        endingOffsetsByTimestamp=_by_partition(_at(1), _at(1)),
    ),
    _batch(
        "a minimum above the maximum in a stream",
        Refused(
            "minOffsetPerTrigger.5. is higher",
            "minOffsetsPerTrigger=5: expected at most maxOffsetsPerTrigger|needs PySpark 4.2",
        ),
        minOffsetsPerTrigger="5",
        maxOffsetsPerTrigger="4",
    ),
]
"""For ``spark.readStream`` with ``trigger(availableNow=True)``; without limits, which need PySpark 4.2."""
