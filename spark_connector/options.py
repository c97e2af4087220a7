"""The options of the source: Spark's Kafka names, each value checked before anything is read.

Options arrive as text, with names in any case. An unknown, missing, contradictory or malformed one raises
`InvalidConfiguration`, which names the option, its value and the expected values. The result is plain frozen
data, because Spark pickles it to other processes.

Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition, parse_endpoints
from barnabas.protocol.suggestions import suggestion

LATEST: Final = -1
EARLIEST: Final = -2
"""The two ends of a partition in Spark's JSON offsets."""

_SERVERS: Final = "bootstrap.servers"
_KAFKA_SERVERS: Final = "kafka.bootstrap.servers"
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
OPTIONS: Final = (
    _SERVERS,
    _KAFKA_SERVERS,
    *_SELECTIONS,
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
)

PartitionOffsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The topics or partitions to read; exactly one of `topics`, `topic_pattern` and `partitions` is given.

    Offsets None mean earliest for the start and latest for the end of every partition; otherwise each
    partition has its own, `EARLIEST` and `LATEST` included.
    """

    bootstrap_servers: str
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None
    starting_offsets: PartitionOffsets | None = None
    ending_offsets: PartitionOffsets | None = None
    min_partitions: int | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of ``spark.read``; raises InvalidConfiguration for the first one that is wrong."""
    options = _by_known_name(given)
    selection = [name for name in _SELECTIONS if name in options]
    if len(selection) != 1:
        found = " and ".join(selection) or "none"
        raise InvalidConfiguration(
            f"expected exactly one of the options {', '.join(_SELECTIONS)}; found {found}"
        )
    return SourceOptions(
        bootstrap_servers=_servers(options),
        topics=_topics(options),
        topic_pattern=_pattern(options),
        partitions=_partitions(options),
        starting_offsets=_offsets(options, "startingOffsets", "earliest", refused=LATEST),
        ending_offsets=_offsets(options, "endingOffsets", "latest", refused=EARLIEST),
        min_partitions=_positive(options, "minPartitions"),
        include_headers=_flag(options, "includeHeaders", default=False),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
    )


def _by_known_name(given: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in OPTIONS}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            hint = suggestion(name, OPTIONS)
            raise InvalidConfiguration(f"option {name!r} is unknown to the barnabas source{hint}")
        options[known[name.lower()]] = value
    return options


def _servers(options: Mapping[str, str]) -> str:
    values = {options[name] for name in (_SERVERS, _KAFKA_SERVERS) if name in options}
    if not values:
        raise InvalidConfiguration(f"option {_SERVERS!r} is missing; expected host:port[,host:port…]")
    if len(values) > 1:
        raise InvalidConfiguration(f"options {_SERVERS!r} and {_KAFKA_SERVERS!r} differ; give one of them")
    (servers,) = values
    try:
        parse_endpoints(servers)
    except ValueError as error:
        raise InvalidConfiguration(f"option {_SERVERS!r}: {error}") from None
    return servers


def _topics(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("subscribe")
    if text is None:
        return None
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise InvalidConfiguration(f"option 'subscribe' is {text!r}; expected topic[,topic…]")
    return topics


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("subscribePattern")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidConfiguration(
            f"option 'subscribePattern' is {pattern!r}; expected a regular expression: {error}"
        ) from None
    if not pattern:
        raise InvalidConfiguration("option 'subscribePattern' is empty; expected a regular expression")
    return pattern


def _partitions(options: Mapping[str, str]) -> tuple[TopicPartition, ...] | None:
    text = options.get("assign")
    if text is None:
        return None
    expected = 'JSON such as {"topic":[0,1]}'
    found: dict[TopicPartition, None] = {}
    for topic, indexes in _json_object("assign", text, expected).items():
        if not isinstance(indexes, list):
            raise _wrong("assign", text, expected)
        for index in indexes:
            if type(index) is not int or index < 0:
                raise _wrong("assign", text, expected)
            found[TopicPartition(topic, index)] = None
    if not found:
        raise _wrong("assign", text, expected)
    return tuple(found)


def _offsets(options: Mapping[str, str], name: str, default: str, *, refused: int) -> PartitionOffsets | None:
    """The offsets of one end; `refused` is the special value that is invalid for this end of a batch."""
    text = options.get(name, default).strip()
    expected = f'{default} or JSON such as {{"topic":{{"0":23,"1":{LATEST + EARLIEST - refused}}}}}'
    if text.lower() == default:
        return None
    if text.lower() in ("earliest", "latest"):
        raise InvalidConfiguration(f"option {name!r} cannot be {text!r} in a batch read; expected {expected}")
    found: PartitionOffsets = {}
    for topic, by_index in _json_object(name, text, expected).items():
        if not isinstance(by_index, dict):
            raise _wrong(name, text, expected)
        for index, offset in by_index.items():
            if not index.isdecimal() or type(offset) is not int or offset < EARLIEST:
                raise _wrong(name, text, expected)
            if offset == refused:
                raise InvalidConfiguration(
                    f"option {name!r} has {offset} for {topic}-{index}, which a batch read cannot "
                    f"{'start' if refused == LATEST else 'end'} at; expected {expected}"
                )
            found[TopicPartition(topic, int(index))] = offset
    return found


def _json_object(name: str, text: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise _wrong(name, text, expected) from None
    if not isinstance(found, dict):
        raise _wrong(name, text, expected)
    return found


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise _wrong(name, text, "a whole number from 1")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise _wrong(name, text, "true or false")
    return text.strip().lower() == "true"


def _wrong(name: str, text: str, expected: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"option {name!r} is {text!r}; expected {expected}")
