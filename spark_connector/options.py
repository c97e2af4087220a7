"""The options of the source: Spark's Kafka names, each value checked before any data is read.

Options arrive as text, with names in any case. An unknown, missing, contradictory or malformed option raises
`InvalidConfiguration`, which names it, its value and the accepted values. The result is plain frozen data,
because Spark pickles it to other processes.

Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html.
"""

# Each default is made by setting(...), which is a dataclass field.
# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition, parse_endpoints
from barnabas.protocol.settings import Boolean, Choice, Integer, Kind, Refused, parsed, setting, settings_of
from barnabas.protocol.suggestions import suggestion

LATEST: Final = -1
EARLIEST: Final = -2
"""The two ends of a partition in Spark's JSON offsets."""

_SERVERS: Final = "bootstrap.servers"
_KAFKA_PREFIX: Final = "kafka."
"""Spark's Kafka source takes settings of the consumer with this prefix."""
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")

PartitionOffsets = dict[TopicPartition, int]


class _Servers(Kind):
    expected = "host:port[,host:port…]"

    def check(self, text: str) -> str:
        try:
            parse_endpoints(text)
        except ValueError as error:
            raise Refused(f"{self.expected} ({error})") from None
        return text


class _Topics(Kind):
    expected = "topic[,topic…]"

    def check(self, text: str) -> tuple[str, ...]:
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ValueError(text)
        return topics


class _Pattern(Kind):
    expected = "a regular expression"

    def parse(self, text: str) -> str:
        """Blanks at its ends are part of an expression."""
        return self.check(text)

    def check(self, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise Refused(f"{self.expected} ({error})") from None
        if not text:
            raise ValueError(text)
        return text


class _Partitions(Kind):
    expected = 'JSON such as {"topic":[0,1]}'

    def check(self, text: str) -> tuple[TopicPartition, ...]:
        partitions: dict[TopicPartition, None] = {}
        for topic, indexes in _json_object(text).items():
            if not isinstance(indexes, list):
                raise ValueError(text)
            for index in indexes:
                if type(index) is not int or index < 0:
                    raise ValueError(text)
                partitions[TopicPartition(topic, index)] = None
        if not partitions:
            raise ValueError(text)
        return tuple(partitions)


class _Offsets(Kind):
    """The offsets of one end of a batch; None for `default`. `refused` is invalid at this end."""

    def __init__(self, default: str, *, refused: int) -> None:
        self.expected = f'{default} or JSON such as {{"topic":{{"0":23,"1":{LATEST + EARLIEST - refused}}}}}'
        self._default = default
        self._refused = refused

    def check(self, text: str) -> PartitionOffsets | None:
        text = text.strip()
        if text.lower() == self._default:
            return None
        offsets: PartitionOffsets = {}
        for topic, by_index in _json_object(text).items():
            if not isinstance(by_index, dict):
                raise ValueError(text)
            for index, offset in by_index.items():
                if not index.isdecimal() or type(offset) is not int or offset < EARLIEST:
                    raise ValueError(text)
                if offset == self._refused:
                    raise Refused(f"{self.expected}; {topic}-{index} has {offset}, which is the other end")
                offsets[TopicPartition(topic, int(index))] = offset
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The topics or partitions to read; exactly one of `topics`, `topic_pattern` and `partitions` is given.

    Offsets None mean earliest for the start and latest for the end of every partition; otherwise each
    partition has its own, `EARLIEST` and `LATEST` included.
    """

    bootstrap_servers: str = setting(_Servers(), "", "Brokers to connect to first.", name=_SERVERS)
    topics: tuple[str, ...] | None = setting(_Topics(), None, "Topics by name.", name="subscribe")
    topic_pattern: str | None = setting(
        _Pattern(),
        None,
        "Topics whose whole name matches; internal ones are left out.",
        name="subscribePattern",
    )
    partitions: tuple[TopicPartition, ...] | None = setting(
        _Partitions(), None, "Single partitions.", name="assign"
    )
    starting_offsets: PartitionOffsets | None = setting(
        _Offsets("earliest", refused=LATEST), None, "Where to begin.", name="startingOffsets"
    )
    ending_offsets: PartitionOffsets | None = setting(
        _Offsets("latest", refused=EARLIEST), None, "Where to end, exclusive.", name="endingOffsets"
    )
    min_partitions: int | None = setting(
        Integer(1), None, "The minimum number of tasks.", name="minPartitions"
    )
    isolation_level: str = setting(
        Choice(*ISOLATION_LEVELS),
        ISOLATION_LEVELS[0],
        "read_committed ends at the last stable offset and leaves out aborted transactions.",
        name="isolation.level",
    )
    include_headers: bool = setting(
        Boolean(), False, "Whether to add the column headers.", name="includeHeaders"
    )
    fail_on_data_loss: bool = setting(
        Boolean(), True, "Whether to fail if requested records do not exist.", name="failOnDataLoss"
    )


_BY_NAME: Final = {declared.name: (field, declared) for field, declared in settings_of(SourceOptions).items()}
_PREFIXED: Final = {_KAFKA_PREFIX + name: name for name in (_SERVERS, "isolation.level")}
OPTIONS: Final = (*_PREFIXED, *_BY_NAME)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of ``spark.read``; raises InvalidConfiguration for the first invalid one."""
    options = _by_known_name(given)
    selection = [name for name in _SELECTIONS if name in options]
    if len(selection) != 1:
        names = " and ".join(selection) or "none"
        raise InvalidConfiguration(
            f"expected exactly one of the options {', '.join(_SELECTIONS)}; found {names}"
        )
    values: dict[str, Any] = {}
    for name, text in options.items():
        field, declared = _BY_NAME[name]
        values[field] = parsed(name, text, declared.kind)
    return SourceOptions(**values)


def _by_known_name(given: Mapping[str, str]) -> dict[str, str]:
    by_lower_name = {name.lower(): name for name in OPTIONS}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in by_lower_name:
            hint = suggestion(name, OPTIONS)
            raise InvalidConfiguration(f"option {name!r} is unknown to the barnabas source{hint}")
        options[by_lower_name[name.lower()]] = value
    for prefixed, name in _PREFIXED.items():
        if prefixed in options:
            value = options.pop(prefixed)
            if options.setdefault(name, value) != value:
                raise InvalidConfiguration(f"options {name!r} and {prefixed!r} differ; give one of them")
    if _SERVERS not in options:
        raise InvalidConfiguration(f"option {_SERVERS!r} is missing; expected {_Servers.expected}")
    return options


def _json_object(text: str) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value
