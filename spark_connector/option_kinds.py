"""The kinds of values of the options of source and sinks, each read as Spark's Kafka connector reads it.

Plain objects for any thread. `parse` raises ValueError for a value that the kind refuses; `common.settings`
makes the sentence that names the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from barnabas.common.settings import LONG_MAX, Choice, Kind, Refused
from barnabas.protocol.ids import TopicPartition, parse_endpoints

LATEST: Final = -1
EARLIEST: Final = -2
"""The two ends of a partition in Spark's JSON offsets."""

PartitionNumbers = dict[TopicPartition, int]
"""An offset or a timestamp in ms for each partition."""

_MILLISECONDS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BYTES: Final = {"": 1, "b": 1} | {
    unit + suffix: 1 << 10 * power for power, unit in enumerate("kmgtp", 1) for suffix in ("", "b")
}


class Servers(Kind):
    """A list of brokers, kept as text."""

    expected = "host:port[,host:port…]"

    def check(self, text: str) -> str:
        try:
            parse_endpoints(text)
        except ValueError as error:
            raise Refused(f"{self.expected} ({error})") from None
        return text


class Topics(Kind):
    """Names of topics, each once."""

    expected = "topic[,topic…]"

    def check(self, text: str) -> tuple[str, ...]:
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ValueError(text)
        return topics


class Pattern(Kind):
    """A regular expression, kept as text. Spark removes blanks at its ends, too."""

    expected = "a regular expression"

    def check(self, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise Refused(f"{self.expected} ({error})") from None
        if not text:
            raise ValueError(text)
        return text


class Partitions(Kind):
    """Partitions one by one, as JSON."""

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


class Offsets(Kind):
    """An end of all partitions by its word, or an offset, `EARLIEST` or `LATEST` for each partition."""

    expected = f'earliest, latest or JSON such as {{"topic":{{"0":23,"1":{EARLIEST}}}}}'

    def check(self, text: str) -> PartitionNumbers | int:
        word = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
        return _numbers(text, at_least=EARLIEST) if word is None else word


class Timestamps(Kind):
    """A timestamp in ms for each partition, as JSON."""

    expected = 'JSON such as {"topic":{"0":1700000000000}}, in ms'

    def check(self, text: str) -> PartitionNumbers:
        return _numbers(text, at_least=0)


class AnyCase(Choice):
    """One of a few words in any case; the value is in lower case."""

    def parse(self, text: str) -> str:
        return self.check(text.strip().lower())


class WithUnit(Kind):
    """A whole number with a unit, such as 15m; `units` has the worth of each unit."""

    def __init__(self, expected: str, units: Mapping[str, int], at_least: int = 0) -> None:
        self.expected = expected
        self._units = units
        self._at_least = at_least

    def parse(self, text: str) -> int:
        number = re.fullmatch(r"([0-9]+)([a-z]*)", text.strip().lower(), re.ASCII)
        if number is None or number[2] not in self._units:
            raise ValueError(text)
        return self.check(int(number[1]) * self._units[number[2]])

    def check(self, value: Any) -> int:
        if type(value) is not int or not self._at_least <= value <= LONG_MAX:
            raise ValueError(value)
        return value


DURATION: Final = WithUnit("a time such as 15m, 10s or 500ms", _MILLISECONDS)
"""Its value is in ms."""
SIZE: Final = WithUnit("a size such as 64m, 1g or 1048576, at least 1", _BYTES, at_least=1)
"""Its value is in bytes."""


def _numbers(text: str, at_least: int) -> PartitionNumbers:
    numbers: PartitionNumbers = {}
    for topic, by_index in _json_object(text).items():
        if not isinstance(by_index, dict):
            raise ValueError(text)
        for index, number in by_index.items():
            if not (index.isascii() and index.isdecimal()):
                raise ValueError(text)
            if type(number) is not int or not at_least <= number <= LONG_MAX:
                raise ValueError(text)
            numbers[TopicPartition(topic, int(index))] = number
    return numbers


def _json_object(text: str) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value
